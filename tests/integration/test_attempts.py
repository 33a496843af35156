"""Test the complete history of a change: attempts, resets and their cost, from real merges to the database."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from headgate.adapters.sql.history import SqlHistory
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.ports.history import HistoryQuery, PastBuild, PastBuildset
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories, run_git
from tests.waiting import until

from .conftest import TENANTS

EVERY = HistoryQuery(limit=100)
API = "git.example/code/api"


async def ended(history: SqlHistory, count: int, **equal: str) -> list[PastBuildset]:
    """Wait until there are so many."""
    question = HistoryQuery({name: (value,) for name, value in equal.items()}, limit=100)

    async def found() -> list[PastBuildset]:
        known = await history.buildsets("example", question)
        return known if len(known) >= count else []

    return await until(f"{count} have ended", found)


async def test_every_attempt_is_in_the_history_and_a_job_that_fails_and_passes_on_one_tree_is_flaky(
    tmp_path: Path, repositories: Repositories
) -> None:
    tries, history = Counter[str](), SqlHistory(f"sqlite:///{tmp_path / 'history.db'}")

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        """The machine is lost first, then the job fails, and then it passes."""
        tries[spec.change.topic] += 1
        result = {1: None, 2: "FAILURE"}.get(tries[spec.change.topic], "SUCCESS")
        error = "" if result else "its machine is gone"
        began_ms = 10_000 * tries[spec.change.topic]
        return BuildOutcome(build=spec.build, result=result, error=error, start_ms=began_ms, end_ms=began_ms + 2_000)

    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, {"unit": unit}, recording=history):
        commit = repositories.propose("code/api", "one", {"a": "x\n"})
        await ended(history, 1, pipeline="check", result="FAILURE")
        run_git("push", "-q", "origin", f"{commit}:refs/recheck/master/one", at=repositories.work("code/api"))
        await ended(history, 1, pipeline="check", result="SUCCESS")
        builds = sorted(await history.builds("example", EVERY), key=lambda b: (b.event_timestamp or "", b.attempt))
    found = [(b.result, b.final, b.attempt, b.error_detail, b.duration) for b in builds]
    assert sorted(found, key=str) == sorted(
        [
            ("RETRY", False, 1, "its machine is gone", 2.0),
            ("FAILURE", True, 2, None, 2.0),
            ("SUCCESS", True, 1, None, 2.0),
        ],
        key=str,
    )
    [health] = await history.job_health("example", EVERY, 0)
    figures = (
        health.project,
        health.job_name,
        health.builds,
        health.failed,
        health.trees,
        health.flaky,
        health.retried,
    )
    assert figures == (API, "unit", 2, 1, 1, 1, 1)
    history.close()


async def test_builds_stopped_by_a_failing_change_ahead_are_in_the_history_as_dequeued(
    tmp_path: Path, repositories: Repositories
) -> None:
    history, held = SqlHistory(f"sqlite:///{tmp_path / 'history.db'}"), asyncio.Event()

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        bad = spec.change.topic == "bad" and spec.pipeline == "gate"
        return BuildOutcome(build=spec.build, result="FAILURE" if bad else "SUCCESS", start_ms=1_000, end_ms=3_000)

    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, {"unit": unit}, recording=history) as run:
        for topic in ("bad", "good"):
            repositories.propose("code/api", topic, {topic: "x\n"})
        await ended(history, 2, pipeline="check")
        run.runner.hold = held
        for number, topic in enumerate(("bad", "good"), 1):
            repositories.approve("code/api", topic)
            async with asyncio.timeout(DEADLINE_S):  # both are tested before the first one ends
                while (
                    sum(one.request.state == "running" for one in run.context.builds.open(run.context.mirror)) < number
                ):
                    await run.context.mirror.moved(run.context.mirror.moves)
        held.set()
        landed = await ended(history, 1, pipeline="gate", result="SUCCESS")
        [given_up] = await ended(history, 1, pipeline="gate", result="DEQUEUED")
        buildset = await history.buildset("example", given_up.uuid)
        [cost] = [c for c in await history.reset_costs("example", EVERY, 0) if c.pipeline == "gate"]
    assert landed[0].refs[0].change == given_up.refs[0].change == "good" and given_up.message
    assert (landed[0].final, given_up.final) == (True, False)
    assert buildset is not None and buildset.builds
    assert [reachable(build) for build in buildset.builds] == [("unit", False, True)]
    assert (cost.buildsets, cost.resets, cost.builds_lost) == (3, 1, 1) and cost.seconds_lost > 0
    history.close()


def reachable(build: PastBuild) -> tuple[str, bool, bool]:
    """Job, whether it counts, whether its begin and end are known."""
    return build.job_name, build.final, bool(build.start_time and build.end_time)
