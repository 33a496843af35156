"""A store that remembers everything ever written through it: places come and go, a look at rest sees few of them."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.store.types import At, Backend, Entry, Op
from headgate.testing.wrappedbackend import WrappedBackend


class RecordingBackend(WrappedBackend):
    """Remember writes: `seen` maps each path to the last entry written there, even if it is gone."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.seen: dict[str, Entry] = {}

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        written = await self.inner.commit(checks, ops)
        self.seen.update((entry.path, entry) for entry in written if entry is not None)
        return written
