"""Keep the tree in one SQLite file: durable when `commit` returns, readable by other processes while it runs.

One process owns the file and is the only writer; it reads through the page cache, and feeds its watches from its own
writes.  Commits that arrive while the disk is busy go into the next transaction together.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import apsw

from headgate.base.private import private_file
from headgate.store import types
from headgate.store.memory import Leases, Staged, Tree
from headgate.store.model import check_commit
from headgate.store.pages import StorePages, entries

log = logging.getLogger("headgate.store")

FORMAT = 1
PORTION_MAX = 20
"""Number of commits that are staged before other tasks get a turn."""
TOGETHER_MAX = 3_000
"""Number of entries that are made durable together; the last portion may exceed it."""
PAGES_KIB = 32_000
"""Part of the file, in KiB, that SQLite caches while it writes. Pages of a transaction that exceed the cache are
written twice."""
AGAIN_S = 1.0
"""Pause before another attempt to delete the entries of ended leases, after a failed write."""
# In WAL mode, `synchronous = normal` would be faster but lose the latest commits when the machine loses power.
_SETTINGS = ("journal_mode = wal", "synchronous = full", f"cache_size = -{PAGES_KIB}")

_SCHEMA = """
create table entry (path text primary key, value blob not null, version integer not null, born integer not null,
    lease text) without rowid;
create table appended (parent text primary key, count integer not null) without rowid;
create table meta (name text primary key, value integer not null) without rowid;
"""


class Locked(types.StoreError):
    """Report that another process owns the file."""


@dataclass(slots=True)
class _QueuedCommit:
    checks: Sequence[types.At]
    ops: Sequence[types.Op]
    done: asyncio.Future[Sequence[types.Entry | None]]


_Queue = list[_QueuedCommit]
_Staged = list[tuple[_QueuedCommit, Sequence[types.Entry | None]]]
_Refused = list[tuple[_QueuedCommit, Exception]]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Translate SQLite's errors about a damaged or inaccessible file into readable messages."""
    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise types.Corrupt(
            f"{path}: this file is damaged or not a Headgate store ({error}); "
            f"move it away and restore a copy, or start without it: Headgate finds open changes again in git"
        ) from error
    except apsw.CantOpenError as error:
        raise types.StoreError(
            f"{path}: cannot be opened ({error}); does its directory exist, and may you write there?"
        ) from error


def _connect(path: Path, *, read_only: bool) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(5_000)
    return connection


def _format(connection: apsw.Connection, path: Path) -> int:
    (found,) = next(connection.execute("pragma user_version"))
    if found > FORMAT:
        raise types.StoreError(
            f"{path}: written by a newer Headgate (format {found}, this one knows {FORMAT}); upgrade"
        )
    return int(found)


def _load(connection: apsw.Connection) -> Tree:
    return Tree(entries(connection.execute("select path, value, version, born, lease from entry")))


def _pages(path: Path) -> StorePages:
    connection = _connect(path, read_only=True)
    appended = {parent: count for parent, count in connection.execute("select parent, count from appended")}
    revision = next(connection.execute("select value from meta where name = 'revision'"), (0,))[0]
    return StorePages(connection, appended, revision)


