"""The records of what people order: what holds until they take it back, and what is done once."""

from __future__ import annotations

import msgspec

from headgate.gate.autohold import HoldRequest
from headgate.gate.closures import Closing
from headgate.map.tree import Dir, place


class TenantState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record what people have paused in a tenant; without the record, nothing is paused."""

    trigger_queue_discarding: bool = False
    """What happens starts nothing, and is not kept for later; landed configuration is followed all the same."""
    trigger_queue_paused: bool = False
    """What happens starts nothing yet."""
    result_queue_paused: bool = False
    """Answers of mergers and executors are not taken up yet."""
    reason: str = ""
    info: str = ""
    """The information for people, as the person who ordered it wrote it."""
    closings: tuple[Closing, ...] = ()
    """Pipelines and queues from which nothing lands."""


class ReadAnew(msgspec.Struct, frozen=True, omit_defaults=True, tag="anew"):
    """Request, on a person's order, that the tenant file is read again."""

    result: str = ""
    """Where the outcome is told, empty when nobody waits."""
    full: bool = False
    """Whether to read the configuration of every project, too."""


class HoldPlace(Dir):
    """Hold one request to keep the machines of builds that fail."""

    record = place(
        HoldRequest,
        "Which builds are to be held, and which are: executors and launchers give back what it does not name.",
        by="web, executor, scheduler",
        own=True,
    )
