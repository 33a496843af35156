"""Declare the places of the inventory, and of the service registry, where clients look up addresses."""

from __future__ import annotations

from typing import Self

import msgspec

from headgate.inventory.health import ObjectHealth, Probed
from headgate.inventory.journal import ObjectHistory, Recorded
from headgate.inventory.leases import ObjectLease, Quota
from headgate.inventory.model import Definition, Object, ObjectType, Partition, ProviderType
from headgate.map.records import Empty
from headgate.map.tree import Dir, Each, below, each, place

PREFIX = "/"
"""Default prefix of the inventory's keys."""
ORIGINAL_PREFIX = "runm-metadata/"
"""Default prefix of runm-metadata's keys."""
CONSTANT = "runm/metadata"
"""Constant part of runm-metadata's keys, after the prefix."""
REGISTRY_PREFIX = "gsr/"
"""Default prefix of the registry's keys, byte for byte: no slash precedes it."""
REGISTRY_PREFIX_VARIABLE = "GSR_KEY_PREFIX"
"""Name of the environment variable that overrides it."""


def root(prefix: str = PREFIX) -> str:
    """Return the path of the inventory's root; slashes at the ends of the prefix make no difference."""
    return "/".join(("", *(name for name in prefix.split("/") if name), CONSTANT))


class Uuid(msgspec.Struct, frozen=True):
    """Hold the uuid that an index entry refers to."""

    uuid: str

    def to_wire(self) -> bytes:
        return self.uuid.encode()

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        return cls(value.decode("ascii"))


class PageKey(msgspec.Struct, frozen=True):
    """Hold the key that seals page tokens."""

    key: bytes


class Marker(msgspec.Struct, frozen=True):
    """Hold nothing: the existence of the key is the information."""

    def to_wire(self) -> bytes:
        return b""

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        if value:
            raise ValueError("a marker must have an empty value")
        return cls()


class KindDefinition(Dir):
    """Hold the definitions of one kind."""

    record = place(Uuid, "The definition for objects of one kind.", by="inventory", own=True)


class TypeDefinitions(Dir):
    """Hold the definitions of one type."""

    default = place(Uuid, "The definition for objects of all other kinds.", by="inventory")
    by_type = each(KindDefinition, key="kind", doc="Definitions by kind; for providers, by provider type.")


class DefinitionIndex(Dir):
    """List the definitions of one partition, which take precedence over those for all partitions."""

    by_type = each(TypeDefinitions, key="type")


class DefinitionPlace(Dir):
    """Hold one definition."""

    record = place(Definition, "A JSON Schema, and permissions of properties.", by="inventory", own=True)


class Definitions(Dir):
    """Hold definitions, and list those for all partitions."""

    by_type = each(TypeDefinitions, key="type")
    by_uuid = each(DefinitionPlace, key="definition uuid")


class ObjectTypePlace(Dir):
    """Hold one type."""

    record = place(
        ObjectType, "A type of objects, and whether their names are unique per project.", by="inventory", own=True
    )


class ProviderTypePlace(Dir):
    """Hold one provider type."""

    record = place(ProviderType, "A type of providers.", by="inventory", own=True)


class Types(Dir):
    """Hold the types that exist."""

    object = each(ObjectTypePlace, key="type")
    provider = each(ProviderTypePlace, key="provider type", name="runm.provider")


class NamePlace(Dir):
    """Hold the uuid of one name."""

    record = place(Uuid, "The object with the name.", by="inventory", own=True)


class ProjectNames(Dir):
    """Hold the names of one project."""

    by_name = each(NamePlace, key="name")


class TypeObjects(Dir):
    """Hold the names of the objects of one type."""

    by_name = each(NamePlace, key="name", doc="Names of types whose names are unique in a partition.")
    by_project = each(ProjectNames, key="project", doc="Names of types whose names are unique in a project.")


class Objects(Dir):
    """Hold the names of the objects of a partition."""

    by_type = each(TypeObjects, key="type")


class MarkerPlace(Dir):
    """Mark one object."""

    record = place(Marker, "The object has this property value or tag.", by="inventory", own=True)


class PropertyValue(Dir):
    """List the objects with one value."""

    object = each(MarkerPlace, key="object uuid", bare=True)


class PropertyKey(Dir):
    """Hold the values of one property."""

    value = each(PropertyValue, key="property value", bare=True)


class TypeProperties(Dir):
    """Hold the properties of the objects of one type."""

    key = each(PropertyKey, key="property key", bare=True)


class Properties(Dir):
    """Index objects by their properties."""

    by_type = each(TypeProperties, key="type")


