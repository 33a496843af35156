"""Define what the answers about some time have in common."""

from __future__ import annotations

import msgspec


class CountedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Tell which time was counted, in slots of equal length, and since when all of it was."""

    start_time: str
    end_time: str
    """The first moment that is out of it."""
    slot_seconds: int
    complete_from: str | None
    """Since when everything is counted, where there are more than 20,000 buildsets in this time; nothing before that is
    counted. Null: everything is."""
