"""Export the complete history row by row, and import it into another database, even of another kind."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from headgate.adapters.sql.history import HistoryError, SqlHistory
from headgate.adapters.sql.schema import BUILDS, BUILDSETS, HAND_ACTIONS, REFS, fitting
from headgate.base.texts import line
from headgate.gate.state.returns import Course, FileComment
from headgate.ports.history import Artifact

TABLES = {table.name: table for table in (BUILDSETS, REFS, BUILDS, HAND_ACTIONS)}
TOGETHER = 500
"""Number of rows that are read or written at a time."""

Row = Mapping[str, Any]  # columns are of several types
_Moment = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""Milliseconds since the epoch, up to the year 9999."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
"""Number of a row; new rows get the next one."""
_Names = tuple[str, ...]
_JSON: Mapping[str, Any] = {  # types
    "proposers": _Names,
    "approvers": _Names,
    "provides": _Names,
    "needs": _Names,
    "semaphores": _Names,
    "artifacts": tuple[Artifact, ...],
    "course": Course,
    "comments": dict[str, tuple[FileComment, ...]],
}
_NEEDED = ("tenant", "pipeline", "project", "ref")
"""Columns that every row must have."""


def _type(column: sa.Column[Any]) -> Any:  # a type
    """Return the type that values of a column must have."""
    match column.type:
        case sa.JSON():
            return _JSON.get(column.name, dict[str, Any])
        case sa.Boolean():
            return bool
        case sa.BigInteger():
            return _Number if column.name == "number" else _Moment
        case sa.Integer():
            return _Count
    return str


def _form(table: sa.Table) -> type[msgspec.Struct]:
    names = {str(column.name): _type(column) for column in table.c}
    needed = [(name, type) for name, type in names.items() if name in _NEEDED]
    others = [(name, type | None, None) for name, type in names.items() if name not in _NEEDED]
    return msgspec.defstruct(str(table.name), [*needed, *others])


_FORMS = {name: _form(table) for name, table in TABLES.items()}


def exists(dburi: str) -> bool:
    """Return whether a history may exist: for SQLite, whether the file exists. Do not create it."""
    url = sa.make_url(dburi)
    # The file is checked, because a connection to SQLite would create it.
    return url.get_backend_name() != "sqlite" or (bool(url.database) and Path(url.database or "").exists())


def rows(dburi: str) -> Generator[tuple[str, Row], None, None]:
    """Yield each row with the name of its table, all as of one moment. Raise HistoryError."""
    with _opened(dburi) as connection:
        database = sa.inspect(connection)
        there = set(database.get_table_names())
        for name, table in TABLES.items():
            if name in there:
                # Tables of an earlier release may lack columns.
                columns = {column["name"] for column in database.get_columns(name)}
                query = sa.select(*(column for column in table.c if column.name in columns)).order_by(
                    *table.primary_key.columns
                )
                # Fetched in portions, because a history may be larger than the memory.
                found = connection.execution_options(yield_per=TOGETHER).execute(query)
                yield from ((str(name), {str(key): value for key, value in row.items()}) for row in found.mappings())


def fill(dburi: str, rows: Iterable[tuple[str, Row]]) -> int | None:
    """Write the rows into an empty history, and return their number; return None and change nothing if it has rows.
    Raise HistoryError without writing any row."""
    SqlHistory(dburi).close()  # creates or migrates the tables
    with _opened(dburi) as connection:
        # Checked in the same transaction as the writes, so that after an interruption, a repeated call finds all rows
        # or none.
        if any(connection.execute(sa.select(table).limit(1)).first() for table in TABLES.values()):
            return None
        count, left = 0, iter(rows)
        while some := list(islice(left, TOGETHER)):
            for name, table in TABLES.items():
                if of_table := [fitting(table, **_known(name, row)) for named, row in some if named == name]:
                    connection.execute(sa.insert(table), of_table)
                    count += len(of_table)
        return count


def _known(table: str, row: Row) -> Row:
    """Return a row's values for the columns of the table. Raise HistoryError for invalid values, which pages could not
    show: the file may come from anywhere."""
    known = {str(column.name): row[column.name] for column in TABLES[table].c if column.name in row}
    try:
        msgspec.convert(known, _FORMS[table])
    except msgspec.ValidationError as error:
        problem = f"{row.get('uuid') or row.get('id') or row.get('buildset')}: {error}"
        raise HistoryError(f"a row of {table} is not from Headgate: {line(problem)}") from error
    return known


@contextmanager
def _opened(dburi: str) -> Iterator[sa.Connection]:
    """Provide a transaction. Raise HistoryError."""
    shown = re.sub(r"(://[^:@/]*):[^@]*@", r"\1:***@", dburi)
    try:
        engine = sa.create_engine(dburi, poolclass=sa.NullPool)
        with engine.connect().execution_options(isolation_level=_isolation(engine)) as connection, connection.begin():
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")  # Python's module begins a transaction only before the first change
            yield connection
    except (sa.exc.SQLAlchemyError, ImportError) as error:
        reason = str(getattr(error, "orig", None) or error)
        raise HistoryError(f"[database] dburi {shown}: cannot be used: {reason}") from error


def _isolation(engine: sa.Engine) -> str:
    """Return the isolation level at which all reads show one moment."""
    return "REPEATABLE READ" if engine.dialect.name == "postgresql" else "SERIALIZABLE"
