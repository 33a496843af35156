"""Test further settings of pipelines, on real repositories."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories, run_git

from .conftest import PIPELINES, TENANTS

REPORTERS = "    enqueue: {local: {}}\n    dequeue: {local: {}}\n    dequeue-message: Taken over.\n"
SUPERSEDING = PIPELINES.replace(
    "    manager: dependent\n", "    manager: dependent\n    supercedes: [check, nowhere]\n"
)
DISABLED = "    disable-after-consecutive-failures: 1\n    failure-message: It failed.\n"


def with_keys(text: str, more: str) -> str:
    """Add keys to the first pipeline of the configuration."""
    return text.replace("    manager: independent\n", f"    manager: independent\n{more}", 1)


async def quiet(running: Gate) -> None:
    """Wait until no merger request is left: all reports are written."""
    context = running.context
    async with asyncio.timeout(DEADLINE_S):
        while context.merges.open(context.mirror):
            await context.mirror.moved(context.mirror.moves)


async def test_the_gate_takes_a_change_out_of_the_pipeline_it_supersedes(
    tmp_path: Path, repositories: Repositories
) -> None:
    repositories.create("superseding", {"zuul.yaml": with_keys(SUPERSEDING, REPORTERS), "jobs/unit": "#!/bin/sh\n"})
    tenants = TENANTS.replace("- config\n", "- superseding\n")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants) as running:
        running.runner.hold = asyncio.Event()
        commit = repositories.propose("code/api", "greet", {"hello": "hi\n"})
        await running.runner.begun(1)
        repositories.approve("code/api", "greet")
        assert (await running.history.result_of("greet", "check")).result == "DEQUEUED"
        running.runner.hold.set()
        assert (await running.history.result_of("greet", "gate")).result == "SUCCESS"
        await quiet(running)
        assert "Taken over." in repositories.note("code/api", commit)


async def test_a_disabled_pipeline_sends_no_reports(tmp_path: Path, repositories: Repositories) -> None:
    def fails(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        return BuildOutcome(build=spec.build, result="FAILURE")

    repositories.create("weary", {"zuul.yaml": with_keys(PIPELINES, DISABLED), "jobs/unit": "#!/bin/sh\n"})
    tenants = TENANTS.replace("- config\n", "- weary\n")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants, {"unit": fails}) as running:
        one = repositories.propose("code/api", "one", {"one": "1\n"})
        assert (await running.history.result_of("one", "check")).result == "FAILURE"
        two = repositories.propose("code/api", "two", {"two": "2\n"})
        assert (await running.history.result_of("two", "check")).result == "FAILURE"
        await quiet(running)
        assert "It failed." in repositories.note("code/api", one)
        assert "It failed." not in repositories.note("code/api", two)


async def test_a_reporter_job_runs_once_the_change_has_landed(tmp_path: Path, repositories: Repositories) -> None:
    seen: list[str] = []

    def tells(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        seen.append(repositories.show("code/api", "hello"))
        return BuildOutcome(build=spec.build, result="SUCCESS")

    reporter = (
        "- job: {name: tell, run: jobs/unit, type: reporter}\n- project: {name: code/api, gate: {jobs: [tell]}}\n"
    )
    repositories.create("reporting", {"zuul.yaml": f"{PIPELINES}\n{reporter}", "jobs/unit": "#!/bin/sh\n"})
    tenants = TENANTS.replace("- config\n", "- reporting\n")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants, {"tell": tells}) as running:
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        repositories.approve("code/api", "greet")
        landed = await running.history.result_of("greet", "gate")
        assert [build.job_name for build in landed.builds] == ["unit"]
        async with asyncio.timeout(DEADLINE_S):
            while not any(b.job_name == "tell" for one in running.history.finished.values() for b in one.builds):
                running.history.changed.clear()
                await running.history.changed.wait()
        assert seen == ["hi"]


SHARING = """
- global-semaphore: {name: crane, max: 1}
- tenant:
    name: one
    semaphores: [crane]
    source: {local: {config-projects: [lifting], untrusted-projects: [code/api]}}
- tenant:
    name: two
    semaphores: [crane]
    source: {local: {config-projects: [lifting], untrusted-projects: [code/lib]}}
