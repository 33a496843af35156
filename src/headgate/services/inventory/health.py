"""Record objects that fail, or do not answer: after several failures in a row, an object is set aside and given to
nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from headgate.inventory import names
from headgate.inventory.health import ObjectHealth, Probed
from headgate.inventory.model import Caller
from headgate.services.inventory.errors import NotFound, Stale
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.pool import book_of, marks
from headgate.store.store import GuardLost
from headgate.store.types import At, Conflict, Op

log = logging.getLogger("headgate.inventory")

ATTEMPTS_MAX = 20
Known = tuple[ObjectHealth, Probed | None]


class HealthMonitor:
    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    async def report(self, caller: Caller, uuid: str, why: str) -> ObjectHealth:
        """Record that an object is well or, with a text, its failure. Raise PermissionDenied, NotFound, Invalid."""
        self._inventory.admin.allow(caller)
        names.value(why, "reason")
        await self._inventory.get(caller, uuid)
        return await self.heard(uuid, why)

    async def heard(self, uuid: str, why: str) -> ObjectHealth:
        """Do as `report` does, for an observation of the system itself. Raise Stale."""
        return await self._become(uuid, lambda health, now_ms: health.and_then(why, now_ms))

    async def probed(self, uuid: str, why: str, guards: Sequence[At] = ()) -> ObjectHealth:
        """Record what a probe found: that an object is well or, with a text, what is wrong.  Raise Stale, GuardLost.

        Nothing is written while it stays as it was.
        """
        return await self._become(uuid, lambda health, now_ms: health.probed(why, now_ms), not why, guards)

    async def of(self, caller: Caller, uuid: str) -> Known:
        """Return the health of an object; only operators see the error. Raise NotFound."""
        await self._inventory.get(caller, uuid)
        health, probed, _ = await self._read(uuid)
        # What went wrong may contain addresses and commands that only operators may see.
        return (health if caller.operator else replace(health, why="", missed_why="")), probed

    async def unwell(self, caller: Caller) -> list[tuple[str, ObjectHealth]]:
        """Return the objects of the partition that failed since they were last well.  Raise PermissionDenied."""
        self._inventory.admin.allow(caller)
        found = []
        for uuid, one in sorted((await book_of(self._inventory)).health.items()):
            if one.failures or one.missed:
                try:
                    await self._inventory.get(caller, uuid)
                # Health lies beside all partitions, so others' objects are among them.
                except NotFound:
                    continue  # of another partition, or deleted
                found.append((uuid, one))
        return found

    async def _become(
        self,
        uuid: str,
        change: Callable[[ObjectHealth, int], ObjectHealth],
        well: bool = False,
        guards: Sequence[At] = (),
    ) -> ObjectHealth:
        """Write the new health of an object, if it differs and the object still exists."""
        places, now_ms = self._inventory.places, self._inventory.clock()
        for _ in range(ATTEMPTS_MAX):
            before, probed, (object, *others) = await self._read(uuid)
            now = change(before, now_ms)
            ops: list[Op] = []
            if now != before:
                ops.append(places.health.object(uuid).record.put(now))
            # The first probe is recorded even if nothing is wrong, so that people can tell a healthy object from one
            # that nobody probes.
            if well if probed is None else before.aside and not now.aside:
                ops.append(places.probes.object(uuid).record.put(Probed(now_ms)))
            # An object that was deleted meanwhile gets no record: nothing would remove it again.
            if object.version is None or not ops:
                return now
            # Leases are given to objects that are not set aside, so those who give must look again.
            if now.aside != before.aside:
                ops += marks(self._inventory)
            try:
                await self._inventory.facts.store.commit([object, *others], ops, guards=guards)
            except GuardLost:
                raise
            except Conflict:
                continue
            if now.aside != before.aside:
                log.warning("object %s is %s", uuid, f"given to nobody: {now.reason}" if now.aside else "well again")
            return now
        raise Stale("the health of this object changes faster than it can be written; try again")

    async def _read(self, uuid: str) -> tuple[ObjectHealth, Probed | None, list[At]]:
        """Return the health, the checks that it is unchanged (that of the object first), and the object."""
        places = self._inventory.places
        health, probed = places.health.object(uuid).record, places.probes.object(uuid).record
        paths = [places.objects.by_uuid(uuid).record.path, health.path, probed.path]
        found = await self._inventory.facts.store.get_many(paths)
        checks = [At(path, entry.version if entry else None) for path, entry in zip(paths, found, strict=True)]
        _, failed, answers = found
        return (
            health.decode(failed.value) if failed else ObjectHealth(),
            probed.decode(answers.value) if answers else None,
            checks,
        )
