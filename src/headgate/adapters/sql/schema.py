"""Define the tables of the history, and the migrations from every earlier version of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from headgate.base.errors import HeadgateError

META = sa.MetaData()
NUMBERED_ROWS = 10_000
"""Number of rows that one statement numbers."""


def _of_ref() -> list[sa.Column[Any]]:
    """Return the columns that describe a change or an update of a ref."""
    long, id, text = sa.String(255), sa.String(64), sa.Text()
    types = {"project": long, "branch": long, "change": long, "patchset": id, "ref": long, "newrev": id, "oldrev": id}
    return [sa.Column(name, type) for name, type in {**types, "ref_url": text, "author": text}.items()]


BUILDSETS = sa.Table(
    "buildset",
    META,
    sa.Column("uuid", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(255), index=True),
    sa.Column("pipeline", sa.String(255)),
    *_of_ref(),
    sa.Column("event_id", sa.String(64)),
    sa.Column("result", sa.String(32)),
    sa.Column("message", sa.Text),
    sa.Column("enqueued_ms", sa.BigInteger),
    sa.Column("ended_ms", sa.BigInteger, index=True),
    sa.Column("item", sa.String(64)),
    sa.Column("final", sa.Boolean),
    sa.Column("tree", sa.String(64)),
    sa.Column("proposers", sa.JSON),
    sa.Column("approvers", sa.JSON),
    sa.Column("number", sa.BigInteger, index=True),
    sa.Index("ix_buildset_tenant_ended_ms", "tenant", "ended_ms"),
)
REFS = sa.Table(
    "buildset_ref",
    META,
    sa.Column("buildset", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    *_of_ref(),
)
"""Other changes of a circular dependency; the first change is in the row of the buildset."""
BUILDS = sa.Table(
    "build",
    META,
    sa.Column("uuid", sa.String(64), primary_key=True),
    sa.Column("buildset", sa.String(64), index=True),
    sa.Column("job_name", sa.String(255), index=True),
    sa.Column("result", sa.String(32)),
    sa.Column("voting", sa.Boolean),
    sa.Column("start_ms", sa.BigInteger),
    sa.Column("end_ms", sa.BigInteger),
    sa.Column("log_url", sa.Text),
    sa.Column("error_detail", sa.Text),
    sa.Column("nodeset", sa.String(255)),
    sa.Column("artifacts", sa.JSON),
    sa.Column("provides", sa.JSON),
    sa.Column("final", sa.Boolean),
    sa.Column("attempt", sa.Integer),
    sa.Column("work", sa.String(64)),
    sa.Column("image", sa.Text),
    sa.Column("inputs", sa.String(64), index=True),
    sa.Column("returned", sa.JSON),
    sa.Column("asked_ms", sa.BigInteger),
    sa.Column("needs", sa.JSON),
    sa.Column("semaphores", sa.JSON),
    sa.Column("course", sa.JSON),
    sa.Column("comments", sa.JSON(none_as_null=True)),
    sa.Column("number", sa.BigInteger, index=True),
)
HAND_ACTIONS = sa.Table(
    "hand_action",
    META,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(255), index=True),
    sa.Column("verb", sa.String(64)),
    sa.Column("who", sa.Text),
    sa.Column("authenticator", sa.String(255)),
    sa.Column("origin", sa.Text),
    sa.Column("at_ms", sa.BigInteger, index=True),
    sa.Column("subject", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("details", sa.JSON),
    sa.Column("outcome", sa.Text),
)
# PostgreSQL cannot store NUL in strings and JSON; a lone surrogate, as in a path that is not UTF-8, cannot be encoded.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_VERSION = sa.Table("history_version", META, sa.Column("version", sa.Integer, primary_key=True))


def fitting(table: sa.Table, **values: Any) -> dict[str, Any]:  # columns are of several types
    """Return a row of the table from the `values` for which it has columns. Strings that are too long for their column
    are cut, and characters that only SQLite accepts are replaced."""
    row = {column.name: storable(values.get(column.name)) for column in table.c}
    for column in table.c:
        value, most = row[column.name], getattr(column.type, "length", None)
        if most is not None and isinstance(value, str) and len(value) > most:
            row[column.name] = f"{value[: most - 1]}…"
    return row


# Conditions of queries need this, too: a string that cannot be stored would raise an error, not find nothing.
def storable(value: Any) -> Any:  # value of any column
    """Return the value with U+FFFD instead of each NUL and each lone surrogate, including in nested values."""
    match value:
        case str():
            return _UNSTORABLE.sub("\ufffd", value)
        case dict():
            return {storable(name): storable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [storable(inner) for inner in value]
        case _:
            return value


class TooNew(HeadgateError):
    """Report that a newer Headgate has written the database."""


def _artifacts_and_refs(connection: sa.Connection) -> None:
    _add(connection, BUILDSETS, "oldrev", "ref_url", "item")
    _add(connection, BUILDS, "nodeset", "artifacts", "provides")


def _every_attempt(connection: sa.Connection) -> None:
    """Add the columns for every attempt, and mark existing rows as final, because earlier versions stored only the last
    attempt of the last buildset."""
    _add(connection, BUILDSETS, "final", "tree")
    _add(connection, BUILDS, "final", "attempt")
    for table in (BUILDSETS, BUILDS):
        connection.execute(sa.update(table).where(table.c.final.is_(None)).values(final=True))


def _people(connection: sa.Connection) -> None:
    _add(connection, BUILDSETS, "author", "proposers", "approvers")


def _works(connection: sa.Connection) -> None:
    _add(connection, BUILDS, "work")


def _numbers(connection: sa.Connection) -> None:
    """Number the buildsets and builds that have no number yet, in the order in which they ended."""
    for table, order in ((BUILDSETS, BUILDSETS.c.ended_ms), (BUILDS, BUILDS.c.end_ms)):
        _add(connection, table, "number")
        _index(connection, table, "number")
        # In portions, because a history may have millions of rows; numbered rows are not selected again.
        number, uuid = next_number(connection, table), table.c.uuid
        left = sa.select(uuid).where(table.c.number.is_(None)).order_by(order, uuid).limit(NUMBERED_ROWS)
        counted = sa.update(table).where(uuid == sa.bindparam("of")).values(number=sa.bindparam("as"))
        while uuids := connection.execute(left).scalars().all():
            connection.execute(counted, [{"of": one, "as": n} for n, one in enumerate(uuids, number)])
            number += len(uuids)


def _images(connection: sa.Connection) -> None:
    _add(connection, BUILDS, "image")


def _inputs_and_returned_data(connection: sa.Connection) -> None:
    _add(connection, BUILDS, "inputs", "returned")
    _index(connection, BUILDS, "inputs")


def _latest_of_a_tenant(connection: sa.Connection) -> None:
    """Add the index that lets a summary of a tenant's latest buildsets skip those of other tenants."""
    _index(connection, BUILDSETS, "ended_ms")


