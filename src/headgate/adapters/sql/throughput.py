"""Compute how quickly changes pass through pipelines, and how many builds that takes.

Sums include only the latest buildsets, in total or for each slot of time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from headgate.adapters.sql.flakiness import beyond, complete_from_ms, slot_text
from headgate.adapters.sql.schema import BUILDS, BUILDSETS
from headgate.ports.history import LOOKED_AT_MAX, HistoryQuery
from headgate.ports.statistics import Span, Throughput, ThroughputOverTime, ThroughputSlot

Row = Mapping[str, Any]  # columns are of several types
Query = sa.Select[Any]  # rows of several shapes
TAKEN_OUT = frozenset({"DEQUEUED", "NO_JOBS", "CANCELED"})
"""Results of buildsets that neither passed nor failed."""


class SqlThroughput(ABC):
    """Compute how quickly changes pass through pipelines; the subclass selects buildsets and runs queries."""

    @abstractmethod
    async def _rows(self, query: Query) -> list[Row]:
        """Return the rows of a query."""

    @abstractmethod
    def _buildsets_of(self, tenant: str, question: HistoryQuery) -> Query:
        """Return the query for the requested buildsets, the latest first."""

    async def throughput(self, tenant: str, question: HistoryQuery, since_ms: int) -> list[Throughput]:
        """Return the throughput of projects and pipelines; see `ports.history.HistoryReader.throughput`."""
        chosen = self._buildsets_of(tenant, question).where(BUILDSETS.c.ended_ms >= since_ms)
        return summed(await self._rows(buildset_sums(chosen)))

    async def throughput_over_time(self, tenant: str, question: HistoryQuery, span: Span) -> ThroughputOverTime:
        """Return the throughput in slots of time; see `ports.history.HistoryReader.throughput_over_time`."""
        from_ms = complete_from_ms(await self._rows(beyond(tenant, span)), span)
        ended = BUILDSETS.c.ended_ms
        chosen = self._buildsets_of(tenant, question).where(ended >= from_ms, ended < span.until_ms)
        return summed_over_time(await self._rows(buildset_sums(chosen)), span, from_ms)


def buildset_sums(chosen: Query) -> Query:
    """Return the query for one row per ended buildset, with sums over its builds; `chosen`: the buildsets, latest
    first."""
    names = ("uuid", "project", "pipeline", "result", "final", "enqueued_ms", "ended_ms")
    # A running buildset has a row without a result as soon as one of its builds was retried.
    over = chosen.where(BUILDSETS.c.result.is_not(None))
    # The limit applies before the join with builds; after it, it would count builds.
    one = over.with_only_columns(*(BUILDSETS.c[name] for name in names)).limit(LOOKED_AT_MAX).subquery()
    began = BUILDS.c.start_ms > 0
    took_ms = sa.case((sa.and_(began, BUILDS.c.end_ms > 0), BUILDS.c.end_ms - BUILDS.c.start_ms), else_=0)
    columns = [one.c[name] for name in names[1:]]
    return (
        sa.select(
            *columns,
            sa.func.min(sa.case((began, BUILDS.c.start_ms))).label("first_ms"),
            sa.func.sum(sa.case((began, 1), else_=0)).label("builds"),
            sa.func.coalesce(sa.func.sum(took_ms), 0).label("took_ms"),
        )
        .select_from(one.outerjoin(BUILDS, BUILDS.c.buildset == one.c.uuid))
        .group_by(one.c.uuid, *columns)
    )


@dataclass(slots=True)
class _Sum:
    """Sum up the buildsets of one project, one pipeline, or both."""

    buildsets: int = 0
    passed: int = 0
    failed: int = 0
    resets: int = 0
    builds: int = 0
    took_ms: int = 0
    lost_ms: int = 0
    starts_ms: list[int] = field(default_factory=list)
    ends_ms: list[int] = field(default_factory=list)

    def add(self, row: Row) -> None:
        took_ms, reset = int(row["took_ms"]), row["final"] is not None and not row["final"]
        self.buildsets += 1
        self.builds += int(row["builds"] or 0)
        self.took_ms += took_ms
        if reset:
            self.resets += 1
            self.lost_ms += took_ms
        elif row["result"] == "SUCCESS":
            self.passed += 1
            self._times(row)
        elif row["result"] not in TAKEN_OUT:
            self.failed += 1

    def _times(self, row: Row) -> None:
        enqueued_ms = row["enqueued_ms"] or 0
        if enqueued_ms and row["ended_ms"]:
            # Not negative: the times come from the clocks of different machines.
            self.ends_ms.append(max(0, row["ended_ms"] - enqueued_ms))
        if enqueued_ms and row["first_ms"]:
            self.starts_ms.append(max(0, row["first_ms"] - enqueued_ms))

    def as_fields(self) -> dict[str, Any]:
        """Return the fields of `ThroughputSums`."""
        return {
            **{name: getattr(self, name) for name in ("buildsets", "passed", "failed", "resets", "builds")},
            "builds_per_passed": self.builds / self.passed if self.passed else None,
            "seconds": self.took_ms / 1000,
            "seconds_lost": self.lost_ms / 1000,
            "to_start_median_s": _quantile(self.starts_ms, 0.5),
            "to_end_median_s": _quantile(self.ends_ms, 0.5),
            "to_end_95_s": _quantile(self.ends_ms, 0.95),
        }


def summed(rows: Iterable[Row]) -> list[Throughput]:
    """Return the sums of each pipeline, each project, and each project in each pipeline; in each group, the largest
    first."""
    found: dict[tuple[str, str], _Sum] = {}
    for row in rows:
        for key in _keys(row["project"] or "", row["pipeline"] or ""):
            found.setdefault(key, _Sum()).add(row)
    ordered = sorted(found.items(), key=lambda one: (bool(one[0][0]), bool(one[0][1]), -one[1].buildsets, one[0]))
    return [Throughput(project=project, pipeline=pipeline, **one.as_fields()) for (project, pipeline), one in ordered]


def summed_over_time(rows: Iterable[Row], span: Span, from_ms: int) -> ThroughputOverTime:
    """Return the sums of each slot in which a buildset ended; `from_ms`: time from which all rows are included."""
    found: dict[int, _Sum] = {}
    for row in rows:
        found.setdefault((row["ended_ms"] - span.since_ms) // span.slot_ms, _Sum()).add(row)
    return ThroughputOverTime(
        start_time=slot_text(span.since_ms),
        end_time=slot_text(span.until_ms),
        slot_seconds=span.slot_ms // 1_000,
        complete_from=slot_text(from_ms) if from_ms > span.since_ms else None,
        slots=tuple(
            ThroughputSlot(start_time=slot_text(span.since_ms + slot * span.slot_ms), **one.as_fields())
            for slot, one in sorted(found.items())
        ),
    )


def _keys(project: str, pipeline: str) -> Iterator[tuple[str, str]]:
    yield ("", pipeline)
    yield (project, "")
    yield (project, pipeline)


def _quantile(found_ms: Sequence[int], part: float) -> float | None:
    """Return the quantile of the times in seconds; None if there are no times."""
    if not found_ms:
        return None
    ordered = sorted(found_ms)
    # The nearest rank: `-int(-x // 1)` is x rounded up.
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)] / 1000
