"""runm.RunmMetadata: partitions and types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from headgate.base.ids import fresh
from headgate.inventory import names
from headgate.inventory.model import Caller, ObjectType, Partition, ProviderType
from headgate.inventory.names import Invalid
from headgate.inventory.wire import runm_pb2 as pb
from headgate.services.inventory.errors import NotFound
from headgate.services.inventory.facts import Basis
from headgate.services.inventory.inventory import Inventory
from headgate.web.inventory.identity import CallerSessions, InventoryCall, SessionInfo

T = TypeVar("T")


class _Request(Protocol):
    def HasField(self, name: str, /) -> bool: ...
    @property
    def session(self) -> pb.Session: ...


def session_of(request: _Request) -> SessionInfo:
    """Return the session. Raise Invalid if the request has none."""
    if not request.HasField("session"):
        raise Invalid("the request has no session")
    return SessionInfo(request.session.user, request.session.project, request.session.partition)


def chosen(
    found: Iterable[T], options: pb.SearchOptions, fields: Sequence[str], key: Callable[[T], str]
) -> Sequence[T]:
    """Sort the elements, and return those after the marker up to the limit, as the options say. Raise Invalid."""
    several = list(found)
    # Sorting is stable, so sorting by the least significant field first leaves the elements in the order of all.
    for sort in reversed(options.sort_fields):
        if sort.field not in fields:
            raise Invalid(f"sorting by {sort.field!r} is not possible; it is {' or '.join(fields)}")
        name = sort.field
        several.sort(key=lambda one: str(getattr(one, name)), reverse=sort.direction == pb.DESC)
    if options.marker:
        keys = [key(one) for one in several]
        marker = names.normal(options.marker) if names.is_uuid(options.marker) else options.marker
        if marker not in keys:
            raise Invalid(f"marker {options.marker!r} is none of what was found")
        several = several[keys.index(marker) + 1 :]
    return several[: options.limit or None]


def fits(text: str, wanted: str, prefix: bool) -> bool:
    return text.startswith(wanted) if prefix else text == wanted


class RunmPartitions:
    def __init__(self, sessions: CallerSessions, inventory: Inventory) -> None:
        self._sessions, self._inventory = sessions, inventory

    async def partition_get_by_uuid(self, call: InventoryCall, request: pb.PartitionGetByUuidRequest) -> pb.Partition:
        caller = await self._sessions.caller(call, session_of(request))
        return await self._one(caller, names.uuid(request.uuid))

    async def partition_get_by_name(self, call: InventoryCall, request: pb.PartitionGetByNameRequest) -> pb.Partition:
        caller = await self._sessions.caller(call, session_of(request))
        names.name(request.name, "name")
        uuid = await Basis(self._inventory.facts).partition_named(request.name)
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
        """Create a partition. An empty system starts with this call: its session needs no partition, and none at all
        where everybody is trusted."""
        session = session_of(request) if request.HasField("session") else SessionInfo()
        caller = await self._sessions.anybody(call, SessionInfo(session.user, session.project))
        if not request.HasField("partition"):
            raise Invalid("the request has no partition")
        uuid = names.uuid(request.partition.uuid) if request.partition.uuid else fresh()
        created, _ = await self._inventory.admin.create_partition(caller, Partition(uuid, request.partition.name))
        return pb.PartitionCreateResponse(partition=pb.Partition(uuid=created.uuid, name=created.name))

    async def _one(self, caller: Caller, uuid: str) -> pb.Partition:
        found = await Basis(self._inventory.facts).partition(uuid)
        if found is None or not caller.may_enter(uuid):
            raise NotFound(f"there is no partition {uuid}")
        return pb.Partition(uuid=found.uuid, name=found.name)


def _matches(partition: Partition, wanted: pb.PartitionFindFilter) -> bool:
    """Tell whether the partition fits everything the filter says; one that says nothing at all matches nothing."""
    uuid, name = wanted.uuid_filter, wanted.name_filter
    if not uuid.uuid and not name.name:
        # A filter that says nothing would otherwise match every partition that the caller may enter.
        return False
    by_uuid = not uuid.uuid or fits(partition.uuid, _uuid(uuid), uuid.use_prefix)
    return by_uuid and (not name.name or fits(partition.name, name.name, name.use_prefix))


def _uuid(wanted: pb.UuidFilter) -> str:
    return wanted.uuid.lower().replace("-", "") if wanted.use_prefix else names.normal(wanted.uuid)


class RunmTypes:
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
