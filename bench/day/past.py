"""Read a day from the history: results as they come, and the time that Headgate added."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from headgate.testing.day.people import DayOutcome
from headgate.testing.day.plan import DayPlan

LOOK_S = 0.25
"""Interval at which the history is read for new results."""
QUIET_LOOKS = 12
"""Number of reads without a new result after which the day is over."""
Times = tuple[float, float]
"""p50 and p95, in seconds."""


class Past:
    def __init__(self, file: Path) -> None:
        self._file, self._seen, self._looks = file, 0, 0
        self._is_quiet = asyncio.Event()

    async def follow(self, callback: Callable[[DayOutcome], None]) -> None:
        """Pass each buildset that ends to `callback`, and note when no more come.  Run until cancelled."""
        while True:
            found = self._new() if self._file.exists() else []
            self._looks = 0 if found else self._looks + 1
            if self._looks >= QUIET_LOOKS:
                self._is_quiet.set()
            for one in found:
                callback(one)
            await asyncio.sleep(LOOK_S)

    async def quiet(self) -> None:
        """Wait until nothing has ended for a while."""
        self._looks = 0
        self._is_quiet.clear()
        await self._is_quiet.wait()

    def _new(self) -> list[DayOutcome]:
        try:
            rows = self._ask(
                "SELECT number, change, pipeline, result, final FROM buildset WHERE number > ? ORDER BY number",
                self._seen,
            )
        except sqlite3.OperationalError:  # it has no tables yet, or is being written
            return []
        self._seen = rows[-1][0] if rows else self._seen
        return [
            DayOutcome(change or "", pipeline, result)
            for _, change, pipeline, result, final in rows
            if result and final
        ]

    def _ask(self, question: str, *given: object) -> list[tuple]:  # type: ignore[type-arg]  # of any columns
        # Read-only: the reader must neither create the file nor hold up the recorder.
        with sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=30) as connection:
            return connection.execute(question, given).fetchall()

    def counted(self) -> tuple[int, int]:
        """Return the numbers of builds and buildsets that ended."""
        return tuple(self._ask(f"SELECT count(*) FROM {table}")[0][0] for table in ("build", "buildset"))

    def requested(self, since_s: Mapping[str, float], pipeline: str) -> Times:
        """Return the time from somebody's action until the first build of the change began."""
        question = """SELECT buildset.change, min(build.start_ms) FROM build JOIN buildset
            ON buildset.uuid = build.buildset WHERE pipeline = ? AND build.start_ms > 0 GROUP BY buildset.change"""
        began = dict(self._ask(question, pipeline))
        return _times([began[topic] / 1000 - at_s for topic, at_s in since_s.items() if topic in began])

    def landed(self, plan: DayPlan) -> Times:
        """Return the time to land, from the end of a change's last build and of everything ahead of it in its queue."""
        queue = {one.topic: one.project.queue or one.project.name for one in plan.proposals}
        question = """SELECT buildset.change, buildset.result, ended_ms, max(build.end_ms) FROM buildset
            LEFT JOIN build ON buildset.uuid = build.buildset
            WHERE pipeline = 'gate' AND buildset.final GROUP BY buildset.uuid ORDER BY ended_ms"""
        found, before_ms = list[float](), defaultdict[str, int](int)
        for topic, result, ended_ms, built_ms in self._ask(question):
            # A change cannot land before the one ahead of it; only the rest of the wait is Headgate's.
            ready_ms = max(built_ms or 0, before_ms[queue[topic]])
            if result == "SUCCESS" and built_ms:
                found.append((ended_ms - ready_ms) / 1000)
            before_ms[queue[topic]] = ended_ms
        return _times(found)


def _times(found: list[float]) -> Times:
    parts = statistics.quantiles(found, n=20)
    return parts[9], parts[18]
