"""runm.RunmMetadata: objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from headgate.base.ids import fresh
from headgate.inventory import names
from headgate.inventory.filters import Expression, Filter, PropertyConditions, PropertyFilter, Sort
from headgate.inventory.model import Caller, Object
from headgate.inventory.names import Invalid
from headgate.inventory.wire import runm_pb2 as pb
from headgate.services.inventory.draft import Create
from headgate.services.inventory.errors import NotFound, Unmet
from headgate.services.inventory.inventory import Inventory
from headgate.web.inventory.identity import CallerSessions, InventoryCall
from headgate.web.inventory.partitions import session_of

DELETED_MAX = 10_000
"""Limit on the objects that one request deletes."""
_SORTS = {"partition": "partition", "object_type": "type", "project": "project", "uuid": "uuid", "name": "name"}


class RunmObjects:
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
            raise Invalid("the request has no object")
        given = request.object
        names.name(given.object_type, "object type")
        if not given.partition:
            raise Invalid("the object has no partition")
        keys = [one.key for one in given.properties]
        # Counting is quadratic, so it is done only within the limit; what exceeds it is refused below.
        if twice := sorted({key for key in keys if keys.count(key) > 1} if len(keys) <= names.ATTRIBUTES_MAX else ()):
            raise Invalid(f"property {twice[0]} is given twice")
        if len(keys) > names.ATTRIBUTES_MAX:
            raise Invalid(f"the object has {len(keys)} properties; at most {names.ATTRIBUTES_MAX} are allowed")
        created = Object.of(given)
        per_project = await self._per_project(created.type)
        # An operator's object belongs to no project unless its type requires one; anybody else's belongs to their own.
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
        if not request.uuids:
            raise Invalid("there are no uuids")
        if len(request.uuids) > DELETED_MAX:
            raise Invalid(f"there are {len(request.uuids)} uuids; at most {DELETED_MAX} are deleted at once")
        uuids = [names.uuid(one) for one in request.uuids]
        return pb.DeleteResponse(num_deleted=await self._inventory.remove(caller, uuids))

    async def object_find(self, call: InventoryCall, request: pb.ObjectFindRequest) -> AsyncIterator[pb.Object]:
        caller = await self._sessions.caller(call, session_of(request))
        filters = await self._filters(caller, request.any)
        options = request.options
        for sort in options.sort_fields:
            if sort.field not in _SORTS:
                raise Invalid(f"sorting by {sort.field!r} is not possible; it is {', '.join(_SORTS)}")
        sorts = [Sort(_SORTS[one.field], one.direction == pb.DESC) for one in options.sort_fields]
        every = self._inventory.every(caller, filters, limit=options.limit, marker=options.marker, sorts=sorts)
        async for found in every:
            yield found.object.message()

    async def _filters(self, caller: Caller, any: Sequence[pb.ObjectFilter]) -> list[Filter]:
        """Return the filters whose partitions and types exist. Raise Unmet when there are filters, but none of that
        kind."""
        found, missing = [], []
        for one in any:
            try:
                found.append(await self._inventory.filter(caller, _expression(one)))
            except Unmet as error:
                missing.append(error)
        # Filters are alternatives: one that names something unknown matches nothing and must not spoil the others.
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
