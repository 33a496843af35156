"""What one process learns of how much a forge may be asked, and all that have the connection heed."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class QuietUntil(NamedTuple):
    """In seconds since the epoch, UTC; 0: there is no such limit."""

    all_s: float = 0.0
    """Until then nobody may ask."""
    spare_s: float = 0.0
    """Until then only what somebody waits for may be asked."""


NO_LIMIT = QuietUntil()


class ForgeLimits(Protocol):
    """Of one connection."""

    def known(self, account: str) -> QuietUntil:
        """Return what other processes have learned of an account, without asking anybody."""
        ...

    def learned(self, account: str, quiet: QuietUntil) -> None:
        """Tell the others, soon."""
        ...


class Alone:
    """A process that has nobody to tell."""

    def known(self, account: str) -> QuietUntil:
        """See `ForgeLimits`."""
        return NO_LIMIT

    def learned(self, account: str, quiet: QuietUntil) -> None:
        """See `ForgeLimits`."""
