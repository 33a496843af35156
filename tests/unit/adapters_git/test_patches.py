"""Test differences that are stored beside a repository, for several requests at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.adapters.git.command import GitError
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.patches import Patches
from headgate.adapters.git.remote import Remote
from headgate.testing.clock import DEADLINE_S
from tests.waiting import nothing_happens, until


@pytest.fixture
async def mirror(tmp_path: Path) -> MirrorRepository:
    found = MirrorRepository(tmp_path / "code.git", Remote(""))
    await found.ready()
    return found


@pytest.fixture
def sides(mirror: MirrorRepository) -> tuple[str, str]:
    return str(mirror.repository.create_blob(b"1\n")), str(mirror.repository.create_blob(b"2\n"))


async def test_a_difference_that_is_removed_before_it_is_read_is_made_again(
    mirror: MirrorRepository, sides: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    patches, removals = Patches(), 1
    made = patches._made

    async def crowded(of: MirrorRepository, path: Path, old: str, new: str) -> bool:
        nonlocal removals
        complete = await made(of, path, old, new)
        if removals:
            removals -= 1
            path.unlink()
        return complete

    monkeypatch.setattr(patches, "_made", crowded)
    answer = await patches.part(mirror, *sides, 0)
    assert [line.text for line in answer.lines if line.kind in "+-"] == ["1", "2"]


async def test_a_difference_is_made_by_one_request_at_a_time(
    mirror: MirrorRepository, sides: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    patches, made = Patches(), Patches()._made
    going, begun = [asyncio.Event() for _ in range(3)], list[asyncio.Event]()

    async def gated(of: MirrorRepository, path: Path, old: str, new: str) -> bool:
        begun.append(gate := going[len(begun)])
        await gate.wait()
        if gate is going[0]:
            raise GitError(("diff",), 1, "out of order")
        return await made(of, path, old, new)

    monkeypatch.setattr(patches, "_made", gated)
    async with asyncio.timeout(DEADLINE_S):
        first, second = (asyncio.ensure_future(patches.part(mirror, *sides, 0)) for _ in range(2))
        await until("the first begins", lambda: len(begun) == 1)
        going[0].set()
        with pytest.raises(GitError):
            await first
        await until("the second begins", lambda: len(begun) == 2)
        third = asyncio.ensure_future(patches.part(mirror, *sides, 0))
        await nothing_happens(lambda: len(begun) > 2, 0.1)  # the third waits for the second
        going[1].set()
        going[2].set()
        assert await second == await third
