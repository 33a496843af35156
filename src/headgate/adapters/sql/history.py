"""Store the history of buildsets and builds: in SQLite, or any database that SQLAlchemy supports."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from headgate.adapters.sql.flakiness import SqlFlakiness, cost_of, health_of, job_health, reset_costs
from headgate.adapters.sql.rows import BoundedReads, count_old, forget_old, keep, write
from headgate.adapters.sql.schema import BUILDS, BUILDSETS, HAND_ACTIONS, REFS, TooNew, bring_up, storable
from headgate.adapters.sql.throughput import SqlThroughput
from headgate.base.errors import HeadgateError
from headgate.base.private import private_file
from headgate.gate.state.returns import Course, FileComment
from headgate.map.records import Finished, HandAction
from headgate.ports import history

log = logging.getLogger("headgate.history")

T = TypeVar("T")
Row = Mapping[str, Any]  # columns are of several types
Comments = dict[str, tuple[FileComment, ...]]

_OF_REF = ("project", "branch", "change", "patchset", "ref", "newrev")
_OF_BUILDSET: Mapping[str, sa.ColumnElement[Any]] = {  # columns are of several types
    **{name: BUILDSETS.c[name] for name in ("pipeline", *_OF_REF)},
    "queue_item_uuid": BUILDSETS.c.item,
    "uuid": BUILDSETS.c.uuid,
    "result": BUILDSETS.c.result,
    "final": BUILDSETS.c.final,
    "complete": BUILDSETS.c.result.is_not(None),
    "_id": BUILDSETS.c.number,
}
_OF_BUILD: Mapping[str, sa.ColumnElement[Any]] = {  # columns are of several types
    **_OF_BUILDSET,
    **{name: BUILDS.c[name] for name in ("uuid", "job_name", "result", "nodeset", "voting", "final")},
    "complete": BUILDS.c.result.is_not(None),
    "_id": BUILDS.c.number,
}
_BOTH = BUILDS.join(BUILDSETS, BUILDS.c.buildset == BUILDSETS.c.uuid)


CONNECT_S = 10
_BRINGING_UP = 0x68676869
"""Number of the advisory lock in PostgreSQL for the creation and migration of tables."""


FORGOTTEN_AT_ONCE = 500
"""Number of buildsets that one transaction deletes."""


class HistoryError(HeadgateError):
    """Report that the database is unusable; the text names it and says what to do."""


class SqlHistory(SqlFlakiness, SqlThroughput):
    """Record and query the history, in one thread. Raise HistoryError if the database is unusable; wait for a server
    that rejects the connection."""

    def __init__(self, dburi: str) -> None:
        self._thread, self._opened = ThreadPoolExecutor(1, thread_name_prefix="history"), False
        shown = re.sub(r"(://[^:@/]*):[^@]*@", r"\1:***@", dburi)
        try:
            url = sa.make_url(dburi)
            if url.drivername.startswith("sqlite") and url.database:
                Path(url.database).parent.mkdir(parents=True, exist_ok=True)
                if ":memory:" not in url.database and not url.database.startswith("file:"):
                    # Created before SQLite would create it with default permissions: it contains personal data.
                    private_file(Path(url.database))
            if url.get_backend_name() == "postgresql":
                # Without a timeout, an unreachable server would block the only thread for minutes.
                url = url.update_query_dict({"connect_timeout": str(CONNECT_S), **url.query})
            # A single connection suffices for one thread, and is needed because PRAGMAs apply to one connection only.
            self._engine, self._reads = sa.create_engine(url, poolclass=sa.StaticPool), BoundedReads()
            self._thread.submit(self._open).result()
        except (sa.exc.SQLAlchemyError, OSError, ImportError, TooNew) as error:
            reason = str(getattr(error, "orig", None) or error)
            # The server may be starting, so `_do` opens it later; for SQLite, the file is damaged or unreadable.
            if isinstance(error, sa.exc.OperationalError) and not dburi.startswith("sqlite"):
                log.error("the history database %s is unavailable; waiting for it: %s", shown, reason)
                return
            self._thread.shutdown()
            hint = "" if isinstance(error, TooNew) else "; repair it, or move it away to begin a new history"
            raise HistoryError(f"[database] dburi {shown}: cannot be used: {reason}{hint}") from error

    def _open(self) -> None:
        with self._engine.begin() as connection:
            if connection.dialect.name == "sqlite":
                status = connection.execute(sa.text("PRAGMA quick_check(1)")).scalar()
                if status != "ok":
                    raise sa.exc.DatabaseError("quick_check", None, OSError(f"the file is damaged ({status})"))
                # By default, LIKE ignores case in SQLite, but not in PostgreSQL.
                connection.exec_driver_sql("PRAGMA case_sensitive_like = ON")
                self._reads.watch(connection)
                # Python's driver begins no transaction before DDL: without this, each statement would commit
                # immediately, mixed with those of another process.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            elif connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_BRINGING_UP)))
            bring_up(connection)  # under a lock, because several processes may start at the same time
        self._opened = True

    async def record(self, finished: Finished) -> None:
        await self._do(lambda connection: write(connection, finished))

    async def keep(self, action: HandAction) -> None:
        await self._do(lambda connection: keep(connection, action))

    async def actions(self, tenant: str, *, limit: int, skip: int = 0) -> list[HandAction]:
        query = sa.select(HAND_ACTIONS).where(HAND_ACTIONS.c.tenant == tenant)
        query = query.order_by(HAND_ACTIONS.c.at_ms.desc(), HAND_ACTIONS.c.id)
        rows = await self._rows(query.limit(min(limit, history.LIMIT_MAX)).offset(skip))
        return [HandAction(**{str(name): value for name, value in row.items()}) for row in rows]

    async def builds(self, tenant: str, question: history.HistoryQuery) -> list[history.PastBuild]:
        own = [column for column in BUILDS.c if question.comments or column is not BUILDS.c.comments]
        query = _selected(sa.select(*own, *_named()).select_from(_BOTH), tenant, question, _OF_BUILD)
        if question.numbers != (None, None):
            query = query.order_by(BUILDS.c.number.desc())
        query = query.order_by(BUILDSETS.c.ended_ms.desc(), BUILDSETS.c.uuid, BUILDS.c.start_ms, BUILDS.c.uuid)
        rows = await self._rows(query)
        others = await self._others(rows)
        return [_build(row, others.get(row["set_uuid"], ())) for row in rows]

    async def _others(self, rows: Sequence[Row]) -> dict[str, tuple[history.PastRef, ...]]:
        """Return buildset -> the other changes of its circular dependency, which were tested together."""
        uuids = {row["set_uuid"] for row in rows}
        query = sa.select(REFS).where(REFS.c.buildset.in_(uuids)).order_by(REFS.c.buildset, REFS.c.number)
        found: dict[str, tuple[history.PastRef, ...]] = {}
        for row in await self._rows(query) if uuids else ():
            found[row["buildset"]] = (*found.get(row["buildset"], ()), _ref(row, ""))
        return found

    async def build(self, tenant: str, uuid: str) -> history.PastBuild | None:
        found = await self.builds(tenant, history.HistoryQuery({"uuid": (uuid,)}, limit=1))
        return found[0] if found else None

    async def buildsets(self, tenant: str, question: history.HistoryQuery) -> list[history.PastBuildset]:
        ran = BUILDS.c.buildset == BUILDSETS.c.uuid
        first = sa.select(sa.func.min(sa.func.nullif(BUILDS.c.start_ms, 0))).where(ran).scalar_subquery()
        last = sa.select(sa.func.max(sa.func.nullif(BUILDS.c.end_ms, 0))).where(ran).scalar_subquery()
        query = _selected(
            sa.select(*_named(), first.label("first_ms"), last.label("last_ms")), tenant, question, _OF_BUILDSET
        )
        if question.numbers != (None, None):
            query = query.order_by(BUILDSETS.c.number.desc())
        query = query.order_by(BUILDSETS.c.ended_ms.desc(), BUILDSETS.c.uuid)
        rows = await self._rows(query)
        others = await self._others(rows)
        return [_buildset(row, others.get(row["set_uuid"], ())) for row in rows]

    async def buildset(self, tenant: str, uuid: str) -> history.PastBuildset | None:
        found = await self.buildsets(tenant, history.HistoryQuery({"uuid": (uuid,)}, limit=1))
        if not found:
            return None
        own = [column for column in BUILDS.c if column is not BUILDS.c.comments]
        query = sa.select(*own, *_named()).select_from(_BOTH).where(BUILDSETS.c.uuid == uuid)
        rows = await self._rows(query.order_by(BUILDS.c.start_ms, BUILDS.c.uuid))
        builds = tuple(_build(row, found[0].refs[1:]) for row in rows)
        return msgspec.structs.replace(found[0], builds=builds or msgspec.UNSET)

    async def job_health(self, tenant: str, question: history.HistoryQuery, since_ms: int) -> list[history.JobHealth]:
        query = sa.select(BUILDS.c.uuid).select_from(_BOTH).where(BUILDSETS.c.ended_ms >= since_ms)
        chosen = _selected(query, tenant, question, _OF_BUILD).order_by(BUILDSETS.c.ended_ms.desc())
        return [health_of(row) for row in await self._rows(job_health(chosen))]

    async def reset_costs(self, tenant: str, question: history.HistoryQuery, since_ms: int) -> list[history.ResetCost]:
        chosen = self._buildsets_of(tenant, question).where(BUILDSETS.c.ended_ms >= since_ms)
        return [cost_of(row) for row in await self._rows(reset_costs(chosen))]

    def _buildsets_of(self, tenant: str, question: history.HistoryQuery) -> sa.Select[Any]:
        query = _selected(sa.select(BUILDSETS.c.uuid), tenant, question, _OF_BUILDSET)
        return query.order_by(BUILDSETS.c.ended_ms.desc())

    def _builds_of(
        self, tenant: str, question: history.HistoryQuery, job_name: sa.ColumnElement[str]
    ) -> sa.Select[Any]:
        columns = {**_OF_BUILD, "job_name": job_name}
        return _selected(sa.select(BUILDS.c.uuid).select_from(_BOTH), tenant, question, columns)

    async def works(self, tenant: str, buildset: str) -> dict[str, str]:
        query = sa.select(BUILDS.c.uuid, BUILDS.c.work).select_from(_BOTH).where(BUILDS.c.work.is_not(None))
        rows = await self._rows(query.where(BUILDSETS.c.tenant == tenant, BUILDSETS.c.uuid == buildset))
        return {row["uuid"]: row["work"] for row in rows}

    async def passed(self, tenant: str, inputs: Sequence[str]) -> dict[str, history.Passed]:
        columns = (BUILDS.c[name] for name in ("inputs", "uuid", "start_ms", "end_ms", "log_url", "returned"))
        query = sa.select(*columns).select_from(_BOTH).where(BUILDS.c.inputs.in_(inputs), BUILDS.c.result == "SUCCESS")
        rows = await self._rows(query.where(BUILDSETS.c.tenant == tenant).order_by(BUILDS.c.end_ms))
        return {
            row["inputs"]: history.Passed(
                uuid=row["uuid"],
                start_ms=row["start_ms"] or 0,
                end_ms=row["end_ms"] or 0,
                log_url=row["log_url"] or "",
                returned=row["returned"] or {},
            )
            for row in rows
        }

    async def durations_ms(self, tenant: str, job: str, project: str, branch: str, *, limit: int) -> list[int]:
        took = (BUILDS.c.end_ms - BUILDS.c.start_ms).label("took")
        query = sa.select(took).select_from(_BOTH).order_by(BUILDSETS.c.ended_ms.desc()).limit(limit)
        query = query.where(BUILDSETS.c.tenant == tenant, BUILDS.c.job_name == job, BUILDS.c.result == "SUCCESS")
        query = query.where(BUILDS.c.start_ms > 0, BUILDS.c.end_ms > 0)
        # Builds of other branches and projects are a better estimate than none.
        same = query.where(BUILDSETS.c.project == project, BUILDSETS.c.branch == branch)
        rows = await self._rows(same) or await self._rows(query)
        return [int(row["took"]) for row in rows]

    async def forget(self, before_ms: int, *, dry: bool = False) -> int:
        """Delete old buildsets, or only count them, and return their number; see `ports.history.HistoryKeeper`."""
        if dry:
            return await self._do(lambda connection: count_old(connection, before_ms))
        found = 0
        # One transaction for each portion, so that other queries get a turn in between.
        while some := await self._do(lambda connection: forget_old(connection, before_ms, FORGOTTEN_AT_ONCE)):
            found += some
        return found

    def close(self) -> None:
        self._thread.submit(self._engine.dispose).result()
        self._thread.shutdown()

    async def _rows(self, query: sa.Select[Any]) -> list[Row]:  # rows of several shapes
        return await self._do(lambda connection: self._reads.rows(connection, query))

    async def _do(self, work: Callable[[sa.Connection], T]) -> T:
        """Do the work in a transaction, and do it again if the connection was lost.  Raise HistoryUnavailable,
        HistoryRefused."""

        def inside() -> T:
            if not self._opened:
                self._open()
            with self._engine.begin() as connection:
                return work(connection)

        def again() -> T:  # a restart of the server shows only at the next query
            try:
                return inside()
            except sa.exc.DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                return inside()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, again)
        except (sa.exc.DataError, sa.exc.IntegrityError) as error:
            raise history.HistoryRefused(str(error.orig)) from error
        except sa.exc.SQLAlchemyError as error:
            raise history.HistoryUnavailable(str(getattr(error, "orig", None) or error)) from error


def _named() -> list[sa.Label[Any]]:  # columns are of several types
    return [column.label(f"set_{column.name}") for column in BUILDSETS.c]


def _selected(
    query: sa.Select[Any],  # rows of several shapes
    tenant: str,
    question: history.HistoryQuery,
    columns: Mapping[str, sa.ColumnElement[Any]],  # columns are of several types
) -> sa.Select[Any]:  # rows of several shapes
    """Return the query, limited to the tenant's rows that the question selects. Names that this kind of rows does not
    have are ignored."""
    query = query.where(BUILDSETS.c.tenant == tenant)
    of_ref = {name: values for name, values in question.equal.items() if name in _OF_REF}
    if of_ref:
        query = query.where(sa.or_(_same(BUILDSETS, of_ref), _in_circle(of_ref)))
    for name, values in question.equal.items():
        if name in columns and name not in of_ref:
            query = query.where(_is(columns[name], name, values))
    for name, values in question.unequal.items():
        if name in columns:
            query = query.where(columns[name].not_in([storable(value) for value in values]))
    for column, (least, most) in ((columns["_id"], question.numbers), (BUILDS.c.end_ms, question.ended_ms)):
        query = query.where(column >= least) if least is not None else query
        query = query.where(column <= most) if most is not None else query
    return query.limit(min(question.limit, history.LIMIT_MAX)).offset(question.skip)


def _same(table: sa.Table, wanted: Mapping[str, Sequence[str | bool]]) -> sa.ColumnElement[bool]:
    return sa.and_(*(_is(table.c[name], name, values) for name, values in wanted.items()))


def _is(column: sa.ColumnElement[Any], name: str, values: Sequence[str | bool]) -> sa.ColumnElement[bool]:
    """Return the condition that a column has one of the values; for a name in WILD, `*` matches any string."""
    texts = [storable(value) for value in values]
    loose = [text for text in texts if name in history.WILD and isinstance(text, str) and "*" in text]
    exact = [text for text in texts if text not in loose]
    found = [column.in_(exact)] if exact or not loose else []
    return sa.or_(*found, *(column.like(_pattern(text), escape="\\") for text in loose))


def _pattern(text: str) -> str:
    for special in ("\\", "%", "_"):
        text = text.replace(special, f"\\{special}")
    return text.replace("*", "%")


def _in_circle(wanted: Mapping[str, Sequence[str | bool]]) -> sa.ColumnElement[bool]:
    """Return the condition that one of the other changes of a buildset's circular dependency is selected."""
    return sa.exists().where(REFS.c.buildset == BUILDSETS.c.uuid, _same(REFS, wanted))


