"""Wait for a store that does not answer, while this process may still own its locks and leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from headgate.store.store import Session, Store
from headgate.store.types import OPS_MAX, At, Delete, Unavailable

T = TypeVar("T")

WAIT_FIRST_S = 0.05
WAIT_MAX_S = 2.0
ANSWER_WAIT_MAX_S = 10.0
"""Time limit for a scheduler's answer. It is here because commands need it, too, and import little with it."""


async def answered(session: Session, ask: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `ask`; while the store is unavailable, call `ask` again after growing waits. `ask` must be
    safe to repeat: a read, or a commit whose checks fail once it has taken effect. Raise SessionLost when the session
    ends, and Unavailable when it gives up."""
    wait_s = WAIT_FIRST_S
    while True:
        # Once the session has ended, another process may have taken over what the caller was about to write.
        session.check()
        try:
            return await ask()
        except Unavailable:
            # A store with a full disk still renews sessions, so no lost session would ever end this loop.
            if session.gives_up:
                raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, WAIT_MAX_S)


async def remove(store: Store, session: Session, paths: Sequence[str], *guards: At) -> None:
    """Remove any number of paths that nobody will read."""
    for start in range(0, len(paths), OPS_MAX):
        gone = [Delete(path) for path in paths[start : start + OPS_MAX]]
        await answered(session, partial(store.commit, [], gone, guards=guards))
