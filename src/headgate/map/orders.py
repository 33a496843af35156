"""The records of what people order: what holds until they take it back, and what is done once."""

from __future__ import annotations

import msgspec

from headgate.gate.autohold import HoldRequest
from headgate.gate.closures import Closing
from headgate.map.tree import Dir, place


class TenantState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of a tenant stands still because people want it to; as it is not there, nothing does."""

    trigger_queue_discarding: bool = False
    """What happens starts nothing, and is not kept for later; landed configuration is followed all the same."""
    trigger_queue_paused: bool = False
    """What happens starts nothing yet."""
    result_queue_paused: bool = False
    """Answers of mergers and executors are not taken up yet."""
    reason: str = ""
    info: str = ""
    """For people, as who ordered it said."""
    closings: tuple[Closing, ...] = ()
    """Pipelines and queues from which nothing lands."""


class ReadAnew(msgspec.Struct, frozen=True, omit_defaults=True, tag="anew"):
    """By hand: the tenant file is to be read anew."""

    result: str = ""
    """Where the outcome is told, empty when nobody waits."""
    full: bool = False
    """With the configuration of every project."""


class HoldPlace(Dir):
    """One request to hold builds that fail."""

    record = place(
        HoldRequest,
        "Which builds are to be held, and which are: executors and launchers give back what it does not name.",
        by="web, executor, scheduler",
        own=True,
    )
