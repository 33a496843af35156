"""Test unprotected and locked branches: their configuration is ignored by tenants that exclude them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.adapters.forges.registry import Connected
from headgate.config.layout import Layout
from headgate.services import courier
from headgate.store.memory import MemoryBackend
from headgate.store.types import Backend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from tests.waiting import until

from .board import HOST, Board
from .test_board import CONFIG, Town

API = f"{HOST}/code/api"
TENANTS = """
- tenant:
    name: example
    exclude-unprotected-branches: true
    exclude-locked-branches: true
    source:
      local: {config-projects: [ops]}
      board: {untrusted-projects: [code/api]}
- tenant:
    name: open
    source:
      local: {config-projects: [ops]}
      board: {untrusted-projects: [code/api]}
"""
OWN = "- job: {name: own, run: jobs/unit}\n- project: {check: {jobs: [own]}}\n"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)


@asynccontextmanager
async def town(root: Path, board: Board, plain: Repositories, backend: Backend) -> AsyncIterator[Town]:
    forges = {"board": ("gitea", Connected(board.git, board))}
    async with gate(root, plain.hub, backend, TENANTS, forges=forges) as found:
        yield Town(found, board, plain)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Town]:
    board, plain = places(tmp_path)
    async with town(tmp_path, board, plain, MemoryBackend()) as found:
        yield found


def places(root: Path) -> tuple[Board, Repositories]:
    """Provide a board with one project whose feature branch is unprotected, and the configuration of the tenants."""
    board, plain = Board(root / "board"), Repositories(root / "plain")
    plain.create("ops", {"zuul.yaml": CONFIG, "jobs/unit": "#!/bin/sh\n"})
    board.repositories.create("code/api", {"api": "1\n", "jobs/unit": "#!/bin/sh\n"})
    board.push("code/api", {"zuul.yaml": "- job: [torn\n"}, "feature")
    board.protect("code/api", "master")
    return board, plain


def layout(here: Town, tenant: str = "example") -> Layout:
    return here.gate.scheduler.tenants[tenant].layouts.landed


def read(here: Town, tenant: str = "example") -> set[str]:
    """Return the branches that take part."""
    return set(layout(here, tenant).branches.get(API, ()))


def wrong(here: Town, tenant: str = "example") -> set[str]:
    """Return the branches with configuration."""
    return {one.branch for one in layout(here, tenant).errors if one.severity == "error"}


def ran(here: Town, tenant: str = "example") -> list[list[str]]:
    """Return the jobs of each change, in order."""
    ended = (one for one in here.gate.history.finished.values() if one.tenant == tenant)
    return [sorted(build.job_name for build in one.builds) for one in ended]


async def test_only_protected_branches_that_are_not_locked_are_read(here: Town) -> None:
    await until("the other tenant reads all", lambda: read(here, "open") == {"master", "feature"})
    await until("what nobody protects is not read", lambda: read(here) == {"master"})
    assert not wrong(here) and wrong(here, "open") == {"feature"}
    here.board.push("code/api", {"zuul.yaml": OWN}, "feature")
    await until("the other tenant takes it up", lambda: "own" in layout(here, "open").jobs)
    assert "own" not in layout(here).jobs
    here.board.protect("code/api", "master", "feature")
    await until("it is protected", lambda: "own" in layout(here).jobs and read(here) == {"master", "feature"})
    here.board.protect("code/api", "master", "feature", locked=("feature",))
    await until("it is locked", lambda: read(here) == {"master"})
    assert "own" not in layout(here).jobs and "own" in layout(here, "open").jobs
    here.board.protect("code/api")
    await until("none is protected", lambda: read(here) == set())
    assert read(here, "open") == {"master", "feature"}
    here.board.protect("code/api", "master", "feature")
    await until("all are again", lambda: read(here) == {"master", "feature"})


@pytest.mark.long
async def test_a_push_to_an_excluded_branch_reads_nothing(here: Town) -> None:
    """A tenant that wants them reads them nevertheless; a push to an unprotected branch is ignored by the other."""
    await until("all is read", lambda: read(here) == {"master"} and read(here, "open") == {"master", "feature"})
    before = layout(here)
    here.board.push("code/api", {"zuul.yaml": OWN}, "feature")
    here.board.push("code/api", {"zuul.yaml": OWN}, "new")
    await until("the other tenant reads it", lambda: read(here, "open") == {"master", "feature", "new"})
    here.board.push("code/api", {"zuul.yaml": OWN.replace("own", "mine")})
    await until("what is protected takes effect", lambda: "mine" in layout(here).jobs)
    assert read(here) == {"master"} and "own" not in layout(here).jobs and layout(here) is not before


@pytest.mark.long
async def test_a_change_for_an_excluded_branch_configures_nothing(here: Town) -> None:
    await until("the first look is taken up", lambda: read(here) == {"master"})
    here.board.push("code/api", {"zuul.yaml": "[]\n"}, "feature")
    first = here.board.propose("code/api", "Own job", {"zuul.yaml": OWN}, branch="feature")
    here.deliver(first)
    await until("the other tenant uses what is proposed", lambda: ran(here, "open"))
    await until("it is tested", lambda: ran(here))
    assert ran(here, "open") == [["own", "unit"]] and ran(here) == [["unit"]]
    here.board.protect("code/api", "master", "feature")
    await until("it is protected", lambda: read(here) == {"master", "feature"})
    second = here.board.propose("code/api", "Own job again", {"zuul.yaml": OWN}, branch="feature")
    here.deliver(second)
    await until("it is tested", lambda: len(ran(here)) == 2)
    assert ran(here)[-1] == ["own", "unit"]


@pytest.mark.long
async def test_protections_apply_after_a_restart_while_the_forge_is_silent(tmp_path: Path) -> None:
    board, plain = places(tmp_path)
    backend = MemoryBackend()
    async with town(tmp_path, board, plain, backend) as here:
        await until("it is taken up", lambda: read(here) == {"master"})
    board.protections.clear()
    async with town(tmp_path / "later", board, plain, backend) as here:
        await until("it has begun", lambda: read(here, "open"))
        board.push("code/api", {"zuul.yaml": OWN}, "feature")
        await until("the other tenant takes it up", lambda: "own" in layout(here, "open").jobs)
        assert read(here) == {"master"} and "own" not in layout(here).jobs


async def test_a_forge_that_never_says_it_has_all_its_branches_read(tmp_path: Path) -> None:
    board, plain = places(tmp_path)
    board.protections.clear()
    board.push("code/api", {"zuul.yaml": OWN}, "feature")
    async with town(tmp_path, board, plain, MemoryBackend()) as here:
        await until("they count as protected", lambda: read(here) == {"master", "feature"})
        assert "own" in layout(here).jobs
