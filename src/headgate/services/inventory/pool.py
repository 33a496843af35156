"""Find objects that can be leased, with the leased amounts and the providers, and take failing objects out of use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.inventory import names
from headgate.inventory.filters import Expression, Filter, PropertyConditions, PropertyFilter, parse
from headgate.inventory.health import ObjectHealth, Probed
from headgate.inventory.leases import WAITING, ObjectLease, Quota, could, lacking, level, used
from headgate.inventory.model import ADMIN, LOCAL, PROVIDER, STATIC, Caller, Object
from headgate.inventory.permissions import PROVIDED
from headgate.map.inventory.entries import last
from headgate.map.inventory.places import Marker
from headgate.services.inventory.errors import NotFound, Stale
from headgate.services.inventory.facts import Basis
from headgate.services.inventory.inventory import LIMIT_MAX, Inventory
from headgate.store.store import GuardLost
from headgate.store.types import At, Conflict, Entry, Op

log = logging.getLogger("headgate.inventory")

ATTEMPTS_MAX = 20
Known = tuple[ObjectHealth, Probed | None]
MACHINE = "runm.machine"
"""The type that is leased unless the search names another."""
SHARE = "leases"
"""The property of a provider of machines for builds that limits how many of them people lease at a time."""
SHARE_DEFAULT = "50%"


class HealthMonitor:
    """Record which objects are healthy, as people and probes report it."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    async def report(self, caller: Caller, uuid: str, why: str) -> ObjectHealth:
        """Record that an object is healthy or, if `why` is not empty, its failure; return its health. Raise
        PermissionDenied, NotFound, Invalid."""
        self._inventory.admin.allow(caller)
        names.value(why, "reason")
        await self._inventory.get(caller, uuid)
        return await self.heard(uuid, why)

    async def heard(self, uuid: str, why: str) -> ObjectHealth:
        """Record an observation of the system itself; otherwise like `report`. Raise Stale."""
        return await self._become(uuid, lambda health, now_ms: health.and_then(why, now_ms))

    async def probed(self, uuid: str, why: str, guards: Sequence[At] = ()) -> ObjectHealth:
        """Record the result of a probe: the object is healthy or, if `why` is not empty, not.  Raise Stale, GuardLost.

        Write nothing while the result stays the same.
        """
        return await self._become(uuid, lambda health, now_ms: health.probed(why, now_ms), not why, guards)

    async def of(self, caller: Caller, uuid: str) -> Known:
        """Return the health of an object; only operators see the error. Raise NotFound."""
        await self._inventory.get(caller, uuid)
        health, probed, _ = await self._read(uuid)
        # Errors may contain addresses and commands that only operators may see.
        return (health if caller.operator else replace(health, why="", missed_why="")), probed

    async def unwell(self, caller: Caller) -> list[tuple[str, ObjectHealth]]:
        """Return the objects of the partition that have failed since they were last healthy.  Raise
        PermissionDenied."""
        self._inventory.admin.allow(caller)
        found = []
        for uuid, one in sorted((await book_of(self._inventory)).health.items()):
            if one.failures or one.missed:
                try:
                    await self._inventory.get(caller, uuid)
                # Health records of all partitions are stored together, and the object may have been deleted.
                except NotFound:
                    continue
                found.append((uuid, one))
        return found

    async def _become(
        self,
        uuid: str,
        change: Callable[[ObjectHealth, int], ObjectHealth],
        well: bool = False,
        guards: Sequence[At] = (),
    ) -> ObjectHealth:
        """Write the new health of an object, if it differs and the object still exists; return the health."""
        places, now_ms = self._inventory.places, self._inventory.clock()
        for _ in range(ATTEMPTS_MAX):
            before, probed, (object, *others) = await self._read(uuid)
            now = change(before, now_ms)
            ops: list[Op] = []
            if now != before:
                ops.append(places.health.object(uuid).record.put(now))
            # The first successful probe is also recorded, so that people can distinguish a healthy object from one that
            # is not probed.
            if well if probed is None else before.aside and not now.aside:
                ops.append(places.probes.object(uuid).record.put(Probed(now_ms)))
            # A deleted object gets no record, because nothing would remove that record.
            if object.version is None or not ops:
                return now
            # Only healthy objects are leased, so processes that grant leases must check again.
            if now.aside != before.aside:
                ops += marks(self._inventory)
            try:
                await self._inventory.facts.store.commit([object, *others], ops, guards=guards)
            except GuardLost:
                raise
            except Conflict:
                continue
            if now.aside != before.aside:
                log.warning("object %s is %s", uuid, f"out of use: {now.reason}" if now.aside else "healthy again")
            return now
        raise Stale("the health of this object changes faster than it can be written; try again")

    async def _read(self, uuid: str) -> tuple[ObjectHealth, Probed | None, list[At]]:
        """Return the health, the last probe, and the checks that they are unchanged, that of the object first."""
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


