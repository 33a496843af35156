"""Compare every index with the records: find missing, stray and dangling entries, and repair them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headgate.inventory.model import Definition, Object, ObjectType, Partition
from headgate.map.inventory import entries
from headgate.map.inventory.places import InventoryMap, Uuid
from headgate.map.tree import Undecodable, locate
from headgate.store.store import Store
from headgate.store.types import At, Conflict, Delete, Entry, Op, Put


@dataclass(frozen=True, slots=True)
class InventoryFinding:
    """Describe one error in the indexes. Without `repair`, only a person can decide what is correct."""

    path: str
    what: str
    repair: Op | None = None
    checks: tuple[At, ...] = ()
    """Records on which the repair depends."""


@dataclass(slots=True)
class _Records:
    """Hold the authoritative records."""

    partitions: dict[str, Partition] = field(default_factory=dict)
    types: dict[str, ObjectType] = field(default_factory=dict)
    objects: dict[str, Object] = field(default_factory=dict)
    definitions: set[str] = field(default_factory=set)
    source: dict[str, At] = field(default_factory=dict)
    """Uuid -> version at which the record was read."""


def examine(places: InventoryMap, found: Iterable[Entry]) -> list[InventoryFinding]:
    """Examine all entries below the root, which must come from one snapshot."""
    by_path = {entry.path: entry for entry in found}
    records, findings = _Records(), []
    for entry in by_path.values():
        finding = _read(places, entry, records)
        if finding is not None:
            findings.append(finding)
    expected: dict[str, tuple[bytes, str]] = {}
    findings += _expect(places, records, expected)
    for path, (value, uuid) in expected.items():
        current = by_path.get(path)
        if current is None or current.value != value:
            what = (
                "missing" if current is None else f"leads to {current.value.decode('ascii', 'replace')}, not to {uuid}"
            )
            # The repair is valid only while the record is unchanged.
            checks = (records.source[uuid], At(path, current.version if current else None))
            findings.append(InventoryFinding(path, what, Put(path, value), checks))
    findings += _stray(places, by_path, records, expected)
    return sorted(findings, key=lambda one: one.path)


async def repair(store: Store, findings: Iterable[InventoryFinding]) -> tuple[int, int]:
    """Repair the findings. Return how many were repaired, and how many were not because their entries have changed in
    the meantime."""
    done = missed = 0
    for finding in findings:
        if finding.repair is None:
            continue
        try:
            await store.commit(finding.checks, [finding.repair])
            done += 1
        # Somebody has written the entry since, perhaps correctly; the next examination finds out.
        except Conflict:
            missed += 1
    return done, missed


def _read(places: InventoryMap, entry: Entry, records: _Records) -> InventoryFinding | None:
    """Add a record. Return a finding if it cannot be read or is not on the map."""
    located = locate(InventoryMap, places.path, entry.path)
    if located is None or located.place is None or located.rest:
        return InventoryFinding(entry.path, "not on the map")
    uuid, at = entries.last(entry.path), At(entry.path, entry.version)
    try:
        record = _decoded(places, entry, uuid)
    except Undecodable as error:
        return InventoryFinding(entry.path, f"cannot be read: {error.why}")
    match record:
        case Partition():
            records.partitions[uuid] = record
        case ObjectType():
            records.types[record.code] = record
        case Object():
            records.objects[uuid] = record
        case Definition():
            records.definitions.add(uuid)
        case None:
            return None
    records.source[uuid] = at
    return None


def _decoded(places: InventoryMap, entry: Entry, uuid: str) -> Partition | ObjectType | Object | Definition | None:
    """Return the record if indexes are derived from it."""
    directory = entry.path.rpartition("/")[0]
    if directory == places.partitions.by_uuid.path:
        return places.partitions.by_uuid(uuid).record.decode(entry.value)
    if directory == places.types.object.path:
        return places.types.object(uuid).record.decode(entry.value)
    if directory == places.objects.by_uuid.path:
        return places.objects.by_uuid(uuid).record.decode(entry.value)
    if directory == places.definitions.by_uuid.path:
        return places.definitions.by_uuid(uuid).record.decode(entry.value)
    return None


def _expect(
    places: InventoryMap, records: _Records, expected: dict[str, tuple[bytes, str]]
) -> Iterator[InventoryFinding]:
    """Fill `expected` with the index entries that should exist (path -> value, uuid of the record that requires it),
    and yield the findings that no repair can fix."""
    for partition in records.partitions.values():
        name = places.partitions.by_name(partition.name).record
        # No repair can determine which of the two should keep the name.
        if name.path in expected:
            yield InventoryFinding(name.path, f"partitions {expected[name.path][1]} and {partition.uuid} have one name")
        expected.setdefault(name.path, (Uuid(partition.uuid).to_wire(), partition.uuid))
    for uuid, object in records.objects.items():
        record = places.objects.by_uuid(uuid).record.path
        type = records.types.get(object.type)
        if object.uuid != uuid:
            yield InventoryFinding(record, f"contains another uuid, {object.uuid}")
        if object.partition not in records.partitions:
            yield InventoryFinding(record, f"is in partition {object.partition}, which does not exist")
        if type is None:
            yield InventoryFinding(record, f"is of type {object.type}, which does not exist")
            # Without the type, it is unknown whether names are unique within a project or within a partition.
            continue
        for path, value in entries.indexes(places, object, type.per_project).items():
            if path in expected:
                yield InventoryFinding(path, f"objects {expected[path][1]} and {uuid} have one name")
            expected.setdefault(path, (value, uuid))


def _stray(
    places: InventoryMap,
    by_path: Mapping[str, Entry],
    records: _Records,
    expected: Mapping[str, tuple[bytes, str]],
) -> Iterator[InventoryFinding]:
    """Yield findings for index entries that lead to nothing, and for records that no index leads to."""
    used: set[str] = set()
    for path, entry in by_path.items():
        located = locate(InventoryMap, places.path, path)
        if located is None or located.place is None or path in expected:
            continue
        own = (At(path, entry.version),)
        within = places.relative(path).split("/")
        # These belong to an object, but no index leads to them, so nothing else would find them.
        if within[0] in ("history", "health", "probes") and within[-1] not in records.objects:
            yield InventoryFinding(path, "belongs to an object that does not exist", Delete(path), own)
        elif within[0] == "partitions" and located.keys and "definitions" not in within[:3] and _is_index(within):
            yield InventoryFinding(path, "is an index entry that matches no record", Delete(path), own)
        elif "definitions" in within[:3] and within[-2:-1] != ["by-uuid"]:
            uuid = entry.value.decode("ascii", "replace")
            used.add(uuid)
            if uuid not in records.definitions:
                yield InventoryFinding(path, f"leads to definition {uuid}, which does not exist", Delete(path), own)
    # Definitions apply only through indexes, so one that no index names applies to nothing.
    for uuid in sorted(records.definitions - used):
        record = records.source[uuid]
        yield InventoryFinding(record.path, "is a definition that applies to nothing", Delete(record.path), (record,))


def _is_index(within: list[str]) -> bool:
    """Return whether the path is an index: everything below `partitions` except the partitions themselves."""
    return within[1] != "by-uuid"
