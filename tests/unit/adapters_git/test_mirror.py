"""Processes that share a copy wait for each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.adapters.git import mirror
from headgate.adapters.git.mirror import Exclusive, MirrorRepository
from headgate.adapters.git.remote import Remote
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories
from tests.waiting import nothing_happens


async def test_a_process_waits_for_the_first_fetch_of_another_as_long_as_a_fetch_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "WAIT_MAX_S", 0.0)
    monkeypatch.setattr(mirror, "LOOK_AGAIN_MAX_S", 0.01)
    repositories = Repositories(tmp_path)
    repositories.create("code", {"a": "1\n"})
    copy = MirrorRepository(tmp_path / "code.git", Remote(str(repositories.hub / "code")))
    wanted = {"refs/heads/master": repositories.head("code")}
    async with asyncio.timeout(DEADLINE_S):
        other = Exclusive(tmp_path / "code.git.fetch.lock")
        async with other.hold():
            waiting = asyncio.ensure_future(copy.bring(wanted))
            await nothing_happens(waiting.done, 0.3)
        assert await waiting == set()
        more = {"refs/heads/other": "1" * 40}
        async with other.hold():
            with pytest.raises(OSError, match="locked by another process"):
                await copy.bring(more)
