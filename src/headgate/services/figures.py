"""Publish figures of the whole system once, although every process could."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from headgate.map.places import Map
from headgate.recipes.lock import lock
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.store.store import Session

Whole = Callable[[Map, Mirror], AbstractContextManager[None]]
"""Publishes figures of the whole system while it is entered."""


async def publish_once(context: Context, figures: Whole, session: Session) -> None:
    """Publish the figures once elected, until cancelled."""
    async with lock(context.store, session, context.map.scheduler.stats_election.path).hold():
        with figures(context.map, context.mirror):
            await asyncio.Event().wait()
