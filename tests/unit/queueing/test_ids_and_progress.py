"""Test ids, times, the forms of `last`, and cursors that never go back."""

from __future__ import annotations

import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.queueing import progress as steps
from headgate.queueing.ids import (
    START,
    TICKS_MAX,
    UNIX_EPOCH_TICKS,
    Position,
    make_id,
    parse_last,
    position_of,
    ticks_of,
    ticks_of_unix,
    ticks_of_unix_ns,
    unix_text,
)
from headgate.queueing.partitions import QueuePartition, parse_partition
from headgate.queueing.policy import Policy, Routing, RoutingRule
from headgate.queueing.progress import NEW, Parked, Progress, Tally, Unheard, position

ids = st.builds(make_id, st.integers(0, TICKS_MAX), st.integers(0, (1 << 14) - 1), st.integers(0, (1 << 48) - 1))


def test_the_ticks_of_the_layout_are_a_moment_of_january_2012() -> None:
    assert unix_text(135471512647131000) == "1327858464.7131000"
    assert ticks_of_unix("1327858464.7131") == 135471512647131000
    assert ticks_of("364875c74a9811e1919eb88d120c81de") == 135471481404028359
    assert UNIX_EPOCH_TICKS == 0x01B21DD213814000 == ticks_of_unix_ns(0)


@given(ids)
def test_an_id_is_a_version_1_uuid_with_its_time(id: str) -> None:
    assert uuid.UUID(id).version == 1
    assert uuid.UUID(id).time == ticks_of(id)


@given(st.integers(UNIX_EPOCH_TICKS, UNIX_EPOCH_TICKS + 10**17))
def test_times_lose_nothing(ticks: int) -> None:
    assert ticks_of_unix(unix_text(ticks)) == ticks


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("135471512647131000", 135471512647131000),
        ("135471512647131000L", 135471512647131000),
        ("1330365230.03807", 135496580300380700),
        ("364875c74a9811e1919eb88d120c81de", 135471481404028359),
    ],
)
def test_every_form_of_last_is_read(text: str, ticks: int) -> None:
    assert parse_last(text).ticks == ticks


@pytest.mark.parametrize("text", ["", "0.0", "0"])
def test_every_form_of_no_progress_means_the_start(text: str) -> None:
    assert parse_last(text) == START


@pytest.mark.parametrize("text", ["yesterday", "-1", "1e9", "123456789012345678901234", "9" * 19, "12345678901234.5"])
def test_invalid_forms_of_last_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_last(text)


def test_a_time_alone_is_behind_every_message_of_that_time() -> None:
    id = make_id(135471512647131000, 1 << 13, (1 << 48) - 1)
    assert parse_last("135471512647131000") > position_of(id)
    assert position(Progress("135471512647131000", id)) == position_of(id)
    assert position(Progress("135471512647131001", id)) == Position(135471512647131001), "set by hand: the id is stale"


@given(st.lists(ids, unique=True, min_size=1).map(lambda found: sorted(found, key=position_of)))
def test_done_only_goes_forward_and_survives_storage(order: list[str]) -> None:
    now = NEW
    for id in order:
        now = msgspec.json.decode(msgspec.json.encode(steps.done(now, id)), type=Progress)
        assert position(now) == position_of(id)
        assert now.last == str(ticks_of(id))
        for earlier in (order[0], id):
            with pytest.raises(ValueError, match="never goes back"):
                steps.done(now, earlier)


def test_a_new_record_is_the_layouts() -> None:
    assert msgspec.json.encode(NEW) == b'{"last":""}'


def test_unknown_members_of_a_record_are_no_problem() -> None:
    found = msgspec.json.decode(b'{"last":"135471512647131000L","more":[1]}', type=Progress)
    assert position(found).ticks == 135471512647131000


def test_a_change_of_owner_counts_and_leaves_the_cursor() -> None:
    id = make_id(7, 0, 0)
    one = steps.taken(steps.begun(steps.done(NEW, id), make_id(9, 0, 0)), "w1")
    two = steps.taken(one, "w2")
    assert (two.epoch, two.owner, position(two)) == (2, "w2", position_of(id))
    assert steps.suspects(two) == position_of(make_id(9, 0, 0))
    assert steps.suspects(steps.released(steps.begun(two, ""))) == START


def test_a_release_keeps_the_attempts_of_a_message_that_may_have_begun() -> None:
    one = steps.taken(steps.tried(steps.begun(NEW, make_id(9, 0, 0)), make_id(8, 0, 0), Tally(failed=2)), "w1")
    left = steps.released(one)
    assert (left.owner, left.attempted, left.attempts, left.ahead) == ("", one.attempted, 2, one.ahead)


def test_parking_replaces_and_unparking_removes() -> None:
    first, again = Parked("a", 1, 10), Parked("a", 2, 20)
    now = steps.parked(steps.parked(NEW, first), again)
    assert now.parked == (again,)
    assert steps.unparked(now, "a").parked == ()


