"""Test broken configuration pushed past the gate: the former one stays in force, it is reported, and a repaired one
takes effect, by push or by landing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.config.dynamic import NOT_IN_FORCE
from headgate.map.check import check
from headgate.map.places import Map
from headgate.map.records import LayoutRecord
from headgate.recipes.codec import readable
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories, run_git

from .conftest import PIPELINES, TENANTS

SOUND = PIPELINES + "- project: {name: config, queue: integrated, gate: {jobs: [unit]}}\n"
MENDED = SOUND + "- job: {name: extra, run: jobs/unit}\n- project: {name: code/api, gate: {jobs: [extra]}}\n"
TORN = SOUND.replace("name: gate\n    manager: dep", "name: [gate")
OWN = "- job: {name: own, run: jobs/own}\n- project: {gate: {jobs: [own]}, check: {jobs: [own]}}\n"


def pushed(repositories: Repositories, project: str, files: dict[str, str]) -> str:
    """Push to the branch of a project, past the gate; return the commit."""
    work = repositories.work(project)
    run_git("fetch", "-q", "origin", at=work)
    run_git("checkout", "-q", "--detach", "origin/master", at=work)
    repositories.write(project, files)
    run_git("commit", "-q", "-m", "Configure", at=work)
    run_git("push", "-q", "origin", "HEAD:master", at=work)
    return run_git("rev-parse", "HEAD", at=work)


def record(running: Gate) -> LayoutRecord:
    entry = running.context.mirror.get(running.context.map.layout("example").record.path)
    found = readable(entry, LayoutRecord) if entry is not None else None
    assert found is not None
    return found


def held(running: Gate) -> list[str]:
    """Return the projects with a held branch."""
    return [project.removeprefix("git.example/") for project in record(running).held]


async def lands(
    running: Gate, repositories: Repositories, project: str, topic: str, files: dict[str, str]
) -> list[str]:
    """Return the jobs that it passed."""
    await asyncio.to_thread(repositories.propose, project, topic, files)
    await asyncio.to_thread(repositories.approve, project, topic)
    found = await running.history.result_of(topic, "gate")
    assert found.result == "SUCCESS", found.message
    return sorted(build.job_name for build in found.builds)


@pytest.mark.long
async def test_a_broken_config_project_keeps_its_configuration_until_a_change_repairs_it(
    tmp_path: Path, repositories: Repositories
) -> None:
    backend = MemoryBackend()
    pushed(repositories, "config", {"zuul.yaml": SOUND})
    async with gate(tmp_path, repositories.hub, backend, TENANTS) as running:
        commit = await asyncio.to_thread(pushed, repositories, "config", {"zuul.yaml": TORN})
        await running.until(lambda: held(running) == ["config"])
        layouts = running.scheduler.tenants["example"].layouts
        assert list(layouts.landed.pipelines) == ["check", "gate"] and layouts.landed.errors == ()
        first, *rest = layouts.errors
        assert (first.name, first.project, first.branch) == (NOT_IN_FORCE, "git.example/config", "master")
        assert any(error.path == "zuul.yaml" and error.line for error in rest)
        assert await lands(running, repositories, "code/api", "one", {"one": "x\n"}) == ["unit"]
        await running.until(lambda: not running.context.merges.open(running.context.mirror))
        note = await asyncio.to_thread(repositories.note, "config", commit)
        assert "not in effect" in note and "zuul.yaml:" in note
    async with gate(tmp_path / "later", repositories.hub, backend, TENANTS) as running:
        assert held(running) == ["config"], "whoever begins anew goes on with the same"
        assert await lands(running, repositories, "code/api", "two", {"two": "x\n"}) == ["unit"]
        run = running.scheduler.tenants["example"]
        assert await lands(running, repositories, "config", "mends", {"zuul.yaml": MENDED}) == ["unit"]
        await running.until(lambda: "extra" in run.layouts.landed.jobs)
        assert held(running) == [] and run.layouts.errors == ()
        assert await lands(running, repositories, "code/api", "three", {"three": "x\n"}) == ["extra", "unit"]
        await running.until(lambda: not backend.tree.under(Map().config.former.path))
    found = check(backend.tree.under(Map().path))
    assert not found.unknown and not found.undecodable


@pytest.mark.long
async def test_an_untrusted_project_is_repaired_by_its_own_change(tmp_path: Path, repositories: Repositories) -> None:
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as running:
        assert await lands(
            running, repositories, "code/api", "zero", {"zuul.yaml": OWN, "jobs/own": "#!/bin/sh\n"}
        ) == [
            "own",
            "unit",
        ]
        await asyncio.to_thread(pushed, repositories, "code/api", {"zuul.yaml": OWN.replace("- project", "- [project")})
        await running.until(lambda: held(running) == ["code/api"])
        assert await lands(running, repositories, "code/api", "one", {"one": "x\n"}) == ["own", "unit"]
        assert await lands(running, repositories, "code/lib", "lib", {"one": "x\n"}) == ["unit"]
        await asyncio.to_thread(repositories.propose, "code/api", "worse", {"zuul.yaml": "- job: [\n"})
        assert (await running.history.result_of("worse", "check")).result == "CONFIG_ERROR"
        own = OWN.replace("own", "mine").replace("jobs/mine", "jobs/own")
        assert await lands(running, repositories, "code/api", "mends", {"zuul.yaml": own}) == ["mine", "unit"]
        await running.until(lambda: not held(running))
        assert await lands(running, repositories, "code/api", "two", {"two": "x\n"}) == ["mine", "unit"]


@pytest.mark.long
async def test_a_push_that_removes_a_definition_that_others_refer_to_is_held_back(
    tmp_path: Path, repositories: Repositories
) -> None:
    """The project that refers to it is broken, too, until it no longer refers to it."""
    uses = "- project: {check: {jobs: [shared]}, gate: {jobs: [shared]}}\n"
    repositories.create(
        "shared", {"zuul.yaml": PIPELINES + "- job: {name: shared, run: jobs/unit}\n", "jobs/unit": "#!\n"}
    )
    tenants = TENANTS.replace("- config\n", "- shared\n")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants) as running:
        assert await lands(running, repositories, "code/api", "zero", {"zuul.yaml": uses}) == ["shared", "unit"]
        await asyncio.to_thread(pushed, repositories, "shared", {"zuul.yaml": PIPELINES})
        await running.until(lambda: held(running) == ["shared"])
        assert await lands(running, repositories, "code/api", "one", {"one": "x\n"}) == ["shared", "unit"]
        assert await lands(running, repositories, "code/api", "without", {"zuul.yaml": "# nothing\n"}) == ["unit"]
        await running.until(lambda: not held(running))
        assert "shared" not in running.scheduler.tenants["example"].layouts.landed.jobs


@pytest.mark.parametrize(
    "files",
    [{"zuul.yaml": OWN + "- job: {name: new, parent: nowhere}\n"}, {"zuul.yaml": ""}],
    ids=["something new is wrong", "all is taken away"],
)
async def test_broken_configuration_that_removes_nothing_takes_effect(
    tmp_path: Path, repositories: Repositories, files: dict[str, str]
) -> None:
    repositories.create("code/own", {"zuul.yaml": OWN, "jobs/own": "#!/bin/sh\n"})
    tenants = TENANTS.replace("- code/lib\n", "- code/lib\n          - code/own\n")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants) as running:
        before = record(running).branches["git.example/code/own"]
        await asyncio.to_thread(pushed, repositories, "code/own", files)
        await running.until(lambda: record(running).branches["git.example/code/own"] != before)
        assert held(running) == []
