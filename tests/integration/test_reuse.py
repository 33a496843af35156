"""Test jobs with `reuse`, with real merges and the history in a database."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headgate.adapters.sql.history import SqlHistory
from headgate.gate.builds.report import CARRIED
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.ports.history import PastBuild
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories, run_git
from tests.waiting import until

from .conftest import PIPELINES, TENANTS

MORE = """
- job: {name: both, run: jobs/unit, reuse: true, required-projects: [code/api, code/lib]}
- project: {name: ^code/.*, gate: {jobs: [both]}}
"""
REUSING = PIPELINES.replace("    run: jobs/unit\n", "    run: jobs/unit\n    reuse: true\n") + MORE
API, LIB = "git.example/code/api", "git.example/code/lib"


def configured(repositories: Repositories, config: str) -> None:
    repositories.write("config", {"zuul.yaml": config})
    run_git("commit", "-qam", "reuse", at=repositories.work("config"))
    run_git("push", "-q", "origin", "HEAD:master", at=repositories.work("config"))


async def test_a_reset_because_of_another_repository_does_not_affect_jobs_that_do_not_use_it(
    tmp_path: Path, repositories: Repositories
) -> None:
    configured(repositories, REUSING)
    history, go_on, ran = SqlHistory(f"sqlite:///{tmp_path / 'history.db'}"), asyncio.Event(), list[BuildSpec]()

    async def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        broken = spec.change.topic == "broken"
        if spec.pipeline == "gate" and broken:
            await go_on.wait()
        ran.append(spec)
        data = {"from": spec.change.topic}
        result = "FAILURE" if spec.pipeline == "gate" and broken else "SUCCESS"
        return BuildOutcome(spec.build, result, data=data, start_ms=1_000, end_ms=3_000, narrow=spec.job.reuse)

    jobs = {"unit": unit, "both": unit}
    async with gate(
        tmp_path, repositories.hub, MemoryBackend(), TENANTS, jobs, recording=history, history=history
    ) as run:
        await run.looked_at(API, LIB)
        repositories.propose("code/api", "broken", {"a": "x\n"})
        good = repositories.propose("code/lib", "good", {"a": "x\n"})
        await until("checked", lambda: len(ran) == 2)
        ran.clear()
        for name, topic in (("code/api", "broken"), ("code/lib", "good")):
            repositories.approve(name, topic)
            await in_gate(run, topic)
        await until("what does not wait has passed", lambda: len(ran) == 2)
        assert {(spec.change.topic, spec.job.name) for spec in ran} == {("good", "unit"), ("good", "both")}
        (first,) = (spec.build for spec in ran if spec.job.name == "unit")
        ran.clear()
        go_on.set()
        await until("it has landed", lambda: repositories.show("code/lib", "README") != "" and landed(repositories))
        again = [spec.job.name for spec in ran if spec.change.topic == "good"]
        assert again == ["both"], "of the two only this one has the repository whose change failed"
        await until("it is told", lambda: "gate" in repositories.note("code/lib", good))
        assert f"unit : SUCCESS (reused build {first})" in repositories.note("code/lib", good)
    history.close()


async def test_a_build_that_runs_when_another_repository_fails_continues_and_its_change_lands(
    tmp_path: Path, repositories: Repositories
) -> None:
    configured(repositories, REUSING)
    history, fails, ends = SqlHistory(f"sqlite:///{tmp_path / 'history.db'}"), asyncio.Event(), asyncio.Event()

    async def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        if spec.pipeline == "gate":
            await (fails if spec.change.topic == "broken" else ends).wait()
        result = "FAILURE" if spec.pipeline == "gate" and spec.change.topic == "broken" else "SUCCESS"
        return BuildOutcome(spec.build, result, start_ms=1_000, end_ms=3_000, narrow=spec.job.reuse)

    jobs = {"unit": unit, "both": unit}
    async with gate(
        tmp_path, repositories.hub, MemoryBackend(), TENANTS, jobs, recording=history, history=history
    ) as run:
        await run.looked_at(API, LIB)
        repositories.propose("code/api", "broken", {"a": "x\n"})
        good = repositories.propose("code/lib", "good", {"a": "x\n"})
        await run.runner.begun(2)
        for name, topic in (("code/api", "broken"), ("code/lib", "good")):
            repositories.approve(name, topic)
            await in_gate(run, topic)
        await run.runner.begun(6)
        of = {(s.change.topic, s.job.name): s.build for s in run.runner.ran if s.pipeline == "gate"}
        fails.set()
        await run.runner.begun(7)
        again = [spec.job.name for spec in run.runner.ran[6:]]
        ends.set()
        await until("it has landed", lambda: landed(repositories))
        assert again == ["both"] and len(run.runner.ran) == 7, "the other one was not begun anew"
        await until("it is told", lambda: "gate" in repositories.note("code/lib", good))
        note = repositories.note("code/lib", good)
        assert f"- unit : SUCCESS ({CARRIED})" in note and note.count(CARRIED) == 1

        def stored() -> dict[str, str]:
            return {e.path: e.value.decode() for e in run.context.mirror.under(run.context.map.tenant("example").path)}

        await until("nothing is left of it", lambda: not any("/item/" in path for path in stored()))

        async def final() -> PastBuild | None:
            found = await history.build("example", of["good", "unit"])
            return found if found is not None and found.final else None

        page = await until("its build is final", final)
        assert page.result == "SUCCESS" and page.error_detail == CARRIED
    history.close()


async def test_a_repeated_check_runs_only_failed_jobs(tmp_path: Path, repositories: Repositories) -> None:
    configured(repositories, REUSING + "- project: {name: ^code/.*, check: {jobs: [both]}}\n")
    history, flaky = SqlHistory(f"sqlite:///{tmp_path / 'history.db'}"), [True]

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        result = "FAILURE" if spec.job.name == "both" and flaky[0] else "SUCCESS"
        return BuildOutcome(spec.build, result, start_ms=1_000, end_ms=3_000, narrow=spec.job.reuse)

    jobs = {"unit": unit, "both": unit}
    async with gate(
        tmp_path, repositories.hub, MemoryBackend(), TENANTS, jobs, recording=history, history=history
    ) as run:
        await run.looked_at(API, LIB)
        commit = repositories.propose("code/lib", "flaky", {"a": "x\n"})
        await until("it has failed", lambda: "failed" in repositories.note("code/lib", commit))
        assert sorted(spec.job.name for spec in run.runner.ran) == ["both", "unit"]
        flaky[0] = False
        repositories.propose("code/api", "beside", {"b": "y\n"})
        await run.runner.begun(4)
        run_git("push", "-q", "origin", f"{commit}:refs/recheck/master/flaky", at=repositories.work("code/lib"))
        await until("it has passed", lambda: "(reused build" in repositories.note("code/lib", commit))
        again = [spec.job.name for spec in run.runner.ran if spec.change.topic == "flaky"][2:]
        assert again == ["both"] and "failed" not in repositories.note("code/lib", commit)
    history.close()


async def in_gate(run: Gate, topic: str) -> None:
    """Wait until its jobs are requested."""
    items = run.context.map.tenant("example").pipeline("gate").path
    found = f'"topic":"{topic}"'.encode()
    mirror = run.context.mirror
    async with asyncio.timeout(DEADLINE_S):
        while not any(found in entry.value for entry in mirror.under(items)):
            await mirror.moved(mirror.moves)


def landed(repositories: Repositories) -> bool:
    return "a" in run_git("ls-tree", "--name-only", "master", at=repositories.hub / "code/lib").split()