def _ref(row: Row, prefix: str = "set_") -> history.PastRef:
    of_change = row[f"{prefix}change"] is not None
    return history.PastRef(
        **{name: row[f"{prefix}{name}"] for name in ("project", "branch", "patchset", "ref", "oldrev")},
        change=history.named(row[f"{prefix}change"]),
        newrev=None if of_change else row[f"{prefix}newrev"],
        ref_url=row[f"{prefix}ref_url"] or None,
        author=row[f"{prefix}author"] or "",
        proposers=_known(row.get(f"{prefix}proposers"), tuple[str, ...]),
        approvers=_known(row.get(f"{prefix}approvers"), tuple[str, ...]),
    )


def _build(row: Row, others: tuple[history.PastRef, ...]) -> history.PastBuild:
    ref = _ref(row)
    return history.PastBuild(
        id=row["number"] or 0,
        uuid=row["uuid"],
        job_name=row["job_name"],
        result=row["result"],
        execute_time=history.time_text(row["asked_ms"]),
        start_time=history.time_text(row["start_ms"]),
        end_time=history.time_text(row["end_ms"]),
        duration=(row["end_ms"] - row["start_ms"]) / 1000 if row["end_ms"] and row["start_ms"] else None,
        voting=bool(row["voting"]),
        log_url=row["log_url"] or None,
        nodeset=row["nodeset"] or None,
        error_detail=row["error_detail"] or None,
        image=row["image"] or None,
        final=row["final"] is not False,
        attempt=row["attempt"] or 1,
        course=_course(row),
        comments=msgspec.convert(row["comments"] or {}, Comments) if "comments" in row else msgspec.UNSET,
        artifacts=_known(row["artifacts"], tuple[history.Artifact, ...]),
        provides=tuple(history.Provided(name) for name in _known(row["provides"], tuple[str, ...])),
        ref=ref,
        pipeline=row["set_pipeline"],
        event_id=row["set_event_id"],
        event_timestamp=history.time_text(row["set_enqueued_ms"]),
        queue_item_uuid=row["set_item"],
        buildset=history.InBuildset(row["set_uuid"], (ref, *others)),
    )


def _course(row: Row) -> history.PastCourse:
    needs, semaphores = (_known(row[name], tuple[str, ...]) for name in ("needs", "semaphores"))
    return history.course_of(needs, semaphores, msgspec.convert(row["course"] or {}, Course))


def _known(value: object, form: type[tuple[T, ...]]) -> tuple[T, ...]:
    """Return the value of a column as `form`; an empty tuple for rows that are older than the column."""
    return msgspec.convert(value, form) if value else ()


def _buildset(row: Row, others: tuple[history.PastRef, ...]) -> history.PastBuildset:
    return history.PastBuildset(
        id=row["set_number"] or 0,
        uuid=row["set_uuid"],
        result=row["set_result"],
        message=row["set_message"],
        pipeline=row["set_pipeline"],
        event_id=row["set_event_id"],
        event_timestamp=history.time_text(row["set_enqueued_ms"]),
        queue_item_uuid=row["set_item"],
        first_build_start_time=history.time_text(row["first_ms"]),
        last_build_end_time=history.time_text(row["last_ms"] or row["set_ended_ms"]) if row["set_result"] else None,
        refs=(_ref(row), *others),
        final=row["set_final"] is not False,
    )