def test_seeking_forgets_attempts_and_parked_messages() -> None:
    one = steps.parked(steps.tried(steps.begun(Progress("5", epoch=3), "x"), "y", Tally(failed=2)), Parked("a", 1, 10))
    assert steps.sought(one, "") == Progress("", epoch=3)
    assert position(steps.sought(one, make_id(9, 0, 0))) == position_of(make_id(9, 0, 0))
    assert position(steps.sought(one, "1330365230.03807")).ticks == 135496580300380700


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ("a4bb2fb6dcda4b68aad743a4746d7f58", QueuePartition("a4bb2fb6dcda4b68aad743a4746d7f58", 1)),
        ("a4bb2fb6dcda4b68aad743a4746d7f58-12", QueuePartition("a4bb2fb6dcda4b68aad743a4746d7f58", 12)),
        ("orders:7", QueuePartition("orders", 7)),
        ("orders-7", QueuePartition("orders-7", 1)),
    ],
)
def test_partitions_are_read_as_they_are_written(text: str, partition: QueuePartition) -> None:
    assert parse_partition(text) == partition
    assert parse_partition(str(partition)) == partition


@pytest.mark.parametrize("text", ["", "a:0", "a:201", "a:x", "a/b", "x" * 51])
def test_an_invalid_partition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="QUEUE:N"):
        parse_partition(text)


def test_delays_double_to_a_limit_and_vary_by_chance() -> None:
    policy = Policy(retry_delay_s=30, retry_delay_max_s=1000, jitter=0.2)
    assert [policy.delay_s(n, 0.5) for n in (1, 2, 3, 6, 7, 100)] == [30, 60, 120, 960, 1000, 1000]
    assert (policy.delay_s(1, 0.0), policy.delay_s(1, 1.0)) == (24, 36)


def test_progress_written_by_an_earlier_version_costs_a_message_no_attempt() -> None:
    """It counted an attempt before it was made, so the last one may not have happened."""
    head, waits = make_id(9, 0, 0), make_id(8, 0, 0)
    old = msgspec.json.encode(
        {
            "last": "7",
            "trying": head,
            "attempts": 3,
            "parked": [{"id": waits, "attempts": 2, "due_ms": 1, "error": "e"}],
        }
    )
    now = msgspec.json.decode(old, type=Progress)
    assert steps.tally_of(now, head) == Tally(failed=2)
    assert steps.tally_of(now, waits) == Tally(failed=1, error="e")
    assert steps.tally_of(now, make_id(10, 0, 0)) == Tally()


def test_a_try_counts_once_a_job_has_it_and_by_how_it_ended() -> None:
    tally = Tally().opened("w1")
    assert (tally.begun, tally.recorded) == (0, 1)
    assert (tally.handed().begun, tally.handed().recorded) == (1, 1)
    for ending in ("failed", "died", "lost", "left"):
        assert tally.handed().closed(ending) == Tally(**{ending: 1})


def test_a_worker_that_survives_its_session_counts_as_a_loss_and_not_as_a_death() -> None:
    tally = Tally(unheard=(Unheard("w1", True), Unheard("w2", True), Unheard("w3")))
    assert tally.excused({"w1", "w3"}) == Tally(lost=1, unheard=(Unheard("w2", True),))


@pytest.mark.parametrize(
    ("tally", "spent"),
    [
        (Tally(failed=1, died=1, lost=2, left=2), False),
        (Tally(failed=2), True),
        (Tally(unheard=(Unheard("a", True), Unheard("b", True))), False),
        (Tally(died=1, unheard=(Unheard("a", True), Unheard("b", True))), True),
        (Tally(unheard=(Unheard("a"), Unheard("b"), Unheard("c"), Unheard("d"))), False),
        (Tally(unheard=(Unheard("a"), Unheard("b"), Unheard("c"), Unheard("d"), Unheard("e"))), True),
        (Tally(lost=3), True),
        (Tally(left=3), True),
        (Tally(rejected=True), True),
    ],
)
def test_each_way_to_end_has_its_own_limit(tally: Tally, spent: bool) -> None:
    assert bool(tally.spent(Policy(attempts=2, deaths=3, losses=3, departures=3))) is spent


def test_a_process_may_die_as_often_as_a_job_may_fail_by_default() -> None:
    assert (Policy(attempts=4).deaths_max, Policy(attempts=4, deaths=1).deaths_max) == (4, 1)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"jitter": 2}, {"batch": 0}, {"time_limit_s": -1}])
def test_impossible_policies_name_the_setting(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Policy(**wrong)  # type: ignore[arg-type]


def test_the_first_route_that_fits_counts() -> None:
    one, rest = RoutingRule("orders-*", print), RoutingRule("*", len)
    assert Routing((one, rest)).of("orders-eu") is one
    assert Routing((one, rest)).of("mail") is rest
    assert Routing((one,)).of("mail") is None
