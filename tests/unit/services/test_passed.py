"""Test the lookup of reusable builds, in pending history entries and in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.gate.builds.reuse import NOTHING
from headgate.gate.state.change import Change
from headgate.gate.state.world import Sought
from headgate.map.keys import KeyPair, KeyStorage, ProjectKeyPairs
from headgate.map.places import Map
from headgate.map.records import Finished, FinishedBuild
from headgate.ports.history import HistoryUnavailable, Passed
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.scheduler.verdicts import SLACK_MS, PassedBuilds
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import run_virtual

CHANGE = Change("git", "h/p", "master", "A", "a" * 40, ref="refs/for/master/A")
DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS


@dataclass
class History:
    """Imitate a history of builds by their inputs."""

    builds: dict[str, Passed] = field(default_factory=dict)
    away: bool = False
    queries: list[list[str]] = field(default_factory=list)

    async def passed(self, tenant: str, inputs: Sequence[str]) -> dict[str, Passed]:
        self.queries.append([tenant, *inputs])
        if self.away:
            raise HistoryUnavailable("it is away")
        return {one: self.builds[one] for one in inputs if one in self.builds}


def a_build(uuid: str, **other: Any) -> Passed:
    return Passed(**{"uuid": uuid, "start_ms": NOW_MS - 2 * DAY_MS, "end_ms": NOW_MS - DAY_MS, **other})


def looked(history: History, body: Callable[[PassedBuilds, Context], Awaitable[None]]) -> None:
    async def main() -> None:
        store = Store(MemoryBackend())
        mirror = Mirror(store, Map().path)
        context = Context(store, mirror, lambda: NOW_MS, history=history)  # type: ignore[arg-type]  # all that is used of it
        task = asyncio.ensure_future(context.mirror.run())
        await context.mirror.ready()
        await body(PassedBuilds(context, "t", lambda: None), context)
        task.cancel()

    run_virtual(main())


async def reusable(passed: PassedBuilds, *sought: Sought) -> list[str]:
    """Return the ids of reusable builds for these inputs, asked in turns until there is an answer."""
    while None in (found := [passed.of(one) for one in sought]):
        passed.look()
        await asyncio.sleep(0.1)
    return [one.id for one in found if one is not None]


def test_all_that_a_turn_asks_for_is_one_question_and_is_forgotten_once_nobody_asks() -> None:
    history = History({"d1": a_build("b1", returned={"v": 1})})

    async def body(passed: PassedBuilds, context: Context) -> None:
        first, second = Sought("d1"), Sought("d2")
        assert await reusable(passed, first, second) == ["b1", ""]
        assert history.queries == [["t", "d1", "d2"]] and passed.answered == 1
        found = passed.of(first)
        assert found is not None and (found.data, found.result) == ({"v": 1}, "SUCCESS")
        assert passed.of(second) == NOTHING
        passed.look()
        passed.look()
        assert passed.of(first) is None

    looked(history, body)


def test_builds_that_are_not_yet_in_the_history_can_be_reused() -> None:
    history = History({"d1": a_build("older")})

    async def body(passed: PassedBuilds, context: Context) -> None:
        for tenant, uuid, inputs in (("t", "fresh", "d1"), ("u", "other", "d2")):
            build = FinishedBuild(uuid=uuid, job_name="unit", result="SUCCESS", inputs=inputs, end_ms=NOW_MS)
            told_of = Finished(f"s{uuid}", tenant, "gate", CHANGE, "e", "", "", 1, 2, builds=(build,))
            await context.store.commit([], context.map.history.stream.append(told_of))
        await asyncio.sleep(1)
        assert await reusable(passed, Sought("d1"), Sought("d2")) == ["fresh", ""]

    looked(history, body)


def test_nothing_waits_for_an_unavailable_history() -> None:
    async def body(passed: PassedBuilds, context: Context) -> None:
        assert await reusable(passed, Sought("d1")) == [""]

    looked(History({"d1": a_build("b1")}, away=True), body)


def test_a_build_older_than_the_stored_logs_is_not_reused() -> None:
    async def body(passed: PassedBuilds, context: Context) -> None:
        context = replace(context, settings=ProcessSettings(logs_retention_ms=2 * DAY_MS))
        passed = PassedBuilds(context, "t", lambda: None)
        assert await reusable(passed, Sought("new"), Sought("old")) == ["b1", ""]

    looked(History({"new": a_build("b1"), "old": a_build("b2", end_ms=NOW_MS - 3 * DAY_MS)}), body)


def test_a_build_older_than_a_key_of_its_secrets_is_not_reused() -> None:
    async def body(passed: PassedBuilds, context: Context) -> None:
        started_ms = NOW_MS - 2 * DAY_MS

        async def key_of(project: str, *made_ms: int) -> None:
            pairs = ProjectKeyPairs(tuple(KeyPair(n, at, "public", "private") for n, at in enumerate(made_ms, 1)))
            place = KeyStorage().connection("git").project(project).secrets
            await context.store.commit([], [place.put(pairs)])

        await key_of("org/kept", started_ms - 2 * SLACK_MS)
        await key_of("org/rotated", started_ms + 5, started_ms - 2 * SLACK_MS)
        keys = {name: ("git", f"h/org/{name}") for name in ("kept", "rotated", "gone")}
        sought = [Sought("d1", (key,)) for key in keys.values()]
        assert await reusable(passed, *sought, Sought("d1", (keys["kept"], keys["gone"]))) == ["b1", "", "", ""]

    looked(History({"d1": a_build("b1")}), body)


def test_data_that_may_no_longer_be_returned_is_not_reused() -> None:
    async def body(passed: PassedBuilds, context: Context) -> None:
        assert await reusable(passed, Sought("d1")) == [""]

    looked(History({"d1": a_build("b1", returned={"zuul": {"log_url": "javascript:1"}})}), body)
