"""Write buildsets and builds as rows of the history, delete old rows, and read with a time limit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from headgate.adapters.sql.schema import BUILDS, BUILDSETS, HAND_ACTIONS, REFS, fitting, next_number
from headgate.gate.state.change import Change
from headgate.map.records import Finished, FinishedBuild, HandAction
from headgate.ports.history import HistoryUnavailable

READ_MAX_S = 30.0
"""Time limit of one query."""
PROGRESS_STEPS = 100_000
"""Number of SQLite's steps between two checks of the time limit."""
NEVER = float("inf")


def write(connection: sa.Connection, finished: Finished) -> None:
    """Write a buildset. A report of a buildset that still runs never replaces a complete row."""
    same = BUILDSETS.c.uuid == finished.buildset
    known = connection.execute(sa.select(BUILDSETS.c.number).where(same)).first()
    # A report without a result belongs to a buildset that still runs. It may arrive late, after the one with the
    # result.
    if known is None or finished.result:
        # Delete and insert, because databases have different statements to replace a row. A repeated report retains its
        # number.
        connection.execute(sa.delete(BUILDSETS).where(same))
        number = known.number if known is not None else None
        _write_buildset(connection, finished, number or next_number(connection, BUILDSETS))
    for build in finished.builds:
        _write_build(connection, finished.buildset, build)


def _write_buildset(connection: sa.Connection, finished: Finished, number: int) -> None:
    change = finished.change
    connection.execute(sa.delete(REFS).where(REFS.c.buildset == finished.buildset))
    for place, other in enumerate(finished.others, 1):
        row = fitting(REFS, buildset=finished.buildset, number=place, **_ref_row(other))
        connection.execute(sa.insert(REFS), row)
    connection.execute(
        sa.insert(BUILDSETS),
        fitting(
            BUILDSETS,
            uuid=finished.buildset,
            tenant=finished.tenant,
            pipeline=finished.pipeline,
            **_ref_row(change),
            item=finished.item,
            event_id=finished.event,
            result=finished.result or None,
            message=finished.message,
            enqueued_ms=finished.enqueued_ms,
            ended_ms=finished.ended_ms,
            final=finished.final,
            tree=finished.tree or None,
            proposers=list(finished.proposers),
            approvers=list(finished.approvers),
            number=number,
        ),
    )


def _ref_row(change: Change) -> dict[str, str | None]:
    return {
        "project": change.project,
        "branch": change.branch or None,
        "change": change.name or None,
        "patchset": change.commit if change.is_change else None,
        "ref": change.ref,
        "newrev": change.commit,
        "oldrev": change.old_commit or None,
        "ref_url": change.url,
        "author": change.owner or None,
    }


def _write_build(connection: sa.Connection, buildset: str, build: FinishedBuild) -> None:
    """Write a build; retain its known start and end times if a later report lacks them."""
    same = BUILDS.c.uuid == build.uuid
    known = connection.execute(sa.select(BUILDS.c.start_ms, BUILDS.c.end_ms, BUILDS.c.number).where(same)).first()
    if known is not None and not build.start_ms:
        build = msgspec.structs.replace(build, start_ms=known.start_ms or 0, end_ms=known.end_ms or build.end_ms)
    row = msgspec.structs.asdict(build) | {"buildset": buildset, "error_detail": build.error}
    row |= {
        "artifacts": msgspec.to_builtins(build.artifacts),
        "provides": list(build.provides),
        "work": build.work or None,
        "inputs": build.inputs or None,
        "returned": build.returned or None,
        "asked_ms": build.requested_ms or None,
        "course": msgspec.to_builtins(build.course),
        "comments": msgspec.to_builtins(build.comments) or None,
        "number": (known.number if known is not None else None) or next_number(connection, BUILDS),
    }
    connection.execute(sa.delete(BUILDS).where(same))
    connection.execute(sa.insert(BUILDS), fitting(BUILDS, **row))


