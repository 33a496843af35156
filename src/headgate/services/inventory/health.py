"""Which objects fail: after some failures in a row one is set aside, and nobody is given it."""

from __future__ import annotations

import logging

from headgate.inventory import names
from headgate.inventory.leases import Health
from headgate.inventory.model import Caller
from headgate.services.inventory.errors import NotFound, Stale
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.pool import book_of, marks
from headgate.store.types import At, Conflict, Op

log = logging.getLogger("headgate.inventory")

ATTEMPTS_MAX = 20


class Healths:
    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    async def report(self, caller: Caller, uuid: str, why: str) -> Health:
        """Record that an object is well or, with a text, what failed.  Raise Denied, NotFound, Invalid."""
        self._inventory.admin.allow(caller)
        names.value(why, "reason")
        await self._inventory.get(caller, uuid)
        return await self.heard(uuid, why)

    async def heard(self, uuid: str, why: str) -> Health:
        """As `report`, of what the system itself saw.  Raise Stale."""
        address = self._inventory.places.health.object(uuid).record
        store = self._inventory.facts.store
        for _ in range(ATTEMPTS_MAX):
            entry = await store.get(address.path)
            before = address.decode(entry.value) if entry else Health()
            now = before.and_then(why, self._inventory.clock())
            ops: list[Op] = [address.put(now)]
            if now.aside != before.aside:
                ops += marks(self._inventory)
                log.warning("object %s is %s", uuid, f"set aside: {why}" if why else "well again")
            try:
                await store.commit([At(address.path, entry.version if entry else None)], ops)
                return now
            except Conflict:
                continue
        raise Stale("the health of this object changes faster than it can be written; try again")

    async def unwell(self, caller: Caller) -> list[tuple[str, Health]]:
        """Return the objects of the partition that failed since they were last well.  Raise Denied."""
        self._inventory.admin.allow(caller)
        found = []
        for uuid, one in sorted((await book_of(self._inventory)).health.items()):
            if one.failures:
                try:
                    await self._inventory.get(caller, uuid)
                except NotFound:
                    continue  # of another partition, or deleted
                found.append((uuid, one))
        return found