class Tag(Dir):
    """List the objects with one tag."""

    object = each(MarkerPlace, key="object uuid", bare=True)


class Tags(Dir):
    """Index objects by their tags."""

    tag = each(Tag, key="tag", bare=True)


class PartitionTree(Dir):
    """Hold all entries of one partition except the objects themselves."""

    definitions = below(DefinitionIndex)
    objects = below(Objects)
    properties = below(Properties)
    tags = below(Tags)


class PartitionName(Dir):
    """Hold the partition of one name."""

    record = place(Uuid, "The partition with the name.", by="inventory", own=True)


class PartitionPlace(Dir):
    """Hold one partition."""

    record = place(Partition, "A partition, and its name.", by="inventory", own=True)


class Partitions(Dir):
    """Hold the partitions of the inventory."""

    by_name = each(PartitionName, key="name")
    by_uuid = each(PartitionPlace, key="partition uuid")
    tree = each(PartitionTree, key="partition uuid", bare=True)


class ObjectPlace(Dir):
    """Hold one object."""

    record = place(Object, "The object, with its properties and tags.", by="inventory", own=True)


class ObjectRecords(Dir):
    """Hold every object of every partition."""

    by_uuid = each(ObjectPlace, key="object uuid")


class ChangePlace(Dir):
    """Hold the changes of one commit."""

    record = place(
        Recorded,
        "The changes of one commit; the latest commits are stored, for watchers and for pages of earlier moments.",
        by="inventory",
        own=True,
    )


class RecentJournal(Dir):
    """Hold recent changes."""

    changes = each(ChangePlace, key="commit")
    revision = place(Marker, "Written with every change: its version identifies the moment.", by="inventory")


class HistoryPlace(Dir):
    """Hold the history of one object."""

    record = place(ObjectHistory, "The changes of the object, and who made them.", by="inventory", own=True)


class Histories(Dir):
    """Hold the histories of existing objects."""

    object = each(HistoryPlace, key="object uuid", bare=True)


class LeasePlace(Dir):
    """Hold one lease."""

    record = place(ObjectLease, "Who waits for an object or has it, and for how long.", by="inventory", own=True)


class Active(Dir):
    """Hold the leases that wait or are in force."""

    ledger = place(Marker, "Written with every change of a lease, quota or share, so that two servers cannot lease the "
                   "same capacity.", by="inventory", own=True)  # fmt: skip
    lease = each(LeasePlace, key="lease", bare=True)


class QuotaPlace(Dir):
    """Hold one quota."""

    record = place(Quota, "The limit on all matching leases together.", by="inventory", own=True)


class PartitionQuotas(Dir):
    """Hold the quotas of one partition."""

    quota = each(QuotaPlace, key="quota", bare=True)


class ObjectLeases(Dir):
    """Hold the leases of objects, or of parts of their capacity."""

    active = below(Active)
    past = each(LeasePlace, key="moment and lease", doc="Ended leases, for quotas over time.")
    quotas = each(PartitionQuotas, key="partition uuid")


class HealthPlace(Dir):
    """Hold the health of one object."""

    record = place(ObjectHealth, "When it was last healthy, and the failures since.", by="inventory", own=True)


class ObjectHealths(Dir):
    """Hold the last known health of objects."""

    object = each(HealthPlace, key="object uuid", bare=True)


class ProbePlace(Dir):
    """Hold the last probe of one object."""

    record = place(Probed, "The time since which its probes have succeeded.", by="inventory", own=True)


class Probes(Dir):
    """Hold the objects whose probes succeed."""

    object = each(ProbePlace, key="object uuid", bare=True)


class InventoryMap(Dir):
    """Hold partitions, types, objects and their definitions."""

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
        PageKey, "The key that encrypts page tokens, which may contain data that their holders may not read.",
        by="inventory", seed=False,
    )  # fmt: skip


class EndpointPlace(Dir):
    """Hold one endpoint, `host:port`."""

    record = place(Empty, "A running service at this endpoint.", by="inventory", node="ephemeral", own=True)


class ServicePlace(Dir):
    """Hold the endpoints of one service."""

    endpoint = each(EndpointPlace, key="endpoint", bare=True)


class ServiceRegistry(Dir):
    """Hold the services that clients can find."""

    services = each(ServicePlace, key="service")


def endpoint_path(service: str, host: str, port: int) -> str:
    """Return the path of one endpoint below the prefix. It is not escaped, as clients parse host and port from it."""
    registry: Each[ServicePlace] = ServiceRegistry("").services
    return f"{registry(service).path}/{host}:{port}"
