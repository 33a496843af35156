"""Test that proposers cannot influence reuse: neither their builds nor their claims count in the gate."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.adapters.sql.history import SqlHistory
from headgate.config.model import FrozenJob
from headgate.gate.builds.carry import CARRIED_MAX, CARRIED_MAX_MS
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import Gate, gate
from headgate.testing.plays import Play
from headgate.testing.repositories import Repositories, run_git
from tests.waiting import until

PIPELINES = """
- pipeline:
    name: check
    manager: independent
    trigger: {local: [{event: change-proposed}]}
    success: {local: {}}
    failure: {local: {}}
    config-error: {local: {}}
- pipeline:
    name: gate
    manager: dependent
    post-review: true
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
    config-error: {local: {}}
- job: {name: base, parent: null, abstract: true}
- job: {name: unit, run: jobs/unit, reuse: true}
- job: {name: fresh, run: jobs/unit, attribute-control: {reuse: {final: true}}}
- project: {name: ^code/.*, check: {jobs: [unit, fresh]}, gate: {jobs: [unit, fresh]}}
"""
TENANTS = """
- tenant:
    name: example
    source: {local: {config-projects: [config], untrusted-projects: [code/evil, code/other]}}
"""
FORCED = "- project: {check: {jobs: [fresh: {reuse: true}]}}\n"
BEHIND, EVIL = "git.example/code/other", "git.example/code/evil"


def lies(spec: BuildSpec, state: RepoState) -> BuildOutcome:
    """In check a job claims whatever helps; in the gate it fails."""
    if spec.pipeline == "gate" and spec.job.name == "unit" and spec.change.topic == "evil":
        return BuildOutcome(spec.build, "FAILURE", narrow=spec.job.reuse)
    data = {"reused": "yes", "zuul": {"log_url": "https://evil.example/", "warnings": ["reused build 1"]}}
    return BuildOutcome(spec.build, "SUCCESS", data=data, start_ms=1, end_ms=2, narrow=spec.job.reuse)


@pytest.mark.long
async def test_builds_of_a_proposal_are_not_reused_in_the_gate(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\n"})
    for name in ("code/evil", "code/other"):
        repositories.create(name, {"README": "here\n"})
    history = SqlHistory(f"sqlite:///{tmp_path / 'history.db'}")
    jobs = {"unit": lies, "fresh": lies}
    async with gate(
        tmp_path, repositories.hub, MemoryBackend(), TENANTS, jobs, recording=history, history=history
    ) as run:
        await run.looked_at(EVIL, BEHIND)
        evil = repositories.propose("code/evil", "evil", {"a": "x\n"})
        await noted(repositories, "code/evil", evil, "check", "succeeded")
        run_git("push", "-q", "origin", f"{evil}:refs/recheck/master/evil", at=repositories.work("code/evil"))
        await ran(run, 3)
        assert [spec.job.name for spec in run.runner.ran[2:]] == ["fresh"], "his own check stands for his own check"
        await noted(repositories, "code/evil", evil, "check", "(reused build")
        repositories.approve("code/evil", "evil")
        await noted(repositories, "code/evil", evil, "gate", "failed")
        in_gate = [spec.job.name for spec in run.runner.ran if spec.pipeline == "gate"]
        assert sorted(in_gate) == ["fresh", "unit"] and repositories.head("code/evil") != evil

        copied = repositories.propose("code/evil", "copy", {"a": "x\n"}, message="evil, once more")
        await ran(run, 7)
        await noted(repositories, "code/evil", copied, "check", "succeeded")
        assert sorted(spec.job.name for spec in run.runner.ran if spec.change.topic == "copy") == ["fresh", "unit"]

        forced = repositories.propose("code/evil", "forced", {"zuul.yaml": FORCED})
        await noted(repositories, "code/evil", forced, "check", "may not set it")
        repositories.propose("code/other", "honest", {"a": "y\n"})
        repositories.approve("code/other", "honest")
        await landed(repositories)
    history.close()


@pytest.mark.long
def test_repeated_resets_carry_a_bounded_number_of_builds_for_a_bounded_time() -> None:
    """Somebody proposes failing changes, or withdraws them, at once and repeatedly."""
    jobs = tuple(FrozenJob(name=f"j{n}", reuse=True) for n in range(CARRIED_MAX + 10))
    play = Play(*jobs)
    play.heads = {"p": "1" * 40, "q": "2" * 40}
    for n in range(10):
        play.approve(f"{n}")
    play.propose(play.change("B", project="q"))
    play.approve("B")
    play.merges()
    for n in range(10):
        play.abandon(f"{n}")
        own = [run for run in play.running.values() if run.spec.change.topic == "B"]
        assert len(own) == len(play.item("B").carried) == CARRIED_MAX, "what is kept of an item has an end"
    play._clock += CARRIED_MAX_MS
    play.act()
    assert not play.running and not play.item("B").carried, "and a time"
    play.merges()
    assert len(play.builds) == len(jobs)


async def noted(repositories: Repositories, name: str, commit: str, pipeline: str, words: str) -> None:
    """Wait until the note on a commit has a section of the pipeline with these words."""

    async def found() -> bool:
        note = await asyncio.to_thread(repositories.note, name, commit)
        return pipeline in note and words in note

    await until(f"{words!r} is in the note of {pipeline}", found)


async def ran(run: Gate, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await run.runner.begun(count)


async def landed(repositories: Repositories) -> None:
    def found() -> bool:
        return "a" in run_git("ls-tree", "--name-only", "master", at=repositories.hub / "code/other").split()

    await until("it has landed", found, every_s=0.05)
