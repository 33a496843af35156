"""Submit a manual request to a tenant or a pipeline, and receive its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from headgate.base.ids import fresh
from headgate.map.records import ManagementResult
from headgate.recipes.patience import answered
from headgate.recipes.stream import Stream
from headgate.services.context import Context
from headgate.store.store import Session
from headgate.store.types import At, Conflict, Delete, Op, Put, StoreError

E = TypeVar("E")

ANSWER_WAIT_MAX_S = 10.0


class Unanswered(Exception):
    """Report that no answer came in time; the request may still be in the queue."""


async def ask(
    context: Context, session: Session, stream: Stream[E], request: Callable[[str], E], besides: Sequence[Op] = ()
) -> ManagementResult:
    """Submit a request and return its outcome. `request` makes the request from the path of its result. `besides` is
    written in the same commit. Raise Unanswered or SessionLost."""
    place, mirror = context.map.results.management, context.mirror
    path = place.inside(fresh())
    events = stream.append(request(path))
    # Under the lease, the place disappears with whoever waits.
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
