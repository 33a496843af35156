"""Buildsets and builds that ended, for people to look up.  SQLite by default, any database SQLAlchemy speaks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from headgate.map.records import Finished

T = TypeVar("T")

LIMIT_MAX = 1_000
"""Rows answered to one question."""

_META = sa.MetaData()
_BUILDSETS = sa.Table(
    "buildset",
    _META,
    sa.Column("uuid", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(255), index=True),
    sa.Column("pipeline", sa.String(255)),
    sa.Column("project", sa.String(255)),
    sa.Column("branch", sa.String(255)),
    sa.Column("change", sa.String(255)),
    sa.Column("patchset", sa.String(64)),
    sa.Column("ref", sa.String(255)),
    sa.Column("newrev", sa.String(64)),
    sa.Column("event_id", sa.String(64)),
    sa.Column("result", sa.String(32)),
    sa.Column("message", sa.Text),
    sa.Column("enqueued_ms", sa.BigInteger),
    sa.Column("ended_ms", sa.BigInteger, index=True),
)
_BUILDS = sa.Table(
    "build",
    _META,
    sa.Column("uuid", sa.String(64), primary_key=True),
    sa.Column("buildset", sa.String(64), index=True),
    sa.Column("job_name", sa.String(255), index=True),
    sa.Column("result", sa.String(32)),
    sa.Column("voting", sa.Boolean),
    sa.Column("start_ms", sa.BigInteger),
    sa.Column("end_ms", sa.BigInteger),
    sa.Column("log_url", sa.Text),
    sa.Column("error_detail", sa.Text),
)
FILTERS = {
    "project": _BUILDSETS.c.project,
    "pipeline": _BUILDSETS.c.pipeline,
    "branch": _BUILDSETS.c.branch,
    "change": _BUILDSETS.c.change,
    "patchset": _BUILDSETS.c.patchset,
    "ref": _BUILDSETS.c.ref,
    "newrev": _BUILDSETS.c.newrev,
}
"""Names of the API's parameters, for builds and buildsets alike."""


class HistoryError(Exception):
    """The database cannot be used; the text says which and what to do."""


class HistoryUnavailable(OSError):
    """It cannot be written just now."""


class SqlHistory:
    """All access is made by one thread.  Raises HistoryError when opened on what is no database of ours."""

    def __init__(self, dburi: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        try:
            url = sa.make_url(dburi)
            if url.drivername.startswith("sqlite") and url.database:
                Path(url.database).parent.mkdir(parents=True, exist_ok=True)
            self._engine = sa.create_engine(url, poolclass=sa.StaticPool)
            self._thread.submit(_META.create_all, self._engine).result()
        except (sa.exc.SQLAlchemyError, OSError, ImportError) as error:
            self._thread.shutdown()
            said = str(getattr(error, "orig", None) or error)
            shown = re.sub(r"(://[^:@/]*):[^@]*@", r"\1:***@", dburi)
            raise HistoryError(
                f"[database] dburi {shown}: cannot be used ({said}); mend it, or move it away to begin a new history"
            ) from error

    async def record(self, finished: Finished) -> None:
        """Durable when it returns; again is as once.  Raises HistoryUnavailable."""
        try:
            await self._do(lambda connection: _write(connection, finished))
        except sa.exc.SQLAlchemyError as error:
            raise HistoryUnavailable(str(getattr(error, "orig", None) or error)) from error

    async def builds(
        self, tenant: str, filters: Mapping[str, str] | None = None, *, limit: int = 50, skip: int = 0
    ) -> list[dict[str, Any]]:
        """Latest first, in the shape of the API.  Filters besides FILTERS: uuid, job_name, result, voting."""
        columns = {**FILTERS, "uuid": _BUILDS.c.uuid, "job_name": _BUILDS.c.job_name, "result": _BUILDS.c.result}
        joined = _BUILDS.join(_BUILDSETS, _BUILDS.c.buildset == _BUILDSETS.c.uuid)
        query = sa.select(_BUILDS, *_named()).select_from(joined)
        query = _where(query, tenant, filters or {}, columns)
        query = (
            query.order_by(_BUILDSETS.c.ended_ms.desc(), _BUILDS.c.start_ms).limit(min(limit, LIMIT_MAX)).offset(skip)
        )
        return [_build(row) for row in await self._rows(query)]

    async def build(self, tenant: str, uuid: str) -> dict[str, Any] | None:
        found = await self.builds(tenant, {"uuid": uuid}, limit=1)
        return found[0] if found else None

    async def buildsets(
        self, tenant: str, filters: Mapping[str, str] | None = None, *, limit: int = 50, skip: int = 0
    ) -> list[dict[str, Any]]:
        """Latest first.  Filters besides FILTERS: uuid, result."""
        columns = {**FILTERS, "uuid": _BUILDSETS.c.uuid, "result": _BUILDSETS.c.result}
        query = _where(sa.select(*_named()), tenant, filters or {}, columns)
        query = query.order_by(_BUILDSETS.c.ended_ms.desc()).limit(min(limit, LIMIT_MAX)).offset(skip)
        return [_buildset(row) for row in await self._rows(query)]

    async def buildset(self, tenant: str, uuid: str) -> dict[str, Any] | None:
        """With its builds."""
        found = await self.buildsets(tenant, {"uuid": uuid}, limit=1)
        if not found:
            return None
        joined = _BUILDS.join(_BUILDSETS, _BUILDS.c.buildset == _BUILDSETS.c.uuid)
        query = sa.select(_BUILDS, *_named()).select_from(joined).where(_BUILDSETS.c.uuid == uuid)
        return {**found[0], "builds": [_build(row) for row in await self._rows(query.order_by(_BUILDS.c.start_ms))]}

    def close(self) -> None:
        self._thread.submit(self._engine.dispose).result()
        self._thread.shutdown()

    async def _rows(self, query: sa.Select[Any]) -> list[Mapping[str, Any]]:
        return await self._do(lambda connection: [dict(row) for row in connection.execute(query).mappings()])

    async def _do(self, work: Callable[[sa.Connection], T]) -> T:
        def inside() -> T:
            with self._engine.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, inside)


