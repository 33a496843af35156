"""Questions that sum up many rows of the history: how reliable jobs are, and what resets cost.

Both look at the latest rows alone, so that what they cost does not grow with the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import sqlalchemy as sa

from headgate.adapters.sql.schema import BUILDS, BUILDSETS
from headgate.ports.history import LOOKED_AT_MAX, JobHealth, ResetCost

Row = Mapping[str, Any]  # columns are of several types

OWN_FAILURES = ("FAILURE", "POST_FAILURE", "TIMED_OUT", "RETRY_LIMIT", "DISK_FULL")
"""Results that a job causes itself, and that another run may not have."""
_TOOK_MS = sa.case((sa.and_(BUILDS.c.start_ms > 0, BUILDS.c.end_ms > 0), BUILDS.c.end_ms - BUILDS.c.start_ms), else_=0)


def job_health(chosen: sa.Select[Any]) -> sa.Select[Any]:  # rows of several shapes
    """Summarise jobs. `chosen` are the builds to look at, joined with their buildsets, the latest first."""
    lost = sa.or_(BUILDS.c.final.is_(False), BUILDSETS.c.final.is_(False))
    named = (BUILDS.c.job_name, BUILDS.c.result, BUILDS.c.end_ms, BUILDSETS.c.project, BUILDSETS.c.tree)
    rows = chosen.with_only_columns(*named, _TOOK_MS.label("took_ms"), lost.label("lost")).limit(LOOKED_AT_MAX)
    one = rows.subquery().c
    bad, good = one.result.in_(OWN_FAILURES), one.result == "SUCCESS"
    # Rows from before there were trees; their builds count, but say nothing about flakiness.
    known = sa.func.coalesce(one.tree, "")
    trees = (
        sa.select(
            one.project,
            one.job_name,
            known.label("tree"),
            _count(bad).label("bad"),
            _count(good).label("good"),
            _count(one.result == "RETRY").label("retried"),
            sa.func.min(sa.case((bad, one.end_ms))).label("first_bad"),
            sa.func.max(sa.case((good, one.end_ms))).label("last_good"),
            sa.func.sum(one.took_ms).label("took_ms"),
            sa.func.sum(sa.case((one.lost, one.took_ms), else_=0)).label("lost_ms"),
        )
        .group_by(one.project, one.job_name, known)
        .subquery()
        .c
    )
    ran, known_tree = trees.bad + trees.good > 0, trees.tree != ""
    flaky = _count(sa.and_(known_tree, trees.first_bad < trees.last_good))
    return (
        sa.select(
            trees.project,
            trees.job_name,
            sa.func.sum(trees.bad + trees.good).label("builds"),
            sa.func.sum(trees.bad).label("failed"),
            _count(sa.and_(known_tree, ran)).label("trees"),
            flaky.label("flaky"),
            sa.func.sum(trees.retried).label("retried"),
            sa.func.sum(trees.took_ms).label("took_ms"),
            sa.func.sum(trees.lost_ms).label("lost_ms"),
        )
        .group_by(trees.project, trees.job_name)
        .order_by(flaky.desc(), sa.func.sum(trees.retried).desc(), trees.project, trees.job_name)
    )


def health_of(row: Row) -> JobHealth:
    names = ("project", "job_name", "builds", "failed", "trees", "flaky", "retried")
    return msgspec.convert({name: _plain(row[name]) for name in names} | _seconds(row), JobHealth, strict=False)


def reset_costs(chosen: sa.Select[Any]) -> sa.Select[Any]:  # as above
    """Summarise resets. `chosen` are the buildsets to look at, the latest first."""
    named = (BUILDSETS.c.uuid, BUILDSETS.c.project, BUILDSETS.c.pipeline, BUILDSETS.c.final)
    one = chosen.with_only_columns(*named).limit(LOOKED_AT_MAX).subquery()
    given_up = one.c.final.is_(False)
    lost_ms = sa.func.sum(sa.case((given_up, _TOOK_MS), else_=0))
    return (
        sa.select(
            one.c.project,
            one.c.pipeline,
            # Distinct, since the join repeats a buildset for each of its builds.
            sa.func.count(sa.distinct(one.c.uuid)).label("buildsets"),
            sa.func.count(sa.distinct(sa.case((given_up, one.c.uuid)))).label("resets"),
            _count(sa.and_(given_up, BUILDS.c.start_ms > 0)).label("builds_lost"),
            sa.func.sum(_TOOK_MS).label("took_ms"),
            lost_ms.label("lost_ms"),
        )
        .select_from(one.outerjoin(BUILDS, BUILDS.c.buildset == one.c.uuid))
        .group_by(one.c.project, one.c.pipeline)
        .order_by(lost_ms.desc(), one.c.project, one.c.pipeline)
    )


def cost_of(row: Row) -> ResetCost:
    names = ("project", "pipeline", "buildsets", "resets", "builds_lost")
    return msgspec.convert({name: _plain(row[name]) for name in names} | _seconds(row), ResetCost, strict=False)


def _count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))


def _seconds(row: Row) -> dict[str, float]:
    return {"seconds": int(row["took_ms"]) / 1000, "seconds_lost": int(row["lost_ms"]) / 1000}


def _plain(value: object) -> object:
    """Convert a decimal to an integer: sums are decimals where the database has those."""
    return int(value) if isinstance(value, Decimal) else value
