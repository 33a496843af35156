"""Test changes of paths that the branch has renamed: git applies them to the new path, which no change names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from headgate.map.records import Finished
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories, run_git

MODES = ("merge", "squash-merge", "cherry-pick", "rebase")
PIPELINE = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
- job: {name: base, parent: null, run: jobs/unit}
- job: {name: audit, files: ['^guarded/']}
- project:
    name: code
    merge-mode: MODE
    gate: {jobs: [base, audit]}
"""
TENANTS = """
- tenant:
    name: example
    source:
      local:
        config-projects: [config]
        untrusted-projects: [code]
"""
TEXT = "".join(f"# line {number}\n" for number in range(20))
"""Enough of a file for git to recognise it under another name."""


async def ended(
    root: Path, mode: str, files: Mapping[str, str], edit: Mapping[str, str], rename: tuple[str, str]
) -> tuple[Finished, Repositories]:
    """Propose `edit`, rename a file of the branch, approve the change, and return how it ends in the gate."""
    repositories = Repositories(root)
    repositories.create("config", {"zuul.yaml": PIPELINE.replace("MODE", mode), "jobs/unit": "#!/bin/sh\n"})
    repositories.create("code", {"README": "code\n", **files})
    async with gate(root, repositories.hub, MemoryBackend(), TENANTS) as running:
        repositories.propose("code", "edit", edit, "Edit a file")
        old, new = rename
        run_git("clone", "-q", str(repositories.hub / "code"), "mover", at=root)
        (root / "mover" / new).parent.mkdir(exist_ok=True)
        run_git("mv", old, new, at=root / "mover")
        run_git("commit", "-q", "-m", "Rename a file", at=root / "mover")
        run_git("push", "-q", "origin", "HEAD:master", at=root / "mover")
        await running.looked_at("git.example/code")
        repositories.approve("code", "edit")
        return await running.history.result_of("edit", "gate"), repositories


@pytest.mark.parametrize("mode", MODES)
async def test_jobs_for_the_new_path_run(tmp_path: Path, mode: str) -> None:
    files, edit = {"loose/tool": TEXT}, {"loose/tool": f"{TEXT}# evil\n"}
    finished, repositories = await ended(tmp_path, mode, files, edit, ("loose/tool", "guarded/tool"))
    assert finished.result == "SUCCESS", finished.message
    assert repositories.show("code", "guarded/tool").endswith("# evil"), "git has applied it to the new path"
    assert {build.job_name for build in finished.builds} == {"base", "audit"}


@pytest.mark.parametrize("mode", MODES)
async def test_configuration_at_the_new_path_is_checked(tmp_path: Path, mode: str) -> None:
    files, edit = {"draft.yaml": TEXT}, {"draft.yaml": f"{TEXT}- project: {{gate: {{jobs: [missing]}}}}\n"}
    finished, repositories = await ended(tmp_path, mode, files, edit, ("draft.yaml", "zuul.yaml"))
    assert finished.result == "CONFIG_ERROR" and "the job 'missing' is not defined" in finished.message
    assert repositories.show("code", "zuul.yaml") == TEXT.strip()
