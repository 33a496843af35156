"""Define what an inventory holds: partitions, types, objects and definitions.

They are stored as the protobuf messages that other programs know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from headgate.inventory.wire import runm_pb2 as pb

KIND = "kind"
"""The property that names an object's sub-type or, of a provider, its provider type."""
PARENT = "parent"
"""The property of a provider that names the provider that it is part of."""
HOST_KEY = "host-key"
"""The property of a machine with the public keys that identify it, one per line."""
PROVIDER = "runm.provider"
STATIC, LOCAL = "static", "local"
"""Types of providers whose machines are for builds: static machines, and slots of executors."""
READ, WRITE = 1, 2


class Partition(msgspec.Struct, frozen=True):
    """Represent a division of the world: a site, a region, a zone of executors."""

    uuid: str
    name: str

    def to_wire(self) -> bytes:
        return pb.Partition(uuid=self.uuid, name=self.name).SerializeToString()

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        found = pb.Partition.FromString(value)
        return cls(found.uuid, found.name)


class ObjectType(msgspec.Struct, frozen=True):
    """Describe a type. Names of its objects are unique in a partition or, with `per_project`, in a project of a
    partition."""

    code: str
    description: str = ""
    per_project: bool = False

    def to_wire(self) -> bytes:
        scope = pb.PROJECT if self.per_project else pb.PARTITION
        return pb.ObjectType(code=self.code, description=self.description, scope=scope).SerializeToString()

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        found = pb.ObjectType.FromString(value)
        return cls(found.code, found.description, found.scope == pb.PROJECT)


class ProviderType(msgspec.Struct, frozen=True):
    """Describe what a provider provides."""

    code: str
    description: str = ""

    def to_wire(self) -> bytes:
        return pb.ProviderType(code=self.code, description=self.description).SerializeToString()

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        found = pb.ProviderType.FromString(value)
        return cls(found.code, found.description)


class Object(msgspec.Struct, frozen=True):
    """Represent a record of a type in a partition, with properties and tags."""

    partition: str
    type: str
    project: str
    uuid: str
    name: str
    properties: Mapping[str, str] = {}
    tags: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.properties.get(KIND, "")

    def message(self) -> pb.Object:
        properties = [pb.Property(key=key, value=value) for key, value in self.properties.items()]
        return pb.Object(
            partition=self.partition,
            object_type=self.type,
            project=self.project,
            uuid=self.uuid,
            name=self.name,
            properties=properties,
            tags=self.tags,
        )

    @classmethod
    def of(cls, found: pb.Object) -> Self:
        properties = {one.key: one.value for one in found.properties}
        where = (found.partition, found.object_type, found.project)
        return cls(*where, found.uuid, found.name, properties, tuple(found.tags))

    def to_wire(self) -> bytes:
        return self.message().SerializeToString()

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        return cls.of(pb.Object.FromString(value))


class Permission(msgspec.Struct, frozen=True):
    """Grant access to a property. An empty project or role means everybody; `mask` combines READ and WRITE."""

    project: str = ""
    role: str = ""
    mask: int = 0


class Definition(msgspec.Struct, frozen=True):
    """Define what objects must look like (a JSON Schema, as text), and who may see and change their properties."""

    uuid: str
    schema: str = ""
    permissions: Mapping[str, tuple[Permission, ...]] = {}
    """Property key -> rules."""

    def message(self) -> pb.ObjectDefinition:
        def rule(one: Permission) -> pb.PropertyPermission:
            return pb.PropertyPermission(project=one.project, role=one.role, permission=one.mask)

        rules = [
            pb.PropertyPermissions(key=key, permissions=[rule(one) for one in found])
            for key, found in self.permissions.items()
        ]
        return pb.ObjectDefinition(uuid=self.uuid, schema=self.schema, property_permissions=rules)

    @classmethod
    def of(cls, found: pb.ObjectDefinition) -> Self:
        rules: dict[str, tuple[Permission, ...]] = {}
        for named in found.property_permissions:
            read = tuple(Permission(one.project, one.role, one.permission) for one in named.permissions)
            rules[named.key] = rules.get(named.key, ()) + read
        return cls(found.uuid, found.schema, rules)

    def to_wire(self) -> bytes:
        return self.message().SerializeToString()

    @classmethod
    def from_wire(cls, value: bytes) -> Self:
        return cls.of(pb.ObjectDefinition.FromString(value))


class Caller(msgspec.Struct, frozen=True):
    """Identify the caller. The partition is a uuid, and the roles are those that apply there."""

    user: str
    project: str
    partition: str
    roles: frozenset[str] = frozenset()
    partitions: frozenset[str] | None = None
    """Uuids of the partitions that are open to the caller; None: every one."""

    @property
    def admin(self) -> bool:
        """Return whether the caller owns the objects of every project."""
        return ADMIN in self.roles

    @property
    def operator(self) -> bool:
        """Return whether the caller may change the partition's definitions, objects without a project, and how
        machines are reached."""
        return self.admin or OPERATOR in self.roles

    def may_enter(self, partition: str) -> bool:
        """Return whether the partition is open to the caller."""
        return self.partitions is None or partition in self.partitions


ADMIN, OPERATOR = "admin", "operator"

BUILT_IN_TYPES = (
    ObjectType("runm.provider", "Supplies resources", False),
    ObjectType("runm.provider_group", "Providers that belong together", False),
    ObjectType("runm.image", "What a machine starts from", True),
    ObjectType("runm.machine", "Something jobs run on", True),
)
BUILT_IN_PROVIDER_TYPES = (
    ProviderType("runm.compute", "Machines"),
    ProviderType("runm.storage.block", "Block storage"),
)
