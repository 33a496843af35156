"""Complete, balanced within one, sticky, the same everywhere, and no more moved than must be."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from headgate.queueing.assignment import assign

workers = st.sets(st.integers(0, 40).map(lambda n: f"worker-{n:010d}"), min_size=1, max_size=9)
lanes = st.sets(st.tuples(st.sampled_from("abcdef"), st.integers(1, 12)), max_size=60)


def owners(shares: dict[str, tuple[tuple[str, int], ...]]) -> dict[tuple[str, int], str]:
    return {lane: worker for worker, has in shares.items() for lane in has}


@st.composite
def situations(draw: st.DrawFn) -> tuple[set[str], set[tuple[str, int]], dict[tuple[str, int], str]]:
    """Any state at all: owners that have left, lanes that are no more, one worker with everything."""
    some, every = draw(workers), draw(lanes)
    known = [*sorted(every), ("gone", 1)]
    held = draw(st.dictionaries(st.sampled_from(known), st.sampled_from([*sorted(some), "worker-left"])))
    return some, every, held


@given(situations())
def test_every_lane_has_one_worker_and_loads_differ_by_one_at_most(situation) -> None:
    some, every, held = situation
    shares = assign(some, every, held)
    assert sorted(lane for has in shares.values() for lane in has) == sorted(every)
    sizes = [len(has) for has in shares.values()]
    assert set(shares) == some
    assert max(sizes) - min(sizes) <= 1


@given(situations())
def test_whoever_is_not_over_its_share_keeps_all_it_has(situation) -> None:
    some, every, held = situation
    shares = assign(some, every, held)
    for worker, has in shares.items():
        had = {lane for lane, owner in held.items() if owner == worker and lane in every}
        assert had <= set(has) or len(has) == len(had & set(has)), "gives up lanes only when it has too many"


@given(situations())
def test_the_result_is_where_it_wants_to_be(situation) -> None:
    some, every, held = situation
    shares = assign(some, every, held)
    assert assign(some, every, owners(shares)) == shares


@given(situations(), st.data())
def test_it_does_not_change_while_its_moves_are_made_one_by_one(situation, data: st.DataObject) -> None:
    some, every, held = situation
    want = owners(assign(some, every, held))
    now = {lane: owner for lane, owner in held.items() if lane in every}
    for _ in range(4 * len(every)):
        shares = owners(assign(some, every, now))
        release = [lane for lane, owner in now.items() if shares[lane] != owner]
        take = [lane for lane in every if lane not in now]
        if not release and not take:
            break
        lane = data.draw(st.sampled_from(sorted(release + take)))
        if lane in release:
            del now[lane]
        else:
            now[lane] = shares[lane]
    assert set(now) == every
    moved = sum(now[lane] != held.get(lane) for lane in every)
    assert moved == sum(want[lane] != held.get(lane) for lane in every)


@given(workers, lanes, st.integers(41, 50))
def test_one_joining_moves_at_most_its_share(some, every, number: int) -> None:
    before = owners(assign(some, every, {}))
    after = owners(assign({*some, f"worker-{number:010d}"}, every, before))
    assert sum(after[lane] != before[lane] for lane in every) <= ceil(len(every) / len(some))
    assert all(after[lane] in (before[lane], f"worker-{number:010d}") for lane in every)


@given(workers, lanes, st.data())
def test_one_leaving_moves_only_what_it_had(some, every, data: st.DataObject) -> None:
    before = owners(assign(some, every, {}))
    leaver = data.draw(st.sampled_from(sorted(some)))
    rest = some - {leaver}
    after = owners(assign(rest, every, before))
    if rest:
        moved = {lane for lane in every if after[lane] != before[lane]}
        assert moved == {lane for lane in every if before[lane] == leaver}
        assert len(moved) <= ceil(len(every) / len(some))


def test_twenty_seven_lanes_and_a_fourth_worker_move_six() -> None:
    every = [f"q{n:02d}" for n in range(27)]
    three = assign(["w1", "w2", "w3"], every, {})
    before = {lane: worker for worker, has in three.items() for lane in has}
    four = assign(["w1", "w2", "w3", "w4"], every, before)
    assert sum(before[lane] != worker for worker, has in four.items() for lane in has) == 6


def test_from_three_and_two_to_three_workers_one_lane_moves() -> None:
    shares = assign(["a", "b", "c"], "12345", dict(zip("12345", "aaabb", strict=True)))
    assert shares == {"a": ("1", "2"), "b": ("4", "5"), "c": ("3",)}


def test_more_workers_than_lanes_leaves_none_of_the_lanes_alone() -> None:
    assert assign(["a", "b", "c"], ["x", "y"], {}) == {"a": ("x",), "b": ("y",), "c": ()}


def test_without_workers_there_is_nothing_to_say() -> None:
    assert assign([], ["x"], {}) == {}
