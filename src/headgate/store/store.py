"""Provide the store that the rest of the program uses: a backend, and the functions that are equal for all backends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headgate.base.tasks import end, run_to_end
from headgate.store import types

T = TypeVar("T")

log = logging.getLogger("headgate.store")

# After this many conflicts in a row, too many processes write the same place concurrently; the caller decides what to
# do.
ATTEMPTS_MAX = 16
# The locks of a dead process stay for this long. A process gives up its locks if the store is silent for two thirds of
# it.
TTL_S = 15.0
GIVES_UP_S = 5.0
"""Time for which a process that has to end still repeats writes that the store refuses."""
PORTION_MAX = 2 * types.OPS_MAX
"""Number of entries that one caller reads before other tasks get a turn."""


class GuardLost(types.Conflict):
    """Report that the failed check was a guard: the lock is lost, and a retry would be wrong."""


@dataclass(slots=True)
class Counts:
    """Count requests to the backend; keep-alives are counted separately."""

    reads: int = 0
    commits: int = 0
    watches: int = 0
    ops: int = 0
    written_bytes: int = 0
    keep_alives: int = 0

    @property
    def requests(self) -> int:
        return self.reads + self.commits


@dataclass(slots=True)
class Session:
    """Represent a lease that is kept alive.  `lost` is set when the lease must be considered expired."""

    lease: types.Lease
    name: str
    stop: asyncio.Event | None = None
    """Event that is set when the process is to end."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    errands: set[asyncio.Task[Any]] = field(default_factory=set)  # results of several types
    _patient_until_s: float | None = None
    """Time, by the event loop, from which no write is repeated any more."""

    def rename(self, name: str) -> None:
        """Take another name, as which the holder of locks is shown."""
        self.name = name

    def check(self) -> None:
        if self.lost.is_set():
            raise types.SessionLost(f"the session of {self.name} has ended")

    @property
    def gives_up(self) -> bool:
        """Return whether writes that the store refuses are no longer repeated, because the process has to end. The end
        of the session then removes locks, and other processes repeat unfinished work."""
        if self.stop is None or not self.stop.is_set():
            return False
        now_s = asyncio.get_running_loop().time()
        self._patient_until_s = self._patient_until_s or now_s + GIVES_UP_S
        return now_s >= self._patient_until_s

    def errand(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` to its end even if the caller is cancelled, but no longer than the session. A request that was
        sent to the store may take effect at any time, so some task must still receive its outcome."""
        task = asyncio.ensure_future(work)
        self.errands.add(task)
        task.add_done_callback(self.errands.discard)
        return task


class Txn:
    """Collect a commit: reads become checks, and writes wait until the end; the last write to a path wins."""

    def __init__(self, store: Store, guards: Sequence[types.At]) -> None:
        self._store = store
        self.checks: dict[str, types.At] = {guard.path: guard for guard in guards}
        self._puts: dict[str, types.Op] = {}
        self._appends: list[types.Append] = []

    async def get(self, path: str) -> types.Entry | None:
        entry = await self._store.get(path)
        # The first version is checked: if a second read finds another one, the body has used both, and the commit must
        # fail.
        self.checks.setdefault(path, types.At(path, entry.version if entry else None))
        return entry

    def do(self, *ops: types.Op) -> None:
        for op in ops:
            if isinstance(op, types.Append):
                self._appends.append(op)
            else:
                self._puts[op.path] = op

    def put(self, path: str, value: bytes) -> None:
        self.do(types.Put(path, value))

    def delete(self, path: str) -> None:
        self.do(types.Delete(path))

    @property
    def ops(self) -> list[types.Op]:
        return [*self._puts.values(), *self._appends]


class Store:
    """Read, commit and watch the tree through a backend, count the requests, and keep sessions alive."""

    def __init__(self, backend: types.Backend, *, ttl_s: float = TTL_S) -> None:
        """Make a store; `ttl_s` is the default for sessions."""
        self.backend, self._ttl_s = backend, ttl_s
        self.counts = Counts()

    async def get(self, path: str) -> types.Entry | None:
        self.counts.reads += 1
        return await self.backend.get(path)

    async def list(self, prefix: str) -> Sequence[types.Entry]:
        self.counts.reads += 1
        return await self.backend.list(prefix)

    async def get_many(self, paths: Sequence[str]) -> Sequence[types.Entry | None]:
        """Return one entry per path. They may show different moments, because other tasks get a turn between portions
        of a long list."""
        if not isinstance(self.backend, types.Wide):
            return await asyncio.gather(*(self.get(path) for path in paths))
        found: list[types.Entry | None] = []
        for start in range(0, len(paths), PORTION_MAX):
            parts = [
                paths[at : at + types.OPS_MAX]
                for at in range(start, min(start + PORTION_MAX, len(paths)), types.OPS_MAX)
            ]
            self.counts.reads += len(parts)
            for part in await asyncio.gather(*(self.backend.get_many(part) for part in parts)):
                found += part
            if start + PORTION_MAX < len(paths):
                await asyncio.sleep(0)
        return found

    async def scan(self, directory: str, *, begins: str = "", after: str = "", limit: int) -> Sequence[types.Entry]:
        """Return the first `limit` entries below `directory`, ordered by path, whose relative paths start with `begins`
        and sort after `after`."""
        if isinstance(self.backend, types.Wide):
            self.counts.reads += 1
            return await self.backend.scan(directory, begins=begins, after=after, limit=limit)
        start = len(directory) + 1
        named = ((entry.path[start:], entry) for entry in await self.list(directory) if entry.path != directory)
        found = [entry for name, entry in named if name.startswith(begins) and name > after]
        return sorted(found, key=lambda entry: entry.path)[:limit]

    async def commit(
        self, checks: Sequence[types.At], ops: Sequence[types.Op], *, guards: Sequence[types.At] = ()
    ) -> Sequence[types.Entry | None]:
        """Commit all or nothing, and return the written entry of each operation. Raise Conflict; GuardLost if a guard
        no longer holds; Unavailable if the outcome is unknown."""
        # Guards come first because backends report the first check that fails: a lost lock must not look like a
        # conflict, after which callers try again.
        every = [*guards, *checks]
        self.counts.commits += 1
        self.counts.ops += len(ops)
        self.counts.written_bytes += sum(len(op.value) for op in ops if not isinstance(op, types.Delete))
        try:
            return await self.backend.commit(every, ops)
        except types.Conflict as conflict:
            if conflict.check in guards:
                raise GuardLost(conflict.check) from None
            raise

    def watch(self, prefix: str) -> AsyncIterator[types.Change]:
        self.counts.watches += 1
        return self.backend.watch(prefix)

    async def transact(self, body: Callable[[Txn], Awaitable[T]], *, guards: Sequence[types.At] = ()) -> T:
        """Run `body`, and commit its writes with checks of everything that it read; repeat both after a conflict. If it
        writes nothing, nothing is checked.

        `body` may run several times, so it must have no effects outside its transaction.  Raise GuardLost immediately,
        Conflict after ATTEMPTS_MAX attempts, Unavailable when the outcome is unknown.
        """
        for attempt in range(ATTEMPTS_MAX):
            txn = Txn(self, guards)
            result = await body(txn)
            checks = [check for check in txn.checks.values() if check not in guards]
            if not txn.ops:
                return result
            try:
                await self.commit(checks, txn.ops, guards=guards)
                return result
            # A GuardLost is a Conflict, too, but reading again cannot bring the lock back.
            except GuardLost:
                raise
            except types.Conflict:
                if attempt == ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError("the loop returns or raises")

    @asynccontextmanager
    async def session(
        self, name: str, *, ttl_s: float | None = None, stop: asyncio.Event | None = None
    ) -> AsyncIterator[Session]:
        """Provide a lease for as long as the block runs. If the lease is lost, cancel the block and raise
        SessionLost. `stop` is set when the process is to end."""
        ttl_s = ttl_s or self._ttl_s
        session = Session(await self.backend.grant(ttl_s), name, stop)
        body = asyncio.current_task()
        assert body is not None, "a session is opened in a task"
        keeper = asyncio.ensure_future(self._keep(session, ttl_s, body))
        try:
            yield session
        except asyncio.CancelledError:
            # If another caller has cancelled the task as well, that cancellation must not be swallowed.
            if session.lost.is_set() and body.uncancel() == 0:
                raise types.SessionLost(f"the session of {name} has ended") from None
            raise
        finally:
            try:
                # Errands still write under the lease, so they end before it is revoked.
                await end(keeper, *session.errands)
            finally:
                if not session.lost.is_set():
                    session.lost.set()
                    await run_to_end(self._revoke(session.lease, ttl_s))

    async def _revoke(self, lease: types.Lease, ttl_s: float) -> None:
        """Revoke the lease as soon as the store is reachable; give up after `ttl_s`, when it has expired anyway, or if
        the store cannot write: it removes the entries as soon as it can, or when it is opened again."""
        wait_s = 0.05
        with suppress(types.StoreError, TimeoutError):
            async with asyncio.timeout(ttl_s):
                while True:
                    try:
                        await self.backend.revoke(lease)
                        return
                    except types.Unwritable:
                        return
                    except types.Unavailable:
                        await asyncio.sleep(wait_s)
                        wait_s = min(2 * wait_s, 1.0)

    async def _keep(self, session: Session, ttl_s: float, body: asyncio.Task[object]) -> None:
        """Renew the lease after each third of its lifetime, and sooner after a failure. It counts as lost two thirds of
        its lifetime after the last answered request."""
        loop = asyncio.get_running_loop()
        good_until, wait_s = loop.time() + ttl_s * 2 / 3, ttl_s / 3
        while True:
            await asyncio.sleep(wait_s)
            sent_s = loop.time()
            try:
                self.counts.keep_alives += 1
                async with asyncio.timeout_at(good_until):
                    await self.backend.keep_alive(session.lease)
                # Counted from the request, not from its answer: the server may have renewed the lease at any moment
                # between them.
                good_until, wait_s = sent_s + ttl_s * 2 / 3, ttl_s / 3
            except types.SessionLost:
                break
            # A bug in a backend must not end this task: the lease would expire while the block believes that it is
            # alive.
            except Exception as error:
                if not isinstance(error, types.StoreError | TimeoutError):
                    log.exception("the store could not renew a session, because of an unexpected error")
                if loop.time() >= good_until:
                    break
                # About ten attempts fit between the first failure and the moment when the lease counts as lost.
                wait_s = ttl_s / 30
        session.lost.set()
        body.cancel()
