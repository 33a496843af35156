"""Test delayed messages under random schedules, and that the simulator finds defects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headgate.queue.messages import later
from headgate.queue.messages.later import HeldBack
from headgate.testing.queues.delays import DelaySimulation
from headgate.testing.sim.worlds import InvariantBroken

SEEDS = int(os.environ.get("QUEUE_SIM_SEEDS", "300")) // 5


@pytest.fixture(autouse=True)
def little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "EACH_MAX", 2)
    monkeypatch.setattr(later, "PARTITIONS_AT_ONCE", 2)


@pytest.fixture
def place() -> Iterator[Path]:
    """Provide a directory in memory, if the machine has one: elsewhere each commit waits for the disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@pytest.mark.long
def test_delayed_messages_come_when_they_are_due_and_in_order(place: Path) -> None:
    held_up = 0
    for seed in range(SEEDS):
        simulation = DelaySimulation(seed, place)
        simulation.run()
        held_up += simulation.held_up
    assert held_up > SEEDS, "hardly anything had to wait for anything: that tests nothing"


def delivered_in_the_order_of_posts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(later, "ORDER", "ticks, due_ms")


def given_its_place_when_it_is_posted(patch: pytest.MonkeyPatch) -> None:
    """Store a message under the id of its answer, as some systems do: cursors have passed it already."""
    real = later._deliver_partition

    def deliver(
        database: later.Database, of: later.QueueRecord, partition: int, now_ns: int, node: int, most: int
    ) -> int:
        queue_partition = of.id, partition
        sql = "select ticks, id from later where queue = ? and partition = ? and due_ms <= ? order by due_ms, ticks"
        found = database.execute(f"{sql} limit 2", (*queue_partition, now_ns // 1_000_000))
        chars = real(database, of, partition, now_ns, node, most)
        top = "select max(ticks) from message where queue = ? and partition = ?"
        newest = database.execute(top, queue_partition)[0][0]
        for n, (ticks, id) in enumerate(reversed(found)):
            sql = "update message set ticks = ?, id = ? where queue = ? and partition = ? and ticks = ?"
            database.execute(sql, (ticks, id, *queue_partition, newest - n))
        return chars

    patch.setattr(later, "_deliver_partition", deliver)


def messages_behind_a_delayed_one_delay_nobody(patch: pytest.MonkeyPatch) -> None:
    real = HeldBack.take

    def take(self: HeldBack, queue_partition: tuple[int, int], ticks: int, id: str, draft: later.MessageDraft) -> int:
        if not draft.hold and self.held.get(queue_partition, 0) <= self.now_ms:
            self.held.pop(queue_partition, None)
        return real(self, queue_partition, ticks, id, draft)

    patch.setattr(HeldBack, "take", take)


def delayed_messages_delay_no_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(later, "waiting", lambda database, partitions, now_ms: HeldBack(now_ms, {}))


def delivered_a_little_early(patch: pytest.MonkeyPatch) -> None:
    real = later.deliver
    patch.setattr(later, "deliver", lambda database, now_ns, node: real(database, now_ns + 20_000_000, node))


@pytest.mark.mutant
@pytest.mark.parametrize(
    "mutant",
    [
        delivered_in_the_order_of_posts,
        given_its_place_when_it_is_posted,
        messages_behind_a_delayed_one_delay_nobody,
        delayed_messages_delay_no_others,
        delivered_a_little_early,
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_the_simulator_detects_broken_code(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    mutant(monkeypatch)
    with pytest.raises(InvariantBroken):
        for seed in range(SEEDS):
            DelaySimulation(seed, place).run()
