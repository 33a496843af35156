"""Test what the merger reports of repositories that it waits for."""

from __future__ import annotations

import asyncio

import msgspec

from headgate.base.ids import fresh
from headgate.base.tasks import run_until
from headgate.gate.state.works import CatAnswer, CatRequest, MergerAnswer, MergerWork
from headgate.map.places import Map
from headgate.ports.work import Unreachable
from headgate.recipes import calls
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.merger import Merger
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import run_virtual

PROJECT = "git/app"


class Away:
    """Imitate `ports.work.GitWork` for a repository that is unreachable for all works except those in `possible`."""

    def __init__(self) -> None:
        self.possible = set[str]()

    async def do(self, work: MergerWork) -> MergerAnswer:
        assert isinstance(work, CatRequest)
        answer = CatAnswer(PROJECT, ok=work.paths[0] in self.possible)
        if not answer.ok:
            raise Unreachable(PROJECT, "cannot be reached", answer)
        return answer


def test_a_repository_is_a_problem_until_nothing_waits_for_it() -> None:
    git = Away()

    async def play() -> None:
        store = Store(MemoryBackend())
        context, stop = Context(store, Mirror(store, Map().path), lambda: 0), asyncio.Event()
        merger = Merger(context, git)
        running = asyncio.ensure_future(
            run_until(stop, context.mirror.run(), merger.membership.serve(merger.run, stop))
        )

        def problems() -> set[str]:
            found = context.members(context.map.components.merger.path).values()
            return {project for record in found for project in record.data.problems}

        async with store.session("caller") as session:

            def call(path: str) -> asyncio.Future[bytes]:
                work = msgspec.json.encode(CatRequest(PROJECT, "local", paths=(path,)))
                meta = {"project": PROJECT, "id": fresh()}
                return asyncio.ensure_future(calls.call(context.merges, session, work, precedence=1, meta=meta))

            first, second = call("first"), call("second")
            await asyncio.sleep(60)
            assert problems() == {PROJECT}
            git.possible.add("first")
            await first
            for _ in range(600):
                await asyncio.sleep(0.1)
                assert problems() == {PROJECT} and not second.done()
            git.possible.add("second")
            await second
            await asyncio.sleep(60)
            assert problems() == set()
        stop.set()
        await running

    run_virtual(play())
