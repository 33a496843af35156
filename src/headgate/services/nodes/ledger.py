"""Record machines under the launcher's lock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.map.inventory.nodes import MadeNode
from headgate.services.context import Context
from headgate.store.store import GuardLost
from headgate.store.types import At, Conflict, Op

log = logging.getLogger("headgate.launcher")

Change = Callable[[MadeNode], MadeNode | None]


@dataclass(slots=True)
class MachineLedger:
    """Record machines under the launcher's lock, and never overwrite what another process wrote."""

    context: Context
    guard: At

    def node(self, id: str) -> tuple[MadeNode, At] | None:
        place = self.context.map.nodes.made(id).record
        entry = self.context.mirror.get(place.path)
        return (place.decode(entry.value), At(entry.path, entry.version)) if entry is not None else None

    async def change(self, id: str, change: Change, more: Callable[[MadeNode], Sequence[Op]] = lambda _: ()) -> None:
        """Write a change of the machine's record, applied to its present content; None deletes it. Raise StoreError."""
        place = self.context.map.nodes.made(id).record
        # People, executors and other tasks of the launcher write the same record; the change is applied to the newest
        # one.
        while (found := self.node(id)) is not None:
            node, at = found
            now = change(node)
            if now == node:
                return
            if now is not None and now.state != node.state:
                now = replace(now, since_ms=self.context.now_ms())
            ops = [place.put(now) if now is not None else place.delete(), *more(node)]
            if await self.commit([at], ops):
                return

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> bool:
        """Commit; return False when a record was not as it was read: the mirror shows it by then, or soon."""
        try:
            written = await self.context.store.commit(checks, ops, guards=[self.guard])
        except GuardLost:
            raise
        except Conflict as conflict:
            # The mirror may not show yet what conflicted; without a pause this would spin.
            await asyncio.sleep(0.01)
            log.debug("%s", conflict)
            return False
        for op, entry in zip(ops, written, strict=True):
            if entry is not None:
                # Callers read the mirror next, and must see their own write.
                await self.context.mirror.reached(entry.path, entry.version)
            elif not hasattr(op, "value"):
                await self.context.mirror.gone(op.path)
        return True
