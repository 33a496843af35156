"""Submit people's requests and receive the outcome; record orders that apply until revoked, such as closed queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

from headgate.base.errors import HeadgateError
from headgate.base.ids import fresh
from headgate.gate.state.world import Closing, closing_of
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
"""Time for which a person who closes something waits for a running push."""
DAMAGED = TenantState(closings=(Closing("", reason="the list of closings is damaged; close or open something again"),))
"""Replaces a damaged record, so that nothing lands."""


class Unanswered(HeadgateError):
    """Report that no answer came in time; the request may still be in the queue."""


async def ask(
    context: Context, session: Session, stream: Stream[E], request: Callable[[str], E], besides: Sequence[Op] = ()
) -> ManagementResult:
    """Submit a request and return its outcome. `request` creates the request from the path of its result. The same
    commit also includes the operations `besides`. Raise Unanswered or SessionLost."""
    place, mirror = context.map.results.management, context.mirror
    path = place.inside(fresh())
    events = stream.append(request(path))
    # The entry has the session's lease, so it disappears with the waiting process.
    waiting = Put(path, place.encode(ManagementResult(False)), session.lease)

    async def submit() -> None:
        with suppress(Conflict):  # an earlier attempt succeeded, but its answer was lost
            await context.store.commit([At(path, None)], [waiting, *events, *besides])

    await answered(session, submit)
    # A person waits, but all schedulers may be paused or down; then the request stays in the queue.
    try:
        async with asyncio.timeout(ANSWER_WAIT_MAX_S):
            # The absence of the entry is meaningful only after the mirror has shown it.
            await mirror.reached(path)
            while (entry := mirror.get(path)) is not None and entry.value == waiting.value:
                await mirror.moved(mirror.moves)
        if entry is None:
            raise Unanswered("the response was lost; check the status for the result")
        return place.decode(entry.value)
    except TimeoutError:
        text = f"no scheduler handled it within {ANSWER_WAIT_MAX_S:.0f} s; it stays queued until one does"
        raise Unanswered(text) from None
    finally:
        with suppress(StoreError):  # the entry vanishes with the session
            await context.store.commit([], [Delete(path)])


async def tell(context: Context, path: str, outcome: ManagementResult) -> None:
    """Answer the caller that waits at `path`, if it still waits. The answer cannot have the caller's lease, under which
    only the caller may write, so the caller or the sweeper deletes it."""
    entry = context.mirror.get(path)
    if entry is None:
        return
    place = context.map.results.management
    answer = Put(path, place.encode(outcome))
    # The check prevents an answer after the caller has left, which would stay until the sweep.
    with suppress(Conflict):  # the waiting process is gone
        await context.store.commit([At(path, entry.version)], [answer])


def state_of(context: Context, tenant: str) -> TenantState:
    """Return the tenant's state as the mirror shows it."""
    return _state(context.mirror.get(context.map.events.tenant(tenant).state.path))


@lru_cache(maxsize=1_000)
def _state(entry: Entry | None) -> TenantState:
    """Decode the state; cached, because every turn reads it and it rarely changes."""
    return TenantState() if entry is None else readable(entry, TenantState) or DAMAGED


async def shut(context: Context, session: Session, tenant: str, pipeline: str, queue: str) -> bool:
    """Return whether nothing may land from this queue now, according to the store (not the mirror)."""
    path = context.map.events.tenant(tenant).state.path
    # The mirror may lag behind a closing that was already confirmed to a person.
    entry = await answered(session, lambda: context.store.get(path))
    return closing_of(_state(entry).closings, pipeline, queue) is not None


async def ordered(
    context: Context, tenant: str, change: Callable[[TenantState], TenantState], besides: Sequence[Op] = ()
) -> TenantState:
    """Apply `change` to the tenant's state, and return the new state once this mirror shows it. The same commit also
    includes the operations `besides`. `change` may be called more than once."""
    place = context.map.events.tenant(tenant).state

    async def body(txn: Txn) -> TenantState:
        after = change(_state(await txn.get(place.path)))
        txn.do(place.put(after), *besides)
        return after

    after = await context.store.transact(body)
    # The person expects the next page to show the change.
    if (entry := await context.store.get(place.path)) is not None:
        await context.mirror.reached(entry.path, entry.version)
    return after


async def landings_over(context: Context, tenant: str, pipeline: str) -> tuple[str, ...]:
    """Wait until no earlier landing is being pushed. If that takes too long, return the changes that may still land."""
    mirror = context.mirror
    # Later requests detect the closing themselves (`shut`).
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
