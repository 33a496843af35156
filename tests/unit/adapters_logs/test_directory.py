"""Test a log store in a directory: where it writes and reads, and how long its files stay open."""

from __future__ import annotations

import asyncio
import os
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.logs import directory
from headgate.adapters.logs.directory import LogDirectory
from headgate.ports.logstore import LogStoreError
from headgate.testing.logstores import keys, pieces, read_all
from tests.unit.adapters_logs.threads import Slow


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Provide a directory outside the store, which a link in the store points to."""
    (tmp_path / "outside/empty").mkdir(parents=True)
    (tmp_path / "outside/secret").write_text("secret")
    (tmp_path / "logs/b").mkdir(parents=True)
    (tmp_path / "logs/b/link").symlink_to(tmp_path / "outside")
    return tmp_path / "outside"


@pytest.mark.parametrize("key", ["b/link/secret", "b/link/new", "b/link/deep/new", "b/link/empty/new"])
async def test_nothing_is_written_through_a_link(tmp_path: Path, outside: Path, key: str) -> None:
    with pytest.raises(LogStoreError, match="link is a symbolic link"):
        await LogDirectory(tmp_path / "logs").put(key, pieces(b"1"), kind="text/plain")
    assert sorted(path.name for path in outside.rglob("*")) == ["empty", "secret"]
    assert (outside / "secret").read_text() == "secret"


async def test_a_link_with_the_name_of_a_log_is_replaced(tmp_path: Path, outside: Path) -> None:
    store = LogDirectory(tmp_path / "logs")
    await store.put("b/link", pieces(b"1"), kind="text/plain")
    assert await read_all(store, "b/link") == b"1" and (outside / "secret").exists()


@pytest.mark.parametrize("prefix", ["b/link", "b/link/empty", "b"])
async def test_nothing_is_listed_through_a_link(tmp_path: Path, outside: Path, prefix: str) -> None:
    (outside / "empty/file").write_text("")
    assert await keys(LogDirectory(tmp_path / "logs"), prefix) == []


async def test_no_directory_is_removed_through_a_link(tmp_path: Path, outside: Path) -> None:
    await LogDirectory(tmp_path / "logs").delete(["b/link/empty/log"])
    assert (outside / "empty").is_dir()


async def test_a_log_is_open_until_no_thread_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, slow = LogDirectory(tmp_path / "logs"), Slow()
    await store.put("b/log", pieces(b"1"), kind="text/plain")

    def pread(file: int, *_: Any) -> bytes:
        return slow.use(file)

    monkeypatch.setattr(os, "pread", pread)
    await slow.cancelled(asyncio.ensure_future(anext(store.read("b/log"))))


async def test_a_log_is_open_until_no_thread_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, slow = LogDirectory(tmp_path / "logs"), Slow()
    monkeypatch.setattr("headgate.adapters.logs.directory._settle", slow.use)
    await slow.cancelled(asyncio.ensure_future(store.put("b/log", pieces(b"1"), kind="text/plain")))
    assert not list((tmp_path / "logs/b").iterdir())


async def test_a_log_is_complete_even_if_the_disk_accepts_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reluctant(FileIO):
        def write(self, data: Any, /) -> int:
            return super().write(data[:3])

    monkeypatch.setattr(directory, "FileIO", Reluctant)
    store = LogDirectory(tmp_path / "logs")
    await store.put("b/log", pieces(b"0123456789", b"abc"), kind="text/plain")
    assert await read_all(store, "b/log") == b"0123456789abc"
