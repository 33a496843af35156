"""Limit how much leases may have together, also over time, for which ended leases are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from headgate.inventory import names
from headgate.inventory.leases import WINDOW_MAX_HOURS, ObjectLease, Quota, check_quota, joinable, joined
from headgate.inventory.model import Caller
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.errors import NotFound, Unmet
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.pool import book_of, expression, marks
from headgate.store.store import PORTION_MAX, Store
from headgate.store.types import At, Conflict, Delete, Entry, Op

PAST_MAX = 10_000
"""Limit of past leases of all partitions together; the result of one trim comes on top."""
TRIM_INTERVAL_MS = 60_000
"""Shortest interval between two trims."""
OPS_MAX = 60
"""Limit of operations in one commit."""
ROUNDS_MAX = 10
"""Limit of rounds in one trim, each of which joins pairs of leases."""
Change = tuple[list[At], list[Op]]
"""Checks and operations of one commit."""
QUOTAS_MAX = 100
"""Limit of quotas in one partition."""


class ObjectPast:
    """Store ended leases, for quotas over time.

    Beyond the limit, two leases of one user are joined to one that counts at least as much, so that leasing for a
    second again and again does not hide hours from a quota.
    """

    def __init__(self, store: Store, places: InventoryMap, *, entries_max: int = PAST_MAX) -> None:
        self._store, self._places, self._entries_max = store, places.leases.past, entries_max
        self._trimmed_ms = 0

    def put(self, ended: ObjectLease) -> Op:
        """Return the operation that stores the ended lease."""
        return self._places(_key(ended)).record.put(ended)

    async def since(self, moment_ms: int) -> list[ObjectLease]:
        """Return the leases that ended after that moment."""
        return [self._lease(entry) for entry in await self._entries(f"{max(0, moment_ms):015d}")]

    async def trim(self, now_ms: int) -> None:
        """Remove old leases, and join leases where there are too many; leases that others change meanwhile stay."""
        # A trim reads all past leases, and they change slowly.
        if now_ms - self._trimmed_ms < TRIM_INTERVAL_MS:
            return
        self._trimmed_ms = now_ms
        oldest = self._places.inside(f"{max(0, now_ms - WINDOW_MAX_HOURS * 3_600_000):015d}")
        # No quota looks back further.
        await self._commit([_gone(entry) for entry in await self._entries("") if entry.path < oldest])
        for _ in range(ROUNDS_MAX):
            entries = await self._entries("")
            over = len(entries) - self._entries_max
            if over <= 0:
                return
            await self._commit(self._fewer(entries, over))

    def _fewer(self, entries: Sequence[Entry], over: int) -> list[Change]:
        """Return changes that remove at most `over` leases by joining them with others; the oldest go where none can be
        joined."""
        leases = [self._lease(entry) for entry in entries]
        of = {lease.id: entry for lease, entry in zip(leases, entries, strict=True)}
        changes: list[Change] = []
        for earlier, later in joinable(leases)[:over]:
            first, second = of[earlier.id], of[later.id]
            # It has the id and the end of the later one, thus also its place.
            put = self.put(joined(earlier, later))  # replaces the later one
            changes.append(([_at(first), _at(second)], [Delete(first.path), put]))
        # Nothing can be joined: many users with one lease each. The oldest count least.
        return changes or [_gone(entry) for entry in entries[:over]]

    async def _commit(self, changes: Sequence[Change]) -> None:
        """Commit the changes in groups; those that conflict are left for the next trim."""
        step = OPS_MAX // 2
        for start in range(0, len(changes), step):
            some = changes[start : start + step]
            # Another server trims the same leases; what it left is there at the next trim.
            with suppress(Conflict):
                await self._store.commit([at for ats, _ in some for at in ats], [op for _, ops in some for op in ops])

    async def _entries(self, after: str) -> list[Entry]:
        """Return the entries whose key follows, read in portions."""
        found: list[Entry] = []
        directory = self._places.path
        while True:
            # Names begin with the time of the end, so a scan reads only what is asked for.
            read = await self._store.scan(directory, after=after, limit=PORTION_MAX)
            found += read
            if len(read) < PORTION_MAX:
                return found
            after = read[-1].path[len(directory) + 1 :]
            await asyncio.sleep(0)

    def _lease(self, entry: Entry) -> ObjectLease:
        return self._places("_").record.decode(entry.value)


def _key(ended: ObjectLease) -> str:
    """Return the name of the lease's entry; names sort in the order in which leases ended."""
    return f"{ended.ended_ms:015d}-{ended.id}"


def _gone(entry: Entry) -> Change:
    return [_at(entry)], [Delete(entry.path)]


def _at(entry: Entry) -> At:
    return At(entry.path, entry.version)


class Quotas:
    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._store, self._places = inventory.facts.store, inventory.places.leases.quotas

    async def set(self, caller: Caller, quota: Quota) -> Quota:
        """Set the quota, replacing one of the same name. Raise Invalid, PermissionDenied, or Unmet if there are too
        many."""
        self._inventory.admin.allow(caller)
        check_quota(quota)
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
