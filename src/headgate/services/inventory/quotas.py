"""Limit how much leases may have together, as set by operators."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.inventory import leases, names
from headgate.inventory.leases import Quota
from headgate.inventory.model import Caller
from headgate.services.inventory.errors import NotFound, Unmet
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.pool import book_of, expression, marks

QUOTAS_MAX = 100
"""Limit of quotas in one partition."""


class Quotas:
    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._store, self._places = inventory.facts.store, inventory.places.leases.quotas

    async def set(self, caller: Caller, quota: Quota) -> Quota:
        """Set the quota, replacing one of the same name. Raise Invalid, PermissionDenied, or Unmet if there are too
        many."""
        self._inventory.admin.allow(caller)
        leases.check_quota(quota)
        if quota.search:
            # This refuses a search that names what does not exist, while its author is there to read it.
            await self._inventory.filter(caller, expression(quota.search))
        others = [one for one in await self._there(caller) if one.name != quota.name]
        if len(others) >= QUOTAS_MAX:
            raise Unmet(f"the partition has {QUOTAS_MAX} quotas, which is the most; delete some first")
        made = replace(quota, partition=caller.partition)
        place = self._places(caller.partition).quota(quota.name).record
        # The ledger is written, too, so a lease that is being given is checked against the new quota.
        await self._store.commit([], [place.put(made), *marks(self._inventory)])
        return made

    async def delete(self, caller: Caller, name: str) -> None:
        """Delete the quota. Raise PermissionDenied, NotFound."""
        self._inventory.admin.allow(caller)
        names.name(name, "name of a quota")
        place = self._places(caller.partition).quota(name).record
        if await self._store.get(place.path) is None:
            raise NotFound(f"there is no quota {name!r}")
        await self._store.commit([], [place.delete(), *marks(self._inventory)])

    async def listed(self, caller: Caller) -> list[Quota]:
        """Return the partition's quotas that concern the caller; all of them for operators."""
        found = sorted(await self._there(caller), key=lambda one: one.name)
        if caller.operator:
            return found
        return [one for one in found if one.project in ("", "*", caller.project) and one.user in ("", "*", caller.user)]

    async def _there(self, caller: Caller) -> list[Quota]:
        return [one for one in (await book_of(self._inventory)).quotas if one.partition == caller.partition]