@dataclass(frozen=True, slots=True)
class Book:
    """Hold leases, quotas and health at one moment, with the check that nothing has changed since."""

    at: At
    leases: Mapping[str, ObjectLease] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """Entries that store the leases."""
    quotas: Sequence[Quota] = ()
    health: Mapping[str, ObjectHealth] = field(default_factory=dict)

    def line(self, now_ms: int) -> list[ObjectLease]:
        """Return the waiting leases, the next one first."""
        waiting = [one for one in self.leases.values() if one.state == WAITING]
        # Equal ones stay in the order of their arrival in the store.
        return sorted(
            waiting, key=lambda one: (level(one.precedence, one.requested_ms, now_ms), self.entries[one.id].born)
        )

    @property
    def taking(self) -> list[ObjectLease]:
        """Return the leases that hold something."""
        return [one for one in self.leases.values() if one.takes]

    @property
    def taken(self) -> set[str]:
        """Return the objects that are at least partly leased."""
        return {one.object for one in self.taking}

    @property
    def aside(self) -> dict[str, str]:
        """Return the objects that are out of use, each with the reason."""
        return {uuid: one.reason for uuid, one in self.health.items() if one.aside}

    @property
    def broken(self) -> dict[str, str]:
        """Return the objects that are out of use until a person declares them healthy, each with the reason."""
        return {uuid: one.reason for uuid, one in self.health.items() if one.broken}

    def with_lease(self, lease: ObjectLease, entry: Entry, ledger: Entry) -> Book:
        """Return the book after a commit that wrote the lease."""
        all_leases, entries = {**self.leases, lease.id: lease}, {**self.entries, lease.id: entry}
        return Book(At(ledger.path, ledger.version), all_leases, entries, self.quotas, self.health)


async def book_of(inventory: Inventory) -> Book:
    """Return the current leases, quotas and health. The ledger is read first, because every change of quotas writes
    it."""
    store, places = inventory.facts.store, inventory.places
    ledger = places.leases.active.ledger.path
    at, found, entries = At(ledger, None), dict[str, ObjectLease](), dict[str, Entry]()
    record = places.leases.active.lease("_").record
    # The list is a snapshot, so the ledger's version covers all leases in it.
    for entry in await store.list(places.leases.active.path):
        if entry.path == ledger:
            at = At(ledger, entry.version)
        else:
            one = record.decode(entry.value)
            found[one.id], entries[one.id] = one, entry
    quota = places.leases.quotas("_").quota("_").record
    quotas = [quota.decode(entry.value) for entry in await store.list(places.leases.quotas.path)]
    known = places.health.object("_").record
    health = {last(entry.path): known.decode(entry.value) for entry in await store.list(places.health.path)}
    return Book(at, found, entries, quotas, health)


def marks(inventory: Inventory) -> list[Op]:
    """Return the operations that every change includes: writing the ledger, and moving the journal's revision, which
    makes others check again."""
    return [inventory.places.leases.active.ledger.put(Marker()), inventory.journal.mark()]


@dataclass(frozen=True, slots=True)
class LeaseCandidate:
    """Hold an object, in the form that the caller may see, and its provider."""

    object: Object
    full: Object
    generation: int
    provider: Object | None
    launched: bool
    """Whether the object is a machine that launchers give to builds and clean."""
    checks: tuple[At, ...] = ()
    """Facts on which that depends."""


@dataclass(frozen=True, slots=True)
class LeaseChoice:
    """Hold the chosen object. If there is none, hold the objects that stay reserved for the waiting lease, and why it
    waits."""

    candidate: LeaseCandidate | None = None
    reserved: frozenset[str] = frozenset()
    why: str = ""


