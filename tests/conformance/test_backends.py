"""Run the conformance suite on memory and SQLite."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from headgate.store import sqlite
from headgate.store.memory import MemoryBackend, Staged
from headgate.store.pages import FORESEEN
from headgate.store.sqlite import Locked, SqliteBackend, SqliteReader
from headgate.store.types import (
    Append,
    At,
    Backend,
    Conflict,
    Corrupt,
    Delete,
    Entry,
    Lease,
    Put,
    StoreError,
    Unavailable,
    Unwritable,
)
from headgate.testing.clock import DEADLINE_S, VirtualLoop
from headgate.testing.conformance import Conformance, Gap
from headgate.testing.stores.machine import Run, Subject, machine


class TestMemory(Conformance):
    @pytest.fixture
    async def backend(self) -> Backend:
        return MemoryBackend()

    @pytest.fixture
    def gap(self, backend: MemoryBackend) -> Gap:
        return lambda: missed(backend)


class TestSqlite(Conformance):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[Backend]:
        backend = await SqliteBackend.open(tmp_path / "store.sqlite")
        yield backend
        await backend.close()

    @pytest.fixture
    def gap(self, backend: SqliteBackend) -> Gap:
        return lambda: missed(backend)


async def missed(backend: Backend) -> None:
    assert isinstance(backend, MemoryBackend | SqliteBackend)
    backend.tree.gap()


async def past(backend: Backend, lease: Lease, ttl_s: float) -> None:
    await asyncio.sleep(ttl_s + 1)  # virtual time


@contextmanager
def virtual() -> Iterator[Run]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner.run


@contextmanager
def real() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield runner.run


async def in_memory() -> Backend:
    return MemoryBackend()


def test_memory_is_as_the_model() -> None:
    kind = machine(Subject(virtual, in_memory, missed, past))
    run_state_machine_as_test(
        kind, settings=settings(max_examples=100, stateful_step_count=25, deadline=None, derandomize=True)
    )


def test_sqlite_is_as_the_model(tmp_path: Path) -> None:
    async def fresh() -> Backend:
        return await SqliteBackend.open(Path(tempfile.mkdtemp(dir=tmp_path)) / "s")

    kind = machine(Subject(real, fresh, missed))
    run_state_machine_as_test(
        kind, settings=settings(max_examples=25, stateful_step_count=25, deadline=None, derandomize=True)
    )


async def test_a_reopened_store_has_all_entries_and_continues_its_numbers(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    await backend.commit([], [Put("/a/b", b"1"), Append("/q", b"2"), Append("/q", b"3")])
    await backend.commit([], [Put("/a", b"4"), Delete("/a/b")])
    before = await backend.list("")
    await backend.close()
    again = await SqliteBackend.open(tmp_path / "s")
    assert await again.list("") == before
    (entry,) = await again.commit([], [Append("/q", b"5")])
    assert entry is not None and entry.path > before[-1].path and entry.version > before[-1].version
    await again.close()


async def test_a_second_writer_learns_who_has_the_file(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    with pytest.raises(Locked, match="in use by process"):
        await SqliteBackend.open(tmp_path / "s")
    await backend.close()
    await (await SqliteBackend.open(tmp_path / "s")).close()


async def test_other_processes_can_read_an_open_store_but_not_write_it(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    await backend.commit([], [Put("/a", b"1")])
    reader = SqliteReader(tmp_path / "s")
    assert [entry.value for entry in await reader.list("/a")] == [b"1"]
    with pytest.raises(StoreError, match="read only"):
        await reader.commit([], [Put("/a", b"2")])
    await reader.close()
    await backend.close()


async def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"this is not a database at all, it only looks large enough" * 100)
    with pytest.raises(Corrupt, match="move it away"):
        await SqliteBackend.open(tmp_path / "s")


async def test_a_store_that_could_not_be_opened_can_be_opened_after_its_repair(tmp_path: Path) -> None:
    file = tmp_path / "s"
    file.write_bytes(b"this is not a database at all, it only looks large enough" * 100)
    with pytest.raises(Corrupt) as refused:
        await SqliteBackend.open(file)
    file.unlink()
    await (await SqliteBackend.open(file)).close()
    assert refused.value.__traceback__ is not None, "it holds on to whatever the first attempt left open"


async def test_leases_of_an_earlier_process_have_ended(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    lease = await backend.grant(60)
    await backend.commit([], [Put("/mine", b"", lease)])
    await backend.close()
    again = await SqliteBackend.open(tmp_path / "s")
    assert await again.get("/mine") is None
    await again.close()


async def test_pending_writes_under_a_lease_are_deleted_when_it_ends(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    for revoked in (True, False):
        lease = await backend.grant(60)
        coming = asyncio.ensure_future(backend.commit([], [Put("/lock", b"", lease), Append("/line", b"", lease)]))
        await asyncio.sleep(0)
        if revoked:
            await backend.revoke(lease)
        else:
            backend._leases.revoke(lease)
            backend._expired(lease)
        await asyncio.gather(coming, return_exceptions=True)
        await backend.commit([], [Put("/later", b"")])
        assert [one.path for one in await backend.list("")] == ["/later"], "its owner is gone: nobody else deletes it"
    await backend.close()


@pytest.mark.parametrize("step", ["staging", "writing"])
async def test_errors_reach_the_callers_and_writing_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    await backend.commit([], [Put("/a", b"1")])

    def wrong(*_: object) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as broken:
        broken.setattr(*((Staged, "_stage") if step == "staging" else (backend, "_persist")), wrong)
        commits = [backend.commit([], [Put(path, b"2")]) for path in ("/a", "/b")]
        async with asyncio.timeout(DEADLINE_S):
            results = await asyncio.gather(*commits, backend.commit([At("/a", None)], []), return_exceptions=True)
    assert [type(error) for error in results] == [
        Unwritable,
        Unwritable,
        Conflict if step == "writing" else Unwritable,
    ]
    assert "not written: none left" in str(results[0])
    assert [entry.value for entry in await backend.list("")] == [b"1"]
    await backend.commit([], [Put("/b", b"3")])
    assert [entry.value for entry in await backend.list("")] == [b"1", b"3"]
    await backend.close()


async def test_nothing_of_a_commit_is_written_when_a_part_of_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    await backend.commit([], [Put("/damaged", b"1")])
    get = backend.tree.get

    def damaged(path: str) -> Entry | None:
        if path == "/damaged":
            raise Unavailable("a page cannot be read")
        return get(path)

    with monkeypatch.context() as broken:
        broken.setattr(backend.tree, "get", damaged)
        half = [Put("/a", b"2"), Append("/log", b"2"), Put("/damaged", b"2")]
        results = await asyncio.gather(
            backend.commit([], half), backend.commit([], [Put("/b", b"2")]), return_exceptions=True
        )
    assert isinstance(results[0], Unavailable) and not isinstance(results[1], BaseException)
    assert {entry.path: entry.value for entry in await backend.list("")} == {"/damaged": b"1", "/b": b"2"}
    await backend.close()


async def test_a_path_that_is_no_text_is_refused_among_many(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path / "s")
    many = [Put(f"/a/{number}", b"") for number in range(FORESEEN)]
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ValueError, match="not a store path"):
            await backend.commit([], [Put("/\ud800", b""), *many])
        assert await backend.commit([], many)
    await backend.close()


async def test_entries_of_ended_leases_go_once_the_disk_accepts_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "AGAIN_S", 0.01)
    backend = await SqliteBackend.open(tmp_path / "s")
    leases = [await backend.grant(60) for _ in range(2)]
    for number, lease in enumerate(leases):
        await backend.commit([], [Put(f"/lock{number}", b"", lease)])

    def full(_: object) -> None:
        raise apsw.FullError

    with monkeypatch.context() as disk:
        disk.setattr(backend, "_persist", full)
        with pytest.raises(StoreError, match="the disk is full"):
            await backend.revoke(leases[0])
        backend._leases.revoke(leases[1])
        backend._expired(leases[1])
        with pytest.raises(StoreError, match="the disk is full"):
            await backend.commit([], [Put("/a", b"")])
    async with asyncio.timeout(DEADLINE_S):
        async for _ in backend.watch(""):
            if not await backend.list(""):
                break
    await backend.close()
