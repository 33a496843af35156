"""Prepare one commit: apply all steps, one after the other, to the contents of the store, or none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from headgate.inventory import names
from headgate.inventory.definitions import schema
from headgate.inventory.journal import InventoryEvent, JournalKind, ObjectChange, ObjectHistory
from headgate.inventory.model import PROVIDER, Caller, Definition, Object
from headgate.inventory.permissions import hidden, operated, unwritable
from headgate.map.inventory import entries
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.errors import AlreadyExists, NotFound, PermissionDenied, Stale, Unmet
from headgate.services.inventory.facts import Basis
from headgate.store.types import OPS_MAX, At, Delete, Entry, Op, Put


class Create(msgspec.Struct, frozen=True):
    object: Object


class Update(msgspec.Struct, frozen=True):
    """Describe a change of one object. Empty members change nothing."""

    uuid: str
    expected_generation: int = 0
    name: str = ""
    set_properties: Mapping[str, str] = {}
    remove_properties: tuple[str, ...] = ()
    add_tags: tuple[str, ...] = ()
    remove_tags: tuple[str, ...] = ()

    def applied(self, object: Object) -> Object:
        properties = {k: v for k, v in object.properties.items() if k not in self.remove_properties}
        tags = [tag for tag in object.tags if tag not in self.remove_tags]
        return msgspec.structs.replace(
            object,
            name=self.name or object.name,
            properties={**properties, **self.set_properties},
            tags=tuple(dict.fromkeys((*tags, *self.add_tags))),
        )


class Remove(msgspec.Struct, frozen=True):
    uuid: str
    expected_generation: int = 0


Step = Create | Update | Remove

RESERVED_OPS = 6
"""Operations reserved for the journal."""


@dataclass(slots=True)
class InventoryDraft:
    """Collect one commit. `stored` maps each path to its entry, for every record and history that the steps name."""

    places: InventoryMap
    basis: Basis
    caller: Caller
    at_ms: int
    stored: Mapping[str, Entry | None]
    compatible: bool = False
    """Accept a provider without a type: clients of runm-metadata do not send the type, and check the provider
    themselves."""
    checks: dict[str, At] = field(default_factory=dict)
    puts: dict[str, bytes] = field(default_factory=dict)
    deletes: set[str] = field(default_factory=set)
    changes: list[ObjectChange] = field(default_factory=list)
    created: set[str] = field(default_factory=set)
    """Paths that must not exist yet: if one does, the name or the uuid is taken."""
    results: list[Object] = field(default_factory=list)
    _now: dict[str, Object | None] = field(default_factory=dict)

    async def take(self, step: Step) -> None:
        """Apply one step. Raise Invalid, NotFound, AlreadyExists, PermissionDenied, Stale or Unmet; after that,
        discard the draft."""
        match step:
            case Create(object):
                await self._create(object)
            case Update():
                # The result includes earlier steps, so a step may change an object that an earlier step created.
                old = self._changeable(step.uuid, step.expected_generation)
                await self._replace(old, step.applied(old), {*step.set_properties, *step.remove_properties})
            case Remove():
                await self._remove(self._changeable(step.uuid, step.expected_generation))
            case _:
                assert_never(step)

    def ops(self) -> list[Op]:
        """Return the operations of the commit. Raise Invalid if they do not fit into one."""
        found: list[Op] = [Delete(path) for path in sorted(self.deletes)]
        found += [Put(path, value) for path, value in sorted(self.puts.items())]
        # The store has this limit, and only the caller knows which steps belong together.
        if len(found) > OPS_MAX - RESERVED_OPS:
            raise names.Invalid(
                f"this needs {len(found)} entries in one commit, which may have at most {OPS_MAX - RESERVED_OPS}; "
                "split the request, or use fewer properties and tags"
            )
        return found

    async def _create(self, object: Object) -> None:
        if await self.basis.partition(object.partition) is None:
            raise Unmet(f"there is no partition {object.partition}")
        per_project = await self._per_project(object.type)
        if per_project and not object.project:
            raise names.Invalid(f"objects of type {object.type} belong to a project; set `project`")
        if owned(object, self.caller) is None:
            raise PermissionDenied(
                f"{self.caller.user} of project {self.caller.project} may not create objects in this partition or "
                "project"
            )
        self._allow(object)
        await self._check(None, object, object.properties)
        record = self.places.objects.by_uuid(object.uuid).record.path
        # The commit requires that the entries of the uuid and the name do not exist, so two callers cannot both create
        # them.
        self._fresh(record, f"an object with the uuid {object.uuid} already exists")
        indexes = entries.indexes(self.places, object, per_project)
        self._fresh(next(iter(indexes)), f"{object.type} {object.name} already exists")
        self._write(object, {}, indexes, ObjectHistory(), JournalKind.CREATED)
        self.changes.append(ObjectChange(JournalKind.CREATED, None, object))
        self.results.append(object)

    async def _replace(self, old: Object, new: Object, named: Collection[str]) -> None:
        per_project = await self._per_project(old.type)
        await self._check(old, new, named)
        # Renaming frees the old name in the same commit, so no other object can take either name in between.
        name = entries.name(self.places, new, per_project).path
        if new.name != old.name:
            self._fresh(name, f"{new.type} {new.name} already exists")
        before = entries.indexes(self.places, old, per_project)
        after = entries.indexes(self.places, new, per_project)
        self._write(new, before, after, self._history(old.uuid), JournalKind.UPDATED)
        self.changes.append(ObjectChange(JournalKind.UPDATED, old, new))
        self.results.append(new)

    async def _remove(self, old: Object) -> None:
        per_project = await self._per_project(old.type)
        definition = await self.basis.definition(old.partition, old.type, old.kind)
        # Otherwise, deleting the object would be a way to remove properties that the caller may not write.
        if locked := unwritable(old.properties, {}, definition, self.caller):
            # The names of hidden properties are also hidden.
            shown = sorted(set(locked) - hidden(definition, self.caller))
            which = f": {', '.join(shown)}" if shown else ""
            raise PermissionDenied(f"{old.name} has properties that {self.caller.user} may not remove{which}")
        # The reports on an object are deleted with it, because a later object with its uuid would inherit them.
        reports = [places.object(old.uuid).record.path for places in (self.places.health, self.places.probes)]
        self._erase([*entries.indexes(self.places, old, per_project), *self._own(old.uuid), *reports])
        self._now[old.uuid] = None
        self.changes.append(ObjectChange(JournalKind.DELETED, old, None))
        self.results.append(old)

    def _write(
        self,
        new: Object,
        before: Mapping[str, bytes],
        after: Mapping[str, bytes],
        past: ObjectHistory,
        kind: JournalKind,
    ) -> None:
        record, history = self._own(new.uuid)
        event = InventoryEvent(kind, new, self.caller.user, self.caller.project, self.at_ms)
        self._erase([path for path in before if path not in after])
        # Unchanged index entries are not written, so an update costs operations only for what it changes.
        added = {path: value for path, value in after.items() if before.get(path) != value}
        for path, value in {**added, record: new.to_wire(), history: past.and_then(event).to_wire()}.items():
            self.deletes.discard(path)
            self.puts[path] = value
        self._now[new.uuid] = new

    def _erase(self, paths: list[str]) -> None:
        for path in paths:
            self.puts.pop(path, None)
            self.deletes.add(path)

    def _own(self, uuid: str) -> tuple[str, str]:
        return self.places.objects.by_uuid(uuid).record.path, self.places.history.object(uuid).record.path

    def _fresh(self, path: str, taken: str) -> None:
        """Check that the path has no entry, or that an earlier step removes it."""
        if path in self.puts:
            raise AlreadyExists(taken)
        # A name that an earlier step frees may be taken without a check: the deletion is in the same commit.
        if path not in self.deletes:
            self.checks[path] = At(path, None)
            self.created.add(path)

    def _known(self, uuid: str, expected_generation: int) -> Object:
        """Return the object as the steps so far have left it. Raise NotFound, Stale or PermissionDenied."""
        address = self.places.objects.by_uuid(uuid).record
        entry = self.stored.get(address.path)
        if uuid in self._now:
            found = self._now[uuid]
        else:
            found = address.decode(entry.value) if entry else None
            if entry is not None:
                # The history needs no check of its own, since it is written only together with the record.
                self.checks[address.path] = At(address.path, entry.version)
        # Both cases have the same answer, so that nobody learns which uuids other projects use.
        if found is None or owned(found, self.caller) is None:
            raise NotFound(f"there is no object {uuid}")
        if expected_generation and entry is not None and entry.version != expected_generation:
            raise Stale(f"{found.name} is at generation {entry.version}, not {expected_generation}; read it again")
        return found

    def _changeable(self, uuid: str, expected_generation: int) -> Object:
        """Return the object like `_known` if the caller may change it."""
        found = self._known(uuid, expected_generation)
        self._allow(found)
        return found

    def _allow(self, object: Object) -> None:
        """Refuse changes that only operators may make: those of providers, and of objects without a project. Raise
        PermissionDenied."""
        if self.caller.operator:
            return
        if object.type == PROVIDER or not object.project:
            what = "providers" if object.type == PROVIDER else f"{object.name}, which belongs to no project"
            raise PermissionDenied(
                f"only operators may change {what}; {self.caller.user} does not have the role operator here"
            )

    def _history(self, uuid: str) -> ObjectHistory:
        address = self.places.history.object(uuid).record
        # An earlier step of this draft may have added history that is not in the store yet.
        if address.path in self.puts:
            return address.decode(self.puts[address.path])
        entry = self.stored.get(address.path)
        return address.decode(entry.value) if entry else ObjectHistory()

    async def _per_project(self, type: str) -> bool:
        found = await self.basis.object_type(type)
        if found is None:
            raise Unmet(f"there is no object type {type!r}")
        return found.per_project

    async def _check(self, old: Object | None, new: Object, named: Collection[str]) -> None:
        """Check names, sizes, the definition, and whether the caller may write the keys in `named`.

        Raise Invalid or PermissionDenied.
        """
        names.check(new)
        before = old.properties if old else {}
        definition = await self.basis.definition(new.partition, new.type, new.kind)
        secret = hidden(definition, self.caller)
        self._writable(old, new, definition, named)
        # The rules of the former kind apply as well; otherwise, changing the kind would be a way around them.
        if old is not None and old.kind != new.kind:
            former = await self.basis.definition(old.partition, old.type, old.kind)
            self._writable(old, new, former, named)
            if hidden(former, self.caller) & before.keys():
                raise PermissionDenied(
                    f"{self.caller.user} may not change the kind of {new.name}: some of its properties are hidden from "
                    "this user"
                )
        untyped = self.compatible and new.type == PROVIDER and not new.kind
        if definition is not None and definition.schema and not untyped:
            schema(definition.schema).check(new, secret)

    def _writable(self, old: Object | None, new: Object, definition: Definition | None, named: Collection[str]) -> None:
        """Refuse properties that the caller may not write. Raise PermissionDenied."""
        before = old.properties if old else {}
        if locked := unwritable(before, new.properties, definition, self.caller, named):
            raise PermissionDenied(f"{self.caller.user} may not set {', '.join(locked)} on {new.name}")
        was, now = operated(old), operated(new)
        if was == now or self.caller.operator:
            return
        changed = sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))
        raise PermissionDenied(
            f"{', '.join(changed)} of {new.name}: only operators may change how machines are reached and what runs on "
            f"them; {self.caller.user} does not have the role operator here"
        )


def owned(object: Object, caller: Caller) -> Object | None:
    """Return the object if the caller may see it: if it is in the caller's partition and project, or in no project.

    Administrators may see the objects of every project; only operators may change objects without a project.
    """
    if object.partition != caller.partition:
        return None
    return object if caller.admin or not object.project or object.project == caller.project else None


def parts(objects: Sequence[Object]) -> list[list[str]]:
    """Return groups of uuids of objects, each as large as one commit can delete."""
    sizes = [len(one.properties) + len(one.tags) + 4 for one in objects]  # and the record, name, history, health
    return [[objects[number].uuid for number in part] for part in _packed(sizes)]


def numbered_parts(steps: Sequence[Step]) -> list[list[int]]:
    """Return groups of step numbers; each group certainly fits into one commit, or is a single step."""
    return _packed([_ops_max(step) for step in steps])


def _ops_max(step: Step) -> int:
    """Return the largest number of operations that a step may need."""
    match step:
        case Create(object):
            return len(object.properties) + len(object.tags) + 3
        case Update():
            tags = len(step.add_tags) + len(step.remove_tags)
            return 2 * (len(step.set_properties) + 1) + len(step.remove_properties) + tags + 4
        case Remove():
            # The object's properties and tags are unknown here, so it counts as one with the maximum number.
            return names.ATTRIBUTES_MAX + 4
        case _:
            assert_never(step)


def _packed(sizes: Sequence[int]) -> list[list[int]]:
    """Return the numbers from 0, in order, in groups that fit into one commit."""
    found: list[list[int]] = []
    room = 0
    # A step that is too large for any commit gets its own group, and is refused there.
    for number, size in enumerate(sizes):
        if not found or size > room:
            found.append([])
            room = OPS_MAX - RESERVED_OPS
        found[-1].append(number)
        room -= size
    return found
