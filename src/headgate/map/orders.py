"""The records of people's orders: those that hold until revoked, and those that are carried out once."""

from __future__ import annotations

import msgspec

from headgate.gate.autohold import HoldRequest
from headgate.gate.closures import Closing
from headgate.map.tree import Dir, place


class TenantState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record what people have paused in a tenant; without the record, nothing is paused."""

    trigger_queue_discarding: bool = False
    """Events start nothing and are not kept for later. Landed configuration is applied all the same."""
    trigger_queue_paused: bool = False
    """Events are kept and start nothing until the pause ends."""
    result_queue_paused: bool = False
    """Answers of mergers and executors are kept and processed when the pause ends."""
    reason: str = ""
    info: str = ""
    """Notice for users, as the operator wrote it."""
    closings: tuple[Closing, ...] = ()
    """Pipelines and queues from which nothing lands."""


class ReadAnew(msgspec.Struct, frozen=True, omit_defaults=True, tag="anew"):
    """Request, on a person's order, that the tenant file is read again."""

    result: str = ""
    """Path at which somebody waits for the outcome; empty if nobody waits."""
    full: bool = False
    """Whether to read the configuration of every project again, too."""


class HoldPlace(Dir):
    """Hold one request to keep the machines of builds that fail."""

    record = place(
        HoldRequest,
        "Which builds are to be held, and which are: executors and launchers give back what it does not name.",
        by="web, executor, scheduler",
        own=True,
    )
