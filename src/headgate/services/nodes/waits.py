"""Say why a request waits for machines, since when, and what was tried."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headgate.map.inventory.machines import NodeWait

TRIED_MAX = 12
"""The last tries that went wrong, which people are shown."""


def explained(known: NodeWait | None, request: str, why: str, now_ms: int) -> NodeWait:
    """Return the record of a request that waits for this reason: from now on, or since it has been the reason."""
    if known is not None and known.why == why:
        return known
    return replace(known or NodeWait(request), why=why, since_ms=now_ms)


def with_tries(wait: NodeWait, tried: Sequence[str]) -> NodeWait:
    """Return the record with what went wrong since."""
    return replace(wait, tried=(*wait.tried, *tried)[-TRIED_MAX:])