def _named() -> list[sa.Label[Any]]:
    return [column.label(f"set_{column.name}") for column in _BUILDSETS.c]


def _where(
    query: sa.Select[Any], tenant: str, filters: Mapping[str, str], columns: Mapping[str, sa.Column[Any]]
) -> sa.Select[Any]:
    query = query.where(_BUILDSETS.c.tenant == tenant)
    for name, value in filters.items():
        if name in columns:
            query = query.where(columns[name] == value)
    return query


def _write(connection: sa.Connection, finished: Finished) -> None:
    connection.execute(sa.delete(_BUILDS).where(_BUILDS.c.buildset == finished.buildset))
    connection.execute(sa.delete(_BUILDSETS).where(_BUILDSETS.c.uuid == finished.buildset))
    change = finished.change
    connection.execute(
        sa.insert(_BUILDSETS).values(
            uuid=finished.buildset,
            tenant=finished.tenant,
            pipeline=finished.pipeline,
            project=change.project,
            branch=change.branch,
            change=change.topic,
            patchset=change.commit,
            ref=change.ref,
            newrev=change.commit,
            event_id=finished.event,
            result=finished.result,
            message=finished.message,
            enqueued_ms=finished.enqueued_ms,
            ended_ms=finished.ended_ms,
        )
    )
    for build in finished.builds:
        row = {**build, "buildset": finished.buildset, "error_detail": build.get("error", "")}
        connection.execute(sa.insert(_BUILDS).values({c.name: row.get(c.name) for c in _BUILDS.c}))


def _time(at_ms: int | None) -> str | None:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") if at_ms else None


def _ref(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("project", "branch", "change", "patchset", "ref", "newrev")
    return {name: row[f"set_{name}"] for name in names} | {"oldrev": None, "ref_url": ""}


def _build(row: Mapping[str, Any]) -> dict[str, Any]:
    took_s = (row["end_ms"] - row["start_ms"]) / 1000 if row["end_ms"] and row["start_ms"] else None
    return {
        "_id": row["uuid"],
        "uuid": row["uuid"],
        "job_name": row["job_name"],
        "result": row["result"],
        "held": False,
        "start_time": _time(row["start_ms"]),
        "end_time": _time(row["end_ms"]),
        "duration": took_s,
        "voting": row["voting"],
        "log_url": row["log_url"] or None,
        "error_detail": row["error_detail"] or None,
        "final": True,
        "artifacts": [],
        "provides": [],
        "ref": _ref(row),
        "pipeline": row["set_pipeline"],
        "event_id": row["set_event_id"],
        "buildset": {"uuid": row["set_uuid"]},
    }


def _buildset(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "_id": row["set_uuid"],
        "uuid": row["set_uuid"],
        "result": row["set_result"],
        "message": row["set_message"],
        "pipeline": row["set_pipeline"],
        "event_id": row["set_event_id"],
        "event_timestamp": _time(row["set_enqueued_ms"]),
        "last_build_end_time": _time(row["set_ended_ms"]),
        "refs": [_ref(row)],
    }
