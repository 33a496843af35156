"""Publish the service's endpoint in the store for as long as it is served."""

from __future__ import annotations

import asyncio
import logging

from headgate.store.store import Store
from headgate.store.types import Put, SessionLost, Unavailable

log = logging.getLogger("headgate.inventory")

RETRY_S = 2.0


async def found_at(store: Store, path: str) -> None:
    """Keep the endpoint in the store until cancelled. After the session is lost, begin a new one."""
    while True:
        try:
            async with store.session(f"endpoint {path}") as session:
                await store.commit([], [Put(path, b"", session.lease)])
                await asyncio.Event().wait()
        except (SessionLost, Unavailable) as lost:
            log.warning("%s is not registered: %s; trying again in %.0f s", path, lost, RETRY_S)
            await asyncio.sleep(RETRY_S)
