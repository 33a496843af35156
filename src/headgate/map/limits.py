"""Define the records by which processes with a connection tell one another how much they may ask of its forge."""

from __future__ import annotations

import msgspec


class AccountLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record until when one account is limited."""

    all_ms: int = 0
    """Until then nobody may ask, milliseconds since the epoch, UTC."""
    spare_ms: int = 0
    """Until then only what somebody waits for may be asked."""


class AccountLimits(msgspec.Struct, frozen=True):
    """Account and kind of call -> until when it is limited; those that are over are left out."""

    accounts: dict[str, AccountLimit]
