"""Cache the entities that objects depend on: partitions, types and definitions.

Each is read once and cached, and every commit checks that it is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from headgate.inventory.model import Definition, ObjectType, Partition, ProviderType
from headgate.map.inventory.entries import last
from headgate.map.inventory.places import InventoryMap, Uuid
from headgate.map.tree import Address
from headgate.store.store import Store
from headgate.store.types import At, Entry

R = TypeVar("R")

ENTRIES_MAX = 10_000


class InventoryFacts:
    """Cache entries. The commit of a writer that relied on an outdated entry fails; the writer then calls `forget` and
    reads again."""

    def __init__(self, store: Store, places: InventoryMap) -> None:
        self.store, self.places = store, places
        self._entries: dict[str, tuple[Entry | None, Any]] = {}  # the entry that was read, and its record
        self._listed: dict[str, Sequence[Entry]] = {}
        self._resolved: dict[_DefinitionKey, _Resolved] = {}
        self._epoch = 0

    def forget(self) -> None:
        self._entries.clear()
        self._listed.clear()
        self._resolved.clear()
        self._epoch += 1

    async def read(self, addresses: Sequence[Address[R]]) -> list[tuple[Entry | None, R | None]]:
        """Return the entries and their records. Raise Undecodable."""
        found = {one.path: self._entries[one.path] for one in addresses if one.path in self._entries}
        missing = [one for one in addresses if one.path not in found]
        if missing:
            epoch = self._epoch
            entries = await self.store.get_many([one.path for one in missing])
            for address, entry in zip(missing, entries, strict=True):
                found[address.path] = (entry, address.decode(entry.value) if entry else None)
            # If `forget` was called during the read, the entries may be older than the reported change.
            if epoch == self._epoch:
                if len(self._entries) + len(found) > ENTRIES_MAX:
                    self._entries.clear()
                self._entries |= found
        return [found[address.path] for address in addresses]

    async def resolved(self, key: _DefinitionKey) -> _Resolved:
        """Return the applicable definition and the checks that it depends on; the result is cached."""
        resolved = self._resolved.get(key)
        if resolved is None:
            epoch, basis = self._epoch, Basis(self)
            resolved = (await basis.resolve(*key), basis.checks)
            if epoch == self._epoch and len(self._resolved) < ENTRIES_MAX:
                self._resolved[key] = resolved
        return resolved

    async def listing(self, directory: str) -> Sequence[Entry]:
        """Return the entries of a subtree, cached like single entries."""
        entries = self._listed.get(directory)
        if entries is None:
            epoch = self._epoch
            entries = await self.store.list(directory)
            if epoch == self._epoch and len(self._listed) < ENTRIES_MAX:
                self._listed[directory] = entries
        return entries

    async def object_types(self) -> list[ObjectType]:
        """Return the object types by code."""
        found = [ObjectType.from_wire(one.value) for one in await self.listing(self.places.types.object.path)]
        return sorted(found, key=lambda one: one.code)

    async def kinds(self, partition: str, type: str) -> set[str]:
        """Return the kinds that have their own definition, in the partition or in all partitions."""
        here = self.places.partitions.tree(partition).definitions.by_type(type).by_type.path
        everywhere = self.places.definitions.by_type(type).by_type.path
        return {last(one.path) for path in (here, everywhere) for one in await self.listing(path)}


class Basis:
    """Record what one decision depends on: every entry that was read becomes a check of the commit."""

    def __init__(self, facts: InventoryFacts) -> None:
        self._facts = facts
        self.checks: dict[str, At] = {}

    @property
    def places(self) -> InventoryMap:
        return self._facts.places

    async def partition(self, uuid: str) -> Partition | None:
        return await self._one(self.places.partitions.by_uuid(uuid).record)

    async def partition_named(self, name: str) -> str | None:
        found = await self._one(self.places.partitions.by_name(name).record)
        return found.uuid if found else None

    async def object_type(self, code: str) -> ObjectType | None:
        return await self._one(self.places.types.object(code).record)

    async def provider_type(self, code: str) -> ProviderType | None:
        return await self._one(self.places.types.provider(code).record)

    async def definition(self, partition: str, type: str, kind: str) -> Definition | None:
        """Return the applicable definition: that for the partition and kind, the partition, the kind, or the type; None
        if there is none."""
        found, checks = await self._facts.resolved((partition, type, kind))
        self.checks |= checks
        return found[1] if found else None

    async def resolve(self, partition: str, type: str, kind: str) -> tuple[Address[Uuid], Definition] | None:
        """Return where the applicable definition was found, and the definition."""
        addresses = definition_places(self.places, partition, type, kind)
        uuids = await self._several(addresses)
        for address, uuid in zip(addresses, uuids, strict=True):
            if uuid is not None:
                definition = await self._one(self.places.definitions.by_uuid(uuid.uuid).record)
                return (address, definition) if definition is not None else None
        return None

    async def _one(self, address: Address[R]) -> R | None:
        return (await self._several([address]))[0]

    async def _several(self, addresses: Sequence[Address[R]]) -> list[R | None]:
        found = await self._facts.read(addresses)
        for address, (entry, _) in zip(addresses, found, strict=True):
            # Absence is also checked, because a more specific definition may be added before the commit.
            self.checks[address.path] = At(address.path, entry.version if entry else None)
        return [record for _, record in found]


_DefinitionKey = tuple[str, str, str]
_Resolved = tuple[tuple[Address[Uuid], Definition] | None, dict[str, At]]


def definition_places(places: InventoryMap, partition: str, type: str, kind: str) -> list[Address[Uuid]]:
    """Return the places of definitions for such objects, most specific first. Without a partition, return only those
    that apply to all partitions."""
    everywhere = places.definitions.by_type(type)
    indexes = [places.partitions.tree(partition).definitions.by_type(type)] if partition else []
    return [
        address
        for index in (*indexes, everywhere)
        for address in ([index.by_type(kind).record] if kind else []) + [index.default]
    ]
