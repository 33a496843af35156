"""Define how quickly buildsets end and what that takes, altogether and over time."""

from __future__ import annotations

import msgspec

from headgate.ports.overtime import CountedTime


class ThroughputSums(msgspec.Struct, frozen=True, kw_only=True):
    """State how quickly some buildsets ended, and what that took."""

    buildsets: int
    passed: int
    """Buildsets with the result SUCCESS; in a pipeline that lands changes, those that landed."""
    failed: int
    """Buildsets that count and neither passed nor were dequeued."""
    resets: int
    """Buildsets that were replaced by others."""
    builds: int
    """Builds of all these buildsets that began."""
    builds_per_passed: float | None
    seconds: float
    """Total time of these builds."""
    seconds_lost: float
    """Part of `seconds` that went into builds of resets."""
    to_start_median_s: float | None
    """Median time from the event to the first build, of the buildsets that passed."""
    to_end_median_s: float | None
    """Median time from the event to the end, through all resets, of the buildsets that passed."""
    to_end_95_s: float | None
    """Time from the event to the end that 95 of 100 passed buildsets did not exceed."""


class Throughput(ThroughputSums, frozen=True, kw_only=True):
    """State how quickly buildsets of one project in one pipeline ended, and what that took."""

    project: str
    """Canonical name of the project; empty, like `pipeline`, for the sum of all of them."""
    pipeline: str


class ThroughputSlot(ThroughputSums, frozen=True, kw_only=True):
    """State how quickly the buildsets that ended within one slot of time ended, and what that took."""

    start_time: str


class ThroughputOverTime(CountedTime, frozen=True, kw_only=True):
    """Tell how quickly buildsets ended over time. Slots in which none ended are absent."""

    slots: tuple[ThroughputSlot, ...]
