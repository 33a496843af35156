"""Record people's orders that hold for a while, and report their effect: see `map.queues`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache

from headgate.gate.closures import Closing, closing_of
from headgate.map.queues import TenantState
from headgate.recipes.codec import readable
from headgate.recipes.patience import answered
from headgate.services.context import Context
from headgate.store.store import Session, Txn
from headgate.store.types import Entry, Op

LANDING_WAIT_MAX_S = 5.0
"""Time for which a person who closes something waits for a push that is under way."""


DAMAGED = TenantState(closings=(Closing("", reason="what is closed cannot be read; close or open something anew"),))
"""Stands for a damaged record, so that nothing lands."""


def state_of(context: Context, tenant: str) -> TenantState:
    """Return the tenant's state as the mirror shows it."""
    return _state(context.mirror.get(context.map.events.tenant(tenant).state.path))


@lru_cache(maxsize=1_000)
def _state(entry: Entry | None) -> TenantState:
    """Decode the state, cached, because every turn reads it and it seldom changes."""
    return TenantState() if entry is None else readable(entry, TenantState) or DAMAGED


async def shut(context: Context, session: Session, tenant: str, pipeline: str, queue: str) -> bool:
    """Return whether nothing may land from this queue now, as the store (not the mirror) has it."""
    path = context.map.events.tenant(tenant).state.path
    # The mirror may be behind a closing that somebody was told is in force.
    entry = await answered(session, lambda: context.store.get(path))
    return closing_of(_state(entry).closings, pipeline, queue) is not None


async def ordered(
    context: Context, tenant: str, change: Callable[[TenantState], TenantState], besides: Sequence[Op] = ()
) -> TenantState:
    """Return the state after `change`, once this mirror shows it; `besides` is written with it. `change` may be called
    more than once."""
    place = context.map.events.tenant(tenant).state

    async def body(txn: Txn) -> TenantState:
        after = change(_state(await txn.get(place.path)))
        txn.do(place.put(after), *besides)
        return after

    after = await context.store.transact(body)
    # A person who gets the answer expects the next page to show the order.
    if (entry := await context.store.get(place.path)) is not None:
        await context.mirror.reached(entry.path, entry.version)
    return after


async def landings_over(context: Context, tenant: str, pipeline: str) -> tuple[str, ...]:
    """Wait until no earlier landing is being pushed. Return the changes that may still land when that takes too
    long."""
    mirror = context.mirror
    # Requests that come later see the closing themselves (`shut`).
    begun = {one.request.id for one in context.merges.open(mirror) if _lands(one.request.meta, tenant, pipeline)}
    try:
        async with asyncio.timeout(LANDING_WAIT_MAX_S):
            while left := [one for one in context.merges.open(mirror) if one.request.id in begun]:
                await mirror.moved(mirror.moves)
    except TimeoutError:
        return tuple(one.request.meta.get("change", one.request.id) for one in left)
    return ()


def _lands(meta: dict[str, str], tenant: str, pipeline: str) -> bool:
    return "landing" in meta and (meta.get("tenant"), meta.get("pipeline")) == (tenant, pipeline)
