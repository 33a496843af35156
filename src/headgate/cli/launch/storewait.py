"""Wait for a store that cannot be reached when a process starts; meanwhile health says so."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headgate.base.tasks import run_until
from headgate.cli.identity.tls import tls_of
from headgate.cli.process import open_store
from headgate.cli.settings import Settings
from headgate.cli.store.urls import StoreAway
from headgate.store.types import Backend
from headgate.web.process import create_waiting_app
from headgate.web.serve import serve
from headgate.web.vitals import Vitals

log = logging.getLogger("headgate.store")

WAIT_FIRST_S = 0.5
WAIT_MAX_S = 10.0


@dataclass(slots=True)
class _Away:
    """Implement `web.vitals.StoreAvailability` for a store that has not been reached yet."""

    away_since_ms: int
    away_why: str


class NeverReached(Exception):
    """Report that the process was asked to stop before its store could be reached."""


async def reached(settings: Settings, ports: Sequence[tuple[str, int]], stop: asyncio.Event) -> Backend:
    """Return the store once it can be reached; until then, health is served at `ports` (host, port), and `/metrics`
    is empty. Raise UserError, and NeverReached when `stop` is set first."""
    try:
        return await open_store(settings)
    except StoreAway as error:
        # Only an absent server is waited for: a wrong URL or a newer format does not get better with time.
        away = _Away(int(time.time() * 1000), str(error))
    log.warning("the store cannot be used, and is waited for: %s", away.away_why)
    over, found = asyncio.Event(), list[Backend]()
    app = create_waiting_app(Vitals(away, lambda: b""))

    async def waiting() -> None:
        found.append(await _waited_for(settings, away))
        over.set()

    tls = tls_of(settings)
    served = [serve(app, host, port, over, lambda port: None, tls=tls) for host, port in ports]
    # This returns only after the waiting servers are closed, so that the components can bind the same ports.
    await run_until(stop, waiting(), *served)
    if not found:
        raise NeverReached
    log.info("the store can be used, after %.1f s", time.time() - away.away_since_ms / 1000)
    return found[0]


async def _waited_for(settings: Settings, away: _Away) -> Backend:
    wait_s = WAIT_FIRST_S
    while True:
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, WAIT_MAX_S)
        try:
            return await open_store(settings)
        except StoreAway as error:
            away.away_why = str(error)
