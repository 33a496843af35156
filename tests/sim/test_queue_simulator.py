"""Test queue workers under many random schedules, and that the simulator finds defects."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pytest

from headgate.queue.workers import ownership
from headgate.queue.workers.ownership import Ownership
from headgate.queue.workers.partition import PartitionRunner
from headgate.queueing import partitions
from headgate.queueing import progress as steps
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.progress import Tally
from headgate.store.store import Store
from headgate.store.types import Op, Put, Unavailable
from headgate.testing.queues import simulator as queuesim
from headgate.testing.queues.simulator import QueueSimulation, simulate_queues
from headgate.testing.sim.worlds import InvariantBroken
from tests.waiting import slow

SEEDS = int(os.environ.get("QUEUE_SIM_SEEDS", "100"))
CHUNK = 100
REGRESSION_SEEDS = (23, 194, 1945)
"""Seeds that once found a defect."""


@pytest.fixture(autouse=True)
def quiet() -> Iterable[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_workers_survive_whatever_comes(first: int) -> None:
    deaths, repeated = simulate_queues(first, min(CHUNK, SEEDS - first))
    assert deaths > 0 and repeated > 0, "nobody died, or nobody was in the middle of something: that tests nothing"


@pytest.mark.parametrize("seed", REGRESSION_SEEDS)
def test_a_defect_found_earlier_does_not_return(seed: int) -> None:
    QueueSimulation(seed).run()


def commits_unfenced(patch: pytest.MonkeyPatch) -> None:
    async def write(self: Ownership, ops: list[Op], *checks: Any) -> None:
        await self.store.commit(checks, ops)

    patch.setattr(Ownership, "_write", write)


def commits_unversioned(patch: pytest.MonkeyPatch) -> None:
    """Keep the fence, but let a late request overwrite what its own worker has written since."""

    async def write(self: Ownership, ops: list[Op], *checks: Any) -> None:
        while True:
            self.session.check()
            try:
                await self.store.commit(checks, ops, guards=[self.guard])
                return
            except Unavailable:
                await slow(0.05)

    patch.setattr(Ownership, "_write", write)


def owners_outlive_their_session(patch: pytest.MonkeyPatch) -> None:
    real = Store.commit

    async def leaseless(self: Store, checks: Any, ops: Any, *, guards: Any = ()) -> Any:
        ops = [Put(op.path, op.value) if isinstance(op, Put) and "/owners/" in op.path else op for op in ops]
        return await real(self, checks, ops, guards=guards)

    patch.setattr(Store, "commit", leaseless)


def assignment_not_sticky(patch: pytest.MonkeyPatch) -> None:
    def dealt(
        workers: Collection[str], partitions: Iterable[QueuePartition], held: Mapping[QueuePartition, str]
    ) -> dict[str, tuple[QueuePartition, ...]]:
        names, every = sorted(workers), sorted(partitions)
        return {name: tuple(every[n :: len(names)]) for n, name in enumerate(names)}

    patch.setattr(partitions, "assign", dealt)


def assignment_drops_the_remainder(patch: pytest.MonkeyPatch) -> None:
    def floored(
        workers: Collection[str], partitions: Iterable[QueuePartition], held: Mapping[QueuePartition, str]
    ) -> dict[str, tuple[QueuePartition, ...]]:
        names, every = sorted(workers), sorted(partitions)
        share = len(every) // max(len(names), 1)
        return {name: tuple(every[n * share : (n + 1) * share]) for n, name in enumerate(names)}

    patch.setattr(partitions, "assign", floored)


def recorded_before_it_is_run(patch: pytest.MonkeyPatch) -> None:
    real = PartitionRunner._first

    async def early(self: PartitionRunner, batch: Sequence[Any]) -> bool:
        await self._ownership.commit(ownership.steps.done(self.now, batch[-1].message_id))
        return await real(self, batch)

    patch.setattr(PartitionRunner, "_first", early)


def tries_not_counted_before_they_are_made(patch: pytest.MonkeyPatch) -> None:
    from headgate.queue.workers import partition

    patch.setattr(partition.steps, "begun", lambda progress, ahead: progress)


def counted_before_there_is_a_place(patch: pytest.MonkeyPatch) -> None:
    real = PartitionRunner._again

    async def early(self: PartitionRunner, message: Any) -> None:
        tally = steps.tally_of(self.now, message.message_id)
        await self._commit(steps.tried(self.now, message.message_id, tally.opened("somebody", handed=True)))
        await real(self, message)

    patch.setattr(PartitionRunner, "_again", early)


def deaths_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tally, "opened", lambda self, by, *, handed=False: self)
    patch.setattr(Tally, "handed", lambda self: self)
    patch.setattr(Tally, "unopened", lambda self: self)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    commits_unfenced,
    commits_unversioned,
    owners_outlive_their_session,
    assignment_not_sticky,
    assignment_drops_the_remainder,
    recorded_before_it_is_run,
    tries_not_counted_before_they_are_made,
    counted_before_there_is_a_place,
    deaths_are_not_counted,
)


AMONG = {commits_unversioned: 230}
"""First seed, for defects that few seeds show."""


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_detects_broken_code(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queuesim, "TIME_MAX_S", 100.0)
    mutant(monkeypatch)
    with pytest.raises(InvariantBroken):
        simulate_queues(AMONG.get(mutant, 0), 400)
