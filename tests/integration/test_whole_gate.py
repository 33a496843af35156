"""The whole gate on real repositories, jobs aside."""

from __future__ import annotations

from pathlib import Path

from headgate.gate.work import BuildOutcome, BuildSpec, RepoState
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories

from .conftest import PIPELINES, TENANTS


async def test_a_proposed_change_is_checked_and_an_approved_one_lands(
    tmp_path: Path, repositories: Repositories
) -> None:
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as running:
        before = repositories.head("code/api")
        commit = repositories.propose("code/api", "greet", {"hello": "hi\n"}, "Greet people")
        checked = await running.history.result_of("greet", "check")
        assert checked.result == "SUCCESS"
        repositories.approve("code/api", "greet")
        landed = await running.history.result_of("greet", "gate")
        assert landed.result == "SUCCESS"
        assert repositories.head("code/api") != before
        assert repositories.show("code/api", "hello") == "hi"
        assert "Build succeeded." in repositories.note("code/api", commit)


PAUSING = """
- job:
    name: serves
    run: jobs/unit
- job:
    name: uses
    run: jobs/unit
    dependencies: serves
- project:
    name: code/api
    check:
      jobs: [serves, uses]
"""


async def test_a_job_is_paused_until_those_that_use_it_have_ended(tmp_path: Path, repositories: Repositories) -> None:
    told: list[object] = []

    def serves(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        told.append("serves")
        return BuildOutcome(build=spec.build, result="SUCCESS", data={"zuul": {"pause": True}, "port": 8080})

    def uses(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        told.append(spec.parent_data)
        return BuildOutcome(build=spec.build, result="SUCCESS")

    repositories.create("pausing", {"zuul.yaml": PIPELINES + PAUSING, "jobs/unit": "#!/bin/sh\n"})
    tenants = TENANTS.replace("- config\n", "- pausing\n")
    jobs = {"serves": serves, "uses": uses}
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants, jobs) as running:
        repositories.propose("code/api", "greet", {"hello": "hi\n"})
        finished = await running.history.result_of("greet", "check")
        assert finished.result == "SUCCESS" and told == ["serves", {"port": 8080}]
        assert {b["job_name"]: b["result"] for b in finished.builds} == dict.fromkeys(("unit", *jobs), "SUCCESS")
