"""Share work among the components of a kind without communication; elect one that publishes system-wide metrics.

For each request, every component computes the same order of components from the registry and the running requests: the
least loaded first. The first one takes the request immediately, each further one only if it still waits a moment later,
so that a stuck component delays only this request."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from headgate.map.places import Map
from headgate.map.records import ComponentRecord
from headgate.map.tree import Address
from headgate.recipes.backlog import Backlog
from headgate.recipes.lock import lock
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open
from headgate.services.context import Context
from headgate.services.membership import Membership
from headgate.store.store import Session

log = logging.getLogger("headgate")

YIELD_S = 0.5
"""Time that a request waits for each better suited component."""
LOOK_AGAIN_S = 5.0
"""Pause before a machine that was fully loaded is checked again."""
SEEN_MAX = 10_000
Takes = Callable[[ComponentRecord, Open], bool]
"""Returns whether a component with this record takes the request."""
ShowFigures = Callable[[Map, Mirror], AbstractContextManager[None]]
"""Publishes metrics of the entire system while it is entered."""


def everybody(record: ComponentRecord, found: Open) -> bool:
    return True


@dataclass(slots=True)
class FairSharing:
    """Decide whether this process takes another request, so that equal processes share the work."""

    membership: Membership
    takes: Takes = everybody
    refuses: Callable[[int], str] = lambda running: ""
    _seen: dict[str, float] = field(default_factory=dict)
    """Request -> time at which it was first seen waiting, in loop seconds."""
    _ran: int = 0
    """Number of running pieces of work at the last check."""
    _refused: tuple[int, float] = (0, 0.0)
    """Number of running pieces of work at the last check of the load, and when its refusal expires; 0: it did not
    refuse."""

    @property
    def stopping(self) -> bool:
        return self.membership.wanted == "stopped"

    def accepting(self, running: int) -> float:
        """Return 0 if another request may be taken, otherwise the seconds until the next check."""
        if self.membership.wanted != "running":
            return LOOK_AGAIN_S
        now, self._ran = asyncio.get_running_loop().time(), running
        # A freed slot makes a new check worthwhile, even if the last refusal still holds.
        ran, until = self._refused
        if running >= ran and now < until:
            return until - now
        why = self.refuses(running)
        if bool(why) != bool(until):
            log.warning("%s takes %s", self.membership.kind, f"no more work: {why}" if why else "work again")
        self.membership.say(accepting=not why, why=why)
        self._refused = (running, now + LOOK_AGAIN_S if why else 0.0)
        return LOOK_AGAIN_S if why else 0.0

    async def look(self) -> None:
        """Announce until cancelled whether another request may be taken, even while none waits."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            # While nothing waits, nothing else calls this, so the announcement would become outdated.
            self.accepting(self._ran)

    def order(self, backlogs: Iterable[Backlog], running: int) -> FairOrder:
        """Return the current order; `running` is the number of our own requests, even if the mirror lacks some."""
        context, session = self.membership.context, self.membership.session
        me = session.name if session else ""
        address: Address[ComponentRecord] = getattr(context.map.components, self.membership.kind)
        records = context.members(address.path)
        held = sum((backlog.held for backlog in backlogs), Counter[str]())
        # The mirror may not show our latest claims yet.
        held[me] = max(held[me], running)
        # Fully loaded components do not count; this process always does, because otherwise it would never take
        # anything.
        peers = {path: record for path, record in records.items() if path == me or _free(record, held[path])}
        # Clearing only restarts the delays.
        if len(self._seen) > SEEN_MAX:
            self._seen.clear()
        return FairOrder(me, peers, held, self.takes, self._seen, asyncio.get_running_loop().time())


@dataclass(frozen=True, slots=True)
class FairOrder:
    """Decide whose turn it is to take waiting requests."""

    me: str
    peers: Mapping[str, ComponentRecord]
    """Components with a free slot, including this one."""
    held: Counter[str]
    takes: Takes
    seen: dict[str, float]
    now: float

    @property
    def free(self) -> int:
        """Return the number of free slots of all components; requests further back in the queue must wait."""
        # At least one request is considered, even if the sum is wrong.
        return max(1, sum(_places(record) - self.held[path] for path, record in self.peers.items()))

    def delay_s(self, found: Open) -> float:
        """Return the seconds until this request is ours to take; zero or less means now."""
        peers = (p for p, record in self.peers.items() if p == self.me or self.takes(record, found))
        mine = _rank(self.me, self.held, found)
        better = sum(_rank(path, self.held, found) < mine for path in peers)
        # The delay starts when this process first sees the request: clocks differ, and the request contains no time.
        return self.seen.setdefault(found.request.id, self.now) + better * YIELD_S - self.now


def _free(record: ComponentRecord, held: int) -> bool:
    return record.state == "running" and record.data.accepting and held < _places(record)


def _places(record: ComponentRecord) -> int:
    return record.data.places or 1


def _rank(path: str, held: Counter[str], found: Open) -> tuple[int, bytes]:
    # The hash orders equally loaded components differently for each request, so that the same one is not always first.
    return held[path], hashlib.blake2b(f"{path}\0{found.entry.born}".encode(), digest_size=8).digest()


async def publish_once(context: Context, figures: ShowFigures, session: Session) -> None:
    """Publish the metrics once elected, until cancelled."""
    async with lock(context.store, session, context.map.scheduler.stats_election.path).hold():
        with figures(context.map, context.mirror):
            await asyncio.Event().wait()
