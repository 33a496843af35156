"""Implement runm.RunmMetadata: partitions, types, definitions of providers, objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from headgate.base.ids import fresh
from headgate.inventory import names
from headgate.inventory.filters import Expression, Filter, PropertyConditions, PropertyFilter, Sort
from headgate.inventory.model import PROVIDER, Caller, Definition, Object, ObjectType, Partition, ProviderType
from headgate.inventory.permissions import redacted
from headgate.inventory.wire import runm_pb2 as pb
from headgate.services.inventory.admin import DefinitionScope
from headgate.services.inventory.draft import Create
from headgate.services.inventory.errors import NotFound, Unmet
from headgate.services.inventory.facts import Basis
from headgate.services.inventory.inventory import Inventory
from headgate.web.inventory.identity import CallerSessions, InventoryCall, SessionInfo

T = TypeVar("T")

DELETED_MAX = 10_000
"""Limit on the objects that one request may delete."""
_SORTS = {"partition": "partition", "object_type": "type", "project": "project", "uuid": "uuid", "name": "name"}


class _Request(Protocol):
    def HasField(self, name: str, /) -> bool: ...
    @property
    def session(self) -> pb.Session: ...


def session_of(request: _Request) -> SessionInfo:
    """Return the session. Raise Invalid if the request has none."""
    if not request.HasField("session"):
        raise names.Invalid("the request has no session")
    return SessionInfo(request.session.user, request.session.project, request.session.partition)


def chosen(
    found: Iterable[T], options: pb.SearchOptions, fields: Sequence[str], key: Callable[[T], str]
) -> Sequence[T]:
    """Sort the elements by the options, and return those after the marker, up to the limit. Raise Invalid."""
    several = list(found)
    # Sorting is stable: sorting by the least significant field first results in the order of all fields.
    for sort in reversed(options.sort_fields):
        if sort.field not in fields:
            raise names.Invalid(f"cannot sort by {sort.field!r}; sort by {' or '.join(fields)}")
        name = sort.field
        several.sort(key=lambda one: str(getattr(one, name)), reverse=sort.direction == pb.DESC)
    if options.marker:
        keys = [key(one) for one in several]
        # Clients may write a uuid with or without hyphens.
        marker = names.normal(options.marker) if names.is_uuid(options.marker) else options.marker
        if marker not in keys:
            raise names.Invalid(f"marker {options.marker!r} is not among the results")
        several = several[keys.index(marker) + 1 :]
    return several[: options.limit or None]


def fits(text: str, wanted: str, prefix: bool) -> bool:
    return text.startswith(wanted) if prefix else text == wanted


class RunmPartitions:
    """Serve the calls of runm-metadata about partitions."""

    def __init__(self, sessions: CallerSessions, inventory: Inventory) -> None:
        self._sessions, self._inventory = sessions, inventory

    async def partition_get_by_uuid(self, call: InventoryCall, request: pb.PartitionGetByUuidRequest) -> pb.Partition:
        caller = await self._sessions.caller(call, session_of(request))
        return await self._one(caller, names.uuid(request.uuid))

    async def partition_get_by_name(self, call: InventoryCall, request: pb.PartitionGetByNameRequest) -> pb.Partition:
        caller = await self._sessions.caller(call, session_of(request))
        names.name(request.name, "name")
        uuid = await Basis(self._inventory.facts).partition_named(request.name)
        # Both cases get the same response, which reveals nothing about other partitions.
        if uuid is None or not caller.may_enter(uuid):
            raise NotFound(f"there is no partition {request.name!r}")
        return await self._one(caller, uuid)

    async def partition_find(
        self, call: InventoryCall, request: pb.PartitionFindRequest
    ) -> AsyncIterator[pb.Partition]:
        caller = await self._sessions.caller(call, session_of(request))
        every = [one for one, _ in await self._inventory.admin.partitions() if caller.may_enter(one.uuid)]
        found = [one for one in every if any(_matches(one, wanted) for wanted in request.any)] if request.any else every
        for one in chosen(found, request.options, ("uuid", "name"), lambda one: one.uuid):
            yield pb.Partition(uuid=one.uuid, name=one.name)

    async def partition_create(
        self, call: InventoryCall, request: pb.PartitionCreateRequest
    ) -> pb.PartitionCreateResponse:
        """Create a partition. This is the first call to an empty system, so its session needs no partition; where every
        caller is trusted, it needs no session."""
        session = session_of(request) if request.HasField("session") else SessionInfo()
        caller = await self._sessions.anybody(call, SessionInfo(session.user, session.project))
        if not request.HasField("partition"):
            raise names.Invalid("the request has no partition")
        uuid = names.uuid(request.partition.uuid) if request.partition.uuid else fresh()
        created, _ = await self._inventory.admin.create_partition(caller, Partition(uuid, request.partition.name))
        return pb.PartitionCreateResponse(partition=pb.Partition(uuid=created.uuid, name=created.name))

    async def _one(self, caller: Caller, uuid: str) -> pb.Partition:
        found = await Basis(self._inventory.facts).partition(uuid)
        # The same response as for a missing partition does not reveal that it exists.
        if found is None or not caller.may_enter(uuid):
            raise NotFound(f"there is no partition {uuid}")
        return pb.Partition(uuid=found.uuid, name=found.name)


def _matches(partition: Partition, wanted: pb.PartitionFindFilter) -> bool:
    """Return whether the partition meets all conditions of the filter; an empty filter matches nothing."""
    uuid, name = wanted.uuid_filter, wanted.name_filter
    if not uuid.uuid and not name.name:
        # An empty filter would otherwise match every partition that the caller may enter.
        return False
    by_uuid = not uuid.uuid or fits(partition.uuid, _uuid(uuid), uuid.use_prefix)
    return by_uuid and (not name.name or fits(partition.name, name.name, name.use_prefix))


def _uuid(wanted: pb.UuidFilter) -> str:
    return wanted.uuid.lower().replace("-", "") if wanted.use_prefix else names.normal(wanted.uuid)


class RunmTypes:
    """Serve the calls of runm-metadata about types of objects and providers."""

    def __init__(self, sessions: CallerSessions, inventory: Inventory) -> None:
        self._sessions, self._inventory = sessions, inventory

    async def object_type_get_by_code(
        self, call: InventoryCall, request: pb.ObjectTypeGetByCodeRequest
    ) -> pb.ObjectType:
        await self._sessions.caller(call, session_of(request))
        names.name(request.code, "code")
        found = await Basis(self._inventory.facts).object_type(request.code)
        if found is None:
            raise NotFound(f"there is no object type {request.code!r}")
        return _object_type(found)

    async def object_type_find(
        self, call: InventoryCall, request: pb.ObjectTypeFindRequest
    ) -> AsyncIterator[pb.ObjectType]:
        await self._sessions.caller(call, session_of(request))
        every = await self._inventory.facts.object_types()
        wanted = [one.code_filter for one in request.any if one.code_filter.code]
        found = [one for one in every if not request.any or _coded(one.code, wanted)]
        for one in chosen(found, request.options, ("code", "description"), lambda one: one.code):
            yield _object_type(one)

    async def provider_type_get_by_code(
        self, call: InventoryCall, request: pb.ProviderTypeGetByCodeRequest
    ) -> pb.ProviderType:
        await self._sessions.caller(call, session_of(request))
        names.name(request.code, "code")
        found = await Basis(self._inventory.facts).provider_type(request.code)
        if found is None:
            raise NotFound(f"there is no provider type {request.code!r}")
        return _provider_type(found)

    async def provider_type_find(
        self, call: InventoryCall, request: pb.ProviderTypeFindRequest
    ) -> AsyncIterator[pb.ProviderType]:
        await self._sessions.caller(call, session_of(request))
        every = await self._inventory.admin.provider_types()
        wanted = [one.code_filter for one in request.any if one.code_filter.code]
        found = [one for one in every if not request.any or _coded(one.code, wanted)]
        for one in chosen(found, request.options, ("code", "description"), lambda one: one.code):
            yield _provider_type(one)


def _coded(code: str, wanted: Sequence[pb.CodeFilter]) -> bool:
    return any(fits(code, one.code, one.use_prefix) for one in wanted)


def _object_type(found: ObjectType) -> pb.ObjectType:
    return pb.ObjectType.FromString(found.to_wire())


def _provider_type(found: ProviderType) -> pb.ProviderType:
    return pb.ProviderType.FromString(found.to_wire())


class RunmDefinitions:
    """Serve the calls of runm-metadata about definitions of providers."""

    def __init__(self, sessions: CallerSessions, inventory: Inventory) -> None:
        self._sessions, self._inventory = sessions, inventory

    async def provider_definition_get_global_default(
        self, call: InventoryCall, request: pb.ProviderDefinitionGetGlobalDefaultRequest
    ) -> pb.ObjectDefinition:
        await self._sessions.caller(call, session_of(request))
        return await self._exactly(call, session_of(request), "", "")

    async def provider_definition_get_by_partition(
        self, call: InventoryCall, request: pb.ProviderDefinitionGetByPartitionRequest
    ) -> pb.ObjectDefinition:
        await self._sessions.caller(call, session_of(request))
        names.name(request.partition_uuid, "partition")
        return await self._exactly(call, session_of(request), request.partition_uuid, "")

    async def provider_definition_get_by_type(
        self, call: InventoryCall, request: pb.ProviderDefinitionGetByTypeRequest
    ) -> pb.ObjectDefinition:
        await self._sessions.caller(call, session_of(request))
        names.name(request.provider_type_code, "provider type")
        return await self._exactly(call, session_of(request), "", request.provider_type_code)

    async def provider_definition_get_by_partition_and_type(
        self, call: InventoryCall, request: pb.ProviderDefinitionGetByPartitionAndTypeRequest
    ) -> pb.ObjectDefinition:
        await self._sessions.caller(call, session_of(request))
        names.name(request.partition_uuid, "partition")
        names.name(request.provider_type_code, "provider type")
        return await self._exactly(call, session_of(request), request.partition_uuid, request.provider_type_code)

    async def provider_definition_set(
        self, call: InventoryCall, request: pb.ProviderObjectDefinitionSetRequest
    ) -> pb.ObjectDefinitionSetResponse:
        await self._sessions.caller(call, session_of(request))
        if not request.HasField("object_definition"):
            raise names.Invalid("the request has no definition")
        place, caller = await self._place(call, session_of(request), request.partition_uuid, request.provider_type_code)
        given = Definition.of(request.object_definition)
        uuid = names.uuid(given.uuid) if given.uuid else fresh()
        stored = await self._inventory.admin.set_definition(caller, place, msgspec.structs.replace(given, uuid=uuid))
        return pb.ObjectDefinitionSetResponse(object_definition=stored.message())

    async def _exactly(
        self, call: InventoryCall, session: SessionInfo, partition: str, type: str
    ) -> pb.ObjectDefinition:
        place, caller = await self._place(call, session, partition, type)
        _, found = await self._inventory.admin.definition(place, exact=True)
        # Some properties are hidden from some callers.
        return redacted(found, caller).message()

    async def _place(
        self, call: InventoryCall, session: SessionInfo, partition: str, type: str
    ) -> tuple[DefinitionScope, Caller]:
        """Return the definition's scope, and the caller with the roles held in its partition.  Raise Unmet,
        PermissionDenied."""
        caller = await self._sessions.at(call, session, partition)
        names.value(type, "provider type", size_max_bytes=names.NAME_SIZE_MAX_BYTES)
        if type and await Basis(self._inventory.facts).provider_type(type) is None:
            raise Unmet(f"there is no provider type {type!r}")
        return DefinitionScope(PROVIDER, caller.partition, type), caller


class RunmObjects:
    """Serve the calls of runm-metadata about objects."""

    def __init__(self, sessions: CallerSessions, inventory: Inventory) -> None:
        self._sessions, self._inventory = sessions, inventory

    async def object_get_by_uuid(self, call: InventoryCall, request: pb.ObjectGetByUuidRequest) -> pb.Object:
        caller = await self._sessions.caller(call, session_of(request))
        found, _ = await self._inventory.get(caller, names.uuid(request.uuid))
        return found.message()

    async def object_get_by_name(self, call: InventoryCall, request: pb.ObjectGetByNameRequest) -> pb.Object:
        caller = await self._sessions.caller(call, session_of(request))
        names.name(request.name, "name")
        names.name(request.object_type_code, "object type")
        named = request.partition_uuid
        if named and await self._inventory.partition(named, caller) != caller.partition:
            raise NotFound(f"there is no {request.object_type_code} {request.name} that {caller.user} may see")
        found, _ = await self._inventory.get_named(caller, request.object_type_code, request.project, request.name)
        return found.message()

    async def object_create(self, call: InventoryCall, request: pb.ObjectCreateRequest) -> pb.ObjectCreateResponse:
        caller = await self._sessions.caller(call, session_of(request))
        if not request.HasField("object"):
            raise names.Invalid("the request has no object")
        given = request.object
        names.name(given.object_type, "object type")
        if not given.partition:
            raise names.Invalid("the object has no partition")
        keys = [one.key for one in given.properties]
        # Counting is quadratic, so it is done only within the limit; more properties are refused below.
        if twice := sorted({key for key in keys if keys.count(key) > 1} if len(keys) <= names.ATTRIBUTES_MAX else ()):
            raise names.Invalid(f"property {twice[0]} is given twice")
        if len(keys) > names.ATTRIBUTES_MAX:
            raise names.Invalid(f"the object has {len(keys)} properties; at most {names.ATTRIBUTES_MAX} are allowed")
        created = Object.of(given)
        per_project = await self._per_project(created.type)
        # By default, an operator's object belongs to no project, unless its type requires one; anybody else's belongs
        # to the project of its creator.
        project = created.project or (caller.project if per_project or not caller.operator else "")
        object = msgspec.structs.replace(
            created,
            partition=await self._inventory.partition(given.partition, caller),
            project=project,
            uuid=names.uuid(given.uuid) if given.uuid else fresh(),
        )
        written = await self._inventory.apply(caller, [Create(object)])
        return pb.ObjectCreateResponse(object=written.objects[0][0].message())

    async def object_delete_by_uuids(
        self, call: InventoryCall, request: pb.ObjectDeleteByUuidsRequest
    ) -> pb.DeleteResponse:
        caller = await self._sessions.caller(call, session_of(request))
        # An empty list is probably a mistake of the client.
        if not request.uuids:
            raise names.Invalid("the request has no uuids")
        if len(request.uuids) > DELETED_MAX:
            raise names.Invalid(f"the request has {len(request.uuids)} uuids; at most {DELETED_MAX} are allowed")
        uuids = [names.uuid(one) for one in request.uuids]
        return pb.DeleteResponse(num_deleted=await self._inventory.remove(caller, uuids))

    async def object_find(self, call: InventoryCall, request: pb.ObjectFindRequest) -> AsyncIterator[pb.Object]:
        caller = await self._sessions.caller(call, session_of(request))
        filters = await self._filters(caller, request.any)
        options = request.options
        for sort in options.sort_fields:
            if sort.field not in _SORTS:
                raise names.Invalid(f"cannot sort by {sort.field!r}; sort by {', '.join(_SORTS)}")
        sorts = [Sort(_SORTS[one.field], one.direction == pb.DESC) for one in options.sort_fields]
        every = self._inventory.every(caller, filters, limit=options.limit, marker=options.marker, sorts=sorts)
        async for found in every:
            yield found.object.message()

    async def _filters(self, caller: Caller, any: Sequence[pb.ObjectFilter]) -> list[Filter]:
        """Return the filters whose partitions and types exist. Raise Unmet if filters were given and none is left."""
        found, missing = [], []
        for one in any:
            try:
                found.append(await self._inventory.filter(caller, _expression(one)))
            except Unmet as error:
                missing.append(error)
        # Filters are alternatives: one that names something unknown matches nothing and must not fail the others.
        if missing and not found:
            raise missing[0]
        return found

    async def _per_project(self, type: str) -> bool:
        return any(one.code == type and one.per_project for one in await self._inventory.facts.object_types())


def _expression(object_filter: pb.ObjectFilter) -> Expression:
    code, uuid = object_filter.object_type_filter.code_filter, object_filter.uuid_filter
    wanted = object_filter.property_filter
    return Expression(
        partitions=tuple(object_filter.partition_filter.uuids),
        types=(f"{code.code}*" if code.use_prefix else code.code,) if code.code else (),
        project=object_filter.project,
        uuids=(uuid.uuid,) if uuid.uuid and not uuid.use_prefix else (),
        uuid_prefix=uuid.uuid.lower().replace("-", "") if uuid.use_prefix else "",
        name=object_filter.name_filter.name,
        # Without a name, the flag means nothing.
        name_prefix=object_filter.name_filter.use_prefix and bool(object_filter.name_filter.name),
        wanted=PropertyConditions(
            require_items=_items(wanted.require_items),
            require_keys=tuple(wanted.require_keys),
            any_items=_items(wanted.any_items),
            any_keys=tuple(wanted.any_keys),
            forbid_items=_items(wanted.forbid_items),
            forbid_keys=tuple(wanted.forbid_keys),
        ),
    )


def _items(properties: Sequence[pb.Property]) -> tuple[PropertyFilter, ...]:
    return tuple(PropertyFilter(one.key, one.value) for one in properties)
