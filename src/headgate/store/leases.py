"""Leases kept by the process that owns the tree: they end by the loop's clock, and what they held goes with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headgate.base.ids import fresh
from headgate.store.types import Lease, SessionLost


@dataclass(slots=True)
class _Term:
    ttl_s: float
    deadline: float


class Leases:
    """Keep leases and call `expired`, on the loop, with each lease that ran out."""

    def __init__(self, expired: Callable[[Lease], None]) -> None:
        self._expired = expired
        self._terms: dict[Lease, _Term] = {}

    def grant(self, ttl_s: float) -> Lease:
        lease = Lease(fresh())
        loop = asyncio.get_running_loop()
        self._terms[lease] = _Term(ttl_s, loop.time() + ttl_s)
        loop.call_later(ttl_s, self._look, lease)
        return lease

    def keep_alive(self, lease: Lease) -> None:
        term = self._terms.get(lease)
        if term is None:
            raise SessionLost(f"the lease {lease} has run out")
        term.deadline = asyncio.get_running_loop().time() + term.ttl_s

    def known(self, lease: Lease) -> bool:
        return lease in self._terms

    def revoke(self, lease: Lease) -> None:
        self._terms.pop(lease, None)

    def _look(self, lease: Lease) -> None:
        term = self._terms.get(lease)
        if term is None:
            return
        loop = asyncio.get_running_loop()
        # Renewals only move the deadline. One timer per lease follows it, which is cheaper than a new timer for each
        # renewal.
        if (left_s := term.deadline - loop.time()) > 0:
            loop.call_later(left_s, self._look, lease)
            return
        del self._terms[lease]
        self._expired(lease)
