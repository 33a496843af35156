"""Test queues with priorities under random schedules, and that the simulators find defects."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from headgate.queue.messages import leases, posts
from headgate.queue.workers import calls
from headgate.queue.workers.calls import Rank, StrandTurns
from headgate.queue.workers.shares import SharingView
from headgate.queueing.partitions import Next
from headgate.testing.queues import simulator as queuesim
from headgate.testing.queues.leases import LeaseSimulation
from headgate.testing.queues.simulator import simulate_priorities
from headgate.testing.sim.worlds import InvariantBroken
from tests.tiers import share

SEEDS = int(os.environ.get("PRIORITY_SIM_SEEDS", share(200)))
CHUNK = 20
LEASE_SEEDS = share(100)


@pytest.fixture(autouse=True)
def quiet() -> Iterable[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_workers_with_a_store_serve_the_highest_priority_and_starve_none(first: int) -> None:
    deaths, overtaken = simulate_priorities(first, CHUNK)
    assert deaths > 0 and overtaken > 0, "nobody died, or no late message came before others: that tests nothing"


@pytest.mark.long
def test_workers_over_http_are_given_the_highest_priority_and_starve_none(tmp_path: Path) -> None:
    worlds = [LeaseSimulation(seed, tmp_path) for seed in range(LEASE_SEEDS)]
    for world in worlds:
        world.run()
    assert sum(world.out_of_turn for world in worlds) > LEASE_SEEDS, "hardly anything was late: that tests nothing"
    assert sum(world.vanished for world in worlds) > LEASE_SEEDS, "hardly any worker vanished"


def the_oldest_comes_first(patch: pytest.MonkeyPatch) -> None:
    def oldest(since_ms: Sequence[int | None], now_ms: int, passed: int, patience_s: float) -> Next | None:
        waiting = [(since, which) for which, since in enumerate(since_ms) if since is not None]
        return Next(min(waiting)[1], 0) if waiting else None

    patch.setattr(calls, "comes_next", oldest)


def what_is_late_waits_on(patch: pytest.MonkeyPatch) -> None:
    def strict(since_ms: Sequence[int | None], now_ms: int, passed: int, patience_s: float) -> Next | None:
        return next((Next(which, 0) for which, since in enumerate(since_ms) if since is not None), None)

    patch.setattr(calls, "comes_next", strict)


def what_is_late_has_every_turn(patch: pytest.MonkeyPatch) -> None:
    real = calls.comes_next
    patch.setattr(calls, "comes_next", lambda since, now, passed, patience: real(since, now, 9, patience))


def strands_are_taken_apart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharingView, "head", lambda self, partition: partition)
    patch.setattr(SharingView, "strand", lambda self, partition: [partition])


def each_partition_has_turns_of_its_own(patch: pytest.MonkeyPatch) -> None:
    real = StrandTurns.of
    new = lambda self: StrandTurns(self.count, self.patience_s, self.now_ms, self.changed)  # noqa: E731
    patch.setattr(StrandTurns, "of", lambda self, which: real(new(self), which))


def nobody_waits_for_one_that_is_about_to_say(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rank, "stirs", lambda self: None)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    the_oldest_comes_first,
    what_is_late_waits_on,
    what_is_late_has_every_turn,
    strands_are_taken_apart,
    each_partition_has_turns_of_its_own,
    nobody_waits_for_one_that_is_about_to_say,
)


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_detects_broken_code(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queuesim, "TIME_MAX_S", 100.0)
    mutant(monkeypatch)
    with pytest.raises(InvariantBroken):
        simulate_priorities(0, SEEDS)


def every_lease_begins_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases.LeasedStrand, "keep", lambda self, database: None)


def a_strand_is_free_where_its_first_partition_has_nothing(patch: pytest.MonkeyPatch) -> None:
    real = leases._waits
    first = lambda place: (place[2] - 1) % 3 == 0  # noqa: E731
    patch.setattr(leases, "_waits", lambda d, place, at, now: first(place) and real(d, place, at, now))


def handed_out_in_the_order_of_posts(patch: pytest.MonkeyPatch) -> None:
    def oldest(since_ms: Sequence[int | None], now_ms: int, passed: int) -> Next | None:
        waiting = [(since, which) for which, since in enumerate(since_ms) if since is not None]
        return Next(min(waiting)[1], 0) if waiting else None

    patch.setattr(leases, "comes_next", oldest)


def what_is_late_is_never_handed_out(patch: pytest.MonkeyPatch) -> None:
    real = leases.comes_next
    patch.setattr(leases, "comes_next", lambda since, now, passed: real(since, now, 0))


def a_key_decides_on_the_partition_alone(patch: pytest.MonkeyPatch) -> None:
    real = posts._partitions
    one = lambda n, post: n if not post.drafts[0].key else (n * 5) % 6 + 1  # noqa: E731
    patch.setattr(posts, "_partitions", lambda post, *more: [one(n, post) for n in real(post, *more)])


LEASE_MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    every_lease_begins_anew,
    a_strand_is_free_where_its_first_partition_has_nothing,
    handed_out_in_the_order_of_posts,
    what_is_late_is_never_handed_out,
    a_key_decides_on_the_partition_alone,
)


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", LEASE_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulator_of_leases_finds(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mutant(monkeypatch)
    with pytest.raises(InvariantBroken):
        for seed in range(LEASE_SEEDS):
            LeaseSimulation(seed, tmp_path).run()
