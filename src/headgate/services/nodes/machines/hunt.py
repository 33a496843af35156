"""Find and delete our leftover resources in accounts, even in accounts that are no longer configured.

A copy of a store has the same tag as the original. Resources are therefore also tagged with the term of the launcher
that created them: each launcher starts a term, and records it before it creates anything. A resource with a term that
is not recorded in this store belongs to another installation, and is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from headgate.base.ids import derived, fresh
from headgate.map.inventory.nodes import Installation, MadeNode, NodeAccount
from headgate.ports.clouds import TERM_TAG, CloudUnavailable, LaunchFailed, OverQuota
from headgate.services.nodes.accounts import HUNT_S, CloudAccount, Errands, Hunting, Ours, region_of
from headgate.services.nodes.ledger import MachineLedger
from headgate.services.nodes.machines.records import SeenMachines
from headgate.store.types import At, Op

log = logging.getLogger("headgate.launcher")

TERMS_MAX = 500
"""Limit on the remembered terms; when there are more, all machines of the first one are certainly gone."""
CLEAN_LOOKS = 10
"""Number of checks without our resources after which an account outside the configuration is no longer checked."""
STRANGE_MAX = 5
"""Limit on the listed machines of another installation."""
Where = tuple[str, str]
"""Connection and region."""


class Hunt:
    """Find our resources in accounts. Call `begin`, then `look` in each pass of the launcher."""

    def __init__(self, ledger: MachineLedger, accounts: Mapping[str, CloudAccount], hunting: Hunting) -> None:
        self._ledger, self._accounts, self._hunting = ledger, accounts, hunting
        self.system = self.term = ""
        self._terms: tuple[str, ...] = ()
        self._clean: dict[Where, int] = {}

    async def begin(self) -> None:
        """Record a new term, and read or create the id of the installation."""
        place, self.term = self._ledger.context.map.nodes.installation, fresh()
        while True:
            entry = await self._ledger.context.store.get(place.path)
            known = place.decode(entry.value) if entry is not None else Installation(fresh())
            # The newest terms are kept. A resource without a known term would count as foreign, hence the high limit.
            mine = Installation(known.id, (*known.terms, self.term)[-TERMS_MAX:])
            # The term is recorded before anything is created in it, or a crash would leave resources of an unknown
            # term.
            if await self._ledger.commit([At(place.path, entry.version if entry else None)], [place.put(mine)]):
                self.system, self._terms = mine.id, mine.terms
                return

    async def look(self, seen: SeenMachines, errands: Errands) -> None:
        """Start checks of all accounts that have or had machines."""
        # Accounts come from three places, because the configuration may have lost one that still holds machines.
        descriptions = {
            (one.connection, region_of(one.settings)): one.settings for one in seen.every.values() if not one.is_static
        }
        used = {
            _where(node): node.settings["provider"] for node in seen.nodes.values() if not (node.fixed or node.main)
        }
        known = {(one.connection, one.region): one for one in seen.accounts.values()}
        for where, provider in used.items():
            descriptions.setdefault(where, provider)
        for where, one in known.items():
            descriptions.setdefault(where, one.settings)
        for where in sorted({*used, *known}):
            await self._keep(where, known.get(where), descriptions[where], seen)
        for where, provider in descriptions.items():
            connection, region = where
            if connection in self._accounts:
                needed = where in used or any(_place(one) == where for one in seen.every.values())
                work = partial(self._hunted, where, provider, needed)
                errands.begin(f"hunt {connection} {region}", connection, work)

    async def _keep(
        self, where: Where, known: NodeAccount | None, provider: Mapping[str, Any], seen: SeenMachines
    ) -> None:
        """Write the record of an account."""
        connection, region = where
        record = self._ledger.context.map.nodes.accounts(derived(connection, region)).record
        lacking = connection not in self._accounts
        now = known or NodeAccount(connection=connection, region=region, settings=dict(provider))
        if lacking and known is not None and known.given_up:
            mine = [node for node in seen.nodes.values() if _where(node) == where and not node.fixed]
            had = {node.main for node in mine if node.request}
            # Its user keeps the machine until the build ends; only then is it forgotten.
            for node in (node for node in mine if not node.request and node.id not in had):
                log.warning("machine %s of %s was given up by %s", node.id, node.provider, known.given_up)
                await self._ledger.change(node.id, lambda _: None)
            if not any(node.request for node in mine):
                await self._ledger.commit([], [record.delete()])
            return
        lacking_ms = (now.lacking_ms or self._ledger.context.now_ms()) if lacking else 0
        now = replace(now, lacking_ms=lacking_ms, given_up="" if not lacking else now.given_up)
        if now != known:
            await self._ledger.commit([_as_read(self._ledger, record.path)], [record.put(now)])

    async def _hunted(self, where: Where, provider: Mapping[str, Any], needed: bool) -> float:
        """Check one account; forget it if it is no longer configured and has not had our resources for a while. Return
        the seconds until the next check."""
        connection, region = where
        try:
            self._hunting.forget()
            # A resource without a term counts as ours.
            ours = Ours(self.system, lambda one: one.tags.get(TERM_TAG, self.term) in self._terms, self._known)
            found = await self._hunting.look(connection, provider, ours)
        except (CloudUnavailable, LaunchFailed, OverQuota) as error:
            log.warning("connection %s: its resources cannot be listed: %s", connection, error)
            return HUNT_S
        record = self._ledger.context.map.nodes.accounts(derived(connection, region)).record
        entry = self._ledger.context.mirror.get(record.path)
        if entry is None and not found.strange:
            return HUNT_S
        one = (
            record.decode(entry.value)
            if entry
            else NodeAccount(connection=connection, region=region, settings=dict(provider))
        )
        self._clean[where] = 0 if needed or found.ours else self._clean.get(where, 0) + 1
        ops: list[Op] = []
        if self._clean[where] >= CLEAN_LOOKS:
            ops.append(record.delete())
        else:
            strange = tuple(sorted(found.strange))[:STRANGE_MAX]
            since_ms = (one.strange_ms or self._ledger.context.now_ms()) if strange else 0
            now = replace(one, strange=strange, strange_ms=since_ms)
            ops += [record.put(now)] if entry is None or now != one else []
        if ops:
            await self._ledger.commit([_as_read(self._ledger, record.path)], ops)
        return HUNT_S

    def _known(self) -> set[str]:
        """Return the recorded machines."""
        # Determined by path, so that a machine with an unreadable record counts as known and is not deleted.
        under = self._ledger.context.mirror.under(self._ledger.context.map.nodes.made.path)
        return {entry.path.rpartition("/")[2] for entry in under}


def _as_read(ledger: MachineLedger, path: str) -> At:
    entry = ledger.context.mirror.get(path)
    return At(path, entry.version if entry is not None else None)


def _place(one: Any) -> Where:
    return one.connection, region_of(one.settings)


def _where(node: MadeNode) -> Where:
    return node.connection, region_of(node.settings["provider"])
