"""Find what can be leased, with the amounts leased and the providers, and set aside objects that fail."""

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


@dataclass(frozen=True, slots=True)
class Book:
    """Hold leases, quotas and health of one moment, with the check that nothing has changed since."""

    at: At
    leases: Mapping[str, ObjectLease] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """Entries that store the leases."""
    quotas: Sequence[Quota] = ()
    health: Mapping[str, ObjectHealth] = field(default_factory=dict)

    def line(self, now_ms: int) -> list[ObjectLease]:
        """Return the waiting leases, the next one first."""
        waiting = [one for one in self.leases.values() if one.state == WAITING]
        # The order of arrival in the store decides between equals.
        return sorted(
            waiting, key=lambda one: (level(one.precedence, one.requested_ms, now_ms), self.entries[one.id].born)
        )

    @property
    def taking(self) -> list[ObjectLease]:
        """Return the leases that hold something."""
        return [one for one in self.leases.values() if one.takes]

    @property
    def taken(self) -> set[str]:
        """Return the objects of which some lease holds something."""
        return {one.object for one in self.taking}

    @property
    def aside(self) -> dict[str, str]:
        """Return the objects that are given to nobody, each with the reason."""
        return {uuid: one.reason for uuid, one in self.health.items() if one.aside}

    @property
    def broken(self) -> dict[str, str]:
        """Return the objects that are given to nobody until a person declares them well."""
        return {uuid: one.reason for uuid, one in self.health.items() if one.broken}

    def with_lease(self, lease: ObjectLease, entry: Entry, ledger: Entry) -> Book:
        """Return the book after a commit that wrote the lease."""
        all_leases, entries = {**self.leases, lease.id: lease}, {**self.entries, lease.id: entry}
        return Book(At(ledger.path, ledger.version), all_leases, entries, self.quotas, self.health)


async def book_of(inventory: Inventory) -> Book:
    """Return leases, quotas and health as they are now. The ledger is read first, because every change of quotas writes
    it."""
    store, places = inventory.facts.store, inventory.places
    ledger = places.leases.active.ledger.path
    at, found, entries = At(ledger, None), dict[str, ObjectLease](), dict[str, Entry]()
    record = places.leases.active.lease("_").record
    # The list is of one moment, so the ledger's version covers all leases in it.
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
    """Return the operations that every change includes: the ledger, and the moment that makes others look again."""
    return [inventory.places.leases.active.ledger.put(Marker()), inventory.journal.mark()]


@dataclass(frozen=True, slots=True)
class LeaseCandidate:
    """Hold an object, as the caller may see it, and its provider."""

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
    """Choose an object. If there is none, name the objects that stay reserved for the waiting lease, and why it
    waits."""

    candidate: LeaseCandidate | None = None
    reserved: frozenset[str] = frozenset()
    why: str = ""


class Pool:
    """Look once at objects and providers; each of them is read once."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._found: dict[tuple[object, ...], list[LeaseCandidate]] = {}
        self._providers: dict[tuple[str, str], Object | None] = {}
        self._shares: dict[str, int] = {}

    async def candidates(self, lease: ObjectLease) -> list[LeaseCandidate]:
        """Return the objects that match the search and whose total amounts suffice. Raise Invalid, InventoryError."""
        key = (lease.partition, lease.project, lease.user, lease.roles, lease.search)
        # The same search finds other objects for another person, so the key has all that decides what they see.
        if key not in self._found:
            caller = Caller(
                lease.user, lease.project, lease.partition, frozenset(lease.roles), frozenset({lease.partition})
            )
            wanted = await self._inventory.filter(caller, expression(lease.search))
            found = await self._inventory.several(caller, [wanted], LIMIT_MAX)
            records = [self._inventory.places.objects.by_uuid(one.object.uuid).record for one in found]
            # The match is what the caller sees; giving needs the whole object.
            read = await self._inventory.facts.store.get_many([one.path for one in records])
            several = [
                await self._candidate(one.object, record.decode(entry.value), entry.version)
                for one, record, entry in zip(found, records, read, strict=True)
                if entry is not None
            ]
            self._found[key] = [one for one in several if one is not None]
        return [one for one in self._found[key] if could(lease.amounts, one.object)]

    async def choose(self, book: Book, lease: ObjectLease, *, launched: bool, busy: Collection[str]) -> LeaseChoice:
        """Return what the lease can have now: of machines that launchers give if `launched`, otherwise of other
        objects.

        Raise Invalid, InventoryError. `busy` are objects that builds or others have, or wait for.
        """
        free: list[LeaseCandidate] = []
        missing: list[str] = []
        reserved: set[str] = set()
        for one in [one for one in await self.candidates(lease) if one.launched == launched]:
            uuid = one.object.uuid
            if uuid in book.aside:
                missing.append(f"{one.object.name} is set aside: {book.aside[uuid]}")
                continue
            others = [other for other in book.taking if other.object == uuid]
            # A machine of which something is leased counts already.
            if not others and (why := await self._shared_out(book, one)):
                # It comes first, because it stays true when the machine is free.
                missing.insert(0, why)  # builds may have taken it meanwhile
                continue
            reserved.add(uuid)
            if why := lacking(lease, one.object, others) or ("others come first" if uuid in busy else ""):
                missing.append(why)
            else:
                free.append(one)
        if free:
            return LeaseChoice(
                # What is left is kept in one piece: small requests go where little would be left.
                min(free, key=lambda one: (_left(book, lease, one.object), one.object.name, one.object.uuid))
            )
        return LeaseChoice(None, frozenset(reserved), missing[0] if missing else "nothing matches now")

    async def _shared_out(self, book: Book, one: LeaseCandidate) -> str:
        """Return why people get no more machines of a launcher; empty if they do."""
        if not one.launched or one.provider is None:
            return ""
        share = await self.share(one.provider)
        theirs = {other.object for other in book.taking if other.provider.get("uuid") == one.provider.uuid}
        if len(theirs) < share:
            return ""
        return f"people have {len(theirs)} machines of {one.provider.name}, which has {share} for them"

    async def share(self, provider: Object) -> int:
        """Return how many machines of builds people may have at a time."""
        if provider.uuid not in self._shares:
            text = provider.properties.get(SHARE, SHARE_DEFAULT)
            part = names.number(text.removesuffix("%"))
            if part is None or part < 0:
                # A value that is no number must neither block people nor give them everything.
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
        # A slot is no machine of its own, and stands for room on an executor.
        if provider is not None and provider.kind == LOCAL:
            return None
        if provider is None or provider.kind != STATIC:
            return LeaseCandidate(seen, full, generation, provider, launched=False)
        basis = Basis(self._inventory.facts)
        launched = await basis.provider_type(STATIC) is not None  # there is or was a launcher
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
    """Return how much would be left of the wanted amounts: the fullest object that has enough is the best."""
    others = [other for other in book.taking if other.object == object.uuid]
    left = [(names.number(object.properties.get(key, "")) or 0) - used(others, key) for key in lease.amounts]
    return float(min(left, default=0))
