"""Track the health of objects: failures, missed probes, and the time since which an object is set aside."""

from __future__ import annotations

from decimal import Decimal

import msgspec
from msgspec.structs import replace

from headgate.inventory.names import number

FAILURES_MAX = 3
"""Number of failures in a row after which an object is set aside until a person declares it well."""
MISSED_MAX = 3
"""Number of failed probes in a row after which the object is unhealthy until a probe succeeds."""
PROBE, PROBE_INTERVAL = "probe", "probe-interval"
"""The properties of a machine, or of its provider, that set how it is probed, and the interval in seconds."""
SSH, NONE = "ssh", "none"
"""Values of `probe` that are not commands: whether ssh answers at the address of the machine; no probe."""
INTERVAL_MIN_S, INTERVAL_MAX_S = 5, 86_400


class ObjectHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the last report about an object that failed at some time."""

    seen_ms: int = 0
    """Time at which the object was last well."""
    failures: int = 0
    """Number of preparations in a row that have failed."""
    why: str = ""
    """The reason of the last failure."""
    failed_ms: int = 0
    missed: int = 0
    """Number of probes in a row that have failed, counted up to MISSED_MAX."""
    missed_why: str = ""
    since_ms: int = 0
    """Time since which the object is set aside."""

    @property
    def broken(self) -> bool:
        """Return whether the object is set aside until a person declares it well."""
        return self.failures >= FAILURES_MAX

    @property
    def aside(self) -> bool:
        """Return whether the object is set aside."""
        return self.broken or self.missed >= MISSED_MAX

    @property
    def reason(self) -> str:
        """Return the reason of the last failure."""
        return self.why if self.broken or not self.missed else self.missed_why

    def and_then(self, why: str, now_ms: int) -> ObjectHealth:
        """Return the health after another preparation of the object; an empty text means that it succeeded."""
        if not why:
            return ObjectHealth(seen_ms=now_ms)
        return self._now(replace(self, failures=self.failures + 1, why=why, failed_ms=now_ms), now_ms)

    def probed(self, why: str, now_ms: int) -> ObjectHealth:
        """Return the health after another probe; an empty text means that the probe succeeded, which cancels missed
        probes only."""
        if why:
            missed = min(self.missed + 1, MISSED_MAX)
            # The same object means that nothing has to be written, however long probes keep failing.
            if (missed, why) == (self.missed, self.missed_why):
                return self
            return self._now(replace(self, missed=missed, missed_why=why), now_ms)
        if not self.missed:
            return self
        # A machine that cannot be prepared is not well because it answers.
        seen_ms = self.seen_ms if self.failures else now_ms
        return self._now(replace(self, missed=0, missed_why="", seen_ms=seen_ms), now_ms)

    def _now(self, later: ObjectHealth, now_ms: int) -> ObjectHealth:
        """Return the later health with the time since which the object is set aside."""
        return replace(later, since_ms=(self.since_ms if self.aside else now_ms) if later.aside else 0)


class Probed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an object that answers probes."""

    since_ms: int = 0
    """Time since which the object has been healthy: fewer failed probes in a row than MISSED_MAX do not change it."""


def interval_s(text: str, default_s: float) -> float:
    """Return the interval between probes of an object that the property sets; the default if it is empty.

    Raise ValueError.
    """
    if not text:
        return default_s
    found = number(text)
    if found is None or not Decimal(INTERVAL_MIN_S) <= found <= INTERVAL_MAX_S:
        raise ValueError(f"{PROBE_INTERVAL} is {text!r}; it is a number of seconds from {INTERVAL_MIN_S} to "
                         f"{INTERVAL_MAX_S}")  # fmt: skip
    return float(found)