"""


async def test_a_global_semaphore_is_one_for_all_tenants(tmp_path: Path, repositories: Repositories) -> None:
    lifting = PIPELINES.replace("    run: jobs/unit\n", "    run: jobs/unit\n    semaphore: crane\n")
    repositories.create("lifting", {"zuul.yaml": lifting, "jobs/unit": "#!/bin/sh\n"})
    async with gate(tmp_path, repositories.hub, MemoryBackend(), SHARING) as running:
        running.runner.hold = asyncio.Event()
        repositories.propose("code/api", "here", {"hello": "hi\n"})
        await running.runner.begun(1)
        repositories.propose("code/lib", "there", {"hello": "hi\n"})
        places, mirror = running.context.map.tenant("two").pipeline("check"), running.context.mirror
        async with asyncio.timeout(DEADLINE_S):
            while not any("/job/" in entry.path for entry in mirror.under(places.path)):
                await mirror.moved(mirror.moves)
        await quiet(running)
        assert len(running.runner.ran) == 1
        running.runner.hold.set()
        assert {(await running.history.result_of(name, "check")).result for name in ("here", "there")} == {"SUCCESS"}
        assert not running.context.mirror.under(running.context.map.semaphores("one").path)


@pytest.mark.long
async def test_a_timer_puts_every_branch_that_has_jobs_into_its_pipeline(
    tmp_path: Path, repositories: Repositories
) -> None:
    periodic = "- pipeline: {name: often, manager: independent, trigger: {timer: [{time: '* * * * * *'}]}}\n"
    attached = "- project: {name: code/api, often: {jobs: [unit]}}\n"
    repositories.create("timed", {"zuul.yaml": f"{PIPELINES}\n{periodic}{attached}", "jobs/unit": "#!/bin/sh\n"})
    tenants = TENANTS.replace("- config\n", "- timed\n")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants) as running:
        finished = await running.history.result_of("", "often")
        assert (finished.result, finished.change.ref) == ("SUCCESS", "refs/heads/master")
        assert finished.change.commit == repositories.head("code/api")
        assert {one.change.project for one in running.history.finished.values()} == {"git.example/code/api"}


@pytest.mark.long
async def test_many_changes_abandoned_together_leave_in_turns_that_fit_into_a_commit(
    tmp_path: Path, repositories: Repositories
) -> None:
    repositories.create("reporting", {"zuul.yaml": with_keys(PIPELINES, REPORTERS), "jobs/unit": "#!/bin/sh\n"})
    tenants, many = TENANTS.replace("- config\n", "- reporting\n"), [f"t{n}" for n in range(45)]
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants) as running:
        running.runner.hold = asyncio.Event()
        repositories.propose("code/api", "first", {"hello": "hi\n"})
        work = repositories.work("code/api")
        run_git("push", "-q", "origin", *(f"HEAD:refs/for/master/{topic}" for topic in many), at=work)
        context = running.context
        async with asyncio.timeout(DEADLINE_S):
            while len(context.builds.open(context.mirror)) < len(many) + 1:
                await context.mirror.moved(context.mirror.moves)
        run_git("push", "-q", "origin", *(f":refs/for/master/{topic}" for topic in many), at=work)
        for topic in many:
            assert (await running.history.result_of(topic, "check")).result == "DEQUEUED"
        running.runner.hold.set()
        assert (await running.history.result_of("first", "check")).result == "SUCCESS"
        await quiet(running)


@pytest.mark.long
async def test_a_gate_that_requires_check_takes_changes_that_passed_it_in_any_order(
    tmp_path: Path, repositories: Repositories
) -> None:
    fails = True

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        bad = fails and spec.change.topic == "late" and spec.pipeline == "check"
        return BuildOutcome(build=spec.build, result="FAILURE" if bad else "SUCCESS")

    asking = PIPELINES.replace("        approved: true\n", "        approved: true\n        check: success\n")
    repositories.create("asking", {"zuul.yaml": asking, "jobs/unit": "#!/bin/sh\n"})
    tenants = TENANTS.replace("- config\n", "- asking\n")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants, {"unit": unit}) as running:
        repositories.propose("code/api", "first", {"one": "1\n"})
        assert (await running.history.result_of("first", "check")).result == "SUCCESS"
        repositories.approve(
            "code/api", "first"
        )  # its state is written again, and the result of check is not forgotten
        assert (await running.history.result_of("first", "gate")).result == "SUCCESS"

        running.runner.hold = asyncio.Event()
        late = repositories.propose("code/api", "late", {"two": "2\n"})
        repositories.approve("code/api", "late")
        repositories.propose("code/lib", "early", {"three": "3\n"})
        repositories.approve("code/lib", "early")
        await running.runner.begun(4)
        running.runner.hold.set()
        assert (await running.history.result_of("early", "gate")).result == "SUCCESS", "approved before it was checked"
        assert (await running.history.result_of("late", "check")).result == "FAILURE"
        await quiet(running)
        assert "check has not reported success on this patchset" in repositories.note("code/api", late)
        assert [spec.pipeline for spec in running.runner.ran if spec.change.topic == "late"] == ["check"]
        fails = False
        run_git("push", "-q", "origin", f"{late}:refs/recheck/master/late", at=repositories.work("code/api"))
        assert (await running.history.result_of("late", "gate")).result == "SUCCESS"
