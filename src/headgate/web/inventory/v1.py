"""Implement headgate.inventory.v1: objects, partitions, types, definitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from headgate.base.ids import fresh
from headgate.inventory import model, names
from headgate.inventory.filters import Expression, Filter, PropertyConditions, PropertyFilter, Sort, parse
from headgate.inventory.journal import ObjectChange, message, of
from headgate.inventory.permissions import redacted
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.services.inventory.admin import PARTITIONS_MAX, DefinitionScope
from headgate.services.inventory.draft import Create, Remove, Step, Update
from headgate.services.inventory.errors import InventoryError, PermissionDenied
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.journal import JournalCommit
from headgate.web.inventory.identity import CallerSessions, InventoryCall, SessionInfo
from headgate.web.inventory.rpc import status

PORTION_MAX = 100
"""Number of objects that are encoded before other tasks may run."""
QUIET_S = 15.0
"""Longest interval between two progress messages of a watch."""
ADMITTED_S = 1.0
"""Seconds for which the credentials of a watch count as checked."""
STEPS_MAX = 100
PARTED_STEPS_MAX = 1_000
FILTERS_MAX = 100
FILTER_SIZE_MAX_BYTES = 8_000
"""Size limit of a filter expression in text form."""
VALUES_MAX = 1_000
"""Limit on the values in one list of a filter."""

ORDERS = {pb.Item.AS_TEXT: "", pb.Item.LESS: "<", pb.Item.AT_MOST: "<=", pb.Item.MORE: ">", pb.Item.AT_LEAST: ">="}

_OfPlace = pb.GetDefinitionRequest | pb.SetDefinitionRequest | pb.DeleteDefinitionRequest


def session_info(session: pb.Session) -> SessionInfo:
    return SessionInfo(session.user, session.project, session.partition)


class Additions:
    """Serve the calls about objects: get, search, apply, history and watch."""

    def __init__(self, sessions: CallerSessions, inventory: Inventory) -> None:
        self._sessions, self._inventory = sessions, inventory

    async def GetObject(self, call: InventoryCall, request: pb.GetObjectRequest) -> pb.Object:
        caller = await self._caller(call, request.session)
        if request.uuid:
            found, generation = await self._inventory.get(caller, names.uuid(request.uuid))
        else:
            names.name(request.name, "name (or uuid)")
            names.name(request.type, "type")
            found, generation = await self._inventory.get_named(caller, request.type, "", request.name)
        return message(found, generation)

    async def Search(self, call: InventoryCall, request: pb.SearchRequest) -> pb.SearchResponse:
        caller = await self._caller(call, request.session)
        page = await self._inventory.page(
            caller,
            await self._filters(caller, request.any, request.filters),
            limit=request.limit,
            token=request.page_token,
            sorts=[Sort(one.field, one.descending) for one in request.sort],
            count=request.with_count,
        )
        objects: list[pb.Object] = []
        for start in range(0, len(page.objects), PORTION_MAX):
            objects += [message(one.object, one.generation) for one in page.objects[start : start + PORTION_MAX]]
            await asyncio.sleep(0)
        return pb.SearchResponse(
            objects=objects,
            next_page_token=page.next_token,
            revision=page.revision,
            count=(page.count or 0) if request.with_count else 0,
            count_is_least=page.count_is_least,
            bounded=page.bounded,
        )

    async def Apply(self, call: InventoryCall, request: pb.ApplyRequest) -> pb.ApplyResponse:
        caller = await self._caller(call, request.session)
        # Independent steps need not fit into one commit, so more of them are allowed.
        most = PARTED_STEPS_MAX if request.in_parts else STEPS_MAX
        if len(request.steps) > most:
            raise names.Invalid(f"the request has {len(request.steps)} steps; at most {most} are allowed")
        if request.in_parts:
            return await self._in_parts(caller, request)
        steps = [await self._step(caller, one) for one in request.steps]
        written = await self._inventory.apply(caller, steps, validate_only=request.validate_only)
        return pb.ApplyResponse(objects=[message(*one) for one in written.objects], revision=written.revision)

    async def _in_parts(self, caller: model.Caller, request: pb.ApplyRequest) -> pb.ApplyResponse:
        """Perform each step on its own, and return the outcome of each. Raise Invalid for a malformed request."""
        if request.validate_only:
            raise names.Invalid("validate_only and in_parts are mutually exclusive")
        if not request.steps:
            raise names.Invalid("the request has no steps: give at least one")
        steps: list[Step] = []
        numbers: list[int] = []
        failures: dict[int, Exception] = {}
        for number, one in enumerate(request.steps):
            try:
                steps.append(await self._step(caller, one))
                numbers.append(number)
            # Parts are independent: a malformed step fails alone, under its own number.
            except (InventoryError, names.Invalid) as error:
                failures[number] = error
        outcomes, revision = await self._inventory.apply_in_parts(caller, steps)
        # One object per step, empty for a failed one, so that their positions are those of the steps.
        objects = [pb.Object() for _ in request.steps]
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, tuple):
                objects[number] = message(*outcome)
            else:
                failures[number] = outcome or names.Invalid("the step was not performed")
        statuses = [(number, status(error)) for number, error in sorted(failures.items())]
        refusals = [pb.Failure(step=number, status=one.code.name, detail=one.detail) for number, one in statuses]
        return pb.ApplyResponse(objects=objects, revision=revision, failures=refusals)

    async def History(self, call: InventoryCall, request: pb.HistoryRequest) -> pb.HistoryResponse:
        caller = await self._caller(call, request.session)
        events = await self._inventory.history(caller, names.uuid(request.uuid))
        changes = [
            pb.Change(kind=e.kind.value, new=message(e.object), user=e.user, project=e.project, at_ms=e.at_ms)
            for e in events
        ]
        return pb.HistoryResponse(changes=changes)

    async def Watch(self, call: InventoryCall, request: pb.WatchRequest) -> AsyncIterator[pb.WatchResponse]:
        caller = await self._caller(call, request.session)
        filters = await self._filters(caller, request.any)
        batches = self._inventory.changes(caller, filters, request.revision, quiet_s=QUIET_S)
        loop = asyncio.get_running_loop()
        admitted_s = loop.time()
        async for changes, revision in batches:
            # Tokens expire, and a partition may be closed to them: a watch lasts no longer than its permission.
            if loop.time() - admitted_s >= ADMITTED_S:
                admitted_s = loop.time()
                if await self._caller(call, request.session) != caller:
                    raise PermissionDenied("the rights of these credentials have changed; watch again")
            yield pb.WatchResponse(changes=[_change(*one) for one in changes], revision=revision)

    async def _caller(self, call: InventoryCall, session: pb.Session) -> model.Caller:
        return await self._sessions.caller(call, session_info(session))

    async def _filters(self, caller: model.Caller, any: Sequence[pb.Filter], texts: Sequence[str] = ()) -> list[Filter]:
        if (count := len(any) + len(texts)) > FILTERS_MAX:
            raise names.Invalid(f"the request has {count} filters; at most {FILTERS_MAX} are allowed")
        expressions = [expression(one) for one in any]
        for one in texts:
            expressions.append(parse(names.value(one, "filter", size_max_bytes=FILTER_SIZE_MAX_BYTES)))
        return [await self._inventory.filter(caller, one) for one in expressions]

    async def _step(self, caller: model.Caller, step: pb.Step) -> Step:
        """Convert a step. Raise Invalid, Unmet."""
        match step.WhichOneof("step"):
            case "create":
                return Create(await self._created(caller, of(step.create)))
            case "update":
                return _update(step.update)
            case "delete":
                return Remove(names.uuid(step.delete.uuid), step.delete.expected_generation)
            case _:
                raise names.Invalid("a step has none of create, update and delete")

    async def _created(self, caller: model.Caller, object: model.Object) -> model.Object:
        names.name(object.type, "type")
        types = {one.code: one for one in await self._inventory.facts.object_types()}
        per_project = object.type in types and types[object.type].per_project
        return msgspec.structs.replace(
            object,
            partition=await self._inventory.partition(object.partition or caller.partition, caller),
            # As in runm.RunmMetadata, an operator's object belongs to no project, unless its type requires one.
            project=object.project or (caller.project if per_project or not caller.operator else ""),
            uuid=names.uuid(object.uuid) if object.uuid else fresh(),
        )


def _update(patch: pb.Patch) -> Update:
    both = sorted(set(patch.set_properties) & set(patch.remove_properties))
    if both:
        raise names.Invalid(f"property {both[0]} is both set and removed")
    return Update(
        names.uuid(patch.uuid),
        patch.expected_generation,
        patch.name,
        dict(patch.set_properties),
        tuple(patch.remove_properties),
        tuple(patch.add_tags),
        tuple(patch.remove_tags),
    )


def expression(wire_filter: pb.Filter) -> Expression:
    """Return the filter as an expression. Raise Invalid if it is too large."""
    lists = (
        "require_items", "any_items", "forbid_items", "require_keys", "any_keys", "forbid_keys",
        "require_tags", "any_tags", "forbid_tags", "partitions", "types", "uuids",
    )  # fmt: skip
    for name in lists:
        if (count := len(getattr(wire_filter, name))) > VALUES_MAX:
            raise names.Invalid(f"{name} has {count} values; at most {VALUES_MAX} are allowed")
    wanted = PropertyConditions(
        require_items=_items(wire_filter.require_items),
        require_keys=tuple(wire_filter.require_keys),
        any_items=_items(wire_filter.any_items),
        any_keys=tuple(wire_filter.any_keys),
        forbid_items=_items(wire_filter.forbid_items),
        forbid_keys=tuple(wire_filter.forbid_keys),
        require_tags=tuple(wire_filter.require_tags),
        any_tags=tuple(wire_filter.any_tags),
        forbid_tags=tuple(wire_filter.forbid_tags),
    )
    return Expression(
        partitions=tuple(wire_filter.partitions),
        types=tuple(wire_filter.types),
        project=wire_filter.project,
        every_project=wire_filter.every_project,
        uuids=tuple(wire_filter.uuids),
        # Uuids are stored in lower case and without hyphens.
        uuid_prefix=wire_filter.uuid_prefix.lower().replace("-", ""),
        name=wire_filter.name,
        name_prefix=wire_filter.name_prefix,
        wanted=wanted,
    )


def _items(items: Sequence[pb.Item]) -> tuple[PropertyFilter, ...]:
    return tuple(PropertyFilter(one.key, one.value, one.prefix, _order(one.order)) for one in items)


def _order(order: pb.Item.Order) -> str:
    """Return the operator of a comparison of numbers; empty: values are compared as strings.  Raise Invalid."""
    if order not in ORDERS:
        raise names.Invalid(f"order {order} is unknown; use one of {', '.join(pb.Item.Order.keys())}")
    return ORDERS[order]


def _change(change: ObjectChange, commit: JournalCommit) -> pb.Change:
    recorded = commit.recorded
    return pb.Change(
        kind=change.kind.value,
        old=message(change.old) if change.old else None,
        new=message(change.new) if change.new else None,
        user=recorded.user,
        project=recorded.project,
        at_ms=recorded.at_ms,
        revision=commit.revision,
    )


class Administration:
    """Serve the calls that manage partitions, types and definitions."""

    def __init__(self, sessions: CallerSessions, inventory: Inventory) -> None:
        self._sessions, self._inventory = sessions, inventory
        self._admin = inventory.admin

    async def ListPartitions(self, call: InventoryCall, request: pb.ListPartitionsRequest) -> pb.ListPartitionsResponse:
        caller = await self._sessions.anybody(call, session_info(request.session))
        if request.limit > PARTITIONS_MAX:
            raise names.Invalid(
                f"limit is {request.limit}; at most {PARTITIONS_MAX} partitions are returned in one response"
            )
        after = names.uuid(request.page_token, "page token") if request.page_token else ""
        found, token = await self._admin.open_partitions(caller, after, request.limit or PARTITIONS_MAX)
        return pb.ListPartitionsResponse(partitions=[_partition(*one) for one in found], next_page_token=token)

    async def SetPartition(self, call: InventoryCall, request: pb.SetPartitionRequest) -> pb.Partition:
        caller = await self._sessions.anybody(call, session_info(request.session))
        given = request.partition
        uuid = names.uuid(given.uuid) if given.uuid else fresh()
        # One method creates and renames, as for other `Set` methods: the uuid decides.
        if await self._admin.has_partition(uuid):
            return _partition(
                *await self._admin.rename_partition(caller, uuid, given.name, request.expected_generation)
            )
        if request.expected_generation:
            raise names.Invalid(f"there is no partition {uuid}; expected_generation needs an existing one")
        return _partition(*await self._admin.create_partition(caller, model.Partition(uuid, given.name)))

    async def DeletePartition(self, call: InventoryCall, request: pb.DeletePartitionRequest) -> pb.Empty:
        caller = await self._sessions.anybody(call, session_info(request.session))
        # Authorized before the name is resolved, so that strangers cannot find out which partitions exist.
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
            await self._admin.set_provider_type(caller, model.ProviderType(given.code, given.description))
        else:
            await self._admin.set_object_type(
                caller, model.ObjectType(given.code, given.description, given.per_project)
            )
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

    async def _place(self, call: InventoryCall, request: _OfPlace) -> tuple[DefinitionScope, model.Caller]:
        """Return the definition's scope, and the caller with the roles held in its partition.  Raise Invalid, Unmet,
        PermissionDenied, Unauthenticated."""
        given = request.place
        caller = await self._sessions.at(call, session_info(request.session), given.partition)
        names.name(given.type, "type of the place")
        names.value(given.kind, "kind of the place", size_max_bytes=names.NAME_SIZE_MAX_BYTES)
        return DefinitionScope(given.type, caller.partition, given.kind), caller


def _partition(partition: model.Partition, generation: int) -> pb.Partition:
    return pb.Partition(uuid=partition.uuid, name=partition.name, generation=generation)


def _definition(given: pb.Definition) -> model.Definition:
    rules: dict[str, tuple[model.Permission, ...]] = {}
    for one in given.permissions:
        mask = model.READ * one.read | model.WRITE * one.write
        rules[one.key] = (*rules.get(one.key, ()), model.Permission(one.project, one.role, mask))
    return model.Definition(names.uuid(given.uuid) if given.uuid else fresh(), given.schema, rules)


def _answer(place: DefinitionScope, found: model.Definition) -> pb.DefinitionResponse:
    permissions = [
        pb.Permission(
            key=key,
            project=one.project,
            role=one.role,
            read=bool(one.mask & model.READ),
            write=bool(one.mask & model.WRITE),
        )
        for key, rules in found.permissions.items()
        for one in rules
    ]
    return pb.DefinitionResponse(
        definition=pb.Definition(uuid=found.uuid, schema=found.schema, permissions=permissions),
        place=pb.Place(type=place.type, partition=place.partition, kind=place.kind),
    )
