"""Test what an SQLite store keeps in memory, and its errors for unreadable files."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.store import pages
from headgate.store.sqlite import SqliteBackend
from headgate.store.types import OPS_MAX, Corrupt, Put


async def test_memory_contains_recently_used_pages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "CACHED_MAX", 50)
    backend = await SqliteBackend.open(tmp_path / "store.sqlite")
    for part in range(3):
        await backend.commit([], [Put(f"/d/{part}-{n:02}", b"x") for n in range(OPS_MAX)])
    large = b"x" * (pages.CACHED_SIZE_MAX_BYTES + 1)
    await backend.commit([], [Put("/large", large)])
    assert [entry.path for entry in await backend.list("/d")] == sorted(
        f"/d/{p}-{n:02}" for p in range(3) for n in range(OPS_MAX)
    )
    found = await backend.get_many([f"/d/{p}-{n:02}" for p in range(3) for n in range(OPS_MAX)])
    assert all(entry is not None for entry in found)
    entry = await backend.get("/large")
    assert entry is not None and entry.value == large
    cached = backend.tree._cached
    assert 0 < len(cached) <= 50 and "/large" not in cached
    await backend.close()


async def test_a_file_damaged_while_it_is_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    backend = await SqliteBackend.open(file)
    for part in range(20):
        await backend.commit([], [Put(f"/d/{part:02}-{n:02}", b"x" * 3_000) for n in range(OPS_MAX)])
    await backend.close()
    backend = await SqliteBackend.open(file)
    size = file.stat().st_size
    with file.open("r+b") as damaged:
        damaged.seek(size // 2)
        damaged.write(b"\xff" * (size - size // 2))
    with pytest.raises(Corrupt, match="restore a copy"):
        await backend.list("/d")
    await backend.close()
