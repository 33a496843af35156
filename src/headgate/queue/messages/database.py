"""Perform the few operations on SQL databases that messages need, alike on SQLite and PostgreSQL.

One thread uses each database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import apsw

from headgate.base.errors import HeadgateError, UserError
from headgate.base.private import private_file

Row = tuple[Any, ...]  # columns of several types

ROW_BYTES = 200
"""Bytes that a row counts in addition to its texts: a message with an empty body takes about as many, with its entries
in the indexes."""
PAGE_BYTES = 8_192
"""Page size of an SQLite file: with larger pages than usual, a body of a few kilobytes takes fewer of them."""
# Names of tables and columns are those of the first version (`lane` is a partition, `crew` a group), because files
# outlive programs. What was added later has tables of its own: `if not exists` adds a table to an old file, but no
# column.
SCHEMA = """
create table if not exists queue (id {serial}, app text not null, name text not null, partitions integer not null,
    kind text not null, consistency text not null, principles text not null, created_ms bigint not null,
    unique (app, name));
create table if not exists lane (queue bigint not null, partition integer not null, last_ticks bigint not null,
    primary key (queue, partition)){rowless};
create table if not exists message (queue bigint not null, partition integer not null, ticks bigint not null,
    id text {binary} not null, body text {packed} not null, expires_ms bigint not null,
    primary key (queue, partition, ticks, id));
create index if not exists message_expires on message (expires_ms);
create table if not exists posted (queue bigint not null, key text not null, digest text not null, answer text not null,
    expires_ms bigint not null, primary key (queue, key)){rowless};
create index if not exists posted_expires on posted (expires_ms);
create table if not exists lease (queue bigint not null, crew text not null, partition integer not null,
    epoch bigint not null, token text not null, worker text not null, expires_ms bigint not null,
    ticks bigint not null, id text {binary} not null, ahead_ticks bigint not null, ahead_id text {binary} not null,
    ahead_epoch bigint not null, primary key (queue, crew, partition)){rowless};
create index if not exists lease_token on lease (queue, token);
create table if not exists tried (queue bigint not null, crew text not null, partition integer not null,
    id text {binary} not null, failed integer not null, died integer not null, handed bigint not null,
    due_ms bigint not null, error text not null, primary key (queue, crew, partition, id)){rowless};
create index if not exists tried_due on tried (queue, crew, partition, due_ms);
create table if not exists later (queue bigint not null, partition integer not null, ticks bigint not null,
    due_ms bigint not null, id text {binary} not null, body text {packed} not null, ttl_s bigint not null,
    held integer not null, primary key (queue, partition, ticks));
create index if not exists later_due on later (queue, partition, due_ms, ticks);
create index if not exists later_held on later (queue, partition, due_ms) where held = 1;
create table if not exists awaited (queue bigint not null, partition integer not null, look_ms bigint not null,
    held_ms bigint not null, primary key (queue, partition)){rowless};
create index if not exists awaited_look on awaited (look_ms);
create table if not exists schedule (queue bigint not null, name text not null, cron text not null, zone text not null,
    missed text not null, partition integer not null, key text not null, ttl_s bigint not null, body text not null,
    next_ms bigint not null, trouble text not null, primary key (queue, name)){rowless};
create index if not exists schedule_next on schedule (next_ms);
create table if not exists kept (queue bigint not null, partition integer not null, messages bigint not null,
    bytes bigint not null, primary key (queue, partition)){rowless};
create table if not exists bounded (queue bigint primary key, messages_max bigint not null, bytes_max bigint not null,
    "full" text not null);
create table if not exists aged (queue bigint primary key, age_max_s bigint not null);
create table if not exists ranked (queue bigint primary key, priorities integer not null);
create table if not exists turn (queue bigint not null, crew text not null, partition integer not null,
    handed integer not null, passed integer not null, then_passed integer not null,
    primary key (queue, crew, partition)){rowless};
create table if not exists outcome (queue bigint not null, crew text not null, partition integer not null,
    epoch bigint not null, key text not null, digest text not null,
    primary key (queue, crew, partition)){rowless};
create table if not exists schedule_priority (queue bigint not null, name text not null, priority text not null,
    primary key (queue, name)){rowless};
create table if not exists doomed (queue bigint primary key);
create table if not exists retired (app text not null, name text not null, last_ticks bigint not null,
    primary key (app, name)){rowless};
create table if not exists remains (queue bigint primary key, app text not null, bytes bigint not null);
create table if not exists extra (queue bigint primary key, bytes bigint not null);
insert into kept (queue, partition, messages, bytes) select queue, partition, count(*), sum(octet_length(body))
    from message where not exists (select 1 from kept) and queue in (select id from queue) group by queue, partition;
insert into extra (queue, bytes) select queue, sum(bytes) from (
    select queue, octet_length(key) + octet_length(answer) + {row} as bytes from posted
    union all select queue, octet_length(error) + {row} from tried
    union all select queue, octet_length(body) + {row} from schedule
    union all select queue, {row} from lease) as found
    where not exists (select 1 from extra) and queue in (select id from queue) group by queue
