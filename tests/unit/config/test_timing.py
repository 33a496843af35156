"""When timers go off."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headgate.config.timing import BadTime, next_after, put_off, schedule

NOW = datetime(2026, 11, 21, 9, 30, 15, tzinfo=UTC)
"""A Saturday."""


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
def test_the_next_moment(text: str, moment: str) -> None:
    assert str(next_after(schedule(text), NOW)) == f"{moment}+00:00"


def test_a_day_that_never_comes() -> None:
    assert next_after(schedule("0 0 30 2 *"), NOW) is None


@pytest.mark.parametrize(
    "text",
    ["daily", "60 * * * *", "* * 0 * *", "* * * * 7", "*/0 * * * *", "a * * * *", "5-1 * * * *", "* * * * * * x"],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(BadTime):
        schedule(text)


def test_jitter_puts_off_each_by_its_own() -> None:
    found = schedule("0 12 * * * 0 600")
    moments = {put_off(found, NOW, f"pipeline {n}") for n in range(20)}
    assert len(moments) > 10 and all(timedelta(0) <= m - NOW <= timedelta(seconds=600) for m in moments)
    assert put_off(schedule("0 12 * * *"), NOW, "any") == NOW
