"""Test the lookup of what ended changes provided, in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from headgate.gate.state.change import Change
from headgate.gate.state.returns import ReturnedArtifact
from headgate.map.places import Map
from headgate.map.records import Finished, FinishedBuild
from headgate.ports import history as past_of
from headgate.ports.history import HistoryQuery, HistoryUnavailable, PastBuild, PastBuildset, PastRef
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.scheduler.verdicts import PipelinePast
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import run_virtual

CHANGE = Change("git", "h/p", "master", "A", "a" * 40, ref="refs/for/master/A")
REF = PastRef("h/p", "master", "A", "a" * 40, CHANGE.ref, None, None)


@dataclass
class History:
    """Imitate a history of one buildset that is unavailable at first."""

    result: str
    away: int = 0
    queries: list[HistoryQuery] = field(default_factory=list)

    async def buildsets(self, tenant: str, question: HistoryQuery) -> list[PastBuildset]:
        self.queries.append(question)
        if self.away:
            self.away -= 1
            raise HistoryUnavailable("it is away")
        return [self._buildset()] if self.result else []

    async def buildset(self, tenant: str, uuid: str) -> PastBuildset | None:
        return self._buildset()

    async def works(self, tenant: str, buildset: str) -> dict[str, str]:
        return {"b1": "digest"} if buildset == "s1" else {}

    def _buildset(self) -> PastBuildset:
        build = PastBuild(
            id=1, uuid="b1", job_name="image", result=self.result, ref=REF, pipeline="check",
            artifacts=(past_of.Artifact("image", "http://kept"),), provides=(past_of.Provided("images"),),
            log_url="http://logs", buildset=past_of.InBuildset("s1"),
        )  # fmt: skip
        return PastBuildset(
            id=1, uuid="s1", result="SUCCESS", message="", pipeline="check", refs=(REF,), builds=(build,)
        )


def looked(history: History, body: Callable[[PipelinePast, Context, list[str]], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        store = Store(MemoryBackend())
        mirror = Mirror(store, Map().path)
        context = Context(store, mirror, lambda: 0, history=history)  # type: ignore[arg-type]  # all that is used of it
        task, stirred = asyncio.ensure_future(context.mirror.run()), list[str]()
        await context.mirror.ready()
        async with PipelinePast(context, "t", "check", lambda: stirred.append("now")) as past:
            await body(past, context, stirred)
        task.cancel()

    run_virtual(main())


async def answer(past: PipelinePast) -> tuple[list[str], list[str | None]]:
    """Return names of the jobs and their results, asked in turns until there is an answer."""
    while (found := past.of(CHANGE)) is None:
        past.look()
        await asyncio.sleep(1)
    return [job.name for job in found.jobs], [build.result for build in found.builds.values()]


def test_a_turn_continues_without_the_answer_and_a_later_one_receives_it() -> None:
    async def body(past: PipelinePast, context: Context, stirred: list[str]) -> None:
        assert past.of(CHANGE) is None and past.answered == 0
        past.look()
        await asyncio.sleep(1)
        assert stirred == ["now"] and past.answered == 1
        found = past.of(CHANGE)
        assert found is not None and found.jobs[0].provides == ("images",)
        assert found.builds["image"].data == {"zuul": {"artifacts": [{"name": "image", "url": "http://kept"}]}}
        assert (found.builds["image"].work, found.builds["image"].log_url) == ("digest", "http://logs")
        past.look()
        past.look()
        assert past.of(CHANGE) is None, "what a turn did not ask for is asked anew: it may be another then"

    history = History("SUCCESS")
    looked(history, body)
    (query,) = history.queries
    assert query.equal["patchset"] == ("a" * 40,) and query.unequal == {"result": ("DEQUEUED",)}


def test_results_not_yet_recorded_are_newer_than_the_history() -> None:
    async def body(past: PipelinePast, context: Context, stirred: list[str]) -> None:
        build = FinishedBuild(
            uuid="b2",
            job_name="image",
            result="FAILURE",
            provides=("images",),
            artifacts=(ReturnedArtifact("x", "http://x"),),
            log_url="http://l",
            work="digest",
        )
        place = context.map.history.stream
        for result, builds in (("FAILURE", (build,)), ("DEQUEUED", ())):
            finished = Finished("s2", "t", "check", CHANGE, "e", result, "", 0, 0, builds)
            written = await context.store.commit([], place.append(finished))
            for entry in written:
                if entry is not None:
                    await context.mirror.reached(entry.path, entry.version)
        assert await answer(past) == (["image"], ["FAILURE"])
        found = past.of(CHANGE)
        assert found is not None
        assert (found.builds["image"].work, found.builds["image"].log_url) == ("digest", "http://l")

    history = History("SUCCESS")
    looked(history, body)
    assert history.queries == []


def test_a_turn_waits_for_an_unavailable_history_and_knows_about_it() -> None:
    async def body(past: PipelinePast, context: Context, stirred: list[str]) -> None:
        past.of(CHANGE)
        past.look()
        await asyncio.sleep(1)
        assert (past.away, past.answered, stirred) == (True, 1, ["now"])
        assert await answer(past) == (["image"], ["SUCCESS"])
        assert (past.away, past.answered, stirred) == (False, 2, ["now", "now"])

    history = History("SUCCESS", away=3)
    looked(history, body)
    assert len(history.queries) == 4


def test_a_change_that_was_never_tested_has_no_artifacts_in_the_history() -> None:
    async def body(past: PipelinePast, context: Context, stirred: list[str]) -> None:
        assert await answer(past) == ([], [])

    looked(History(""), body)
