"""Follow changes in one part of a mirror, for readers that watch only that part."""

from __future__ import annotations

import asyncio
from contextlib import suppress

CHANGED_MAX = 1_000
"""Limit on the changed paths remembered for a reader that calls `changed` only now and then; beyond it, any path may
have changed."""


class MirrorPart:
    """Watch some prefixes, so that a reader does not wake up for changes elsewhere in the mirror."""

    def __init__(self, prefixes: tuple[str, ...], parts: dict[str, dict[MirrorPart, None]]) -> None:
        self.moves = 0
        """Number of changes seen below the prefixes, plus nudges."""
        self._changed: set[str] | None = None
        self._prefixes, self._parts = prefixes, parts
        self._sleepers: list[asyncio.Future[None]] = []
        for prefix in prefixes:
            parts.setdefault(prefix, {})[self] = None

    def stir(self, path: str = "") -> None:
        """Wake those who wait for `path`; without a path, wake all, because anything may have changed."""
        self.moves += 1
        if not path:
            self._changed = None
        elif self._changed is not None and len(self._changed) < CHANGED_MAX:
            self._changed.add(path)
        else:
            self._changed = None
        if self._sleepers:
            self._wake()

    def nudge(self) -> None:
        """Make the readers of this part look again, although nothing in it changed."""
        self.moves += 1
        if self._sleepers:
            self._wake()

    def _wake(self) -> None:
        for sleeper in self._sleepers:
            # A sleeper that was woken or cancelled stays in the list until its task gets its turn.
            if not sleeper.done():
                sleeper.set_result(None)

    def changed(self) -> set[str] | None:
        """Return the paths that changed since the last call, or None if any path may have changed."""
        found, self._changed = self._changed, set()
        return found

    async def moved(self, since: int) -> int:
        """Wait until more than `since` changes have been seen, and return how many there were."""
        while self.moves <= since:
            sleeper = asyncio.get_running_loop().create_future()
            self._sleepers.append(sleeper)
            try:
                await sleeper
            finally:
                self._sleepers.remove(sleeper)
        return self.moves

    async def moved_within(self, limit_s: float | None, since: int) -> None:
        """Wait like `moved`, but at most `limit_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.moved(since)

    def __enter__(self) -> MirrorPart:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Stop following this part."""
        for prefix in self._prefixes:
            self._parts[prefix].pop(self, None)
            if not self._parts[prefix]:
                del self._parts[prefix]
