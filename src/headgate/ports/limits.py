"""What one process learns of how much a forge may be asked, and all that have the connection heed."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Quiet(NamedTuple):
    """In seconds since the epoch, UTC; 0: there is no such limit."""

    all_s: float = 0.0
    """Until then nobody may ask."""
    spare_s: float = 0.0
    """Until then only what somebody waits for may be asked."""


NO_LIMIT = Quiet()


class Limits(Protocol):
    """Of one connection."""

    def known(self, account: str) -> Quiet:
        """Return what other processes have learned of an account, without asking anybody."""
        ...

    def learned(self, account: str, quiet: Quiet) -> None:
        """Tell the others, soon."""
        ...


class Alone:
    """A process that has nobody to tell."""

    def known(self, account: str) -> Quiet:
        """See `Limits`."""
        return NO_LIMIT

    def learned(self, account: str, quiet: Quiet) -> None:
        """See `Limits`."""
