"""Test when timers fire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from headgate.config.cron import BadTime, next_after, next_in, next_put_off, put_off, schedule

NOW = datetime(2026, 11, 21, 9, 30, 15, tzinfo=UTC)
"""Return a Saturday."""


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("* * * * *", "2026-11-21 09:31:00"),
        ("* * * * * *", "2026-11-21 09:30:16"),
        ("0 6 * * *", "2026-11-22 06:00:00"),
        ("30 9 * * * 30", "2026-11-21 09:30:30"),
        ("0 0 * * 0", "2026-11-23 00:00:00"),
        ("0 8 * * 6", "2026-11-22 08:00:00"),
        ("0 8 * * sat", "2026-11-28 08:00:00"),
        ("0 8 * * mon-fri", "2026-11-23 08:00:00"),
        ("*/20 * * * *", "2026-11-21 09:40:00"),
        ("5-59/25 10 * * *", "2026-11-21 10:05:00"),
        ("0 0 1 jan,jul *", "2027-01-01 00:00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00:00"),
        ("0 0 13 * 4", "2027-08-13 00:00:00"),
        ("0 12 * * * 0 600", "2026-11-21 12:00:00"),
    ],
)
def test_the_next_time_of_a_schedule_is_computed(text: str, moment: str) -> None:
    assert str(next_after(schedule(text), NOW)) == f"{moment}+00:00"


def test_a_day_that_never_comes() -> None:
    assert next_after(schedule("0 0 30 2 *"), NOW) is None


@pytest.mark.parametrize(
    "text",
    ["daily", "60 * * * *", "* * 0 * *", "* * * * 7", "*/0 * * * *", "a * * * *", "5-1 * * * *", "* * * * * * x"],
)
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(BadTime):
        schedule(text)


def test_jitter_puts_off_each_by_its_own() -> None:
    found = schedule("0 12 * * * 0 600")
    moments = {put_off(found, NOW, f"pipeline {n}") for n in range(20)}
    assert len(moments) > 10 and all(timedelta(0) <= m - NOW <= timedelta(seconds=600) for m in moments)
    assert put_off(schedule("0 12 * * *"), NOW, "any") == NOW


@pytest.mark.parametrize(
    ("text", "jitter_s"),
    [
        ("0 12 * * * 0 172800", 172_800),
        ("0 12 * * * 0 2592001", 2_592_000),
        (f"0 12 * * * 0 {'9' * 9_000}", 2_592_000),
        (f"0 12 * * * 0 {'0' * 9_000}7", 7),
        ("* * * * * 0 86400", 12_000),
        ("* * * * * * 3600", 200),
    ],
)
def test_a_jitter_that_is_too_long_is_cut(text: str, jitter_s: int) -> None:
    assert schedule(text).jitter_s == jitter_s


@pytest.mark.parametrize("text", ["0 12 * * * 0 600", "*/10 * * * * 0 600", "*/10 * * * * 0 3600"])
def test_each_time_that_jitter_puts_off_comes_once_and_in_order(text: str) -> None:
    found, end = schedule(text), NOW + timedelta(days=2)
    wanted, moment = set[datetime](), NOW - timedelta(days=1)
    while (moment := next_after(found, moment) or end) < end:
        wanted.add(put_off(found, moment, "p"))
    came, late = list[datetime](), NOW
    while (late := next_put_off(found, late, "p") or end) < end:
        came.append(late)
    assert came == sorted(one for one in wanted if NOW < one < end)


def test_a_time_within_its_jitter_is_still_the_next_one() -> None:
    found = schedule("0 12 * * * 0 600")
    noon = NOW.replace(hour=12, minute=0, second=0)
    late = put_off(found, noon, "p")
    assert noon < late
    assert next_put_off(found, NOW, "p") == next_put_off(found, noon, "p") == late
    following = put_off(found, noon + timedelta(days=1), "p")
    assert next_put_off(found, late, "p") == following


BERLIN = ZoneInfo("Europe/Berlin")
"""Clocks are put from 2:00 to 3:00 on 29 March 2026, and from 3:00 to 2:00 on 25 October 2026, both at 1:00 UTC."""


@pytest.mark.parametrize(
    ("text", "after", "moments"),
    [
        ("30 9 * * *", "2026-01-10 08:30", ["01-11 08:30", "01-12 08:30"]),
        ("30 9 * * *", "2026-07-10 07:29", ["07-10 07:30", "07-11 07:30"]),
        ("30 2 * * *", "2026-03-28 00:00", ["03-28 01:30", "03-29 01:30", "03-30 00:30"]),
        ("30 2 * * *", "2026-10-24 00:00", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]),
        ("30 2 * * *", "2026-10-25 00:45", ["10-26 01:30"]),
        ("0 0 * * mon", "2026-10-20 00:00", ["10-25 23:00", "11-01 23:00"]),
        ("30 * * * *", "2026-03-29 00:00", ["03-29 00:30", "03-29 01:30", "03-29 02:30"]),
        ("30 * * * *", "2026-10-25 00:00", ["10-25 00:30", "10-25 01:30", "10-25 02:30"]),
        ("*/30 * * * *", "2026-10-25 00:15", ["10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]),
    ],
)
def test_schedules_follow_changes_of_the_clocks_in_a_zone(text: str, after: str, moments: list[str]) -> None:
    moment: datetime | None = datetime.fromisoformat(f"{after}:00+00:00")
    for wanted in moments:
        assert moment is not None
        moment = next_in(schedule(text), moment, BERLIN)
        assert str(moment) == f"2026-{wanted}:00+00:00"


@pytest.mark.heavy
@pytest.mark.parametrize("text", ["*/20 * * * *", "0 */6 * * *", "15 1-3 * * *", "0 0 1 * *"])
def test_a_zone_gives_later_moments_and_none_twice(text: str) -> None:
    moment, seen = datetime(2026, 3, 20, tzinfo=UTC), list[datetime]()
    while moment < datetime(2026, 11, 5, tzinfo=UTC) and len(seen) < 2_000:
        found = next_in(schedule(text), moment, BERLIN)
        assert found is not None and found > moment
        seen.append(moment := found)
    assert len(set(seen)) == len(seen)
