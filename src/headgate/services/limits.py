"""Share the request limits of forges among processes: a limit is written to the store when it begins."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import lru_cache

from headgate.map.connections import AccountLimit, AccountLimits
from headgate.ports.limits import NO_LIMIT, QuietUntil
from headgate.recipes.codec import readable
from headgate.services.context import Context
from headgate.store.store import Txn
from headgate.store.types import Entry, StoreError

log = logging.getLogger("headgate.forges")

AGAIN_S = 5.0
"""Pause before another attempt when the store could not be written."""
ACCOUNTS_MAX = 200
"""Limit on the recorded accounts of one connection; those with the longest limits are kept."""


@dataclass(slots=True)
class SharedLimits:
    """Share the limits of all connections of a process; `run` writes them for the other processes."""

    context: Context
    _fresh: dict[str, dict[str, AccountLimit]] = field(default_factory=dict)
    """Connection -> account -> limit that other processes do not know yet."""
    _stirred: asyncio.Event = field(default_factory=asyncio.Event)

    def of(self, connection: str) -> ConnectionLimits:
        """Return the limits of one connection; see `ports.limits.ForgeLimits`."""
        return ConnectionLimits(self, connection)

    def tell(self, connection: str, account: str, limit: AccountLimit) -> None:
        """Share the limit with the other processes soon."""
        self._fresh.setdefault(connection, {})[account] = limit
        self._stirred.set()

    async def run(self) -> None:
        """Write new limits, with two store requests for all that arrive together."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            fresh, self._fresh = self._fresh, {}
            for connection, found in fresh.items():
                try:
                    await self._write(connection, found)
                except StoreError as error:
                    log.info("%s: its limits are not shared yet: %s", connection, error)
                    for account, limit in found.items():
                        # A newer limit of the account may have arrived in the meantime, and takes precedence.
                        self._fresh.setdefault(connection, {}).setdefault(account, limit)
            if self._fresh:
                await asyncio.sleep(AGAIN_S)
                self._stirred.set()

    async def _write(self, connection: str, found: dict[str, AccountLimit]) -> None:
        place, now_ms = self.context.map.cache.connection(connection).limits, self.context.now_ms()

        async def body(txn: Txn) -> None:
            entry = await txn.get(place.path)
            known = _limits(entry) if entry is not None else {}
            # Processes learn limits at different times; the longer one is safe.
            both = {**known, **{name: _longer(known.get(name, AccountLimit()), limit) for name, limit in found.items()}}
            lasting = sorted(both.items(), key=lambda one: -max(one[1].all_ms, one[1].spare_ms))
            current = {name: one for name, one in lasting[:ACCOUNTS_MAX] if max(one.all_ms, one.spare_ms) > now_ms}
            # Several processes often learn of the same limit.
            if current != known:
                txn.do(place.put(AccountLimits(current)))

        await self.context.store.transact(body)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Implement `ports.limits.ForgeLimits` for one connection."""

    shared: SharedLimits
    connection: str

    def known(self, account: str) -> QuietUntil:
        """Return the account's limit as the mirror shows it; see `ports.limits.ForgeLimits`."""
        context = self.shared.context
        entry = context.mirror.get(context.map.cache.connection(self.connection).limits.path)
        found = _limits(entry).get(account) if entry is not None else None
        return QuietUntil(found.all_ms / 1000, found.spare_ms / 1000) if found is not None else NO_LIMIT

    def learned(self, account: str, quiet: QuietUntil) -> None:
        """Share a new limit of the account; see `ports.limits.ForgeLimits`."""
        self.shared.tell(self.connection, account, AccountLimit(int(quiet.all_s * 1000), int(quiet.spare_s * 1000)))


@lru_cache(maxsize=1_000)
def _limits(entry: Entry) -> dict[str, AccountLimit]:
    """Decode the limits; cached, because they are read before each call and rarely change."""
    record = readable(entry, AccountLimits)
    return record.accounts if record is not None else {}


def _longer(one: AccountLimit, other: AccountLimit) -> AccountLimit:
    return AccountLimit(max(one.all_ms, other.all_ms), max(one.spare_ms, other.spare_ms))
