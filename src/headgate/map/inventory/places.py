"""The places of the inventory.  Paths and values follow the layout of runm-metadata; what is ours is marked."""

from __future__ import annotations

from typing import Self

import msgspec

from headgate.inventory.health import ObjectHealth, Probed
from headgate.inventory.journal import ObjectHistory, Recorded
from headgate.inventory.leases import ObjectLease, Quota
from headgate.inventory.model import Definition, Object, ObjectType, Partition, ProviderType
from headgate.map.tree import Dir, below, each, place

PREFIX = "/"
ORIGINAL_PREFIX = "runm-metadata/"
"""The default of runm-metadata."""
CONSTANT = "runm/metadata"
"""What follows the prefix, always."""


def root(prefix: str = PREFIX) -> str:
    """The path under which everything is, whatever slashes the prefix begins or ends with."""
    return "/".join(("", *(name for name in prefix.split("/") if name), CONSTANT))


class Uuid(msgspec.Struct, frozen=True):
    """Of an index: what the key stands for."""

    uuid: str

    def to_wire(self) -> bytes:
        return self.uuid.encode()

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        return cls(value.decode("ascii"))


class PageKey(msgspec.Struct, frozen=True):
    """What page tokens are sealed with."""

    key: bytes


class Marker(msgspec.Struct, frozen=True):
    """Nothing: that the key exists says it."""

    def to_wire(self) -> bytes:
        return b""

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        if value:
            raise ValueError("a marker has no value")
        return cls()


class KindDefinition(Dir):
    """One kind."""

    record = place(Uuid, "Which definition applies to objects of one kind.", by="inventory", own=True)


class TypeDefinitions(Dir):
    """Definitions of one type."""

    default = place(Uuid, "Which definition applies to objects of every other kind.", by="inventory")
    by_type = each(KindDefinition, key="kind", doc="By kind; of providers: by provider type.")


class DefinitionIndex(Dir):
    """Which definitions apply in one partition, before those that apply everywhere."""

    by_type = each(TypeDefinitions, key="type")


class DefinitionPlace(Dir):
    """One definition."""

    record = place(Definition, "A JSON Schema, and permissions of properties.", by="inventory", own=True)


class Definitions(Dir):
    """Definitions, and which apply in every partition."""

    by_type = each(TypeDefinitions, key="type")
    by_uuid = each(DefinitionPlace, key="definition uuid")


class ObjectTypePlace(Dir):
    """One type."""

    record = place(ObjectType, "A type of objects, and where their names are unique.", by="inventory", own=True)


class ProviderTypePlace(Dir):
    """One provider type."""

    record = place(ProviderType, "A type of providers.", by="inventory", own=True)


class Types(Dir):
    """What types there are."""

    object = each(ObjectTypePlace, key="type")
    provider = each(ProviderTypePlace, key="provider type", name="runm.provider")


class NamePlace(Dir):
    """One name."""

    record = place(Uuid, "Which object has the name.", by="inventory", own=True)


class ProjectNames(Dir):
    """One project."""

    by_name = each(NamePlace, key="name")


class TypeObjects(Dir):
    """Names of the objects of one type."""

    by_name = each(NamePlace, key="name", doc="Of types whose names are unique in a partition.")
    by_project = each(ProjectNames, key="project", doc="Of types whose names are unique in a project.")


class Objects(Dir):
    """Names of the objects of a partition."""

    by_type = each(TypeObjects, key="type")


class MarkerPlace(Dir):
    """One object."""

    record = place(Marker, "The object has it.", by="inventory", own=True)


class PropertyValue(Dir):
    """One value."""

    object = each(MarkerPlace, key="object uuid", bare=True)


class PropertyKey(Dir):
    """One property."""

    value = each(PropertyValue, key="property value", bare=True)


class TypeProperties(Dir):
    """Properties of the objects of one type."""

    key = each(PropertyKey, key="property key", bare=True)


class Properties(Dir):
    """Which objects have which properties."""

    by_type = each(TypeProperties, key="type")


