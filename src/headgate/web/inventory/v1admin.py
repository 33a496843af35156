"""headgate.inventory.v1: partitions, types, definitions."""

from __future__ import annotations

from headgate.base.ids import fresh
from headgate.inventory import names
from headgate.inventory.model import READ, WRITE, Caller, Definition, ObjectType, Partition, Permission, ProviderType
from headgate.inventory.names import Invalid
from headgate.inventory.permissions import redacted
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.services.inventory.admin import PARTITIONS_MAX, DefinitionScope
from headgate.services.inventory.inventory import Inventory
from headgate.web.inventory.identity import CallerSessions, InventoryCall
from headgate.web.inventory.v1 import session_info

_OfPlace = pb.GetDefinitionRequest | pb.SetDefinitionRequest | pb.DeleteDefinitionRequest


class Administration:
    def __init__(self, sessions: CallerSessions, inventory: Inventory) -> None:
        self._sessions, self._inventory = sessions, inventory
        self._admin = inventory.admin

    async def ListPartitions(self, call: InventoryCall, request: pb.ListPartitionsRequest) -> pb.ListPartitionsResponse:
        caller = await self._sessions.anybody(call, session_info(request.session))
        if request.limit > PARTITIONS_MAX:
            raise Invalid(f"limit is {request.limit}; an answer has at most {PARTITIONS_MAX} partitions")
        after = names.uuid(request.page_token, "page token") if request.page_token else ""
        found, token = await self._admin.open_partitions(caller, after, request.limit or PARTITIONS_MAX)
        return pb.ListPartitionsResponse(partitions=[_partition(*one) for one in found], next_page_token=token)

    async def SetPartition(self, call: InventoryCall, request: pb.SetPartitionRequest) -> pb.Partition:
        caller = await self._sessions.anybody(call, session_info(request.session))
        given = request.partition
        uuid = names.uuid(given.uuid) if given.uuid else fresh()
        if await self._admin.has_partition(uuid):
            return _partition(
                *await self._admin.rename_partition(caller, uuid, given.name, request.expected_generation)
            )
        if request.expected_generation:
            raise Invalid(f"there is no partition {uuid}; expected_generation is for one there is")
        return _partition(*await self._admin.create_partition(caller, Partition(uuid, given.name)))

    async def DeletePartition(self, call: InventoryCall, request: pb.DeletePartitionRequest) -> pb.Empty:
        caller = await self._sessions.anybody(call, session_info(request.session))
        # Checked before the name is looked up, so that strangers cannot find out which partitions exist.
        self._admin.allow(caller)
        await self._admin.delete_partition(caller, await self._inventory.partition(request.partition))
        return pb.Empty()

    async def ListTypes(self, call: InventoryCall, request: pb.ListTypesRequest) -> pb.ListTypesResponse:
        await self._sessions.anybody(call, session_info(request.session))
        found = [
            pb.Type(code=one.code, description=one.description, per_project=one.per_project)
            for one in await self._inventory.facts.object_types()
        ]
        found += [
            pb.Type(code=one.code, description=one.description, provider=True)
            for one in await self._admin.provider_types()
        ]
        return pb.ListTypesResponse(types=found)

    async def SetType(self, call: InventoryCall, request: pb.SetTypeRequest) -> pb.Type:
        caller = await self._sessions.anybody(call, session_info(request.session))
        given = request.type
        if given.provider:
            await self._admin.set_provider_type(caller, ProviderType(given.code, given.description))
        else:
            await self._admin.set_object_type(caller, ObjectType(given.code, given.description, given.per_project))
        return given

    async def DeleteType(self, call: InventoryCall, request: pb.DeleteTypeRequest) -> pb.Empty:
        caller = await self._sessions.anybody(call, session_info(request.session))
        names.name(request.code, "code")
        await self._admin.delete_type(caller, request.code, provider=request.provider)
        return pb.Empty()

    async def GetDefinition(self, call: InventoryCall, request: pb.GetDefinitionRequest) -> pb.DefinitionResponse:
        place, caller = await self._place(call, request)
        place, found = await self._admin.definition(place, exact=request.exact)
        return _answer(place, redacted(found, caller))

    async def SetDefinition(self, call: InventoryCall, request: pb.SetDefinitionRequest) -> pb.DefinitionResponse:
        place, caller = await self._place(call, request)
        return _answer(place, await self._admin.set_definition(caller, place, _definition(request.definition)))

    async def DeleteDefinition(self, call: InventoryCall, request: pb.DeleteDefinitionRequest) -> pb.Empty:
        place, caller = await self._place(call, request)
        await self._admin.delete_definition(caller, place)
        return pb.Empty()

    async def _place(self, call: InventoryCall, request: _OfPlace) -> tuple[DefinitionScope, Caller]:
        """Return the place, and the caller as it is there.  Raise Invalid, Unmet, Denied, Unauthenticated."""
        given = request.place
        caller = await self._sessions.at(call, session_info(request.session), given.partition)
        names.name(given.type, "type of the place")
        names.value(given.kind, "kind of the place", size_max_bytes=names.NAME_SIZE_MAX_BYTES)
        return DefinitionScope(given.type, caller.partition, given.kind), caller


def _partition(partition: Partition, generation: int) -> pb.Partition:
    return pb.Partition(uuid=partition.uuid, name=partition.name, generation=generation)


def _definition(given: pb.Definition) -> Definition:
    rules: dict[str, tuple[Permission, ...]] = {}
    for one in given.permissions:
        mask = READ * one.read | WRITE * one.write
        rules[one.key] = (*rules.get(one.key, ()), Permission(one.project, one.role, mask))
    return Definition(names.uuid(given.uuid) if given.uuid else fresh(), given.schema, rules)


def _answer(place: DefinitionScope, found: Definition) -> pb.DefinitionResponse:
    permissions = [
        pb.Permission(
            key=key, project=one.project, role=one.role, read=bool(one.mask & READ), write=bool(one.mask & WRITE)
        )
        for key, rules in found.permissions.items()
        for one in rules
    ]
    return pb.DefinitionResponse(
        definition=pb.Definition(uuid=found.uuid, schema=found.schema, permissions=permissions),
        place=pb.Place(type=place.type, partition=place.partition, kind=place.kind),
    )