def _request_times(connection: sa.Connection) -> None:
    _add(connection, BUILDS, "asked_ms")


def _courses_and_comments(connection: sa.Connection) -> None:
    _add(connection, BUILDS, "needs", "semaphores", "course", "comments")


def next_number(connection: sa.Connection, table: sa.Table) -> int:
    """Return the number of the next row; requires a single writer at a time."""
    return int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(table.c.number), 0))).scalar_one()) + 1


_STEPS: tuple[Callable[[sa.Connection], None], ...] = (
    _artifacts_and_refs, _every_attempt, _people, _works, _numbers, _images,
    _inputs_and_returned_data, _latest_of_a_tenant, _request_times, _courses_and_comments,
)  # fmt: skip
"""Migrations: the first one leads from version 1 to 2, and so on. Each can be repeated after an interruption at any
point."""
VERSION = len(_STEPS) + 1


def bring_up(connection: sa.Connection) -> None:
    """Create the tables, or migrate them to the version of this program.  Raise TooNew before any change."""
    found = _version(connection)
    if found > VERSION:
        raise TooNew(
            f"it was written by a newer Headgate (version {found} of the history, this one knows {VERSION}); "
            "use that one, or set another database"
        )
    # This creates missing tables and their indexes, but does not change existing tables: the migrations do.
    META.create_all(connection)
    for step in _STEPS[found - 1 :] if found else ():
        step(connection)
    # Written last, so that the migrations are repeated after an interruption.
    if found != VERSION:
        connection.execute(sa.delete(_VERSION))
        connection.execute(sa.insert(_VERSION).values(version=VERSION))


def _version(connection: sa.Connection) -> int:
    """Return the version of the tables, or 0 if there are none yet. Version 1 did not record its number."""
    tables = sa.inspect(connection).get_table_names()
    if _VERSION.name in tables:
        version = connection.execute(sa.select(sa.func.max(_VERSION.c.version))).scalar()
        if version is not None:
            return int(version)
    return 1 if BUILDSETS.name in tables else 0


def _add(connection: sa.Connection, table: sa.Table, *names: str) -> None:
    """Add the named columns that the table does not have yet."""
    # Checked here, because not every database supports ADD COLUMN IF NOT EXISTS.
    known = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    for name in names:
        if name not in known:
            form = table.c[name].type.compile(connection.dialect)
            connection.execute(sa.text(f'ALTER TABLE "{table.name}" ADD COLUMN "{name}" {form}'))


def _index(connection: sa.Connection, table: sa.Table, name: str) -> None:
    """Create the indexes of the table that include an added column."""
    for index in table.indexes:
        if name in index.columns:
            index.create(connection, checkfirst=True)
