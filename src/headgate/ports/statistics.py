"""Define queries of the history about jobs and buildsets over time, and their answers."""

from __future__ import annotations

from typing import Literal

import msgspec

SLOTS_MAX = 400
"""Limit on the time slots in one answer."""
PARTS_MAX = 20
"""Limit on the parts that one answer lists separately."""
Part = Literal["", "project", "branch", "pipeline", "nodeset", "job_name"]


class CountedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the period that was counted, in slots of equal length, and the time from which it is complete."""

    start_time: str
    end_time: str
    """First moment after the period."""
    slot_seconds: int
    complete_from: str | None
    """Time from which buildsets are counted, if the period has more than 20,000 of them. Null: all are counted."""


class Span(msgspec.Struct, frozen=True):
    """Select a period, divided into slots of equal length, and the parts that are counted separately in each slot."""

    since_ms: int
    until_ms: int
    """First moment after the period, milliseconds since the epoch."""
    slot_ms: int
    part: Part = ""


class FlakySlot(msgspec.Struct, frozen=True, kw_only=True):
    """Summarise the builds whose buildsets ended within one slot of time."""

    start_time: str
    part: str | None
    """Project, branch, pipeline, nodeset or job, according to `by`, and empty without `by`; null for the sum of all
    except the 20 with the most builds."""
    builds: int
    """Builds with a result of their own: they passed or failed."""
    failed: int
    trees: int
    """Number of different states of the code on which the job first passed or failed in this slot, as far as they are
    known. Each job is counted separately."""
    flaky: int
    """Number of these trees on which it failed, and passed later, in this slot or a later one."""
    retried: int
    """Attempts that ended without a result and were repeated."""


class Flakiness(CountedTime, frozen=True, kw_only=True):
    """State how flaky jobs were over time. Slots in which no build ended are absent."""

    job_name: str | None
    """Null: every job."""
    slots: tuple[FlakySlot, ...]


class ThroughputSums(msgspec.Struct, frozen=True, kw_only=True):
    """State how quickly some buildsets ended, and how many builds that took."""

    buildsets: int
    passed: int
    """Buildsets with the result SUCCESS; in a pipeline that lands changes, those that landed."""
    failed: int
    """Counted buildsets that neither passed nor were dequeued."""
    resets: int
    """Buildsets that were replaced by others."""
    builds: int
    """Builds of all these buildsets that began."""
    builds_per_passed: float | None
    seconds: float
    """Total time of these builds."""
    seconds_lost: float
    """Part of `seconds` that was spent on builds of resets."""
    to_start_median_s: float | None
    """Median time from the event to the first build, of the buildsets that passed."""
    to_end_median_s: float | None
    """Median time from the event to the end, through all resets, of the buildsets that passed."""
    to_end_95_s: float | None
    """Time from the event to the end that 95 of 100 passed buildsets did not exceed."""


class Throughput(ThroughputSums, frozen=True, kw_only=True):
    """State how quickly buildsets of one project in one pipeline ended, and how many builds that took."""

    project: str
    """Canonical name of the project; empty, like `pipeline`, for the sum of all of them."""
    pipeline: str


class ThroughputSlot(ThroughputSums, frozen=True, kw_only=True):
    """State how quickly the buildsets of one slot of time, in which they ended, went through the pipelines."""

    start_time: str


class ThroughputOverTime(CountedTime, frozen=True, kw_only=True):
    """State how quickly buildsets ended over time. Slots in which none ended are absent."""

    slots: tuple[ThroughputSlot, ...]
