"""Keep a local copy of a subtree current by one recursive watch: reading it costs no request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from headgate.recipes.mirrorpart import MirrorPart
from headgate.store.memory import Tree
from headgate.store.model import ancestors
from headgate.store.store import Store
from headgate.store.types import Change, Entry, EntryChanged, EntryGone, Unavailable

RETRY_MAX_S = 10.0


class Mirror:
    """Keep a local copy with `run()`; everything else reads it.  The copy may be late, which is safe because writers
    check versions."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.prefix = prefix
        self._store = store
        self._tree = Tree()
        self._ready = asyncio.Event()
        self._parts: dict[str, dict[MirrorPart, None]] = {}
        self._all = self.part(prefix)

    async def run(self) -> None:
        """Follow the subtree until cancelled. After the watch breaks, begin it again with a snapshot, after a
        bounded wait."""
        wait_s = 0.1
        while True:
            try:
                # Only Unavailable is temporary. Any other error needs a person, and ends the mirror's task.
                watch = self._store.watch(self.prefix)
                async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
                    async for change in watch:
                        self._apply(change)
                        wait_s = 0.1
            except Unavailable:
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_MAX_S)

    async def ready(self) -> None:
        await self._ready.wait()

    @property
    def moves(self) -> int:
        """Return a number that grows with every change seen."""
        return self._all.moves

    async def moved(self, since: int) -> int:
        """Wait until more than `since` changes have been seen, and return how many there were."""
        return await self._all.moved(since)

    def part(self, *prefixes: str) -> MirrorPart:
        """Return the part of the mirror at and below `prefixes`, none of which is below another. Leave it (`with`)
        when it is no longer watched."""
        return MirrorPart(prefixes, self._parts)

    async def gone(self, path: str) -> None:
        """Wait until the entry is no longer in the mirror: after that, the caller that deleted it sees its own
        commit."""
        with self.part(path) as part:
            while self.get(path) is not None:
                await part.moved(part.moves)

    async def reached(self, path: str, version: int = 0) -> None:
        """Wait until the mirror has the entry at this version or a later one: after that, the caller that wrote it
        sees its own commit and all earlier ones. The entry must be one that is overwritten and never removed: the
        mirror may never show an entry that is soon removed."""
        with self.part(path) as part:
            while (entry := self.get(path)) is None or entry.version < version:
                await part.moved(part.moves)

    def get(self, path: str) -> Entry | None:
        return self._tree.entries.get(path)

    def under(self, prefix: str) -> Sequence[Entry]:
        """Return the entries below the path, in the order in which they were created."""
        return self._tree.under(prefix)

    def names(self, directory: str) -> list[str]:
        """Return the names of the entries directly below the path; the cost grows with the names, not with what
        lies below them."""
        return self._tree.names(directory)

    def _apply(self, change: Change) -> None:
        if isinstance(change, EntryChanged):
            self._tree.put(change.entry)
            self._stir(change.entry.path)
        elif isinstance(change, EntryGone):
            self._tree.remove(change.path)
            self._stir(change.path)
        else:
            # A snapshot replaces everything: after a gap, no event names the entries that were deleted.
            self._tree = Tree(change.entries)
            self._ready.set()
            # A part that watches several prefixes is woken once.
            for part in dict.fromkeys(part for parts in self._parts.values() for part in parts):
                part.stir()

    def _stir(self, path: str) -> None:
        """Wake the readers of the path and of its parents."""
        parts = self._parts
        for part in parts.get(path, ()):
            part.stir(path)
        # The cost is the depth of the path, however many parts of the mirror are watched.
        for above in ancestors(path):
            if above in parts:
                for part in parts[above]:
                    part.stir(path)
