"""A local copy of a subtree, kept right by one recursive watch: reading it costs no request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headgate.store.store import Store
from headgate.store.tree import Tree
from headgate.store.types import Changed, Entry, Gone, Snapshot, Unavailable

RETRY_MAX_S = 10.0


class Mirror:
    """`run()` keeps it; everything else reads it.  What it says may be late, never torn: writers check versions."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.prefix = prefix
        self._store = store
        self._tree = Tree()
        self._ready = asyncio.Event()
        self._moved = asyncio.Event()
        self.moves = 0
        """Grows with every change seen."""

    async def run(self) -> None:
        """Until cancelled.  A watch that breaks is begun anew, with a snapshot, after a bounded wait."""
        wait_s = 0.1
        while True:
            try:
                async for change in self._store.watch(self.prefix):
                    self._apply(change)
                    wait_s = 0.1
            except Unavailable:
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_MAX_S)

    async def ready(self) -> None:
        await self._ready.wait()

    async def moved(self, since: int) -> int:
        """Waits until more than `since` changes were seen; how many were."""
        while self.moves <= since:
            self._moved.clear()
            await self._moved.wait()
        return self.moves

    async def gone(self, path: str) -> None:
        """Waits until the entry is no longer seen: for whoever deleted it, to have seen its own commit."""
        while self.get(path) is not None:
            await self.moved(self.moves)

    async def reached(self, path: str, version: int = 0) -> None:
        """Waits until the entry is there, at this version or a later one: for whoever wrote it, to have seen its own
        commit, and with it all that were earlier.  The entry must be one that is written over, never removed: what is
        removed soon may never be seen."""
        while (entry := self.get(path)) is None or entry.version < version:
            await self.moved(self.moves)

    def get(self, path: str) -> Entry | None:
        return self._tree.entries.get(path)

    def under(self, prefix: str) -> Sequence[Entry]:
        """The subtree, oldest born first."""
        return self._tree.under(prefix)

    def _apply(self, change: Snapshot | Changed | Gone) -> None:
        match change:
            case Snapshot(entries):
                self._tree = Tree()
                for entry in entries:
                    self._tree.put(entry)
                self._ready.set()
            case Changed(entry):
                self._tree.put(entry)
            case Gone(path):
                self._tree.remove(path)
        self.moves += 1
        self._moved.set()
