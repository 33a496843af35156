"""Keep track of the health of objects: what failed, which probes went unanswered, and since when an object is given to
nobody."""

from __future__ import annotations

from decimal import Decimal

import msgspec
from msgspec.structs import replace

from headgate.inventory.numbers import number

FAILURES_MAX = 3
"""How many failures in a row set an object aside until a person declares it well."""
MISSED_MAX = 3
"""Probes in a row: then the object is unhealthy until a probe finds it well."""
PROBE, PROBE_INTERVAL = "probe", "probe-interval"
"""The properties of a machine, or of its provider, that say how it is probed and after how many seconds again."""
SSH, NONE = "ssh", "none"
"""What a probe may be besides a command: whether ssh answers at the address of the machine; and none."""
INTERVAL_MIN_S, INTERVAL_MAX_S = 5, 86_400


class ObjectHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the last report about an object that failed at some time."""

    seen_ms: int = 0
    """When it was last well."""
    failures: int = 0
    """How many preparations in a row have failed."""
    why: str = ""
    """The reason of the last failure."""
    failed_ms: int = 0
    missed: int = 0
    """Probes that failed in a row; counted to MISSED_MAX."""
    missed_why: str = ""
    since_ms: int = 0
    """When it became one that is given to nobody."""

    @property
    def broken(self) -> bool:
        """Return whether the object is given to nobody until somebody says that it is well."""
        return self.failures >= FAILURES_MAX

    @property
    def aside(self) -> bool:
        """Return whether the object is given to nobody."""
        return self.broken or self.missed >= MISSED_MAX

    @property
    def reason(self) -> str:
        """Return what failed last."""
        return self.why if self.broken or not self.missed else self.missed_why

    def and_then(self, why: str, now_ms: int) -> ObjectHealth:
        """Return it after another try to use it; an empty text: the object is well."""
        if not why:
            return ObjectHealth(seen_ms=now_ms)
        return self._now(replace(self, failures=self.failures + 1, why=why, failed_ms=now_ms), now_ms)

    def probed(self, why: str, now_ms: int) -> ObjectHealth:
        """Return it after another probe; an empty text: it answered, which mends nothing but what probes missed."""
        if why:
            missed = min(self.missed + 1, MISSED_MAX)
            if (missed, why) == (self.missed, self.missed_why):
                return self
            return self._now(replace(self, missed=missed, missed_why=why), now_ms)
        if not self.missed:
            return self
        seen_ms = self.seen_ms if self.failures else now_ms
        return self._now(replace(self, missed=0, missed_why="", seen_ms=seen_ms), now_ms)

    def _now(self, later: ObjectHealth, now_ms: int) -> ObjectHealth:
        """Return the later one with the time since when nobody is given the object."""
        return replace(later, since_ms=(self.since_ms if self.aside else now_ms) if later.aside else 0)


class Probed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an object that answers probes."""

    since_ms: int = 0
    """Since when all probes have succeeded, apart from fewer failures than make it unhealthy."""


def interval_s(said: str, default_s: float) -> float:
    """Return after how long an object is probed again whose property says so; empty: after the default.

    Raise ValueError.
    """
    if not said:
        return default_s
    found = number(said)
    if found is None or not Decimal(INTERVAL_MIN_S) <= found <= INTERVAL_MAX_S:
        raise ValueError(f"{PROBE_INTERVAL} is {said!r}; it is a number of seconds from {INTERVAL_MIN_S} to "
                         f"{INTERVAL_MAX_S}")  # fmt: skip
    return float(found)
