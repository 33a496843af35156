"""Provide a store of a new kind: a tree in memory that is written into one file after every commit.

A real store would not write everything each time. Entries with a lease are not written, because no lease outlives the
process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from headgate.store.memory import MemoryBackend, Tree
from headgate.store.types import At, Backend, Corrupt, Entry, Op, StoreError

SCHEME = "slate://"


class SlateContent(msgspec.Struct):
    revision: int
    entries: list[Entry]
    appended: dict[str, int]


class SlateBackend(MemoryBackend):
    def __init__(self, path: Path) -> None:
        super().__init__(_read(path))
        self._path = path

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        written = await super().commit(checks, ops)
        lasting = [entry for entry in self.tree.entries.values() if entry.lease is None]
        beside = self._path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(SlateContent(self.tree.revision, lasting, self.tree.appended)))
        beside.replace(self._path)
        return written


def _read(path: Path) -> Tree:
    if not path.exists():
        return Tree()
    try:
        found = msgspec.json.decode(path.read_bytes(), type=SlateContent)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{path}: this is no slate: {error}; move it away to start with an empty store") from error
    return Tree(found.entries, found.appended, found.revision)


async def connect(url: str) -> Backend:
    path = Path(url.removeprefix(SCHEME))
    if not path.parent.is_dir():
        raise StoreError(f"{path.parent} is not a directory: make it, or name another in the URL")
    return SlateBackend(path)
