"""runm.RunmMetadata: definitions of providers."""

from __future__ import annotations

import msgspec

from headgate.base.ids import fresh
from headgate.inventory import names
from headgate.inventory.model import PROVIDER, Caller, Definition
from headgate.inventory.names import Invalid
from headgate.inventory.permissions import redacted
from headgate.inventory.wire import runm_pb2 as pb
from headgate.services.inventory.admin import DefinitionScope
from headgate.services.inventory.errors import Unmet
from headgate.services.inventory.facts import Basis
from headgate.services.inventory.inventory import Inventory
from headgate.web.inventory.identity import CallerSessions, InventoryCall, SessionInfo
from headgate.web.inventory.partitions import session_of


class RunmDefinitions:
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
            raise Invalid("the request has no definition")
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
        return redacted(found, caller).message()

    async def _place(
        self, call: InventoryCall, session: SessionInfo, partition: str, type: str
    ) -> tuple[DefinitionScope, Caller]:
        """Return the place, and the caller as it is there.  Raise Unmet, Denied."""
        caller = await self._sessions.at(call, session, partition)
        names.value(type, "provider type", size_max_bytes=names.NAME_SIZE_MAX_BYTES)
        if type and await Basis(self._inventory.facts).provider_type(type) is None:
            raise Unmet(f"there is no provider type {type!r}")
        return DefinitionScope(PROVIDER, caller.partition, type), caller
