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
    """A digest of what was said last; empty: nothing was."""
    told_ms: int = 0
    """When that was, milliseconds since the epoch, UTC."""
    due_ms: int = 0
    """When it is to be said what holds then, if that is something else; 0: nothing is to be said."""
