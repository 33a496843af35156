"""Define the interface that delivers reports: by mail, to webhooks, chats and message queues."""

from __future__ import annotations

from typing import Protocol

from headgate.base.errors import HeadgateError
from headgate.map.outbox import OutboxMessage


class ReporterAway(HeadgateError, OSError):
    """Report that the receiver of reports does not answer, or accepts none now; all its reports wait. The report that
    was sent may have been delivered."""

    def __init__(self, why: str, wait_s: float = 0.0, *, alone: bool = False) -> None:
        super().__init__(why)
        self.wait_s = wait_s
        """Seconds for which the receiver asks for no requests; 0 if it names no time."""
        self.alone = alone
        """Whether this concerns one project only, as far as is known."""


class ReportPutOff(HeadgateError, OSError):
    """Report that this report is not accepted now; others may be."""


class ReportRefused(HeadgateError, ValueError):
    """Report that this report will never be accepted."""


class Reporter(Protocol):
    """Deliver the reports of one connection."""

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Deliver a report and return once it is accepted. A repeated key is delivered once, if the receiver can
        recognise it.

        Raises ReporterAway, ReportPutOff, ReportRefused.
        """
        ...