class Pool:
    """Read objects and providers for one decision; each is read only once."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._found: dict[tuple[object, ...], list[LeaseCandidate]] = {}
        self._providers: dict[tuple[str, str], Object | None] = {}
        self._shares: dict[str, int] = {}

    async def candidates(self, lease: ObjectLease) -> list[LeaseCandidate]:
        """Return the objects that match the search and whose total amounts suffice. Raise Invalid, InventoryError."""
        key = (lease.partition, lease.project, lease.user, lease.roles, lease.search)
        # The same search may find other objects for another person, so the key includes everything that determines
        # visibility.
        if key not in self._found:
            caller = Caller(
                lease.user, lease.project, lease.partition, frozenset(lease.roles), frozenset({lease.partition})
            )
            wanted = await self._inventory.filter(caller, expression(lease.search))
            found = await self._inventory.several(caller, [wanted], LIMIT_MAX)
            records = [self._inventory.places.objects.by_uuid(one.object.uuid).record for one in found]
            # The matches have only the properties that the caller may see, but granting a lease needs all of them.
            read = await self._inventory.facts.store.get_many([one.path for one in records])
            several = [
                await self._candidate(one.object, record.decode(entry.value), entry.version)
                for one, record, entry in zip(found, records, read, strict=True)
                if entry is not None
            ]
            self._found[key] = [one for one in several if one is not None]
        return [one for one in self._found[key] if could(lease.amounts, one.object)]

    async def choose(self, book: Book, lease: ObjectLease, *, launched: bool, busy: Collection[str]) -> LeaseChoice:
        """Return the choice for the lease now, from the machines that launchers grant if `launched`, otherwise from
        other objects.

        Raise Invalid, InventoryError. `busy` are objects that builds or others have, or wait for.
        """
        free: list[LeaseCandidate] = []
        missing: list[str] = []
        reserved: set[str] = set()
        for one in [one for one in await self.candidates(lease) if one.launched == launched]:
            uuid = one.object.uuid
            if uuid in book.aside:
                missing.append(f"{one.object.name} is out of use: {book.aside[uuid]}")
                continue
            others = [other for other in book.taking if other.object == uuid]
            # A partly leased machine already counts towards the share.
            if not others and (why := await self._shared_out(book, one)):
                # This reason comes first, because it remains true when the machine becomes free.
                missing.insert(0, why)
                continue
            reserved.add(uuid)
            if why := lacking(lease, one.object, others) or ("others come first" if uuid in busy else ""):
                missing.append(why)
            else:
                free.append(one)
        if free:
            return LeaseChoice(
                # Best fit: a request goes where the least would be left, so that large amounts stay available
                # elsewhere.
                min(free, key=lambda one: (_left(book, lease, one.object), one.object.name, one.object.uuid))
            )
        return LeaseChoice(None, frozenset(reserved), missing[0] if missing else "nothing matches now")

    async def _shared_out(self, book: Book, one: LeaseCandidate) -> str:
        """Return why people may not lease more machines of a launcher; empty if they may."""
        if not one.launched or one.provider is None:
            return ""
        share = await self.share(one.provider)
        theirs = {other.object for other in book.taking if other.provider.get("uuid") == one.provider.uuid}
        if len(theirs) < share:
            return ""
        return f"people have leased {len(theirs)} machines of {one.provider.name}, which allows {share}"

    async def share(self, provider: Object) -> int:
        """Return the number of build machines that people may lease at a time."""
        if provider.uuid not in self._shares:
            text = provider.properties.get(SHARE, SHARE_DEFAULT)
            part = names.number(text.removesuffix("%"))
            if part is None or part < 0:
                # An invalid value must neither block people nor give them everything.
                part, text = names.number(SHARE_DEFAULT.removesuffix("%")) or part, SHARE_DEFAULT
            assert part is not None, "the default is a number"
            many = int(part)
            if text.endswith("%"):
                many = int(part * await self._machines(provider) / 100)
            self._shares[provider.uuid] = many
        return self._shares[provider.uuid]

    async def _machines(self, provider: Object) -> int:
        own = PropertyConditions(require_items=(PropertyFilter(PROVIDED, provider.name),))
        wanted = Filter((provider.partition,), (MACHINE,), wanted=own)
        return len(await self._inventory.several(_root(provider.partition), [wanted], LIMIT_MAX))

    async def _candidate(self, seen: Object, full: Object, generation: int) -> LeaseCandidate | None:
        """Return a candidate, or None for executors' slots, which cannot be leased."""
        provider = await self._provider(full)
        # A slot is not a machine, but represents capacity of an executor.
        if provider is not None and provider.kind == LOCAL:
            return None
        if provider is None or provider.kind != STATIC:
            return LeaseCandidate(seen, full, generation, provider, launched=False)
        basis = Basis(self._inventory.facts)
        # A launcher registers this type, so the type shows that there is or was one.
        launched = await basis.provider_type(STATIC) is not None
        return LeaseCandidate(seen, full, generation, provider, launched, tuple(basis.checks.values()))

    async def _provider(self, one: Object) -> Object | None:
        named = one.properties.get(PROVIDED, "")
        key = (one.partition, named)
        if key not in self._providers:
            try:
                found = await self._inventory.get_named(_root(one.partition), PROVIDER, "", named) if named else None
            except NotFound:
                found = None
            self._providers[key] = found[0] if found else None
        return self._providers[key]


def expression(search: str) -> Expression:
    """Return the search expression: for machines, unless it names another type. Raise Invalid."""
    parsed = parse(search)
    return replace(parsed, types=parsed.types or (MACHINE,))


def matching(quota: Quota, object: Object) -> bool:
    """Return whether a quota's search matches the object."""
    parsed = expression(quota.search)
    codes = [one.removesuffix("*") if one.endswith("*") else None for one in parsed.types]
    of_type = object.type in parsed.types or any(begin is not None and object.type.startswith(begin) for begin in codes)
    name = parsed.name if parsed.name or parsed.name_prefix else None
    return of_type and Filter(name=name, name_prefix=parsed.name_prefix, wanted=parsed.wanted).matches(object)


def _root(partition: str) -> Caller:
    return Caller("leases", "headgate", partition, frozenset({ADMIN}))


def _left(book: Book, lease: ObjectLease, object: Object) -> float:
    """Return how much of the wanted amounts would be left; less is better, so that the fullest suitable object is
    chosen."""
    others = [other for other in book.taking if other.object == object.uuid]
    left = [(names.number(object.properties.get(key, "")) or 0) - used(others, key) for key in lease.amounts]
    return float(min(left, default=0))
