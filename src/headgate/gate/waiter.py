"""Who waits for a place in a semaphore."""

from __future__ import annotations

import msgspec


class Waiter(msgspec.Struct, frozen=True, order=True):
    """A project of a pipeline that waits for a place in a semaphore; the smallest goes first."""

    ticket: int
    """Greater than every ticket there was when it began to wait, or last took a place."""
    tenant: str
    pipeline: str
    project: str
