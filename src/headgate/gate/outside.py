"""Patchsets that a pipeline did not take in, and what it remembers of them."""

from __future__ import annotations

import msgspec


class Deferred(msgspec.Struct, frozen=True):
    """A patchset that was refused only because what it needs has not landed, and comes in once that has."""

    key: str
    commit: str
    event: str
    """Id of the event that brought it."""


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A patchset that does not come in, and what its people were told of that."""

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
