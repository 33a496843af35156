"""Define how quickly buildsets end and what that takes, altogether and over time."""

from __future__ import annotations

import msgspec

from headgate.ports.overtime import CountedTime


class ThroughputSums(msgspec.Struct, frozen=True, kw_only=True):
    """State how quickly some buildsets ended, and what that took."""

    buildsets: int
    passed: int
    """With the result SUCCESS: in a pipeline that lands changes, those that landed."""
    failed: int
    """That count, and neither passed nor were taken out."""
    resets: int
    """Buildsets that gave way to others."""
    builds: int
    """Builds that began, of all these buildsets."""
    builds_per_passed: float | None
    seconds: float
    """All of the builds together."""
    seconds_lost: float
    """Of these, of builds of resets."""
    to_start_median_s: float | None
    """From the event to the first build, of those that passed."""
    to_end_median_s: float | None
    """From the event to the end, through all resets, of those that passed."""
    to_end_95_s: float | None
    """What 95 of 100 that passed did not exceed."""


class Throughput(ThroughputSums, frozen=True, kw_only=True):
    """State how quickly buildsets of one project in one pipeline ended, and what that took."""

    project: str
    """Empty, as `pipeline`: of all of them together."""
    pipeline: str


class ThroughputSlot(ThroughputSums, frozen=True, kw_only=True):
    """State how quickly the buildsets that ended within one slot of time ended, and what that took."""

    start_time: str


class ThroughputOverTime(CountedTime, frozen=True, kw_only=True):
    """Tell how quickly buildsets ended over time. Slots in which none ended are absent."""

    slots: tuple[ThroughputSlot, ...]
