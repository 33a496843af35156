"""Memory and SQLite, held to the same suite."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from headgate.store.memory import MemoryBackend
from headgate.store.sqlite import Locked, SqliteBackend, SqliteReader
from headgate.store.types import Backend, Corrupt, Put, StoreError
from headgate.testing.conformance import Conformance, Step, play, steps


class TestMemory(Conformance):
    @pytest.fixture
    async def backend(self) -> Backend:
        return MemoryBackend()


class TestSqlite(Conformance):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[Backend]:
        backend = await SqliteBackend.open(tmp_path / "store.sqlite")
        yield backend
        await backend.close()


@given(steps())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_memory_is_as_the_model(script: list[Step]) -> None:
    asyncio.run(play(MemoryBackend(), script))


@given(steps())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_sqlite_is_as_the_model(script: list[Step]) -> None:
    async def check() -> None:
        with tempfile.TemporaryDirectory() as name:
            backend = await SqliteBackend.open(Path(name) / "s")
            await play(backend, script)
            before = await backend.list("/a")
            await backend.close()
            again = await SqliteBackend.open(Path(name) / "s")
            assert await again.list("/a") == before
            await again.close()

    asyncio.run(check())


async def test_a_second_writer_is_told_who_has_the_file(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    with pytest.raises(Locked, match="in use by process"):
        await SqliteBackend.open(tmp_path / "s")
    await backend.close()
    await (await SqliteBackend.open(tmp_path / "s")).close()


async def test_others_read_while_it_runs_and_cannot_write(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    await backend.commit([], [Put("/a", b"1")])
    reader = SqliteReader(tmp_path / "s")
    assert [entry.value for entry in await reader.list("/a")] == [b"1"]
    with pytest.raises(StoreError, match="read only"):
        await reader.commit([], [Put("/a", b"2")])
    await reader.close()
    await backend.close()


async def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"this is no database at all, it only looks large enough" * 100)
    with pytest.raises(Corrupt, match="move it away"):
        await SqliteBackend.open(tmp_path / "s")


async def test_leases_of_an_earlier_life_are_gone(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    lease = await backend.grant(60)
    await backend.commit([], [Put("/mine", b"", lease)])
    await backend.close()
    again = await SqliteBackend.open(tmp_path / "s")
    assert await again.get("/mine") is None
    await again.close()
