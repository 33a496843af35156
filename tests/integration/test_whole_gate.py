"""The whole gate on real repositories, jobs aside."""

from __future__ import annotations

from pathlib import Path

from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories

from .conftest import TENANTS


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
