"""Request work of another process and wait for the result: a call from one process to another through the store."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

from headgate.base.ids import fresh
from headgate.recipes import blob
from headgate.recipes.patience import answered, remove
from headgate.recipes.requestforms import Request
from headgate.recipes.requests import Requests
from headgate.store.store import Session, Store
from headgate.store.types import At, Conflict, Delete, EntryChanged, Op, Put, Snapshot, StoreError


async def call(requests: Requests, session: Session, params: bytes, *, precedence: int, meta: dict[str, str]) -> bytes:
    """Submit a request, wait for its result, delete it from the store, and return it. If the wait is cancelled, the
    request stays and is still performed."""
    store, places = requests.store, requests.places
    request = Request(id=fresh(), precedence=precedence, waited=True, meta=meta)
    waiter, mark, data = (f"{place}/{request.id}" for place in (places.waiters, places.results, places.result_data))
    ops = [Put(waiter, b"", session.lease), *requests.submit(request, params)]

    async def submit() -> None:
        with suppress(Conflict):  # already submitted by a commit whose answer was lost
            await store.commit([At(waiter, None)], ops)

    answer: tuple[bytes, list[Op]] | None = None

    async def forget() -> None:
        end = [Delete(waiter), Delete(mark), *(answer[1] if answer else ())]
        with suppress(StoreError):  # the session's end removes the waiter, and a sweep removes the rest
            # The commit that creates the waiter has to end first, or it could come after this deletion and stay.
            await submitting
            await answered(session, lambda: store.commit([], end))
            if answer is None:  # a result may have arrived in the meantime; without a waiter, no further one can
                unread = await answered(session, lambda: store.list(data))
                await remove(store, session, [entry.path for entry in unread])

    submitting = session.errand(answered(session, submit))
    try:
        await asyncio.shield(submitting)
        await answered(session, lambda: _ready(store, mark))
        answer = await answered(session, lambda: blob.taken(store, data))
    finally:
        await asyncio.shield(session.errand(forget()))
    if answer is None:
        # The mark is written together with the result, so another process has removed the result since.
        raise Conflict(At(data, None))
    return answer[0]


async def _ready(store: Store, mark: str) -> None:
    watch = store.watch(mark)
    async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
        async for change in watch:
            # The result may have come before the watch began.
            if isinstance(change, EntryChanged) or (isinstance(change, Snapshot) and change.entries):
                return
