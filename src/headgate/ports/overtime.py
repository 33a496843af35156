"""Define what answers about a period of time have in common."""

from __future__ import annotations

import msgspec


class CountedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the period that was counted, in slots of equal length, and since when it is complete."""

    start_time: str
    end_time: str
    """First moment after the period."""
    slot_seconds: int
    complete_from: str | None
    """Start of what is counted, if the period has more than 20,000 buildsets; nothing before it is counted. Null:
    everything is counted."""
