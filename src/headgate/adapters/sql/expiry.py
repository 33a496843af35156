"""Delete old rows of the history, in portions."""

from __future__ import annotations

import sqlalchemy as sa

from headgate.adapters.sql.schema import BUILDS, BUILDSETS, HAND_ACTIONS, REFS


def count_old(connection: sa.Connection, before_ms: int) -> int:
    """Return the number of buildsets that ended before this time."""
    return int(connection.execute(sa.select(sa.func.count()).where(*_old(before_ms))).scalar_one())


def forget_old(connection: sa.Connection, before_ms: int, most: int) -> int:
    """Delete at most this many buildsets that ended before this time, with their builds, and older manual actions.
    Return the number of buildsets."""
    found = sa.select(BUILDSETS.c.uuid).where(*_old(before_ms)).order_by(BUILDSETS.c.ended_ms).limit(most)
    uuids = list(connection.execute(found).scalars())
    for table, column in ((BUILDS, BUILDS.c.buildset), (REFS, REFS.c.buildset), (BUILDSETS, BUILDSETS.c.uuid)):
        connection.execute(sa.delete(table).where(column.in_(uuids)))
    connection.execute(sa.delete(HAND_ACTIONS).where(HAND_ACTIONS.c.at_ms < before_ms))
    return len(uuids)


def _old(before_ms: int) -> tuple[sa.ColumnElement[bool], ...]:
    """Select old buildsets. The latest of all stays, since the next one gets the number after it. So does one without a
    result, which is still running."""
    latest = sa.select(sa.func.max(BUILDSETS.c.number)).scalar_subquery()
    last_build = sa.select(sa.func.max(BUILDS.c.number)).scalar_subquery()
    of_it = sa.select(BUILDS.c.buildset).where(BUILDS.c.number == last_build)
    return (
        BUILDSETS.c.ended_ms < before_ms,
        # A running buildset has NULL, for which this comparison is not true either.
        BUILDSETS.c.result != "",
        BUILDSETS.c.number != latest,
        BUILDSETS.c.uuid.not_in(of_it),
    )
