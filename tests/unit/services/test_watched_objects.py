"""Test objects as occasions: the data that jobs get, the start position, gaps, and the effect of reports."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from headgate.config.model import TriggerFilter
from headgate.inventory.model import Definition, Object, Permission
from headgate.map.outbox import Answered, OutboxMessage, QueueReport
from headgate.ports.occasions import NextOccasion, OccasionPartition, SourceUnavailable
from headgate.ports.reporter import ReportRefused
from headgate.services.inventory.admin import DefinitionScope
from headgate.services.inventory.draft import Create, Remove, Update
from headgate.services.inventory.errors import NotFound
from headgate.services.inventory.inventory import LIMIT_MAX
from headgate.services.inventory.pool import MACHINE
from headgate.services.scheduler.occasions import objects
from headgate.services.scheduler.occasions.messages import TRIGGER_MAX_BYTES
from headgate.services.scheduler.occasions.objects import ObjectReporter, WatchedObjects
from tests.unit.inventory.objects import PARTITIONS
from tests.unit.inventory.world import ADMIN, World, a_world

EVENTS = ("object-created", "object-updated", "object-deleted")
PARTITION = OccasionPartition(MACHINE)


def trigger(filter: str = "", events: tuple[str, ...] = EVENTS) -> TriggerFilter:
    return TriggerFilter("lab", events, more={"project": "p", **({"filter": filter} if filter else {})})


def machine(number: int, project: str = "blue", **properties: str) -> Object:
    return Object(PARTITIONS[0], MACHINE, project, f"{number:032x}", f"m{number}", properties)


def watched(world: World) -> WatchedObjects:
    return WatchedObjects("lab", world.inventory, "part0", "blue")


def event_kinds(found: list[NextOccasion]) -> list[tuple[str, str]]:
    return [(seen.kind.value, seen.occasion.name) for seen in found if seen.occasion is not None]


async def test_objects_that_begin_to_match_change_or_cease_to_cause_one_event_each_in_order() -> None:
    async with a_world() as world:
        await world.inventory.apply(ADMIN, [Create(machine(9, state="new"))])
        lab, of = watched(world), trigger("state=new")
        position = await lab.start(of, PARTITION)
        for step in (
            Create(machine(1, state="new")),
            Create(machine(2, state="old")),
            Update(machine(2).uuid, set_properties={"state": "new"}),
            Update(machine(1).uuid, set_properties={"rack": "r1"}),
            Create(machine(3, project="red", state="new")),
            Remove(machine(1).uuid),
            Update(machine(2).uuid, set_properties={"state": "tested"}),
        ):
            written = await world.inventory.apply(ADMIN, [step])
            await world.inventory.journal.wait_for(written.revision)
        found = list(await lab.after(of, PARTITION, position, 100))
        assert event_kinds(found) == [
            ("object-created", "m1 (created)"),
            ("object-created", "m2 (created)"),
            ("object-updated", "m1 (updated)"),
            ("object-deleted", "m1 (deleted)"),
            ("object-deleted", "m2 (deleted)"),
        ]
        one = found[2].occasion
        assert one is not None and (one.source, one.ordering_key) == (MACHINE, machine(1).uuid)
        body = json.loads(one.body)
        assert body["object"]["properties"] == {"rack": "r1", "state": "new"}
        assert body["before"]["properties"] == {"state": "new"} and body["event"] == "object-updated"
        for number, seen in enumerate(found):  # from wherever a pipeline is
            rest = await lab.after(of, PARTITION, seen.position, 100)
            assert event_kinds(list(rest)) == event_kinds(found[number + 1 :])


async def test_a_batch_is_handled_in_portions() -> None:
    async with a_world() as world:
        lab, of = watched(world), trigger(events=("object-created",))
        position, names = await lab.start(of, PARTITION), list[str]()
        written = await world.inventory.apply(ADMIN, [Create(machine(n)) for n in range(1, 8)])
        await world.inventory.journal.wait_for(written.revision)
        while found := await lab.after(of, PARTITION, position, 3):
            assert len(found) <= 3
            names += [name for _, name in event_kinds(list(found))]
            position = found[-1].position
        assert names == [f"m{n} (created)" for n in range(1, 8)]


async def test_events_that_nobody_asks_for_start_nothing() -> None:
    async with a_world() as world:
        lab, of = watched(world), trigger(events=("object-deleted",))
        position = await lab.start(of, PARTITION)
        await world.inventory.apply(ADMIN, [Create(machine(1))])
        written = await world.inventory.apply(ADMIN, [Remove(machine(1).uuid)])
        await world.inventory.journal.wait_for(written.revision)
        assert event_kinds(list(await lab.after(of, PARTITION, position, 9))) == [("object-deleted", "m1 (deleted)")]


async def test_after_a_gap_matching_objects_that_changed_cause_an_event() -> None:
    async with a_world() as world:
        world.inventory.journal._entries_max = 3  # a journal that forgets soon
        lab, of = watched(world), trigger("!tested")
        await world.inventory.apply(ADMIN, [Create(machine(9))])
        position = await lab.start(of, PARTITION)
        for n in range(1, 8):
            written = await world.inventory.apply(ADMIN, [Create(machine(n, **({"tested": "yes"} if n == 4 else {})))])
            await world.inventory.journal.wait_for(written.revision)
        found = list(await lab.after(of, PARTITION, position, 100))
        assert [name for _, name in event_kinds(found)] == [f"m{n} (created)" for n in (1, 2, 3, 5, 6, 7)]
        assert await lab.after(of, PARTITION, found[-1].position, 100) == [], "and then it goes on"


async def test_after_a_gap_a_change_causes_an_event_however_many_objects_match() -> None:
    async with a_world() as world:
        world.inventory.journal._entries_max = 3
        lab, of = watched(world), trigger()
        many = [machine(n) for n in (*range(1, LIMIT_MAX + 1), 9_999)]  # the last one is last in every order
        await world.inventory.apply_in_parts(ADMIN, [Create(one) for one in many])
        position = await lab.start(of, PARTITION)
        await world.inventory.apply(ADMIN, [Update(machine(9_999).uuid, set_properties={"state": "new"})])
        for n in range(1, 5):
            written = await world.inventory.apply(ADMIN, [Update(machine(n).uuid, set_properties={"state": "new"})])
            await world.inventory.journal.wait_for(written.revision)
        found = list(await lab.after(of, PARTITION, position, 100))
        assert [name for _, name in event_kinds(found)] == [f"m{n} (created)" for n in (9_999, 1, 2, 3, 4)]


async def test_after_a_gap_objects_are_handled_in_portions_of_complete_commits() -> None:
    async with a_world() as world:
        world.inventory.journal._entries_max = 3
        lab, of = watched(world), trigger()
        position, names = await lab.start(of, PARTITION), list[str]()
        for several in ((1, 2), (3, 4, 5), (6,), (7,), (8,), (9,)):
            written = await world.inventory.apply(ADMIN, [Create(machine(n)) for n in several])
            await world.inventory.journal.wait_for(written.revision)
        while found := list(await lab.after(of, PARTITION, position, 3)):
            names += [name for _, name in event_kinds(found)]
            assert len(found) <= 5, "those of the commit in which the limit is reached, too"
            position = found[-1].position
        assert names == [f"m{n} (created)" for n in range(1, 10)]


async def test_after_a_gap_each_object_is_read_once_however_many_portions_there_are() -> None:
    async def requests(count: int) -> int:
        """Return the requests that it takes to catch up with so many objects."""
        async with a_world() as world:
            world.inventory.journal._entries_max = 3
            lab, of = watched(world), trigger()
            position, names = await lab.start(of, PARTITION), list[str]()
            for n in range(1, count + 1):
                written = await world.inventory.apply(ADMIN, [Create(machine(n))])
                await world.inventory.journal.wait_for(written.revision)
            before = world.store.counts.requests
            while found := list(await lab.after(of, PARTITION, position, 10)):
                names += [name for _, name in event_kinds(found)]
                position = found[-1].position
            assert names == [f"m{n} (created)" for n in range(1, count + 1)]
            return world.store.counts.requests - before

    few, more, many = [await requests(count) for count in (100, 200, 400)]
    assert many - more <= 2.2 * (more - few), "twice as many objects take twice as many requests"


async def test_a_remembered_gap_has_a_limit_and_shows_the_present_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "GAP_OBJECTS_MAX", 4)
    async with a_world() as world:
        world.inventory.journal._entries_max = 3
        lab, of = watched(world), trigger("!tested")
        position, names = await lab.start(of, PARTITION), list[str]()
        for several in ((1, 2), (3, 4), (5, 6), (7,), (8,), (9,)):
            written = await world.inventory.apply(ADMIN, [Create(machine(n)) for n in several])
            await world.inventory.journal.wait_for(written.revision)
        first = list(await lab.after(of, PARTITION, position, 2))
        assert [name for _, name in event_kinds(first)] == ["m1 (created)", "m2 (created)"]
        await world.inventory.apply(ADMIN, [Update(machine(3).uuid, set_properties={"tested": "yes"})])
        written = await world.inventory.apply(ADMIN, [Remove(machine(4).uuid)])
        await world.inventory.journal.wait_for(written.revision)
        position = first[-1].position
        while found := list(await lab.after(of, PARTITION, position, 2)):
            names += [name for _, name in event_kinds(found)]
            position = found[-1].position
        assert names == [f"m{n} (created)" for n in (5, 6, 7, 8, 9)]


async def test_a_gap_in_the_middle_of_a_commit_loses_no_part_of_it() -> None:
    async with a_world() as world:
        world.inventory.journal._entries_max = 3
        lab, of = watched(world), trigger()
        position = await lab.start(of, PARTITION)
        written = await world.inventory.apply(ADMIN, [Create(machine(n)) for n in range(1, 5)])
        await world.inventory.journal.wait_for(written.revision)
        first = list(await lab.after(of, PARTITION, position, 2))
        for n in range(5, 10):
            written = await world.inventory.apply(ADMIN, [Create(machine(n))])
            await world.inventory.journal.wait_for(written.revision)
        rest = list(await lab.after(of, PARTITION, first[-1].position, 100))
        assert {name for _, name in event_kinds(rest)} == {f"m{n} (created)" for n in range(1, 10)}


async def test_hidden_or_too_large_values_are_withheld_from_jobs() -> None:
    async with a_world() as world:
        rules = {"bmc": (Permission(mask=0), Permission(role="admin", mask=3))}
        definition = Definition("d" * 32, '{"type": "object"}', rules)
        await world.inventory.admin.set_definition(ADMIN, DefinitionScope(MACHINE, PARTITIONS[0]), definition)
        lab, of = watched(world), trigger()
        position = await lab.start(of, PARTITION)
        await world.inventory.apply(ADMIN, [Create(machine(1, bmc="secret", rack="r1"))])
        large = {f"k{n}": '"' * 1_000 for n in range(TRIGGER_MAX_BYTES // 2_000 + 1)}
        written = await world.inventory.apply(ADMIN, [Create(machine(2, **large))])
        await world.inventory.journal.wait_for(written.revision)
        first, second = (seen.occasion for seen in await lab.after(of, PARTITION, position, 9))
        assert first is not None and "secret" not in first.body and "bmc" not in first.body and "r1" in first.body
        assert second is not None and "at most" in second.problem and second.body == "{}"


async def test_an_invalid_filter_or_a_missing_partition_is_reported() -> None:
    async with a_world() as world:
        lab = watched(world)
        with pytest.raises(SourceUnavailable, match="close the quotes"):
            await lab.after(trigger('"'), PARTITION, await lab.start(trigger(), PARTITION), 9)
        with pytest.raises(SourceUnavailable, match="nowhere"):
            await WatchedObjects("lab", world.inventory, "nowhere", "blue").after(trigger(), PARTITION, "1.1", 9)


def report(uuid: str, connection: str = "lab", **wanted: object) -> OutboxMessage:
    about = {"kind": "report", "tenant": "t", "pipeline": "p", "project": "p", "branch": "b", "report": "success"}
    answers = Answered(connection, MACHINE, uuid, "1.1")
    more = {"v": 1, "id": "i", "at_ms": 1, "change": "c", "commit": "", "item": "x"}
    return OutboxMessage("", QueueReport(**about, **more, answers=answers), None, {"wanted": json.dumps(wanted)})


async def test_a_report_marks_the_object_and_a_repeat_changes_nothing() -> None:
    async with a_world() as world:
        await world.inventory.apply(ADMIN, [Create(machine(1, state="new", old="x"))])
        await world.inventory.apply(ADMIN, [Create(machine(2, project="red"))])
        reporter = ObjectReporter("lab", world.inventory, "part0", "blue")
        wanted = {"set": {"state": "tested"}, "unset": ["old"], "tag": ["good"]}
        for _ in range(2):
            await reporter.tell(report(machine(1).uuid, **wanted))
        marked, _ = await world.inventory.get(ADMIN, machine(1).uuid)
        assert (marked.properties, marked.tags) == ({"state": "tested"}, ("good",))
        await reporter.tell(report("f" * 32, **wanted))  # deleted meanwhile: nobody is there to tell
        await reporter.tell(report(machine(2).uuid, **wanted))  # another project's: as if it were not there
        other, _ = await world.inventory.get(ADMIN, machine(2).uuid)
        assert other.tags == ()
        with pytest.raises(ReportRefused, match="provider"):
            await reporter.tell(report(machine(1).uuid, set={"provider": "mine"}))
        with pytest.raises(ReportRefused, match="no object of lab"):
            await reporter.tell(report(machine(1).uuid, connection="other", **wanted))
        with pytest.raises(ReportRefused, match="no object"):
            await reporter.tell(replace(report(""), report=replace(report("").report, answers=None)))
        with pytest.raises(NotFound):
            await world.inventory.get(ADMIN, "f" * 32)
