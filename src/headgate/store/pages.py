"""Read entries from an SQLite file through its page cache, so that memory does not grow with their number."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apsw

from headgate.store.memory import Staged, WatchedTree
from headgate.store.model import order
from headgate.store.types import Corrupt, Entry, Lease, Unavailable

CACHED_MAX, CACHED_SIZE_MAX_BYTES = 10_000, 4_000
"""Limits of the cache of entries that were read or written: their number, and the size of each value."""
PAGES_KIB = 8_000
"""Part of the file, in KiB, that SQLite caches for reading."""
_COLUMNS = "select path, value, version, born, lease from entry"
FORESEEN = 50
"""Number of entries that one query of `foresee` reads."""
_SEVERAL = f"{_COLUMNS} where path in ({', '.join('?' * FORESEEN)})"


class StorePages(WatchedTree):
    """Read entries from an SQLite file. `connection` is only for reading; a writer calls `writing` before it writes and
    `apply` or `dropped` afterwards."""

    def __init__(self, connection: apsw.Connection, appended: Mapping[str, int], revision: int) -> None:
        super().__init__(appended, revision)
        connection.execute(f"pragma cache_size = -{PAGES_KIB}")
        self._connection = connection
        self._cached: dict[str, Entry | None] = {}
        self._leased: dict[str, Lease] = {}
        self._settled = asyncio.Event()
        self._settled.set()

    def get(self, path: str) -> Entry | None:
        """Return the entry, or None. Like every read here, it may raise Unavailable or Corrupt."""
        if path in self._cached:
            return self._cached[path]
        found = next(iter(self._read(f"{_COLUMNS} where path = ?", (path,))), None)
        self._cache(path, found)
        return found

    def foresee(self, paths: Sequence[str]) -> None:
        """Fill the cache with entries that are about to be needed, many at a time.  Raise Unavailable, Corrupt."""
        missing = [path for path in paths if path not in self._cached]
        # Only full groups, so that SQLite prepares one statement and reuses it; `get` reads the remaining entries.
        for start in range(0, len(missing) - FORESEEN + 1, FORESEEN):
            several = missing[start : start + FORESEEN]
            found = {one.path: one for one in self._read(_SEVERAL, tuple(several))}
            for path in several:
                self._cache(path, found.get(path))

    def leased(self, path: str) -> bool:
        """Return whether the entry has a lease. Memory suffices for that: opening the file deleted older leased
        entries."""
        return path in self._leased

    def under(self, prefix: str) -> tuple[Entry, ...]:
        below = self._read(f"{_COLUMNS} where path > ? and path < ?", (f"{prefix}/", f"{prefix}0"))
        own = self.get(prefix)
        return tuple(sorted(below if own is None else [*below, own], key=order))

    def scan(self, directory: str, begins: str, after: str, limit: int) -> Sequence[Entry]:
        """Return the first entries below `directory`, by path, whose relative path begins with `begins` and sorts after
        `after`."""
        base = f"{directory}/"
        least, start = (">", after) if after >= begins else (">=", begins)
        # Paths with a common prefix are neighbours, so the rows that lack it come after all rows that have it.
        found = self._read(f"{_COLUMNS} where path {least} ? order by path limit ?", (base + start, limit))
        return [entry for entry in found if entry.path.startswith(base + begins)]

    def held(self, lease: Lease) -> list[str]:
        """Return the paths of the entries that end with the lease."""
        return [path for path, of in self._leased.items() if of == lease]

    async def settled(self) -> None:
        while not self._settled.is_set():
            await self._settled.wait()

    def writing(self) -> None:
        """Announce a write: until `apply` or `dropped`, reads may return changes that watchers have not received."""
        self._settled.clear()

    def dropped(self) -> None:
        """End an announced write that wrote nothing."""
        self._cached.clear()
        self._settled.set()

    def apply(self, staged: Staged) -> None:
        """Send the staged changes, which the file now contains, to the watchers."""
        self.revision = staged.revision
        self.appended |= staged.appended
        for path, entry in staged.entries.items():
            self._leased.pop(path, None)
            self._cache(path, entry)
            if entry is not None:
                if entry.lease is not None:
                    self._leased[path] = entry.lease
                self._tell_of(entry)
            elif path in staged.removed:
                self._tell_of_end(path)
        self._settled.set()

    def close(self) -> None:
        self._connection.close()

    def _cache(self, path: str, entry: Entry | None) -> None:
        if entry is not None and len(entry.value) > CACHED_SIZE_MAX_BYTES:
            self._cached.pop(path, None)
            return
        if len(self._cached) >= CACHED_MAX:
            self._cached.clear()
        self._cached[path] = entry

    def _read(self, statement: str, values: tuple[Any, ...]) -> list[Entry]:  # what SQLite takes
        try:
            return entries(self._connection.execute(statement, values))
        except (apsw.CorruptError, apsw.NotADBError) as error:
            file = self._connection.filename
            raise Corrupt(f"{file}: this file is damaged ({error}); stop, and restore a copy of it") from error
        except apsw.Error as error:
            raise Unavailable(f"{self._connection.filename}: not read: {error}") from error


def entries(rows: Iterable[Any]) -> list[Entry]:  # rows of SQLite
    return [Entry(p, v, n, b, None if lease is None else Lease(lease)) for p, v, n, b, lease in rows]
