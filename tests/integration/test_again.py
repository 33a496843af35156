"""Test a failed change that is tested again with real merges: according to the database, only failed jobs run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pygit2
import pytest

from headgate.adapters.sql.history import SqlHistory
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.ports.history import HistoryQuery, PastBuildset
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories, run_git
from tests.waiting import until

from .conftest import PIPELINES, TENANTS

CONFIGURATION = PIPELINES.replace(
    "manager: independent\n", "manager: independent\n    rerun-only-failed: true\n"
).replace("jobs: [unit]", "jobs: [lint, unit]")
RECHECK = "refs/recheck/master/one"
CONFIGURATION += "- job: {name: lint, run: jobs/unit}\n"


def pushed(repositories: Repositories, files: dict[str, str]) -> None:
    repositories.write("config", files)
    run_git("commit", "-qam", "more", at=repositories.work("config"))
    run_git("push", "-q", "origin", "HEAD:master", at=repositories.work("config"))


async def failed(history: SqlHistory, count: int) -> PastBuildset:
    """Return the latest of so many."""
    question = HistoryQuery({"pipeline": ("check",)}, limit=100)

    async def enough() -> Sequence[PastBuildset]:
        found = await history.buildsets("example", question)
        return found if len(found) >= count else ()

    found = await until(f"{count} have ended", enough)
    buildset = await history.buildset("example", found[0].uuid)
    assert buildset is not None and buildset.result == "FAILURE"
    return buildset


@pytest.mark.long
async def test_only_failed_jobs_run_again_until_the_config_project_changes(
    tmp_path: Path, repositories: Repositories
) -> None:
    pushed(repositories, {"zuul.yaml": CONFIGURATION})
    hub = pygit2.Repository(repositories.hub / "code/api")
    history = SqlHistory(f"sqlite:///{tmp_path / 'history.db'}")

    def unit(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        assert "git.example/config" in state.heads
        return BuildOutcome(build=spec.build, result="FAILURE", start_ms=1_000, end_ms=3_000)

    async with gate(
        tmp_path, repositories.hub, MemoryBackend(), TENANTS, {"unit": unit}, recording=history, history=history
    ) as run:

        async def tested(count: int) -> tuple[list[str], dict[str, tuple[str | None, str | None]]]:
            """Return the jobs that ran, and the history of each."""
            found = await failed(history, count)
            ran = sorted(spec.job.name for spec in run.runner.ran)
            run.runner.ran.clear()
            return ran, {build.job_name: (build.result, build.error_detail) for build in found.builds or ()}

        async def again() -> None:
            # An existing ref would be pushed unchanged, and Headgate would not notice.
            await until("the request before is taken", lambda: RECHECK not in hub.references)
            run_git("push", "-q", "origin", f"{commit}:{RECHECK}", at=repositories.work("code/api"))

        commit = repositories.propose("code/api", "one", {"a": "x\n"})
        assert await tested(1) == (["lint", "unit"], {"lint": ("SUCCESS", None), "unit": ("FAILURE", None)})
        first = (await failed(history, 1)).builds or ()
        (lint,) = (build.uuid for build in first if build.job_name == "lint")
        await again()
        why = f"not run again: build {lint} succeeded on the same code"
        assert await tested(2) == (["unit"], {"lint": ("SUCCESS", why), "unit": ("FAILURE", None)})
        pushed(repositories, {"jobs/unit": "#!/bin/sh\nexit 1\n"})
        await again()
        assert await tested(3) == (["lint", "unit"], {"lint": ("SUCCESS", None), "unit": ("FAILURE", None)})
    history.close()
