"""Estimate how long jobs will take: as long as they took lately."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from headgate.ports.history import HistoryReader, HistoryUnavailable

log = logging.getLogger("headgate.web")

BUILDS_MAX = 10
"""Number of the latest successful builds that an estimate is based on."""
AGE_MAX_MS = 300_000
"""Age of an estimate after which it is read from the history again."""
KNOWN_MAX = 10_000

Key = tuple[str, str, str, str]
"""tenant, job, project, branch"""


@dataclass(slots=True, eq=False)
class Estimates:
    """Estimate durations. `of` answers at once from cached results; `learn` reads missing ones from the history."""

    history: HistoryReader
    now_ms: Callable[[], int]
    _known: dict[Key, tuple[int, float | None]] = field(default_factory=dict)
    """Key -> the time of the query, and the estimate in seconds; None when there is none."""
    _missed: set[Key] = field(default_factory=set)
    _edition: int = 0
    _oldest_ms: float = math.inf
    """Time of the oldest query whose result is still fresh, in milliseconds; infinite when there is none."""

    def edition(self) -> int:
        """Return a number that grows when the estimate of a job may have changed or has become too old."""
        now_ms = self.now_ms()
        if now_ms - self._oldest_ms > AGE_MAX_MS:
            self._edition += 1
            self._oldest_ms = min((at for at, _ in self._known.values() if now_ms - at <= AGE_MAX_MS), default=math.inf)
        return self._edition

    def of(self, tenant: str, job: str, project: str, branch: str) -> float | None:
        key = (tenant, job, project, branch)
        at_ms, known_s = self._known.get(key, (None, None))
        if at_ms is None or self.now_ms() - at_ms > AGE_MAX_MS:
            self._missed.add(key)
        return known_s

    async def learn(self) -> bool:
        """Query the history, and return whether any estimate is new or different."""
        missed, self._missed = self._missed, set()
        # Cleared as a whole: this is rare, and what is still shown is read again at once.
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        different = False
        for key in sorted(missed):
            was = self._known.get(key, (0, None))[1]
            try:
                took_ms = await self.history.durations_ms(*key, limit=BUILDS_MAX)
            except HistoryUnavailable as error:
                log.warning("no estimates: the history cannot be read: %s", error)
                took_ms = []
            # While the history is away, the earlier estimate stays; it is asked for again after the usual time.
            found = round(median(took_ms) / 1000, 1) if took_ms else was
            self._known[key] = (self.now_ms(), found)
            self._oldest_ms = min(self._oldest_ms, self._known[key][0])
            different = different or found != was
        self._edition += different
        return different
