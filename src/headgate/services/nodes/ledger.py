"""Record machines under the launcher's lock, and why and how long requests wait for machines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.map.inventory.nodes import MadeNode, NodeWait
from headgate.services.context import Context
from headgate.store.store import GuardLost
from headgate.store.types import At, Conflict, Op

log = logging.getLogger("headgate.launcher")

Change = Callable[[MadeNode], MadeNode | None]
TRIED_MAX = 12
"""Limit on the recent failures that people see."""
HELD_FIRST_S, HELD_MAX_S = 300.0, 2_400.0
"""First and longest time for which a request keeps machines while it lacks others. The time doubles with each attempt,
and is randomly extended by up to the same amount, so that two requests that wait for each other do not give up at the
same time."""
PAUSE_FIRST_S, PAUSE_MAX_S = 60.0, 900.0
"""First and longest pause before the request tries again. The pause doubles each time, and is randomly extended by up
to the same amount."""


@dataclass(slots=True)
class MachineLedger:
    """Record machines under the launcher's lock, and never overwrite another process's change."""

    context: Context
    guard: At

    def node(self, id: str) -> tuple[MadeNode, At] | None:
        place = self.context.map.nodes.made(id).record
        entry = self.context.mirror.get(place.path)
        return (place.decode(entry.value), At(entry.path, entry.version)) if entry is not None else None

    async def change(self, id: str, change: Change, more: Callable[[MadeNode], Sequence[Op]] = lambda _: ()) -> None:
        """Write a change of the machine's record, applied to its present content; None deletes it. Raise StoreError."""
        place = self.context.map.nodes.made(id).record
        # People, executors and other tasks of the launcher write the same record, so the change is applied to its
        # newest content.
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
        """Commit; return False if a record has changed since it was read."""
        try:
            written = await self.context.store.commit(checks, ops, guards=[self.guard])
        except GuardLost:
            raise
        except Conflict as conflict:
            # The mirror may not show the conflicting write yet; without a pause, callers would spin.
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


def explained(known: NodeWait | None, request: str, why: str, now_ms: int) -> NodeWait:
    """Return the record of a request that waits for this reason, with the time since which the reason has applied."""
    if known is not None and known.why == why:
        return known
    return replace(known or NodeWait(request), why=why, since_ms=now_ms)


def with_tries(wait: NodeWait, tried: Sequence[str]) -> NodeWait:
    """Return the record with these failures added."""
    return replace(wait, tried=(*wait.tried, *tried)[-TRIED_MAX:])


def partly(wait: NodeWait, held: int | None, now_ms: int) -> NodeWait:
    """Return the record of a request that waits for room in an account that other installations also use. It has, or
    could have, `held` of its machines; None means that it waits for something else.

    The requests of other installations are unknown here: each may get some of its machines and then wait forever for
    the rest. A request that has some machines and makes no progress therefore returns them after a while, and tries
    again after a random time, in which the others can complete theirs. Both times grow with every attempt, so that
    fewer and fewer machines are created that no request uses.
    """
    if held is None:
        return wait
    # Progress restarts the time, so that a request that gets more machines does not give up.
    if not held or held > wait.held or not wait.held_ms:
        return replace(wait, held=held, held_ms=now_ms if held else 0)
    held_s = (now_ms - wait.held_ms) / 1000
    if held_s < _grown_s(wait, "held", HELD_FIRST_S, HELD_MAX_S):
        return wait
    pause_s = _grown_s(wait, "pause", PAUSE_FIRST_S, PAUSE_MAX_S)
    attempt = (
        f"it had {held} of its machines for {held_s:.0f} s, but other users of the account left no room for the rest"
    )
    why = f"its machines were returned, because others also use the account; it tries again after {pause_s:.0f} s"
    # It waits for another provider next time (`at`), because others keep this account full.
    gone = replace(wait, at="", held=0, held_ms=0, gave=wait.gave + 1, again_ms=now_ms + round(1000 * pause_s))
    return with_tries(explained(gone, wait.request, why, now_ms), [attempt])


def _grown_s(wait: NodeWait, kind: str, first_s: float, most_s: float) -> float:
    """Return a time that grows with every attempt; it differs for each request, but is the same at every check."""
    # A digest instead of a random number, so that each check computes the same time without storing it.
    chance = int(derived(wait.request, kind, str(wait.gave))[:8], 16) / 2**32
    # The exponent is limited because it grows for as long as the request waits.
    return min(first_s * 2.0 ** min(wait.gave, 30), most_s) * (1 + chance)
