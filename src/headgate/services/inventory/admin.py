"""Change the entities that objects depend on: partitions, types and definitions.

Each change is one commit, recorded in the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from headgate.base.ids import fresh
from headgate.inventory import definitions, model, names
from headgate.inventory.journal import Recorded
from headgate.map.inventory.entries import last
from headgate.map.inventory.places import InventoryMap, Marker, Uuid
from headgate.map.tree import Address
from headgate.services.inventory.errors import AlreadyExists, NotFound, PermissionDenied, Stale, Unmet
from headgate.services.inventory.facts import Basis, InventoryFacts, definition_places
from headgate.services.inventory.journal import Journal
from headgate.store.store import Txn
from headgate.store.types import OPS_MAX, Conflict, Delete, Entry, Op

T = TypeVar("T")
R = TypeVar("R")

TYPE_SIZE_MAX_BYTES = 100
PARTITIONS_MAX = 1_000
"""Limit on the partitions in one answer."""
PARTS_MAX = OPS_MAX // 2 - 8
"""Limit on the quotas and definitions that one commit deletes: two operations for each, and room for those of the
journal."""


@dataclass(frozen=True, slots=True)
class DefinitionScope:
    """Describe where a definition applies: to a type, in one partition (a uuid) or all, for one kind or all."""

    type: str
    partition: str = ""
    kind: str = ""

    def address(self, places: InventoryMap) -> Address[Uuid]:
        return definition_places(places, self.partition, self.type, self.kind)[0]


class Admin:
    """Manage partitions, types, definitions and permissions of the inventory."""

    def __init__(
        self, facts: InventoryFacts, journal: Journal, clock: Callable[[], int], *, compatible: bool = False
    ) -> None:
        self._facts, self._journal, self._clock = facts, journal, clock
        self._default = definitions.ORIGINAL_DEFAULT if compatible else definitions.DEFAULT

    @property
    def _places(self) -> InventoryMap:
        return self._facts.places

    # ---- partitions

    async def partitions(self) -> list[tuple[model.Partition, int]]:
        """Return all partitions in the order of their uuids, with their generations. They are read in portions, so that
        other tasks can run in between."""
        found, after = await self._partitions_after("", PARTITIONS_MAX)
        while after:
            await asyncio.sleep(0)
            part, after = await self._partitions_after(after, PARTITIONS_MAX)
            found += part
        return found

    async def open_partitions(
        self, caller: model.Caller, after: str, limit: int
    ) -> tuple[list[tuple[model.Partition, int]], str]:
        """Return the partitions that are open to the caller and whose uuid follows `after`, in the order of their
        uuids, and the uuid after which there may be more.

        Other partitions are not even read.
        """
        if caller.partitions is None:
            return await self._partitions_after(after, limit)
        # A caller with few partitions costs few reads, and partitions that are closed to the caller do not affect
        # paging.
        wanted = sorted(uuid for uuid in caller.partitions if uuid > after)
        addresses = [self._places.partitions.by_uuid(uuid).record for uuid in wanted[:limit]]
        read = await self._facts.store.get_many([one.path for one in addresses])
        found = [(one.decode(entry.value), entry.version) for one, entry in zip(addresses, read, strict=True) if entry]
        return found, wanted[limit - 1] if len(wanted) > limit else ""

    async def has_partition(self, uuid: str) -> bool:
        """Return whether the partition exists."""
        return await self._facts.store.get(self._places.partitions.by_uuid(uuid).record.path) is not None

    async def _partitions_after(self, uuid: str, limit: int) -> tuple[list[tuple[model.Partition, int]], str]:
        directory = self._places.partitions.by_uuid.path
        read = await self._facts.store.scan(directory, after=uuid, limit=limit + 1)
        found = [(Address(one.path, model.Partition).decode(one.value), one.version) for one in read[:limit]]
        return found, last(read[limit - 1].path) if len(read) > limit else ""

    async def create_partition(self, caller: model.Caller, partition: model.Partition) -> tuple[model.Partition, int]:
        """Create a partition; return it with its generation. Raise AlreadyExists if the name or uuid is taken."""
        self.allow(caller)
        names.name(partition.name, "name of a partition")
        record = self._places.partitions.by_uuid(partition.uuid).record
        name = self._places.partitions.by_name(partition.name).record

        async def body(txn: Txn) -> None:
            for address, what in ((record, partition.uuid), (name, partition.name)):
                if await txn.get(address.path) is not None:
                    raise AlreadyExists(f"a partition {what} already exists")
            txn.do(record.put(partition), name.put(Uuid(partition.uuid)))

        # An operator may create several concurrently; the transaction is repeated if another one took the name in the
        # meantime.
        await self._commit(caller, body)
        return await self._generation(record, partition)

    async def rename_partition(
        self, caller: model.Caller, uuid: str, new_name: str, expected_generation: int = 0
    ) -> tuple[model.Partition, int]:
        """Rename a partition; return it with its generation. Raise NotFound, AlreadyExists or Stale."""
        self.allow(caller)
        names.name(new_name, "name of a partition")
        record = self._places.partitions.by_uuid(uuid).record
        partition = model.Partition(uuid, new_name)

        async def body(txn: Txn) -> None:
            entry = await txn.get(record.path)
            if entry is None:
                raise NotFound(f"there is no partition {uuid}")
            if expected_generation not in (0, entry.version):
                raise Stale(
                    f"partition {uuid} is at generation {entry.version}, not {expected_generation}; read it again"
                )
            old = self._places.partitions.by_name(record.decode(entry.value).name).record
            name = self._places.partitions.by_name(new_name).record
            # The check of the record alone would let two partitions get one name.
            if old.path != name.path:
                if await txn.get(name.path) is not None:
                    raise AlreadyExists(f"a partition {new_name} already exists")
                txn.do(old.delete(), name.put(Uuid(uuid)))
            txn.do(record.put(partition))

        await self._commit(caller, body)
        return await self._generation(record, partition)

    async def delete_partition(self, caller: model.Caller, uuid: str) -> None:
        """Delete a partition, its quotas and its definitions. Raise NotFound, or Unmet while it contains objects.

        A large deletion takes several commits, the last of which deletes the partition itself: if the deletion is
        interrupted, the partition still exists and can be deleted again.
        """
        self.allow(caller)
        while not await self._commit(caller, partial(self._delete_portion, uuid)):
            pass

    async def _delete_portion(self, uuid: str, txn: Txn) -> bool:
        """Delete as much of the partition as one commit can hold. Return whether it is gone."""
        record, tree = self._places.partitions.by_uuid(uuid).record, self._places.partitions.tree(uuid)
        entry = await txn.get(record.path)
        if entry is None:
            raise NotFound(f"there is no partition {uuid}")
        # With this read, the commit conflicts with every concurrent write to the inventory.
        await txn.get(self._places.journal.revision.path)
        if await self._facts.store.scan(tree.objects.path, limit=1):
            raise Unmet(f"partition {uuid} has objects; delete them first")
        quotas = await self._facts.store.list(self._places.leases.quotas(uuid).path)
        # Quotas are deleted as well, because they would apply to a later partition with the same uuid.
        parts = list[list[Op]]()
        for index in await self._facts.store.list(tree.definitions.path):
            definition = self._places.definitions.by_uuid(Uuid.from_wire(index.value).uuid).record
            parts.append([Delete(index.path), definition.delete()])
        # Quotas are deleted last: if the deletion is interrupted between two commits, the partition keeps its limits.
        parts += [[Delete(quota.path)] for quota in quotas]
        for part in parts[:PARTS_MAX]:
            txn.do(*part)
        if len(parts) - len(quotas) < PARTS_MAX and quotas:
            # As with every change of quotas, this makes a concurrent decision on a lease start again.
            txn.do(self._places.leases.active.ledger.put(Marker()))
        if len(parts) > PARTS_MAX:
            return False
        txn.do(record.delete(), self._places.partitions.by_name(record.decode(entry.value).name).record.delete())
        return True

    # ---- types

    async def provider_types(self) -> list[model.ProviderType]:
        """Return the provider types by code."""
        found = await self._records(self._places.types.provider.path, model.ProviderType)
        return sorted((one for one, _ in found), key=lambda one: one.code)

    async def set_object_type(self, caller: model.Caller, type: model.ObjectType) -> model.ObjectType:
        """Create or change a type. Raise Unmet if objects exist and the scope of their unique names would change."""
        self.allow(caller)
        names.name(type.code, "code of a type", size_max_bytes=TYPE_SIZE_MAX_BYTES)
        names.value(type.description, "description")
        address = self._places.types.object(type.code).record

        async def body(txn: Txn) -> None:
            entry = await txn.get(address.path)
            # Such a change would move the name entries of all its objects.
            if entry is not None and address.decode(entry.value).per_project != type.per_project:
                await self._unused(txn, type.code)
            txn.do(address.put(type))

        await self._commit(caller, body)
        return type

    async def set_provider_type(self, caller: model.Caller, type: model.ProviderType) -> model.ProviderType:
        self.allow(caller)
        names.name(type.code, "code of a type", size_max_bytes=TYPE_SIZE_MAX_BYTES)
        names.value(type.description, "description")
        address = self._places.types.provider(type.code).record

        async def body(txn: Txn) -> None:
            # The read makes the transaction fail if another one changes the type concurrently.
            await txn.get(address.path)
            txn.do(address.put(type))

        await self._commit(caller, body)
        return type

    async def delete_type(self, caller: model.Caller, code: str, *, provider: bool) -> None:
        """Delete a type. Raise NotFound, or Unmet while objects of the type exist."""
        self.allow(caller)
        types = self._places.types
        path = types.provider(code).record.path if provider else types.object(code).record.path

        async def body(txn: Txn) -> None:
            if await txn.get(path) is None:
                raise NotFound(f"there is no type {code!r}")
            if not provider:
                await self._unused(txn, code)
            txn.delete(path)

        await self._commit(caller, body)

    async def _unused(self, txn: Txn, code: str) -> None:
        # With this read, the commit conflicts with every concurrent write to the inventory.
        await txn.get(self._places.journal.revision.path)
        for partition, _ in await self.partitions():
            names_of = self._places.partitions.tree(partition.uuid).objects.by_type(code).path
            if await self._facts.store.scan(names_of, limit=1):
                raise Unmet(f"there are objects of type {code} in partition {partition.name}; delete them first")

    # ---- definitions

    async def definition(self, place: DefinitionScope, *, exact: bool) -> tuple[DefinitionScope, model.Definition]:
        """Return the definition that is set for exactly this scope or, unless `exact`, the one that applies to it.
        Raise NotFound."""
        basis = Basis(self._facts)
        found = await basis.resolve(place.partition, place.type, place.kind)
        if found is None or (exact and found[0].path != place.address(self._places).path):
            raise NotFound(f"there is no definition for {_shown(place)}")
        everywhere = [DefinitionScope(place.type, "", place.kind), DefinitionScope(place.type)]
        several = [place, DefinitionScope(place.type, place.partition), *everywhere]
        return next(one for one in several if one.address(self._places).path == found[0].path), found[1]

    async def set_definition(
        self, caller: model.Caller, place: DefinitionScope, definition: model.Definition
    ) -> model.Definition:
        """Set a definition, replacing the one with the same scope, and return it. Raise Invalid, Unmet or
        AlreadyExists.

        The caller's roles are those in the partition of the scope.
        """
        self.allow(caller)
        definitions.check(definition)
        index = place.address(self._places)
        record = self._places.definitions.by_uuid(definition.uuid).record

        async def body(txn: Txn) -> None:
            await self._place_exists(txn, place)
            old = await txn.get(index.path)
            former = index.decode(old.value).uuid if old else ""
            # A uuid names one definition; using it for a second scope would change the first one, too.
            if await txn.get(record.path) is not None and former != definition.uuid:
                raise AlreadyExists(f"a definition {definition.uuid} already exists for another scope")
            if former and former != definition.uuid:
                txn.do(self._places.definitions.by_uuid(former).record.delete())
            txn.do(index.put(Uuid(definition.uuid)), record.put(definition))

        await self._commit(caller, body)
        return definition

    async def delete_definition(self, caller: model.Caller, place: DefinitionScope) -> None:
        """Delete a definition. Raise NotFound."""
        self.allow(caller)
        index = place.address(self._places)

        async def body(txn: Txn) -> None:
            old = await txn.get(index.path)
            if old is None:
                raise NotFound(f"there is no definition for {_shown(place)}")
            txn.do(index.delete(), self._places.definitions.by_uuid(index.decode(old.value).uuid).record.delete())

        await self._commit(caller, body)

    async def _place_exists(self, txn: Txn, place: DefinitionScope) -> None:
        if await txn.get(self._places.types.object(place.type).record.path) is None:
            raise Unmet(f"there is no object type {place.type!r}")
        if place.partition:
            partition = self._places.partitions.by_uuid(place.partition).record
            if await txn.get(partition.path) is None:
                raise Unmet(f"there is no partition {place.partition}")
        if place.kind and place.type == model.PROVIDER:
            kind = self._places.types.provider(place.kind).record
            if await txn.get(kind.path) is None:
                raise Unmet(f"there is no provider type {place.kind!r}")

    # ---- all kinds

    async def begin(self) -> None:
        """Write the initial types and the default definition, unless they exist."""
        types = self._places.types
        put = [(types.object(one.code).record, one) for one in model.BUILT_IN_TYPES]
        puts = [address.put(one) for address, one in put]
        puts += [types.provider(one.code).record.put(one) for one in model.BUILT_IN_PROVIDER_TYPES]
        default = self._places.definitions.by_type(model.PROVIDER).default

        # Another server, or an older version with fewer types, may have initialized the inventory.
        async def body(txn: Txn) -> None:
            for op in puts:
                if await txn.get(op.path) is None:
                    txn.do(op)
            if await txn.get(default.path) is None:
                uuid = fresh()
                definition = model.Definition(uuid, self._default.schema)
                txn.do(default.put(Uuid(uuid)), self._places.definitions.by_uuid(uuid).record.put(definition))

        await self._facts.store.transact(body)
        await self._journal.begin()

    async def _commit(self, caller: model.Caller, body: Callable[[Txn], Awaitable[T]]) -> T:
        """Commit `body` with an entry in the journal, and return its result. Raise Stale if concurrent writes keep
        interfering."""

        # Without an entry in the journal, other servers would keep outdated entries in their caches.
        async def journaled(txn: Txn) -> T:
            result = await body(txn)
            txn.do(*self._journal.ops(fresh(), Recorded((), caller.user, caller.project, self._clock())))
            return result

        try:
            return await self._facts.store.transact(journaled)
        except Conflict as error:
            raise Stale("other changes of the inventory keep interfering; try again") from error
        # Even a failed attempt shows that others write, so the cached entries may be outdated.
        finally:
            self._facts.forget()

    async def _records(self, directory: str, type: type[R]) -> list[tuple[R, int]]:
        entries: Sequence[Entry] = await self._facts.store.list(directory)
        return [(Address(one.path, type).decode(one.value), one.version) for one in entries]

    async def _generation(self, address: Address[R], record: R) -> tuple[R, int]:
        entry = await self._facts.store.get(address.path)
        return record, entry.version if entry else 0

    def allow(self, caller: model.Caller) -> None:
        """Check that the caller is an operator. Raise PermissionDenied."""
        if not caller.operator:
            raise PermissionDenied(
                f"{caller.user or 'this caller'} has neither the role operator nor admin, one of which is required"
            )


def _shown(place: DefinitionScope) -> str:
    kind = f" of kind {place.kind}" if place.kind else ""
    return f"{place.type}{kind} {f'in partition {place.partition}' if place.partition else 'in every partition'}"
