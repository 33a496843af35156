"""Test people who propose two changes, one on top of the other: the approval of the upper one admits only that one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories, run_git
from tests.integration.conftest import PIPELINES, TENANTS

API = "code/api"


def push(repositories: Repositories, *specs: str) -> None:
    run_git("push", "-q", "-f", "origin", *specs, at=repositories.work(API))


@pytest.mark.long
@pytest.mark.parametrize("how", ["withdrawn", "replaced"])
async def test_the_commits_below_an_approved_change_land_only_as_they_were_approved(tmp_path: Path, how: str) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\n"})
    repositories.create(API, {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as running:
        repositories.propose(API, "lower", {"evil": "x\n"})
        repositories.write(API, {"harmless": "x\n"})
        run_git("commit", "-q", "-m", "upper", at=repositories.work(API))
        upper = run_git("rev-parse", "HEAD", at=repositories.work(API))
        push(repositories, f"{upper}:refs/for/master/upper")
        assert (await running.history.result_of("upper", "check")).result == "SUCCESS"
        if how == "replaced":
            fresh = repositories.propose(API, "lower", {"good": "x\n"})
            push(repositories, f"{fresh}:refs/approved/master/lower")
            assert (await running.history.result_of("lower", "gate")).result == "SUCCESS"
        else:
            push(repositories, ":refs/for/master/lower")
        push(repositories, f"{upper}:refs/approved/master/upper")
        refused = await running.history.result_of("upper", "gate")
        assert refused.result != "SUCCESS" and "lower" in refused.message
        repositories.propose(API, "other", {"other": "x\n"})
        repositories.approve(API, "other")
        assert (await running.history.result_of("other", "gate")).result == "SUCCESS"
        names = await asyncio.to_thread(run_git, "ls-tree", "--name-only", "master", at=repositories.hub / API)
        assert sorted(names.split()) == sorted(["README", "other", *(["good"] if how == "replaced" else [])])
