"""Test requests for another test: by a ref that Headgate removes after it has reported it."""

from __future__ import annotations

import asyncio

from headgate.base.tasks import end
from headgate.gate.state.change import EventKind
from headgate.testing.repositories import Repositories, run_git
from tests.waiting import until

from .words import PROJECT, Watch, refs, watching

RECHECK = "refs/recheck/master/one"


def ask(repositories: Repositories, commit: str, ref: str = RECHECK) -> None:
    run_git("push", "-q", "-f", "origin", f"{commit}:{ref}", at=repositories.work("code"))


async def gone(repositories: Repositories, ref: str = RECHECK) -> None:
    await until("the ref is gone", lambda: ref not in refs(repositories))


async def kinds(watch: Watch) -> list[EventKind]:
    """Return the events of the next sighting that has any."""
    while True:
        if events := (await watch.next()).events:
            return [event.kind for event in events]


async def test_a_recheck_is_reported_like_the_first_run_and_its_ref_goes(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"a": "1\n"})
    async with watching(repositories) as watch:
        assert await kinds(watch) == [EventKind.PROPOSED]
        ask(repositories, commit)
        assert await kinds(watch) == [EventKind.PROPOSED]
        repositories.approve("code", "one")
        assert await kinds(watch) == [EventKind.APPROVED]
        assert RECHECK not in refs(repositories)
        ask(repositories, commit)
        assert await kinds(watch) == [EventKind.PROPOSED, EventKind.APPROVED]
        waiting = asyncio.ensure_future(watch.next())
        await gone(repositories)
        await end(waiting)
        assert watch.known[f"{PROJECT}/master/one"].change.commit == commit


async def test_a_recheck_with_a_proposal_causes_one_event(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"a": "1\n"})
    ask(repositories, commit)
    async with watching(repositories) as watch:
        assert await kinds(watch) == [EventKind.PROPOSED]
        waiting = asyncio.ensure_future(watch.next())
        await gone(repositories)
        await end(waiting)


async def test_a_recheck_of_nothing_is_reported_on_the_page(repositories: Repositories) -> None:
    ask(repositories, repositories.head("code"), "refs/recheck/master/ghost")
    async with watching(repositories) as watch:
        assert "no such change to test again" in await watch.until_problem("refs/recheck/master/ghost")


async def test_a_server_that_does_not_delete_the_ref_causes_no_endless_retests(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"a": "1\n"})
    async with watching(repositories) as watch:
        assert await kinds(watch) == [EventKind.PROPOSED]
        hook = repositories.hub / "code" / "hooks" / "update"
        ask(repositories, commit)
        hook.write_text("#!/bin/sh\nexit 1\n")
        hook.chmod(0o755)
        assert await kinds(watch) == [EventKind.PROPOSED]
        assert "the server keeps the ref" in await watch.until_problem(RECHECK)
        assert len(watch.events) == 2, "of the proposal and of the other try"
        run_git("update-ref", "-d", RECHECK, at=repositories.hub / "code")
        await watch.until_problem("")
        hook.unlink()
        watch.events.clear()
        ask(repositories, commit)
        await watch.until(EventKind.PROPOSED)
