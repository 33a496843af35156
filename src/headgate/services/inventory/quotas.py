"""Limit how much all leases together may have, now and over a period of time, for which ended leases are stored."""

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
"""Limit on the past leases of all partitions together; a trim reduces them to this number."""
TRIM_INTERVAL_MS = 60_000
"""Shortest interval between two trims."""
OPS_MAX = 60
"""Limit on the operations in one commit."""
ROUNDS_MAX = 10
"""Limit on the rounds in one trim, each of which merges pairs of leases."""
Change = tuple[list[At], list[Op]]
"""Checks and operations of one commit."""
QUOTAS_MAX = 100
"""Limit on the quotas in one partition."""


class ObjectPast:
    """Store ended leases, for quotas over time.

    If there are too many, two leases of one user are merged into one that counts at least as much, so that leasing
    repeatedly for a second does not hide hours from a quota.
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
        """Remove old leases, and merge leases if there are too many; leases that others change in the meantime stay."""
        # A trim reads all past leases, which change slowly.
        if now_ms - self._trimmed_ms < TRIM_INTERVAL_MS:
            return
        self._trimmed_ms = now_ms
        oldest = self._places.inside(f"{max(0, now_ms - WINDOW_MAX_HOURS * 3_600_000):015d}")
        # No quota covers a longer period.
        await self._commit([_gone(entry) for entry in await self._entries("") if entry.path < oldest])
        for _ in range(ROUNDS_MAX):
            entries = await self._entries("")
            over = len(entries) - self._entries_max
            if over <= 0:
                return
            await self._commit(self._fewer(entries, over))

    def _fewer(self, entries: Sequence[Entry], over: int) -> list[Change]:
        """Return changes that remove at most `over` leases by merging them with others, or that remove the oldest ones
        if none can be merged."""
        leases = [self._lease(entry) for entry in entries]
        of = {lease.id: entry for lease, entry in zip(leases, entries, strict=True)}
        changes: list[Change] = []
        for earlier, later in joinable(leases)[:over]:
            first, second = of[earlier.id], of[later.id]
            # The merged lease has the id and the end of the later one, so it replaces that entry.
            put = self.put(joined(earlier, later))
            changes.append(([_at(first), _at(second)], [Delete(first.path), put]))
        # Nothing can be merged if many users have one lease each; then the oldest go, which count least.
        return changes or [_gone(entry) for entry in entries[:over]]

    async def _commit(self, changes: Sequence[Change]) -> None:
        """Commit the changes in groups; groups that conflict are left for the next trim."""
        step = OPS_MAX // 2
        for start in range(0, len(changes), step):
            some = changes[start : start + step]
            # Another server trims the same leases; the next trim handles the rest.
            with suppress(Conflict):
                await self._store.commit([at for ats, _ in some for at in ats], [op for _, ops in some for op in ops])

    async def _entries(self, after: str) -> list[Entry]:
        """Return the entries whose key follows, read in portions."""
        found: list[Entry] = []
        directory = self._places.path
        while True:
            # Names begin with the time of the end, so a scan reads only the requested leases.
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
    """Manage the quotas of a partition."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._store, self._places = inventory.facts.store, inventory.places.leases.quotas

    async def set(self, caller: Caller, quota: Quota) -> Quota:
        """Set the quota, replacing one of the same name, and return it. Raise Invalid, PermissionDenied, or Unmet if
        there are too many."""
        self._inventory.admin.allow(caller)
        check_quota(quota)
        if quota.search:
            # This refuses a search that names something that does not exist, while its author can still fix it.
            await self._inventory.filter(caller, expression(quota.search))
        others = [one for one in await self._there(caller) if one.name != quota.name]
        if len(others) >= QUOTAS_MAX:
            raise Unmet(f"the partition has {QUOTAS_MAX} quotas, which is the limit; delete some first")
        made = replace(quota, partition=caller.partition)
        place = self._places(caller.partition).quota(quota.name).record
        # The ledger is also written, so that a lease that is being granted at that moment is checked against the new
        # quota.
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
        """Return the partition's quotas that apply to the caller; all of them for operators."""
        found = sorted(await self._there(caller), key=lambda one: one.name)
        if caller.operator:
            return found
        return [one for one in found if one.project in ("", "*", caller.project) and one.user in ("", "*", caller.user)]

    async def _there(self, caller: Caller) -> list[Quota]:
        return [one for one in (await book_of(self._inventory)).quotas if one.partition == caller.partition]
