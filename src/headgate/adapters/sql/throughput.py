"""Measure how quickly changes come to an end, and what that takes: sum over the latest buildsets alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from headgate.adapters.sql.schema import BUILDS, BUILDSETS
from headgate.ports.history import LOOKED_AT_MAX, Throughput

Row = Mapping[str, Any]  # columns are of several types
TAKEN_OUT = frozenset({"DEQUEUED", "NO_JOBS", "CANCELED"})
"""Results of buildsets that neither passed nor failed."""


def buildset_sums(chosen: sa.Select[Any]) -> sa.Select[Any]:  # rows of several shapes
    """Return a row for each buildset, with sums over its builds; `chosen`: the buildsets, the latest first."""
    names = ("uuid", "project", "pipeline", "result", "final", "enqueued_ms", "ended_ms")
    one = chosen.with_only_columns(*(BUILDSETS.c[name] for name in names)).limit(LOOKED_AT_MAX).subquery()
    began = BUILDS.c.start_ms > 0
    took_ms = sa.case((sa.and_(began, BUILDS.c.end_ms > 0), BUILDS.c.end_ms - BUILDS.c.start_ms), else_=0)
    kept = [one.c[name] for name in names[1:]]
    return (
        sa.select(
            *kept,
            sa.func.min(sa.case((began, BUILDS.c.start_ms))).label("first_ms"),
            sa.func.sum(sa.case((began, 1), else_=0)).label("builds"),
            sa.func.coalesce(sa.func.sum(took_ms), 0).label("took_ms"),
        )
        .select_from(one.outerjoin(BUILDS, BUILDS.c.buildset == one.c.uuid))
        .group_by(one.c.uuid, *kept)
    )


@dataclass(slots=True)
class _Sum:
    """Sum up what is counted for one project, one pipeline, or both."""

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
            self.ends_ms.append(max(0, row["ended_ms"] - enqueued_ms))
        if enqueued_ms and row["first_ms"]:
            self.starts_ms.append(max(0, row["first_ms"] - enqueued_ms))

    def told(self, project: str, pipeline: str) -> Throughput:
        return Throughput(
            project=project,
            pipeline=pipeline,
            buildsets=self.buildsets,
            passed=self.passed,
            failed=self.failed,
            resets=self.resets,
            builds=self.builds,
            builds_per_passed=self.builds / self.passed if self.passed else None,
            seconds=self.took_ms / 1000,
            seconds_lost=self.lost_ms / 1000,
            to_start_median_s=_quantile(self.starts_ms, 0.5),
            to_end_median_s=_quantile(self.ends_ms, 0.5),
            to_end_95_s=_quantile(self.ends_ms, 0.95),
        )


def summed(rows: Iterable[Row]) -> list[Throughput]:
    """Return the sums of each pipeline, each project, and each project in each pipeline; the largest first of each."""
    found: dict[tuple[str, str], _Sum] = {}
    for row in rows:
        for key in _keys(row["project"] or "", row["pipeline"] or ""):
            found.setdefault(key, _Sum()).add(row)
    ordered = sorted(found.items(), key=lambda one: (bool(one[0][0]), bool(one[0][1]), -one[1].buildsets, one[0]))
    return [one.told(*key) for key, one in ordered]


def _keys(project: str, pipeline: str) -> Iterator[tuple[str, str]]:
    yield ("", pipeline)
    yield (project, "")
    yield (project, pipeline)


def _quantile(found_ms: Sequence[int], part: float) -> float | None:
    """Return in seconds what this part of the times does not exceed; None of no times."""
    if not found_ms:
        return None
    ordered = sorted(found_ms)
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)] / 1000
