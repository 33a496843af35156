"""Submit people's requests and receive the outcome; record orders that hold for a while: see `map.orders`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

from headgate.base.errors import HeadgateError
from headgate.base.ids import fresh
from headgate.gate.state.surroundings import Closing, closing_of
from headgate.map.queues import TenantState
from headgate.map.records import ManagementResult
from headgate.recipes.codec import readable
from headgate.recipes.patience import ANSWER_WAIT_MAX_S, answered
from headgate.recipes.stream import Stream
from headgate.services.context import Context
from headgate.store.store import Session, Txn
from headgate.store.types import At, Conflict, Delete, Entry, Op, Put, StoreError

E = TypeVar("E")

LANDING_WAIT_MAX_S = 5.0
"""Time for which a person who closes something waits for a push that is under way."""
DAMAGED = TenantState(closings=(Closing("", reason="what is closed cannot be read; close or open something anew"),))
"""Stands for a damaged record, so that nothing lands."""


class Unanswered(HeadgateError):
    """Report that no answer came in time; the request may still be in the queue."""


async def ask(
    context: Context, session: Session, stream: Stream[E], request: Callable[[str], E], besides: Sequence[Op] = ()
) -> ManagementResult:
    """Submit a request and return its outcome. `request` makes the request from the path of its result. `besides` is
    written in the same commit. Raise Unanswered or SessionLost."""
    place, mirror = context.map.results.management, context.mirror
    path = place.inside(fresh())
    events = stream.append(request(path))
    # Under the lease, the place disappears with the process that waits.
    waiting = Put(path, place.encode(ManagementResult(False)), session.lease)

    async def submit() -> None:
        with suppress(Conflict):  # a repeated submission: the first answer was lost
            await context.store.commit([At(path, None)], [waiting, *events, *besides])

    await answered(session, submit)
    # A person waits, and a scheduler may be paused or away; the request stays in the queue.
    try:
        async with asyncio.timeout(ANSWER_WAIT_MAX_S):
            # The entry has to be seen before its absence means anything.
            await mirror.reached(path)
            while (entry := mirror.get(path)) is not None and entry.value == waiting.value:
                await mirror.moved(mirror.moves)
        if entry is None:
            raise Unanswered("the answer was lost; the status shows what became of it")
        return place.decode(entry.value)
    except TimeoutError:
        text = f"no scheduler took it up within {ANSWER_WAIT_MAX_S:.0f} s; it is done once one does"
        raise Unanswered(text) from None
    finally:
        with suppress(StoreError):  # the entry vanishes with the session
            await context.store.commit([], [Delete(path)])


async def tell(context: Context, path: str, outcome: ManagementResult) -> None:
    """Answer the caller that waits at `path`, if it still waits. The answer is not under the caller's lease, under
    which only the caller may write: the caller deletes it, or the sweeper does."""
    entry = context.mirror.get(path)
    if entry is None:
        return
    place = context.map.results.management
    answer = Put(path, place.encode(outcome))
    # The check keeps an answer from appearing after the asker left: nobody would remove it before the sweep.
    with suppress(Conflict):  # the waiting process is gone
        await context.store.commit([At(path, entry.version)], [answer])


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
    # The mirror may be behind a closing that was confirmed to somebody.
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