""".replace("{row}", str(ROW_BYTES))


class PartitionGrowth:
    """Sum up how much a transaction adds to each partition, and to what a queue keeps besides messages; written at its
    end, in the order of partitions and queues."""

    def __init__(self) -> None:
        self._more: dict[tuple[int, int], tuple[int, int]] = {}
        self._extra: dict[int, int] = {}

    def add(self, queue_partition: tuple[int, int], messages: int, size_bytes: int) -> None:
        """Add to a partition's sum; the numbers are negative for deletions."""
        before = self._more.get(queue_partition, (0, 0))
        self._more[queue_partition] = before[0] + messages, before[1] + size_bytes

    def add_extra(self, queue: int, rows: int, text_bytes: int) -> None:
        """Add answers, attempts, schedules or leases to a queue's sum; the numbers are negative for deletions."""
        self._extra[queue] = self._extra.get(queue, 0) + rows * ROW_BYTES + text_bytes

    def write(self, database: Database) -> None:
        """Write the sums, except for queues that no longer exist."""
        # In one order everywhere: two servers that lock the same rows in different orders wait for each other until
        # PostgreSQL ends one of them.
        for queue_partition, (messages, size) in sorted(self._more.items()):
            if messages > 0:
                database.execute(
                    "insert into kept (queue, partition, messages, bytes) values (?, ?, ?, ?) on conflict"
                    " (queue, partition) do update set messages = kept.messages + excluded.messages,"
                    " bytes = kept.bytes + excluded.bytes",
                    (*queue_partition, messages, size),
                )
            # Only an update: the row of a removed queue is gone, and its messages are still being deleted.
            elif messages or size:
                sql = "update kept set messages = messages + ?, bytes = bytes + ? where queue = ? and partition = ?"
                database.execute(sql, (messages, size, *queue_partition))
        for queue, size in sorted(self._extra.items()):
            if size > 0:
                database.execute(
                    "insert into extra (queue, bytes) values (?, ?)"
                    " on conflict (queue) do update set bytes = extra.bytes + excluded.bytes",
                    (queue, size),
                )
            elif size:
                # Rows that a server of the previous release added are not counted.
                sql = "update extra set bytes = case when bytes < ? then 0 else bytes - ? end where queue = ?"
                database.execute(sql, (-size, -size, queue))

    def clear(self) -> None:
        """Reset the sums for the next transaction."""
        self._more.clear()
        self._extra.clear()


class DatabaseDown(HeadgateError, OSError):
    """Report that the database failed: nothing of the transaction took effect or, if the connection broke, perhaps
    all of it."""


class DataRefused(DatabaseDown):
    """Report that the database works and refuses what a write contains: nothing of the transaction took effect."""


class Database(Protocol):
    """Declare the operations on a database. Parameters are marked `?`. Every method raises DatabaseDown."""

    for_update: str
    """End of a `select` that locks its rows until the transaction ends."""

    @property
    def growth(self) -> PartitionGrowth:
        """Return the messages and bytes that the transaction adds to the partitions."""
        ...

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]: ...
    def insert(self, table: str, columns: str, rows: Sequence[Row]) -> None:
        """Insert many rows quickly."""
        ...

    def transaction(self) -> AbstractContextManager[None]: ...
    def notify(self, payload: str) -> None:
        """Notify other processes that use this database, when the transaction commits."""
        ...

    def close(self) -> None: ...


Open = Callable[[], Database]


def shown(url: str) -> str:
    return re.sub(r"(://[^:@/]*):[^@]*@", r"\1:***@", url)


class SqliteDatabase:
    """Connect to the file, which is created if it does not exist."""

    for_update = ""
    """Empty: a transaction that writes locks the file from its beginning."""

    def __init__(self, path: Path) -> None:
        self.growth = PartitionGrowth()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Set the mode before SQLite opens the file: the journal and its index get the same mode, and nobody else
            # may read bodies.
            private_file(path)
            self._connection = apsw.Connection(str(path))
            # SQLite reports a locked file immediately by default, as while another process checkpoints or writes.
            self._connection.set_busy_timeout(5_000)
            # In this order: the page size of a file is fixed once it is in WAL mode.
            self._connection.execute(f"pragma page_size = {PAGE_BYTES}; pragma journal_mode = wal")
            # With `normal`, WAL does not sync at each commit: a power failure would lose messages whose posts were
            # answered.
            self._connection.execute("pragma synchronous = full")
            # Without `autoincrement` a new queue could get the number of a removed one, and with it the messages that
            # are still being deleted.
            serial = "integer primary key autoincrement"
            self._connection.execute(SCHEMA.format(serial=serial, rowless=" without rowid", binary="", packed=""))
        except (apsw.Error, OSError) as error:
            raise UserError(
                f"{path}: cannot be used for messages ({error}); name another file or move it away"
            ) from error

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        with _translated():
            # Fetch all rows together: a cursor left open would keep its view of the file, and the journal would only
            # grow.
            return self._connection.execute(sql, tuple(values)).fetchall()

    def insert(self, table: str, columns: str, rows: Sequence[Row]) -> None:
        marks = ", ".join("?" * len(rows[0]))
        with _translated():
            self._connection.executemany(f"insert into {table} ({columns}) values ({marks})", rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _translated():
            # A transaction that reads first and then wants to write fails immediately, whatever the timeout, if another
            # connection has written in between. This one takes the lock for writing before it reads.
            self._connection.execute("begin immediate")
        try:
            yield
            self.growth.write(self)
            with _translated():
                self._connection.execute("commit")
        except BaseException:
            # SQLite rolls back on its own after some errors, such as a full disk; a second rollback would hide the
            # first error.
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            raise
        finally:
            self.growth.clear()

    def notify(self, payload: str) -> None:
        return None

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Translate errors of SQLite. Raise DataRefused for data that the database rejects, DatabaseDown for others."""
    try:
        yield
    except (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError) as error:
        raise DataRefused(str(error)) from error
    except apsw.Error as error:
        raise DatabaseDown(str(error)) from error
