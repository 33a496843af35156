"""Patchsets that a pipeline did not take in, and what it remembers of them."""

from __future__ import annotations

import msgspec


class Deferred(msgspec.Struct, frozen=True):
    """Represent a patchset that was refused only because what it needs has not landed; it enters once that has
    landed."""

    key: str
    commit: str
    event: str
    """Id of the event that brought it."""


class OutsideRefusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a patchset that was refused, with what its people were told."""

    key: str
    commit: str
    event: str
    """Id of the event that brought it."""
    said: str = ""
    """Digest of the last comment; empty when there was none."""
    told_ms: int = 0
    """Time of that comment, milliseconds since the epoch, UTC."""
    due_ms: int = 0
    """Time at which to comment again if the state differs by then; 0 when no comment is due."""
