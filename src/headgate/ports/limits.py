"""Share what one process learns about the request limits of a forge among all processes that use the connection."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class QuietUntil(NamedTuple):
    """Limit calls until these times, in seconds since the epoch, UTC. Zero means no limit."""

    all_s: float = 0.0
    """Time until which no request may be made."""
    spare_s: float = 0.0
    """Time until which only requests that somebody waits for may be made."""


NO_LIMIT = QuietUntil()


class ForgeLimits(Protocol):
    """Share the limits of one connection."""

    def known(self, account: str) -> QuietUntil:
        """Return the limits of an account that other processes have learned, without any request."""
        ...

    def learned(self, account: str, quiet: QuietUntil) -> None:
        """Share a limit with the other processes soon."""
        ...


class Alone:
    """Keep the limits within a process that has no others to share them with."""

    def known(self, account: str) -> QuietUntil:
        """Return no limit: no other process has learned of any."""
        return NO_LIMIT

    def learned(self, account: str, quiet: QuietUntil) -> None:
        """Do nothing: there is no process to share limits with."""