class Tag(Dir):
    """One tag."""

    object = each(MarkerPlace, key="object uuid", bare=True)


class Tags(Dir):
    """Which objects have which tags."""

    tag = each(Tag, key="tag", bare=True)


class PartitionTree(Dir):
    """What belongs to one partition, but for the objects themselves."""

    definitions = below(DefinitionIndex)
    objects = below(Objects)
    properties = below(Properties)
    tags = below(Tags)


class PartitionName(Dir):
    """One name."""

    record = place(Uuid, "Which partition has the name.", by="inventory", own=True)


class PartitionPlace(Dir):
    """One partition."""

    record = place(Partition, "A partition, and its name.", by="inventory", own=True)


class Partitions(Dir):
    """Divisions of the world."""

    by_name = each(PartitionName, key="name")
    by_uuid = each(PartitionPlace, key="partition uuid")
    tree = each(PartitionTree, key="partition uuid", bare=True)


class ObjectPlace(Dir):
    """One object."""

    record = place(Object, "The object, with its properties and tags.", by="inventory", own=True)


class ObjectRecords(Dir):
    """Every object of every partition."""

    by_uuid = each(ObjectPlace, key="object uuid")


class ChangePlace(Dir):
    """One commit."""

    record = place(
        Recorded,
        "What one commit changed; the latest are kept, for watchers and for pages of a moment that has passed.",
        by="inventory",
        own=True,
    )


class RecentJournal(Dir):
    """What was done lately."""

    changes = each(ChangePlace, key="commit")
    revision = place(Marker, "Written with every change: its version is the moment.", by="inventory")


class HistoryPlace(Dir):
    """One object."""

    record = place(ObjectHistory, "What was done to the object, and by whom.", by="inventory", own=True)


class Histories(Dir):
    """Histories of the objects there are."""

    object = each(HistoryPlace, key="object uuid", bare=True)


class LeasePlace(Dir):
    """One lease."""

    record = place(ObjectLease, "Who wants an object, or has it, and until when.", by="inventory", own=True)


class Active(Dir):
    """Leases that wait or hold."""

    ledger = place(Marker, "Written with every change of a lease, quota or share: nobody gives what was just given.",
                   by="inventory", own=True)  # fmt: skip
    lease = each(LeasePlace, key="lease", bare=True)


class QuotaPlace(Dir):
    """One quota."""

    record = place(Quota, "How much leases may have together.", by="inventory", own=True)


class PartitionQuotas(Dir):
    """One partition."""

    quota = each(QuotaPlace, key="quota", bare=True)


class ObjectLeases(Dir):
    """Who has which object, or how much of what it has."""

    active = below(Active)
    past = each(LeasePlace, key="moment and lease", doc="Leases that ended, for quotas over time.")
    quotas = each(PartitionQuotas, key="partition uuid")


class HealthPlace(Dir):
    """One object."""

    record = place(ObjectHealth, "When it was last well, and what failed since.", by="inventory", own=True)


class ObjectHealths(Dir):
    """What was last heard of objects."""

    object = each(HealthPlace, key="object uuid", bare=True)


class ProbePlace(Dir):
    """One object."""

    record = place(Probed, "Since when probes find it well.", by="inventory", own=True)


class Probes(Dir):
    """Objects that are probed, and answer."""

    object = each(ProbePlace, key="object uuid", bare=True)


class InventoryMap(Dir):
    """Partitions, types, objects and their definitions."""

    def __init__(self, path: str = root()) -> None:
        super().__init__(path)

    definitions = below(Definitions)
    partitions = below(Partitions)
    types = below(Types)
    objects = below(ObjectRecords)
    journal = below(RecentJournal, seed=False)
    history = below(Histories, seed=False)
    leases = below(ObjectLeases, seed=False)
    health = below(ObjectHealths, seed=False)
    probes = below(Probes, seed=False)
    page_key = place(
        PageKey, "What page tokens are sealed with: they may name what is hidden from who holds them.", by="inventory",
        seed=False,
    )  # fmt: skip