class SqliteBackend:
    """Implement the backend on SQLite; create one with `await SqliteBackend.open(path)`."""

    def __init__(self, path: Path, lock: IO[str], connection: apsw.Connection, tree: StorePages) -> None:
        self.path, self.tree = path, tree
        self._lock, self._connection = lock, connection
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._leases = Leases(self._expired)
        self._ended = set[types.Lease]()
        """Ended leases that may still have entries, because a write was in progress when the lease ended, or because a
        deletion failed."""
        self._waiting: _Queue = []
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(cls, path: str | Path) -> SqliteBackend:
        """Open the file, and create it if it does not exist. Raise Locked, Corrupt, or StoreError, which says what to
        do."""
        file = Path(path)
        with _readable(file), ExitStack() as undo:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                # The lock comes first: the deletion of leased entries below would end the sessions of another process
                # that uses this file.
                lock = undo.enter_context(_take(file))
                private_file(file)
            except OSError as error:
                raise types.StoreError(f"{file}: cannot be created: {error.strerror}") from error
            connection = undo.enter_context(closing(_connect(file, read_only=False)))
            if file.stat().st_size and next(connection.execute("pragma quick_check"))[0] != "ok":
                raise types.Corrupt(
                    f"{file}: this file is damaged; move it away and restore a copy, or start without it"
                )
            for setting in _SETTINGS:
                # One by one, with all rows read: an unread row would end a series of statements early.
                connection.execute(f"pragma {setting}").fetchall()
            if _format(connection, file) == 0:
                connection.execute(f"begin immediate; {_SCHEMA} pragma user_version = {FORMAT}; commit")
            connection.execute("delete from entry where lease is not null")  # the owners of these leases have ended
            backend = cls(file, lock, connection, _pages(file))
            undo.pop_all()  # lock and connection stay open until the backend is closed
            return backend

    async def get(self, path: str) -> types.Entry | None:
        return self.tree.get(path)

    async def list(self, prefix: str) -> Sequence[types.Entry]:
        return self.tree.under(prefix)

    async def get_many(self, paths: Sequence[str]) -> Sequence[types.Entry | None]:
        return [self.tree.get(path) for path in paths]

    async def scan(self, directory: str, *, begins: str, after: str, limit: int) -> Sequence[types.Entry]:
        return self.tree.scan(directory, begins, after, limit)

    def watch(self, prefix: str) -> AsyncIterator[types.Change]:
        return self.tree.watch(prefix)

    async def commit(self, checks: Sequence[types.At], ops: Sequence[types.Op]) -> Sequence[types.Entry | None]:
        if self._closed:
            raise types.Unavailable(f"{self.path} is closed")
        check_commit(checks, ops)  # already here, so that an invalid commit does not fail the others of its batch
        for op in ops:
            if not isinstance(op, types.Delete) and op.lease is not None and not self._leases.known(op.lease):
                raise types.SessionLost(f"the lease {op.lease} has expired")
        # The lease may still expire while the commit waits. `_leave` then deletes the entries that the commit wrote.
        waiting = _QueuedCommit(checks, ops, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._go_on()
        # A cancelled caller cannot withdraw its commit: others in the same batch may already depend on it.
        return await asyncio.shield(waiting.done)

    async def grant(self, ttl_s: float) -> types.Lease:
        return self._leases.grant(ttl_s)

    async def keep_alive(self, lease: types.Lease) -> None:
        self._leases.keep_alive(lease)

    async def revoke(self, lease: types.Lease) -> None:
        self._leases.revoke(lease)
        # Noted before anything is awaited: commits under the lease may be waiting, and their entries must go, too.
        self._ended.add(lease)
        held = [types.Delete(path) for path in self.tree.held(lease)]
        for start in range(0, len(held), types.OPS_MAX):
            await self.commit([], held[start : start + types.OPS_MAX])

    async def close(self) -> None:
        """Wait for the commits that have begun; refuse later ones."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            await self._writer
        self.tree.close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()
        self._lock.close()

    def _expired(self, lease: types.Lease) -> None:
        """End an expired lease; called by a timer of the event loop."""
        self._ended.add(lease)
        self._go_on()

    def _go_on(self) -> None:
        # Only one writer at a time, which takes everything that waits: the order of arrival is the order of commits.
        if not self._closed and (self._writer is None or self._writer.done()):
            self._writer = asyncio.ensure_future(self._write())

    def _leave(self) -> None:
        """Queue the deletion of the entries of ended leases before all waiting commits; call it while no write is in
        progress."""
        if not self._ended:
            return
        # A waiting commit may still write under an ended lease; such a lease is checked again in the next round.
        coming = {op.lease for one in self._waiting for op in one.ops if not isinstance(op, types.Delete)}
        held = {lease: self.tree.held(lease) for lease in self._ended}
        self._ended = {lease for lease, paths in held.items() if paths or lease in coming}
        gone = [types.Delete(path) for paths in held.values() for path in paths]
        loop = asyncio.get_running_loop()
        self._waiting[:0] = [
            _QueuedCommit([], gone[start : start + types.OPS_MAX], loop.create_future())
            for start in range(0, len(gone), types.OPS_MAX)
        ]

    async def _write(self) -> None:
        """Write until nothing waits: stage the waiting commits, make them durable in one transaction, and send them to
        the watchers."""
        loop = asyncio.get_running_loop()
        while self._waiting or self._ended:
            self._leave()
            taken: _Queue = []
            good: _Staged = []
            refused: _Refused = []
            try:
                staged, good, refused = await self._stage(taken)
                if good:
                    # From here on, reads may return the batch before watchers receive it (`StorePages.settled`).
                    self.tree.writing()
                    await loop.run_in_executor(self._thread, self._persist, staged)
                    self.tree.apply(staged)
            # The complete batch has failed, and whatever the error is, its callers must not wait forever. A Conflict
            # with one of its commits may be wrong then, but the caller of that one reads again.
            except Exception as error:
                if not isinstance(error, apsw.Error | OSError):
                    log.exception("%s: not written", self.path)
                # Commits that were refused during staging stay in `refused`: the first answer of a commit wins.
                refused += [
                    (waiting, types.Unwritable(f"{self.path}: not written: {_why(error)}")) for waiting in taken
                ]
                good = []
                self.tree.dropped()
            for waiting, written in good:
                if not waiting.done.done():
                    waiting.done.set_result(written)
            for waiting, why in refused:  # only now, so that a caller that reads again sees the commit that won
                if not waiting.done.done():
                    waiting.done.set_exception(why)
                    waiting.done.exception()  # marks it as retrieved: a cancelled caller never reads it
            await asyncio.sleep(0)  # tasks that wait for the tree to settle get a turn before the next write
            if self._ended and not good and not self._waiting:
                loop.call_later(AGAIN_S, self._go_on)
                return

    async def _stage(self, taken: _Queue) -> tuple[Staged, _Staged, _Refused]:
        """Stage the waiting commits, and those that arrive in the meantime, a portion at a time; add each to
        `taken`."""
        staged = self.tree.stage()
        good: _Staged = []
        refused: _Refused = []
        while self._waiting and len(staged.entries) < TOGETHER_MAX:
            portion, self._waiting = self._waiting[:PORTION_MAX], self._waiting[PORTION_MAX:]
            taken += portion
            with suppress(types.StoreError, ValueError):  # a read that fails here fails again in its commit, below
                self.tree.foresee([op.path for one in portion for op in one.ops if not isinstance(op, types.Append)])
            for waiting in portion:
                try:
                    # Each commit sees those staged before it, so a batch has the same effect as its commits made one
                    # after the other.
                    good.append((waiting, staged.commit(waiting.checks, waiting.ops)))
                except (types.StoreError, ValueError) as error:
                    refused.append((waiting, error))
            await asyncio.sleep(0)
        return staged, good, refused

    def _persist(self, staged: Staged) -> None:
        connection = self._connection
        connection.execute("begin immediate")
        try:
            # A batch has one final state per path, so a path that it writes many times costs one write.
            written = [entry for entry in staged.entries.values() if entry is not None]
            connection.executemany(
                "delete from entry where path = ?", ((path,) for path, one in staged.entries.items() if one is None)
            )
            connection.executemany(
                "insert or replace into entry values (?, ?, ?, ?, ?)",
                ((one.path, one.value, one.version, one.born, one.lease) for one in written),
            )
            for appended in staged.appended.items():
                connection.execute("insert or replace into appended values (?, ?)", appended)
            connection.execute("insert or replace into meta values ('revision', ?)", (staged.revision,))
            connection.execute("commit")
        except BaseException:
            # SQLite itself has already rolled back after some errors, such as a full disk.
            if connection.in_transaction:
                connection.execute("rollback")
            raise


def _why(error: Exception) -> str:
    if isinstance(error, apsw.FullError):
        return "the disk is full; Headgate continues as soon as there is space"
    return str(error)


def _take(file: Path) -> IO[str]:
    """Lock the file for writing, until the returned file is closed."""
    # A separate file: closing any descriptor of the database would drop the locks that SQLite holds on it (POSIX).
    # Opened to append, because truncation would erase the pid of the process that owns it.
    with ExitStack() as undo:
        lock = undo.enter_context(open(file.with_name(file.name + ".owner"), "a+"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise Locked(f"{file} is in use by process {owner}; only one Headgate writes to it at a time") from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        undo.pop_all()  # the open file is the lock
        return lock


class SqliteReader:
    """Read the file of a running or stopped Headgate; nothing can be written through it."""

    LOOK_INTERVAL_S = 0.1

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise types.StoreError(f"{self.path}: there is no store; has Headgate been started here?")
        with _readable(self.path):
            self._connection = _connect(self.path, read_only=True)
            _format(self._connection, self.path)

    async def get(self, path: str) -> types.Entry | None:
        return self._tree().entries.get(path)

    async def list(self, prefix: str) -> Sequence[types.Entry]:
        return self._tree().under(prefix)

    async def commit(self, checks: Sequence[types.At], ops: Sequence[types.Op]) -> Sequence[types.Entry | None]:
        raise types.StoreError(f"{self.path} was opened to read only")

    async def watch(self, prefix: str) -> AsyncIterator[types.Change]:
        """Yield a snapshot whenever the file has changed; SQLite does not show another process which entries did."""
        seen = None
        while True:
            # The number changes only when another connection has committed, so polling an idle store costs very little.
            (version,) = next(self._connection.execute("pragma data_version"))
            if version != seen:
                seen = version
                yield types.Snapshot(self._tree().under(prefix))
            await asyncio.sleep(self.LOOK_INTERVAL_S)

    async def grant(self, ttl_s: float) -> types.Lease:
        raise types.StoreError(f"{self.path} was opened to read only")

    async def keep_alive(self, lease: types.Lease) -> None:
        raise types.StoreError(f"{self.path} was opened to read only")

    async def revoke(self, lease: types.Lease) -> None:
        raise types.StoreError(f"{self.path} was opened to read only")

    async def close(self) -> None:
        self._connection.close()

    def _tree(self) -> Tree:
        with _readable(self.path):
            return _load(self._connection)


async def connect(url: str) -> types.Backend:
    """Open the file that a URL or a path names.  Raise what `SqliteBackend.open` raises."""
    return await SqliteBackend.open(url.removeprefix("sqlite:///"))
