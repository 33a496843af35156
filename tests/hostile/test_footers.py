"""Test footers that name changes which the proposer may not read, and countless footers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headgate.config.forges.footers import FOOTERS_MAX, footers, named
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from tests.waiting import until

PIPELINES = """
- pipeline:
    name: check
    manager: independent
    trigger: {local: [{event: change-proposed}]}
    success: {local: {}}
    failure: {local: {}}
- pipeline:
    name: gate
    manager: dependent
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
- job: {name: unit, parent: null, run: jobs/unit}
- project: {name: ^code/.*, queue: shared, check: {jobs: [unit]}, gate: {jobs: [unit]}}
"""
TENANTS = """
- tenant:
    name: example
    source: {local: {config-projects: [config], untrusted-projects: [code/open]}}
- tenant:
    name: other
    source: {local: {config-projects: [config], untrusted-projects: [code/secret]}}
"""
SECRET = "git.example/code/secret"
FOOTER = f"Depends-On: {SECRET}/master/{{}}\n"


async def test_a_footer_gives_jobs_no_project_of_another_tenant(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\n"})
    for name in ("code/open", "code/secret"):
        repositories.create(name, {"README": "here\n"})
    seen: dict[str, list[set[str]]] = {"example": [], "other": []}

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        seen[spec.tenant].append({*state.heads, *state.merged, *state.connections} | {m.project for m in state.chain})
        return BuildOutcome(build=spec.build, result="SUCCESS")

    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, {"unit": unit}) as run:
        repositories.propose("code/secret", "deepest", {"a": "1\n"}, "hush")
        await run.history.result_of("deepest", "check")
        repositories.propose("code/secret", "named", {"b": "1\n"}, "hush\n\n" + FOOTER.format("deepest"))
        await run.history.result_of("named", "check")
        repositories.propose("code/open", "probe", {"c": "1\n"}, "Look\n\n" + FOOTER.format("named"))
        why = f"Depends-On: {SECRET}/master/named: the tenant does not have its project, so it must land first"
        refused = await run.history.result_of("probe", "check")
        assert why in refused.message and "deepest" not in refused.message, "what that needs is not told"
        assert seen["example"] == [], "it is not tested with it"
        repositories.approve("code/open", "probe")
        refused = await run.history.result_of("probe", "gate")
        assert why in refused.message and seen["example"] == []

        repositories.abandon("code/secret", "named")
        repositories.propose("code/open", "again", {"d": "1\n"}, "Look\n\n" + FOOTER.format("named"))
        again = await run.history.result_of("again", "check")
        assert why in again.message, "nor is told that somebody withdrew it"

        repositories.propose("code/open", "waits", {"e": "1\n"}, "Wait\n\n" + FOOTER.format("deepest"))
        repositories.approve("code/open", "waits")
        await run.history.result_of("waits", "gate")
        before = repositories.head("code/open")
        repositories.approve("code/secret", "deepest")
        await until("it lands once what it needs has landed", lambda: repositories.head("code/open") != before)
        assert {frozenset(one) for one in seen["example"]} == {frozenset(["git.example/code/open"])}


class CountedProjects(frozenset[str]):
    """Count how often all projects are visited."""

    visits = 0

    def __iter__(self) -> Iterator[str]:
        type(self).visits += 1
        return super().__iter__()


def test_footers_cost_as_much_in_an_installation_of_many_projects_as_in_a_small_one() -> None:
    projects = CountedProjects(f"git.example/some/project-{n}" for n in range(1_000))
    message = "".join(f"Depends-On: some/project-{n}/master/other\n" for n in range(FOOTERS_MAX))
    for _ in range(10):
        found = named([*footers(message)], lambda _: "", projects)
        assert len(found.needs) == FOOTERS_MAX and found.needs[7] == "git.example/some/project-7/master/other"
    assert CountedProjects.visits <= 10