def keep(connection: sa.Connection, action: HandAction) -> None:
    """Write a manual action; retain a known outcome."""
    same = HAND_ACTIONS.c.id == action.id
    known = connection.execute(sa.select(HAND_ACTIONS.c.outcome).where(same)).scalar()
    row = msgspec.to_builtins(action) | {"tenant": action.tenant, "outcome": action.outcome or known or ""}
    nothing = {c.name: {} if c.name == "details" else "" for c in HAND_ACTIONS.c}
    connection.execute(sa.delete(HAND_ACTIONS).where(same))
    connection.execute(sa.insert(HAND_ACTIONS), fitting(HAND_ACTIONS, **(nothing | row)))


def count_old(connection: sa.Connection, before_ms: int) -> int:
    """Return the number of buildsets that ended before this time."""
    return int(connection.execute(sa.select(sa.func.count()).where(*_old(before_ms))).scalar_one())


def forget_old(connection: sa.Connection, before_ms: int, most: int) -> int:
    """Delete at most `most` buildsets that ended before this time, with their builds, and all older manual actions.
    Return the number of buildsets."""
    found = sa.select(BUILDSETS.c.uuid).where(*_old(before_ms)).order_by(BUILDSETS.c.ended_ms).limit(most)
    uuids = list(connection.execute(found).scalars())
    for table, column in ((BUILDS, BUILDS.c.buildset), (REFS, REFS.c.buildset), (BUILDSETS, BUILDSETS.c.uuid)):
        connection.execute(sa.delete(table).where(column.in_(uuids)))
    connection.execute(sa.delete(HAND_ACTIONS).where(HAND_ACTIONS.c.at_ms < before_ms))
    return len(uuids)


def _old(before_ms: int) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions that select old buildsets. The latest of all stays, because the next one gets the number
    after it, and so does one without a result, because it still runs."""
    latest = sa.select(sa.func.max(BUILDSETS.c.number)).scalar_subquery()
    last_build = sa.select(sa.func.max(BUILDS.c.number)).scalar_subquery()
    of_it = sa.select(BUILDS.c.buildset).where(BUILDS.c.number == last_build)
    return (
        BUILDSETS.c.ended_ms < before_ms,
        # A running buildset has NULL, so this comparison excludes it, too.
        BUILDSETS.c.result != "",
        BUILDSETS.c.number != latest,
        BUILDSETS.c.uuid.not_in(of_it),
    )


class BoundedReads:
    """Run one query at a time with a time limit, which does not apply to writes."""

    def __init__(self) -> None:
        self._until_s = NEVER

    def watch(self, connection: sa.Connection) -> None:
        """Make a new connection to SQLite check the time limit; database servers have their own limits."""
        driver: Any = connection.connection.driver_connection
        # SQLite has no time limit of its own, but ends the statement with "interrupted" once the handler returns True.
        driver.set_progress_handler(lambda: time.monotonic() > self._until_s, PROGRESS_STEPS)

    def rows(self, connection: sa.Connection, query: sa.Select[Any]) -> list[Mapping[str, Any]]:  # of several shapes
        """Return the rows of a query. Raise HistoryUnavailable if it takes too long."""
        self._until_s = time.monotonic() + READ_MAX_S
        if connection.dialect.name == "postgresql":
            # LOCAL limits it to this transaction, so that writes have no limit.
            connection.execute(sa.text(f"SET LOCAL statement_timeout = {int(READ_MAX_S * 1_000)}"))
        try:
            return [dict(row) for row in connection.execute(query).mappings()]
        except sa.exc.OperationalError as error:
            # Both databases raise the same error for an interrupted query and for a lost connection.
            if time.monotonic() <= self._until_s:
                raise
            raise HistoryUnavailable(f"the query took more than {READ_MAX_S:.0f} s; narrow it down") from error
        finally:
            self._until_s = NEVER
