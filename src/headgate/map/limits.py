"""Define the records by which processes with a connection share the request limits of its forge."""

from __future__ import annotations

import msgspec


class AccountLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record until when one account is limited."""

    all_ms: int = 0
    """Time before which no request may be sent, in milliseconds since the epoch, UTC."""
    spare_ms: int = 0
    """Time before which only requests that somebody waits for may be sent."""


class AccountLimits(msgspec.Struct, frozen=True):
    """Map account and kind of call to its limit; limits that are over are left out."""

    accounts: dict[str, AccountLimit]
