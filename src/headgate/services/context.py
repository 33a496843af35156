"""What every service is given."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headgate import __version__
from headgate.base.tasks import run_until
from headgate.map.places import Map
from headgate.map.records import ComponentRecord
from headgate.map.tree import escape
from headgate.recipes.codec import encode
from headgate.recipes.mirror import Mirror
from headgate.recipes.requests import Requests
from headgate.store.store import GuardLost, Session, Store
from headgate.store.types import Append, SessionLost, Unavailable

log = logging.getLogger("headgate")


@dataclass(slots=True)
class Context:
    """One process: its store, its mirror, its clock."""

    store: Store
    mirror: Mirror
    now_ms: Callable[[], int]
    map: Map = field(default_factory=Map)
    hostname: str = field(default_factory=socket.gethostname)
    root_url: str = ""

    @property
    def builds(self) -> Requests:
        return Requests(self.store, self.map.executor.unzoned.places)

    @property
    def merges(self) -> Requests:
        return Requests(self.store, self.map.merger.places)


REJOIN_FIRST_S = 0.1
REJOIN_MAX_S = 10.0

Body = Callable[[Session], Coroutine[Any, Any, None]]


async def serve(context: Context, kind: str, body: Body, stop: asyncio.Event) -> None:
    """Runs `body` as a component of this kind until `stop`.

    A store that is out of reach, a lost session, a lost lock: what the component held is dropped, and it joins anew
    once the store answers.
    """
    wait_s = REJOIN_FIRST_S
    while not stop.is_set():
        try:
            async with context.store.session(f"{kind}@{context.hostname}:{os.getpid()}") as session:
                await _register(context, session, kind)
                await context.mirror.ready()
                wait_s = REJOIN_FIRST_S
                await run_until(stop, body(session))
                return
        except (SessionLost, GuardLost, Unavailable) as lost:
            log.warning("%s: %s; joining anew in %.1f s", kind, lost, wait_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait_s)
        wait_s = min(2 * wait_s, REJOIN_MAX_S)


async def _register(context: Context, session: Session, kind: str) -> None:
    """From then on the session is named after the component's entry."""
    record = ComponentRecord(context.hostname, kind, version=__version__, pid=os.getpid())
    place = getattr(context.map.components, kind)
    (entry,) = await context.store.commit(
        [], [Append(place.path, encode(record), session.lease, escape(context.hostname))]
    )
    assert entry is not None, "an append answers with its entry"
    session.name = entry.path
