"""Keep messages in PostgreSQL, reconnect after the connection breaks, and listen for posts of other processes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg.errors import DeadlockDetected, SerializationFailure

from headgate.base.errors import UserError
from headgate.queue.messages.database import SCHEMA, DatabaseDown, DataRefused, PartitionGrowth, Row, shown
from headgate.queue.messages.posts import PostSignal
from headgate.queueing.partitions import QueuePartition

log = logging.getLogger("headgate.messages")

CHANNEL = "headgate_messages"
CONNECT_TIMEOUT_S = 5
RETRY_S = 2.0
_SCHEMA_LOCK = 7_215_873
"""Number of the advisory lock that keeps two starting processes from creating the tables at the same time."""

_LZ4 = "select 1 from pg_settings where name = 'default_toast_compression' and 'lz4' = any(enumvals)"
"""Query whether the server can compress with LZ4: large bodies take half the time of the usual compression."""


class PostgresDatabase:
    """Keep messages in PostgreSQL; see `database.Database`."""

    for_update = " for update"

    def __init__(self, url: str) -> None:
        self._url, self.growth = url, PartitionGrowth()
        self._connection: psycopg.Connection[Row] | None = None
        try:
            connection = self._connected()
            with connection.transaction():
                connection.execute("select pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
                serial = "bigint generated always as identity primary key"
                quick = connection.execute(_LZ4).fetchone()
                packed = "compression lz4" if quick is not None else ""
                # Python compares ids by code points; the collation of the database may order letters and digits
                # differently.
                schema = SCHEMA.format(serial=serial, rowless="", binary='collate "C"', packed=packed)
                connection.execute(schema.encode())
        except psycopg.Error as error:
            raise UserError(f"{shown(url)}: cannot be used for messages ({str(error).strip()})") from error

    def _connected(self) -> psycopg.Connection[Row]:
        if self._connection is None or self._connection.closed:
            # Without autocommit, a mere read would leave a transaction open, which keeps the server from vacuuming what
            # is deleted in the meantime.
            self._connection = psycopg.connect(self._url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)
        return self._connection

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        with _translated():
            cursor = self._connected().execute(sql.replace("?", "%s").encode(), values)
            return cursor.fetchall() if cursor.description is not None else []

    def insert(self, table: str, columns: str, rows: Sequence[Row]) -> None:
        with _translated(), self._connected().cursor().copy(f"copy {table} ({columns}) from stdin".encode()) as copy:
            for row in rows:
                copy.write_row(row)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            with _translated(), self._connected().transaction():
                yield
                self.growth.write(self)
        finally:
            self.growth.clear()

    def notify(self, payload: str) -> None:
        # PostgreSQL delivers at commit, drops what is rolled back, and merges equal payloads of one transaction.
        self.execute(f"select pg_notify('{CHANNEL}', ?)", (payload,))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _notifications(url: str) -> Iterator[str | None]:
    """Yield notifications as they come; yield None immediately, and after each second without any. Raise
    DatabaseDown."""
    # A connection of its own: one that executes statements hands notifications out only between them.
    with _translated(), psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S) as connection:
        connection.execute(f"listen {CHANNEL}".encode())
        while True:
            yield None
            # The thread cannot be cancelled while it waits here; after a second the caller sees whether it is to stop.
            for notified in connection.notifies(timeout=1.0):
                yield notified.payload


@contextmanager
def _translated() -> Iterator[None]:
    """Translate errors of PostgreSQL. Raise DataRefused for those that undo the whole transaction and leave the
    database as it is, DatabaseDown for others."""
    try:
        yield
    except (psycopg.DataError, psycopg.IntegrityError, DeadlockDetected, SerializationFailure) as error:
        raise DataRefused(str(error).strip()) from error
    except psycopg.Error as error:
        raise DatabaseDown(str(error).strip()) from error


async def hear(url: str, signal: PostSignal) -> None:
    """Listen until cancelled. After a broken connection, wake everybody, because something may have been missed."""
    loop = asyncio.get_running_loop()
    stop = threading.Event()
    try:
        while True:
            try:
                # Cancelling this leaves the thread running; it sees `stop` within a second.
                await loop.run_in_executor(None, _forward, url, signal, loop, stop)
            except DatabaseDown as error:
                log.warning(
                    "the database does not announce posts of other servers (%s); trying again in %s s", error, RETRY_S
                )
                await asyncio.sleep(RETRY_S)
    finally:
        stop.set()


def _forward(url: str, signal: PostSignal, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
    first = True
    for payload in _notifications(url):
        if stop.is_set():
            return
        if first:
            # Only now does the server listen: what others posted before was announced to nobody here.
            loop.call_soon_threadsafe(signal.notify_all)
            first = False
        if payload is not None:
            app, *partition = payload.split("\n")
            loop.call_soon_threadsafe(
                signal.notify, app, QueuePartition(partition[0], int(partition[1])) if partition else None
            )
