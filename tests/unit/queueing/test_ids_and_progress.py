"""Ids, times, the many forms of `last`, and cursors that never go back."""

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
from headgate.queueing.lanes import Lane, parse_lane
from headgate.queueing.policy import Policy, Route, Routes
from headgate.queueing.progress import NEW, Parked, Progress, position

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
def test_nothing_done_yet_in_every_form(text: str) -> None:
    assert parse_last(text) == START


@pytest.mark.parametrize("text", ["yesterday", "-1", "1e9", "123456789012345678901234", "9" * 19, "12345678901234.5"])
def test_what_is_no_last_is_refused(text: str) -> None:
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


def test_unknown_members_of_a_record_are_no_trouble() -> None:
    found = msgspec.json.decode(b'{"last":"135471512647131000L","more":[1]}', type=Progress)
    assert position(found).ticks == 135471512647131000


def test_a_change_of_owner_counts_and_leaves_the_cursor() -> None:
    id = make_id(7, 0, 0)
    one = steps.taken(steps.begun(steps.done(NEW, id), make_id(9, 0, 0)), "w1")
    two = steps.taken(one, "w2")
    assert (two.epoch, two.owner, position(two)) == (2, "w2", position_of(id))
    assert steps.suspects(two) == position_of(make_id(9, 0, 0))
    assert steps.suspects(steps.released(steps.begun(two, ""))) == START


def test_a_release_keeps_what_may_have_been_begun() -> None:
    one = steps.taken(steps.tried(steps.begun(NEW, make_id(9, 0, 0)), make_id(8, 0, 0), 2), "w1")
    left = steps.released(one)
    assert (left.owner, left.trying, left.attempts, left.ahead) == ("", one.trying, 2, one.ahead)


def test_parking_replaces_and_unparking_removes() -> None:
    first, again = Parked("a", 1, 10), Parked("a", 2, 20)
    now = steps.parked(steps.parked(NEW, first), again)
    assert now.parked == (again,)
    assert steps.unparked(now, "a").parked == ()


def test_seeking_forgets_what_was_begun() -> None:
    one = steps.parked(steps.tried(steps.begun(Progress("5", epoch=3), "x"), "y", 2), Parked("a", 1, 10))
    assert steps.sought(one, "") == Progress("", epoch=3)
    assert position(steps.sought(one, make_id(9, 0, 0))) == position_of(make_id(9, 0, 0))
    assert position(steps.sought(one, "1330365230.03807")).ticks == 135496580300380700


@pytest.mark.parametrize(
    ("text", "lane"),
    [
        ("a4bb2fb6dcda4b68aad743a4746d7f58", Lane("a4bb2fb6dcda4b68aad743a4746d7f58", 1)),
        ("a4bb2fb6dcda4b68aad743a4746d7f58-12", Lane("a4bb2fb6dcda4b68aad743a4746d7f58", 12)),
        ("orders:7", Lane("orders", 7)),
        ("orders-7", Lane("orders-7", 1)),
    ],
)
def test_lanes_are_read_as_they_are_written(text: str, lane: Lane) -> None:
    assert parse_lane(text) == lane
    assert parse_lane(str(lane)) == lane


@pytest.mark.parametrize("text", ["", "a:0", "a:201", "a:x", "a/b", "x" * 51])
def test_what_is_no_lane_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="QUEUE:N"):
        parse_lane(text)


def test_delays_double_to_a_limit_and_vary_by_chance() -> None:
    policy = Policy(retry_delay_s=30, retry_delay_max_s=1000, jitter=0.2)
    assert [policy.delay_s(n, 0.5) for n in (1, 2, 3, 6, 7, 100)] == [30, 60, 120, 960, 1000, 1000]
    assert (policy.delay_s(1, 0.0), policy.delay_s(1, 1.0)) == (24, 36)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"jitter": 2}, {"batch": 0}, {"time_limit_s": -1}])
def test_impossible_policies_name_the_setting(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Policy(**wrong)  # type: ignore[arg-type]


def test_the_first_route_that_fits_counts() -> None:
    one, rest = Route("orders-*", print), Route("*", len)
    assert Routes((one, rest)).of("orders-eu") is one
    assert Routes((one, rest)).of("mail") is rest
    assert Routes((one,)).of("mail") is None
