"""How much a forge may be asked: what the processes that have a connection tell one another."""

from __future__ import annotations

import msgspec


class AccountLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one account."""

    all_ms: int = 0
    """Until then nobody may ask, milliseconds since the epoch, UTC."""
    spare_ms: int = 0
    """Until then only what somebody waits for may be asked."""


class AccountLimits(msgspec.Struct, frozen=True):
    """Account and kind of call -> until when it is limited; those that are over are left out."""

    accounts: dict[str, AccountLimit]
