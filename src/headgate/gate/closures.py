"""Represent closed pipelines, and closed queues: work continues there, and nothing lands."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Closing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one order that nothing may land."""

    pipeline: str
    """Name of the closed pipeline; empty for every pipeline of the tenant."""
    queue: str = ""
    """Name of the closed queue; empty for every queue of the pipeline."""
    reason: str = ""
    """The reason that the person who closed it gave."""
    who: str = ""
    # Not 0, which in `Item.held_ms` stands for no closing.
    since_ms: int = 1
    """Time of the order, milliseconds since the epoch, UTC."""

    @property
    def what(self) -> str:
        """Describe what is closed, for people."""
        pipeline = f"the pipeline {self.pipeline}" if self.pipeline else "every pipeline"
        return f"queue {self.queue} of {self.pipeline}" if self.queue else pipeline

    @property
    def why(self) -> str:
        """Describe in one line who closed it and why, for people."""
        by = f" by {self.who}" if self.who else ""
        return f"{self.what} was closed{by}{f': {self.reason}' if self.reason else ''}"


def closing_of(closings: Iterable[Closing], pipeline: str, queue: str) -> Closing | None:
    """Return the closing that keeps this queue from landing, preferably one of the whole pipeline; None if there is
    none."""
    found = [one for one in closings if one.pipeline in ("", pipeline) and one.queue in ("", queue)]
    return min(found, key=lambda one: one.queue, default=None)
