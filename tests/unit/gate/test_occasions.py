"""Test messages that start a pipeline: each is one item, in the order of its partition, and jobs receive it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from headgate.config.model import TriggerFilter
from headgate.gate.rules.refs import update
from headgate.gate.state.actions import Record
from headgate.gate.state.change import Change, EventKind, Occasion, TriggerEvent
from headgate.gate.state.management import Dequeue
from headgate.gate.state.works import MergeAnswer, RepoState
from headgate.testing.layouts import PlayLayout
from headgate.testing.plays import Play

HEAD = "1" * 40


def orders(manager: str = "serial", **layout: object) -> Play:
    play = Play(manager=manager)
    triggers = (TriggerFilter("bus", (), more={"queue": "orders", "project": "p"}),)
    play.pipeline = replace(play.pipeline, name="orders", triggers=triggers, require_approved=(), lands=())
    if layout:
        play.layout = PlayLayout(play.layout.jobs, **layout)  # type: ignore[arg-type]
    return play


def message(number: int, partition: str = "1", **fields: object) -> Change:
    body = json.dumps({"driver": "queue", "queue": "orders", "id": str(number), **fields})
    occasion = Occasion("bus", "orders", partition, str(number), f"orders:{partition}:{number}", body)
    return Change("git", "p", "master", commit=HEAD, ref="refs/heads/master", occasion=occasion)


def posted(play: Play, change: Change, event: str = "") -> None:
    assert change.occasion is not None
    id = event or f"event-{change.occasion.id}"
    play.act(TriggerEvent(EventKind.POSTED, change, id, pipeline="orders"))


def here(play: Play) -> list[str]:
    return [item.change.occasion.id for _, item in play.state.items() if item.change.occasion is not None]


def prepared(play: Play) -> list[str]:
    """Return the messages whose items are being prepared, after an answer."""
    found = []
    for id, merge in list(play.merging.items()):
        del play.merging[id]
        work = merge.work
        assert work.at is not None and work.chain == (), "nothing is merged for a message"
        assert (work.at.ref, work.at.commit) == ("refs/heads/master", HEAD)
        item = next(item for _, item in play.state.items() if item.buildset and item.buildset.id == work.buildset)
        assert item.change.occasion is not None
        found.append(item.change.occasion.id)
        play.act(MergeAnswer(work.buildset, True, state=RepoState(heads={"p": {"refs/heads/master": HEAD}})))
    return found


def running(play: Play) -> list[str]:
    return [run.spec.zuul["trigger"]["id"] for run in play.running.values()]


def ends(play: Play, number: int, result: str = "SUCCESS") -> None:
    spec = next(run.spec for run in play.running.values() if run.spec.zuul["trigger"]["id"] == str(number))
    others = {id: run for id, run in play.running.items() if id != spec.build}
    play.running = {spec.build: play.running[spec.build], **others}  # found first
    play.ends("", spec.job.name, result)


def ended(play: Play) -> list[tuple[str, str]]:
    """Return the actions of the last turn."""
    return [
        (action.item.change.occasion.id, action.result)
        for action in play.actions
        if isinstance(action, Record) and action.item.change.occasion is not None
    ]


def test_a_message_is_an_item_whose_jobs_get_it_at_the_head_of_the_branch() -> None:
    play = orders("independent")
    posted(play, message(1, body='{"a": 1}', data={"a": 1}))
    assert prepared(play) == ["1"]
    spec = play.running_spec("", "unit")
    assert spec.zuul["trigger"] == {
        "driver": "queue",
        "queue": "orders",
        "id": "1",
        "body": '{"a": 1}',
        "data": {"a": 1},
    }
    assert (spec.zuul["branch"], spec.zuul["ref"], spec.zuul["commit_id"]) == ("master", "refs/heads/master", HEAD)
    assert spec.zuul.keys().isdisjoint({"change", "patchset", "oldrev"})
    play.passes("")
    assert ended(play) == [("1", "SUCCESS")] and here(play) == []


def test_messages_of_one_branch_are_separate_items_and_a_repeat_is_the_same() -> None:
    play = orders("independent")
    for number in (1, 2, 1):
        posted(play, message(number))
    assert here(play) == ["1", "2"] and sorted(prepared(play)) == ["1", "2"] and sorted(running(play)) == ["1", "2"]


def test_a_serial_pipeline_keeps_the_order_of_each_partition_and_partitions_wait_for_nobody() -> None:
    play = orders()
    for number, partition in ((1, "1"), (2, "1"), (3, "2"), (4, "1"), (5, "2")):
        posted(play, message(number, partition))
    order = []
    while here(play):
        prepared(play)
        at_once = running(play)
        assert len({"1" if n in "124" else "2" for n in at_once}) == len(at_once), "one of a partition at a time"
        order.append(at_once[-1])
        ends(play, int(at_once[-1]), "FAILURE" if at_once[-1] == "2" else "SUCCESS")
    assert [n for n in order if n in "124"] == ["1", "2", "4"] and [n for n in order if n in "35"] == ["3", "5"]
    assert play.state.queues == (), "a partition that is empty is not kept"


def test_a_supercedent_pipeline_keeps_the_newest_of_each_partition() -> None:
    play = orders("supercedent")
    for number, partition in ((1, "1"), (2, "1"), (3, "1"), (4, "2")):
        posted(play, message(number, partition))
        if number == 3:
            assert ended(play) == [("2", "DEQUEUED")], "whoever waits for the end of it hears of one"
    assert here(play) == ["1", "3", "4"]


@pytest.mark.parametrize("why", ["the message has 20000 bytes", ""])
def test_a_message_that_can_start_nothing_ends_immediately_with_the_reason(why: str) -> None:
    play = orders(**({} if why else {"absent": frozenset({"p"})}))
    change = message(1)
    assert change.occasion is not None
    posted(play, replace(change, occasion=replace(change.occasion, problem=why)))
    (record,) = (action for action in play.actions if isinstance(action, Record))
    assert (record.result, record.tested, here(play)) == ("FAILURE", False, [])
    assert (why or "p has no jobs in orders for master") in record.message
    posted(play, message(2, partition="2"))
    assert (here(play) == ["2"]) is bool(why), "the next is another's matter"


def test_a_message_is_dequeued_by_its_key() -> None:
    play = orders()
    first = message(1)
    for change in (first, message(2)):
        posted(play, change)
    play.act(Dequeue(first.key))
    assert ended(play) == [("1", "DEQUEUED")] and here(play) == ["2"]
    assert first.key == "p@refs/heads/master#bus/1" == update("", "p", "refs/heads/master#bus/1").key, (
        "as people name it"
    )
