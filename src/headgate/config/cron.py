"""Determine when a timer fires: parse cron fields, and find the next matching moment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from hashlib import sha256
from itertools import product
from typing import NamedTuple

from headgate.base.errors import ConfigurationError

DAYS_MAX = 3_000
"""Number of days to search for a matching moment."""
HOURS = 24
DAY_S = 86_400
JITTER_MAX_S = 30 * DAY_S
"""Maximum jitter in seconds."""
JITTER_DIGITS_MAX = 9
"""Number of digits of the jitter to read; a number of this length already exceeds the maximum."""
WITHIN_JITTER_MAX = 200
"""Maximum average number of moments within the jitter of one, since the search for the next one compares them all."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FIELD = re.compile(r"(\*|(\w+)(?:-(\w+))?)(?:/(\d+))?")


class BadTime(ConfigurationError):
    """Report an error in the fields of a schedule."""


class CronSchedule(NamedTuple):
    """Hold the values that match in each field."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """Days of the week; 0 is Monday."""
    seconds: frozenset[int]
    jitter_s: int
    """Largest random delay of a moment, in seconds."""


def schedule(text: str) -> CronSchedule:
    """Parse `minute hour day month weekday [second [jitter]]`; a moment matches if all fields do. Raise BadTime."""
    fields = text.split()
    if not 5 <= len(fields) <= 7:
        raise BadTime(f"{text!r} has {len(fields)} fields; write 5 fields, or 6 with seconds, or 7 with jitter")
    minute, hour, day, month, weekday, second, jitter = (*fields, *("0", "0")[len(fields) - 5 :])
    if not jitter.isdecimal():
        raise BadTime(f"the jitter {jitter!r} is not a number of seconds")
    found = CronSchedule(
        _numbers(minute, 0, 59, {}),
        _numbers(hour, 0, 23, {}),
        _numbers(day, 1, 31, {}),
        _numbers(month, 1, 12, dict(zip(_MONTHS, range(1, 13), strict=True))),
        _numbers(weekday, 0, 6, dict(zip(_WEEKDAYS, range(7), strict=True))),
        _numbers(second, 0, 59, {}),
        int(jitter.lstrip("0")[:JITTER_DIGITS_MAX] or "0"),
    )
    # Cap the jitter instead of rejecting it, because Zuul accepts any number.
    of_a_day = len(found.hours) * len(found.minutes) * len(found.seconds)
    most_s = min(JITTER_MAX_S, WITHIN_JITTER_MAX * DAY_S // of_a_day)
    return found._replace(jitter_s=min(found.jitter_s, most_s))


def _numbers(text: str, least: int, most: int, names: dict[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        fits = _FIELD.fullmatch(part)
        if fits is None:
            raise BadTime(f"{text!r} is not a cron field")
        every, first, last, step = fits.groups()
        start = least if every == "*" else _number(first, names)
        # `5/10` counts from 5 to the end of the range; `5` alone is only 5.
        end = most if every == "*" or (step and not last) else _number(last or first, names)
        if not least <= start <= end <= most or step == "0":
            raise BadTime(f"{text!r} is not between {least} and {most}")
        found.update(range(start, end + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, names: dict[str, int]) -> int:
    if text not in names and not text.isdecimal():
        raise BadTime(f"{text!r} is not a number")
    return names[text] if text in names else int(text)


def next_after(found: CronSchedule, moment: datetime) -> datetime | None:
    """Return the first matching moment after `moment` (UTC), or None if there is none within DAYS_MAX days."""
    return next(_all_after(found, moment), None)


def _all_after(found: CronSchedule, moment: datetime) -> Iterator[datetime]:
    """Yield the matching moments after `moment` (UTC) within DAYS_MAX days, in order."""
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    parts = (sorted(found.hours), sorted(found.minutes), sorted(found.seconds))
    for ahead in range(DAYS_MAX):
        one = day + timedelta(days=ahead)
        if one.month in found.months and one.day in found.days and one.weekday() in found.weekdays:
            moments = (one.replace(hour=h, minute=m, second=s, tzinfo=UTC) for h, m, s in product(*parts))
            yield from (at for at in moments if at > moment)


def next_in(found: CronSchedule, moment: datetime, zone: tzinfo) -> datetime | None:
    """Return the first matching moment after `moment` (UTC), with the fields interpreted in a time zone, or None.

    When clocks move forward, a skipped time fires later by the same amount. When clocks move back, a time that occurs
    twice fires once. In both cases, a schedule that matches every hour continues as if the clocks had not changed.
    """
    if len(found.hours) == HOURS:
        offset = _ahead(moment, zone)
        first = next_after(found, moment + offset)
        if first is None:
            return None
        # Clocks may change between the moment and the result: search again with the offset that applies there.
        utc, offset = first - offset, _ahead(first - offset, zone)
        again = next_after(found, utc - timedelta(seconds=1) + offset)
        return again and again - offset
    # Around a clock change, an earlier wall time may be a later moment. Start a day earlier, so as to miss none.
    wall = (moment + _ahead(moment, zone)) - timedelta(days=1)
    while (wall_next := next_after(found, wall)) is not None:
        utc = wall_next.replace(tzinfo=zone).astimezone(UTC)
        if utc > moment:
            return utc
        wall = wall_next
    return None


def _ahead(moment: datetime, zone: tzinfo) -> timedelta:
    """Return how far clocks of the zone are ahead of UTC at this moment."""
    return moment.astimezone(zone).utcoffset() or timedelta()


def put_off(found: CronSchedule, moment: datetime, name: str) -> datetime:
    """Add the schedule's jitter to a moment. The jitter depends only on the name and the moment, so that every process
    computes the same one."""
    number = int.from_bytes(sha256(f"{name} {moment.isoformat()}".encode()).digest()[:8])
    return moment + timedelta(seconds=number % (found.jitter_s + 1))


def next_put_off(found: CronSchedule, moment: datetime, name: str) -> datetime | None:
    """Return the first moment after `moment` (UTC) with its jitter added, or None.

    A matching moment before `moment` counts if its jitter ends after `moment`. So a caller that asks between the two
    times does not miss it.
    """
    first: datetime | None = None
    for one in _all_after(found, moment - timedelta(seconds=found.jitter_s)):
        # Jitter only delays, so no later moment can fire before the one found.
        if first is not None and one >= first:
            break
        late = put_off(found, one, name)
        if late > moment and (first is None or late < first):
            first = late
    return first
