"""Compute how reliable jobs are: their health, the cost of resets, and the flakiness of jobs over time.

Health and costs use only the latest rows, so that an answer does not take longer as the history grows.

For flakiness over time, the database uses an index to read a limited number of the tenant's buildsets, the latest in
the requested time, and then only their builds. So a query about the rarest job takes as long as one about all jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import sqlalchemy as sa

from headgate.adapters.sql.schema import BUILDS, BUILDSETS, storable
from headgate.ports.history import LOOKED_AT_MAX, HistoryQuery, JobHealth, ResetCost
from headgate.ports.statistics import PARTS_MAX, Flakiness, FlakySlot, Span

Row = Mapping[str, Any]  # columns are of several types
Query = sa.Select[Any]  # rows of several shapes

OWN_FAILURES = ("FAILURE", "POST_FAILURE", "TIMED_OUT", "RETRY_LIMIT", "DISK_FULL")
"""Results that a job causes itself, and that may not occur in another run."""
_TOOK_MS = sa.case((sa.and_(BUILDS.c.start_ms > 0, BUILDS.c.end_ms > 0), BUILDS.c.end_ms - BUILDS.c.start_ms), else_=0)
JOB_NAME = sa.func.coalesce(BUILDS.c.job_name, "")
"""Job name as an expression that no index matches. With the index on names, the database would read builds of all
tenants and times."""
COUNTS = ("builds", "failed", "trees", "flaky", "retried")
_PARTS: Mapping[str, sa.ColumnElement[str]] = {
    **{name: BUILDSETS.c[name] for name in ("project", "branch", "pipeline")},
    "nodeset": BUILDS.c.nodeset,
    "job_name": BUILDS.c.job_name,
}


def job_health(chosen: Query) -> Query:
    """Return the query for the health of jobs. `chosen`: the builds to use, joined with their buildsets, latest
    first."""
    lost = sa.or_(BUILDS.c.final.is_(False), BUILDSETS.c.final.is_(False))
    named = (BUILDS.c.job_name, BUILDS.c.result, BUILDS.c.end_ms, BUILDSETS.c.project, BUILDSETS.c.tree)
    rows = chosen.with_only_columns(*named, _TOOK_MS.label("took_ms"), lost.label("lost")).limit(LOOKED_AT_MAX)
    one = rows.subquery().c
    bad, good = one.result.in_(OWN_FAILURES), one.result == "SUCCESS"
    # Old rows have no tree; their builds are counted, but say nothing about flakiness.
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


def reset_costs(chosen: Query) -> Query:
    """Return the query for the cost of resets. `chosen`: the buildsets to use, latest first."""
    named = (BUILDSETS.c.uuid, BUILDSETS.c.project, BUILDSETS.c.pipeline, BUILDSETS.c.final)
    one = chosen.with_only_columns(*named).limit(LOOKED_AT_MAX).subquery()
    given_up = one.c.final.is_(False)
    lost_ms = sa.func.sum(sa.case((given_up, _TOOK_MS), else_=0))
    return (
        sa.select(
            one.c.project,
            one.c.pipeline,
            # Distinct, because the join repeats a buildset for each of its builds.
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
    """Convert a decimal to an integer: in some databases, sums are decimals."""
    return int(value) if isinstance(value, Decimal) else value


class SqlFlakiness(ABC):
    """Compute how flaky jobs are; the subclass selects builds and runs queries."""

    @abstractmethod
    async def _rows(self, query: Query) -> list[Row]:
        """Return the rows of a query."""

    @abstractmethod
    def _builds_of(self, tenant: str, question: HistoryQuery, job_name: sa.ColumnElement[str]) -> Query:
        """Return the query for the requested builds, joined with their buildsets; names of jobs are compared with
        `job_name`."""

    async def flakiness(self, tenant: str, question: HistoryQuery, job: str, span: Span) -> Flakiness:
        """Return the flakiness of a job over time; see `ports.history.HistoryReader.flakiness`."""
        from_ms = complete_from_ms(await self._rows(beyond(tenant, span)), span)
        chosen = self._builds_of(tenant, question, JOB_NAME)
        if job:
            chosen = chosen.where(JOB_NAME.in_([storable(job)]))
        return summary(job, span, from_ms, await self._rows(slots(chosen, span, from_ms)))


def beyond(tenant: str, span: Span) -> Query:
    """Return the query for the end time of the latest buildset beyond the limit LOOKED_AT_MAX."""
    ended = BUILDSETS.c.ended_ms
    query = sa.select(ended).where(BUILDSETS.c.tenant == tenant, ended >= span.since_ms, ended < span.until_ms)
    # The answer starts in the millisecond after the first buildset beyond the limit, so that it never includes only a
    # part of the buildsets of one moment.
    return query.order_by(ended.desc()).offset(LOOKED_AT_MAX).limit(1)


def complete_from_ms(rows: Sequence[Row], span: Span) -> int:
    """Return the time from which all buildsets are included; `rows`: the result of `beyond`."""
    return int(rows[0]["ended_ms"]) + 1 if rows else span.since_ms


def slots(chosen: Query, span: Span, from_ms: int) -> Query:
    """Return the query for the sums of each slot and part. `chosen`: the builds, joined with their buildsets."""
    ended = BUILDSETS.c.ended_ms
    slot = (ended - span.since_ms) // span.slot_ms
    part = sa.func.coalesce(_PARTS[span.part], "") if span.part else sa.literal("")
    # The limit in the question applies to lists of rows; here, it would truncate the sums.
    rows = chosen.where(ended >= from_ms, ended < span.until_ms).limit(None).offset(None)
    named = (
        BUILDS.c.result,
        BUILDS.c.end_ms,
        BUILDSETS.c.project,
        JOB_NAME.label("job"),
        sa.func.coalesce(BUILDSETS.c.tree, "").label("tree"),
    )
    one = rows.with_only_columns(*named, part.label("part"), slot.label("slot")).cte("one").c
    bad, good = one.result.in_(OWN_FAILURES), one.result == "SUCCESS"
    # The result has two kinds of counts: builds belong to the slot in which they ended, and a tree to the slot of its
    # first build. Each half of the union has zeros in the columns of the other.
    nothing = sa.literal_column("0", sa.Integer)
    ended_here = sa.select(
        one.slot,
        one.part,
        _count(sa.or_(bad, good)).label("builds"),
        _count(bad).label("failed"),
        nothing.label("trees"),
        nothing.label("flaky"),
        _count(one.result == "RETRY").label("retried"),
    ).group_by(one.slot, one.part)
    tree = (
        sa.select(
            one.part,
            sa.func.min(one.slot).label("slot"),
            # A job is flaky on a tree if it fails and later passes, because nothing was changed in between.
            sa.func.min(sa.case((bad, one.end_ms))).label("first_bad"),
            sa.func.max(sa.case((good, one.end_ms))).label("last_good"),
        )
        .where(one.tree != "", sa.or_(bad, good))
        .group_by(one.project, one.tree, one.job, one.part)
        .subquery()
        .c
    )
    flaky = _count(tree.first_bad < tree.last_good)
    begun_here = sa.select(tree.slot, tree.part, nothing, nothing, sa.func.count(), flaky, nothing).group_by(
        tree.slot, tree.part
    )
    both = sa.union_all(ended_here, begun_here).subquery().c
    sums = [sa.func.sum(both[name]).label(name) for name in COUNTS]
    return sa.select(both.slot, both.part, *sums).group_by(both.slot, both.part)


def summary(job: str, span: Span, from_ms: int, rows: Iterable[Row]) -> Flakiness:
    """Return the answer; `rows`: the result of `slots`. All parts except the largest ones are combined into one."""
    builds: Counter[str] = Counter()
    found: dict[tuple[int, str], Counter[str]] = {}
    for row in rows:
        counts = Counter({name: int(row[name]) for name in COUNTS})
        if counts.total():
            found[int(row["slot"]), row["part"]] = counts
            builds[row["part"]] += counts["builds"]
    # The name decides between equals, so that repeated queries return the same answer.
    largest = set(sorted(builds, key=lambda part: (-builds[part], part))[:PARTS_MAX])
    summed: dict[tuple[int, str | None], Counter[str]] = {}
    for (slot, part), counts in found.items():
        summed.setdefault((slot, part if part in largest else None), Counter()).update(counts)
    ordered = sorted(summed, key=lambda key: (key[0], key[1] is None, key[1] or ""))
    return Flakiness(
        job_name=job or None,
        start_time=slot_text(span.since_ms),
        end_time=slot_text(span.until_ms),
        slot_seconds=span.slot_ms // 1_000,
        complete_from=slot_text(from_ms) if from_ms > span.since_ms else None,
        slots=tuple(
            FlakySlot(
                start_time=slot_text(span.since_ms + slot * span.slot_ms),
                part=part,
                **{name: summed[slot, part][name] for name in COUNTS},
            )
            for slot, part in ordered
        ),
    )


def slot_text(at_ms: int) -> str:
    """Return a time in UTC as `YYYY-MM-DDTHH:MM:SS`; unlike `time_text`, also for 0."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
