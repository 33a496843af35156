"""Waiting for a store that does not answer, for as long as what we hold may still be ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headgate.store.store import Session
from headgate.store.types import Unavailable

T = TypeVar("T")

WAIT_FIRST_S = 0.05
WAIT_MAX_S = 2.0


async def answered(session: Session, ask: Callable[[], Awaitable[T]]) -> T:
    """Return what `ask` answers, asked again after a growing wait while the store is out of reach.  `ask` must be safe
    to repeat: a read, or a commit whose checks fail once it took effect.  Raises SessionLost when the session ends."""
    wait_s = WAIT_FIRST_S
    while True:
        session.check()
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, WAIT_MAX_S)
