"""Watch the inventory, whose objects start pipelines, and report on the objects that did."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from headgate.base.texts import visible
from headgate.config.model import TriggerFilter
from headgate.gate.state.change import EventKind, Occasion
from headgate.inventory.filters import Filter, parse
from headgate.inventory.journal import JournalKind, ObjectChange
from headgate.inventory.model import Caller, Object
from headgate.inventory.names import Invalid
from headgate.map.outbox import OutboxMessage
from headgate.ports.occasions import NextOccasion, OccasionPartition, SourceUnavailable
from headgate.ports.reporter import ReporterAway, ReportRefused
from headgate.services.inventory.draft import Update
from headgate.services.inventory.errors import InventoryError, MomentExpired, NotFound
from headgate.services.inventory.inventory import LIMIT_MAX, Inventory
from headgate.services.inventory.pool import MACHINE
from headgate.services.scheduler.occasions.messages import TRIGGER_MAX_BYTES
from headgate.store.types import StoreError

KINDS = {
    JournalKind.CREATED: EventKind.OBJECT_CREATED,
    JournalKind.UPDATED: EventKind.OBJECT_UPDATED,
    JournalKind.DELETED: EventKind.OBJECT_DELETED,
}
USER = "headgate"
ALL_OF_IT = 10**9
"""Position after all changes of a commit."""
GAPS_MAX = 8
"""Limit on the gaps that are remembered; of a forgotten one, the rest is read again."""
GAP_OBJECTS_MAX = 100_000
"""Limit on the objects remembered of a gap, far above those of one commit; the rest is read after them."""


class _Gap(NamedTuple):
    """Remember which matching objects changed after one revision and not after another."""

    since: int
    until: int
    changed: Sequence[tuple[int, str]]
    """Generation and uuid of each object, in order."""


class WatchedObjects:
    """Watch the objects of one project in one partition of the inventory; see `ports.occasions.OccasionSource`.
    `inventory.journal.run()` must be running. Changes that are no longer in the journal are found by reading all
    matching objects."""

    of_a_partition_max = 100

    def __init__(self, name: str, inventory: Inventory, inventory_partition: str, project: str) -> None:
        """Watch the objects of a project; `inventory_partition` is a name or uuid."""
        self.name = name
        self._inventory, self._inventory_partition, self._project = inventory, inventory_partition, project
        self._gaps: dict[tuple[Caller, Filter], _Gap] = {}

    async def partitions(self, trigger: TriggerFilter) -> Sequence[OccasionPartition]:
        return [OccasionPartition(str(trigger.more.get("type", MACHINE)))]

    async def start(self, trigger: TriggerFilter, partition: OccasionPartition) -> str:
        """Return the present position, so that existing objects start nothing."""
        try:
            # The journal must have reached the present before it can be asked for changes since then.
            revision = await self._inventory.journal.now()
            await self._inventory.journal.wait_for(revision)
        except StoreError as error:
            raise SourceUnavailable(str(error)) from error
        return f"{revision}.{ALL_OF_IT}"

    async def after(
        self, trigger: TriggerFilter, partition: OccasionPartition, position: str, limit: int
    ) -> Sequence[NextOccasion]:
        """Return the occasions of complete commits, which may be more than `limit`."""
        revision, _, done = position.partition(".")
        wanted = {EventKind(event) for event in trigger.events}
        try:
            caller, matching = await self._filter(trigger, partition)
            try:
                found = await self._changes(caller, matching, int(revision), int(done), limit)
            except MomentExpired:
                return await self._missed(caller, matching, position, wanted, limit)
        except (InventoryError, Invalid, StoreError) as error:
            raise SourceUnavailable(f"{partition.source}, {trigger.more.get('filter', '')}: {error}") from error
        return [
            NextOccasion(place, KINDS[one.kind], self._occasion(one, place) if KINDS[one.kind] in wanted else None)
            for place, one in found
        ]

    async def stirs(self) -> AsyncIterator[Collection[OccasionPartition] | None]:
        while True:
            revision = self._inventory.journal.revision
            yield None
            await self._inventory.journal.passed(revision)

    async def _filter(self, trigger: TriggerFilter, partition: OccasionPartition) -> tuple[Caller, Filter]:
        """Return the filter. Raise InventoryError, Invalid."""
        inventory_partition = await self._inventory.partition(self._inventory_partition)
        caller = Caller(USER, self._project, inventory_partition)
        search = msgspec.structs.replace(parse(str(trigger.more.get("filter", ""))), types=(partition.source,))
        return caller, await self._inventory.filter(caller, search)

    async def _changes(
        self, caller: Caller, matching: Filter, revision: int, done: int, limit: int
    ) -> list[tuple[str, ObjectChange]]:
        """Return the changes after the first `done` of one commit, each with its position. Raise MomentExpired."""
        found = list[tuple[str, ObjectChange]]()
        # The loop below skips changes that were already taken from a commit that is read again.
        since = _since(revision, done)
        await self._inventory.journal.wait_for(max(revision, since))
        async with aclosing(self._inventory.changes(caller, [matching], max(since, 1), quiet_s=60.0)) as changes:  # type: ignore[type-var]  # it is a generator
            async for several, _ in changes:
                numbers = dict[int, int]()
                for change, commit in several:
                    number = numbers[commit.revision] = numbers.get(commit.revision, 0) + 1
                    if commit.revision > revision or number > done:
                        found.append((f"{commit.revision}.{number}", change))
                break
        return found[:limit]

    async def _missed(
        self, caller: Caller, matching: Filter, position: str, wanted: Collection[EventKind], limit: int
    ) -> list[NextOccasion]:
        """Return the matching objects that changed after an expired moment, as if they had started to match."""
        revision, _, done = position.partition(".")
        if EventKind.OBJECT_CREATED not in wanted:
            return [_nothing(await self._inventory.journal.now())]
        # It is no longer known which objects of a commit were taken, so a partly taken commit is reported again.
        since = _since(int(revision), int(done))
        gap = await self._gap(caller, matching, since)
        first = bisect_right(gap.changed, since, key=_generation)
        # Only complete commits: the end of a commit is a position, but a place within it is not.
        several = gap.changed[first : first + limit]
        last = bisect_right(gap.changed, several[-1][0], key=_generation) if several else first
        several = gap.changed[first:last]
        reached = gap.until if last == len(gap.changed) else several[-1][0]
        # The objects are read again with each portion, because the remaining ones may take long to be taken.
        these = msgspec.structs.replace(matching, uuids=tuple(uuid for _, uuid in several))
        shown = await self._inventory.several(caller, [these], len(several)) if several else []
        objects = {one.object.uuid: one.object for one in shown}
        present = [(generation, objects[uuid]) for generation, uuid in several if uuid in objects]
        seen = list[NextOccasion]()
        for number, (generation, object) in enumerate(present, 1):
            # Only the last object of a commit has the position after that commit; otherwise a crash would skip the
            # others.
            if number == len(present) or present[number][0] != generation:
                position = f"{generation}.{ALL_OF_IT}"
            change = ObjectChange(JournalKind.CREATED, None, object)
            occasion = self._occasion(change, f"{generation}.{object.uuid}")
            seen.append(NextOccasion(position, EventKind.OBJECT_CREATED, occasion))
        if reached == gap.until:
            self._gaps.pop((caller, matching), None)
        end = _nothing(reached)
        return seen if position == end.position else [*seen, end]

    async def _gap(self, caller: Caller, matching: Filter, since: int) -> _Gap:
        """Return the remembered gap if the revision is inside it, else read the matching objects."""
        gap = self._gaps.pop((caller, matching), None)
        if gap is None or not gap.since <= since < gap.until:
            gap = await self._changed(caller, matching, since)
        while len(self._gaps) >= GAPS_MAX:
            del self._gaps[next(iter(self._gaps))]
        self._gaps[caller, matching] = gap
        return gap

    async def _changed(self, caller: Caller, matching: Filter, since: int) -> _Gap:
        """Read which matching objects changed after the revision, up to the present or GAP_OBJECTS_MAX."""
        now = await self._inventory.journal.now()
        found, token = list[tuple[int, str]](), ""
        while True:
            # Objects come in the order of an index, so the first to have changed may be on any page.
            page = await self._inventory.page(caller, [matching], limit=LIMIT_MAX, token=token)
            found += [(one.generation, one.object.uuid) for one in page.objects if since < one.generation <= now]
            if len(found) > GAP_OBJECTS_MAX:
                found = sorted(found)[: GAP_OBJECTS_MAX + 1]
                # Of the commit of the last object, others may be missing: the gap ends before it.
                now = found[-1][0] - 1
                found = [one for one in found if one[0] <= now]
            if not (token := page.next_token):
                return _Gap(since, now, sorted(found))

    def _occasion(self, change: ObjectChange, id: str) -> Occasion:
        object, event = change.object, KINDS[change.kind].value
        document = {
            "driver": "inventory",
            "connection": self.name,
            "event": event,
            "id": id,
            "object": _plain(object),
            **({"before": _plain(change.old)} if change.kind is JournalKind.UPDATED and change.old is not None else {}),
        }
        name = visible(f"{object.name} ({event.removeprefix('object-')})")
        found = Occasion(self.name, object.type, object.uuid, id, name, msgspec.json.encode(document).decode())
        size_bytes = len(found.body)
        if size_bytes <= TRIGGER_MAX_BYTES:
            return found
        why = f"the object has {size_bytes} bytes in JSON; at most {TRIGGER_MAX_BYTES} can be passed to jobs"
        return msgspec.structs.replace(found, body="{}", problem=why)


def _since(revision: int, done: int) -> int:
    """Return the revision after which to read: a commit of which only a part was taken is read again."""
    return revision if done >= ALL_OF_IT else revision - 1


def _generation(changed: tuple[int, str]) -> int:
    return changed[0]


def _nothing(revision: int) -> NextOccasion:
    """Return an occasion that starts nothing but moves the position, so that an expired moment is not used again."""
    return NextOccasion(f"{revision}.{ALL_OF_IT}", EventKind.OBJECT_UPDATED, None)


def _plain(object: Object) -> dict[str, object]:
    """Return the object as JSON."""
    return {
        "uuid": object.uuid,
        "type": object.type,
        "name": object.name,
        "project": object.project,
        "partition": object.partition,
        "properties": dict(object.properties),
        "tags": list(object.tags),
    }


class _ObjectEffect(msgspec.Struct, frozen=True):
    """Hold the effect of a pipeline on an object."""

    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    untag: tuple[str, ...] = ()


class ObjectReporter:
    """Implement `ports.reporter.Reporter`. Repeating a report changes nothing."""

    def __init__(self, name: str, inventory: Inventory, partition: str, project: str) -> None:
        """Make a reporter with the parameters of `WatchedObjects`."""
        self._name, self._inventory, self._partition, self._project = name, inventory, partition, project

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Write the report to the object. Raise ReporterAway or ReportRefused."""
        of = outgoing.report.answers
        # Connections may share an inventory; only the one that started the item knows where its object is.
        if of is None or of.connection != self._name:
            raise ReportRefused(f"no object of {self._name} started this item")
        try:
            wanted = msgspec.json.decode(outgoing.options.get("wanted", "{}"), type=_ObjectEffect)
            partition = await self._inventory.partition(self._partition)
            update = Update(
                of.ordering_key,
                set_properties=wanted.set,
                remove_properties=wanted.unset,
                add_tags=wanted.tag,
                remove_tags=wanted.untag,
            )
            await self._inventory.apply(Caller(USER, self._project, partition), [update])
        except NotFound:
            return  # the object was deleted in the meantime
        except (InventoryError, Invalid, ValueError) as error:
            raise ReportRefused(f"the object {of.ordering_key} cannot be changed: {error}") from error
        except StoreError as error:
            raise ReporterAway(str(error)) from error
