"""Work shared by the components of a kind, without a word between them.

Each computes the same order of takers for a request from the registry and the requests under way: the least loaded
first.  The first takes it at once; each further one only if it still waits a moment later, so that a taker that is
stuck delays it, and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.map.records import ComponentRecord
from headgate.map.tree import Address
from headgate.recipes.codec import decode
from headgate.recipes.requests import Open, Requests
from headgate.services.membership import Membership

YIELD_S = 0.5
"""What a request waits for each better taker."""
LOOK_AGAIN_S = 5.0
"""When a machine that bore no more is asked again."""
SEEN_MAX = 10_000


@dataclass(slots=True)
class Peer:
    """A component that takes requests of a queue."""

    path: str
    places: int


Takes = Callable[[ComponentRecord, str], bool]
"""Whether a component of this record takes the requests of the queue at this path."""


def everybody(record: ComponentRecord, queue: str) -> bool:
    return True


@dataclass(slots=True)
class Sharing:
    membership: Membership
    takes: Takes = everybody
    refuses: Callable[[int], str] = lambda running: ""
    _seen: dict[str, float] = field(default_factory=dict)
    """Request -> when it was first seen to wait, loop seconds."""
    _refused: tuple[int, float] = (0, 0.0)
    """How many ran when it was last refused, and until when that holds."""

    @property
    def stopping(self) -> bool:
        return self.membership.wanted == "stopped"

    def accepting(self, running: int) -> float:
        """0 when another request may be taken, else seconds until that is looked at again."""
        if self.membership.wanted != "running":
            return LOOK_AGAIN_S
        now = asyncio.get_running_loop().time()
        ran, until = self._refused
        if running >= ran and now < until:
            return until - now
        why = self.refuses(running)
        self.membership.say(accepting=not why, why=why)
        self._refused = (running, now + LOOK_AGAIN_S if why else 0.0)
        return LOOK_AGAIN_S if why else 0.0

    def order(self, queues: Sequence[Requests], running: int) -> Callable[[Open], float]:
        """Request -> seconds until it is ours to take, as things are now; `running` are ours, seen or not."""
        context, now = self.membership.context, asyncio.get_running_loop().time()
        session = self.membership.session
        me = session.name if session else ""
        address: Address[ComponentRecord] = getattr(context.map.components, self.membership.kind)
        records = {e.path: decode(e.value, ComponentRecord) for e in context.mirror.under(address.path)}
        held = Counter(
            str(o.request.owner.get("component", ""))
            for queue in queues
            for o in queue.open(context.mirror)
            if o.locked
        )
        held[me] = max(held[me], running)

        def delay_s(found: Open) -> float:
            peers = [
                path
                for path, record in records.items()
                if path == me or (_free(record, held[path]) and self.takes(record, found.queue))
            ]
            better = sum(_rank(path, held, found) < _rank(me, held, found) for path in peers)
            if len(self._seen) > SEEN_MAX:
                self._seen.clear()
            return self._seen.setdefault(found.request.id, now) + better * YIELD_S - now

        return delay_s


def _free(record: ComponentRecord, held: int) -> bool:
    data: dict[str, Any] = record.data  # JSON, as the component tells it
    return record.state == "running" and data.get("accepting", True) and held < data.get("places", 1)


def _rank(path: str, held: Counter[str], found: Open) -> tuple[int, bytes]:
    return held[path], hashlib.blake2b(f"{path}\0{found.entry.born}".encode(), digest_size=8).digest()
