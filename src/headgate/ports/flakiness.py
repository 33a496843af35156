"""Define questions to the history about the flakiness of jobs over time, and the answers."""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.ports.overtime import CountedTime

SLOTS_MAX = 400
"""Limit of time slots in one answer."""
PARTS_MAX = 20
"""Limit of parts that one answer lists separately."""
Part = Literal["", "project", "branch", "pipeline", "nodeset", "job_name"]


class Span(msgspec.Struct, frozen=True):
    """Select a period, cut into slots of equal length, and what is counted separately within each."""

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
    """Builds that passed or failed by themselves."""
    failed: int
    trees: int
    """Different states of the code on which the job first passed or failed by itself in this slot, as far as they are
    known. Of several jobs, each counts by itself."""
    flaky: int
    """Of these trees, those on which it failed and passed later, here or in a later slot."""
    retried: int
    """Attempts that ended without a result and were repeated."""


class Flakiness(CountedTime, frozen=True, kw_only=True):
    """Tell how flaky jobs were over time. Slots in which no build ended are absent."""

    job_name: str | None
    """Null: every job."""
    slots: tuple[FlakySlot, ...]
