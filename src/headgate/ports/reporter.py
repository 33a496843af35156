"""Where reports go: mail, webhooks, chats, queues of messages."""

from __future__ import annotations

from typing import Protocol

from headgate.map.outbox import OutboxMessage


class ReporterAway(OSError):
    """Whoever takes reports does not answer, or takes none just now: all wait.  What was told is perhaps there."""

    def __init__(self, why: str, wait_s: float = 0.0, *, alone: bool = False) -> None:
        super().__init__(why)
        self.wait_s = wait_s
        """How long it asks not to be bothered."""
        self.alone = alone
        """It is so for this project, and perhaps not for others."""


class ReportPutOff(OSError):
    """This report is not taken just now; others may be."""


class ReportRefused(ValueError):
    """This report will not be taken, however often it is told."""


class Reporter(Protocol):
    """Whoever takes the reports of one connection."""

    async def tell(self, posting: OutboxMessage) -> None:
        """Returns once it was taken.  Told again under the same key it is taken once, where the other side can do that.

        Raises ReporterAway, ReportPutOff, ReportRefused."""
        ...
