"""Keep messages of all applications in SQL: writes are grouped, and ids, which only grow, order the messages."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from headgate.base.errors import UserError, needing
from headgate.base.tasks import run_until
from headgate.queue.messages import later, queues, records, schedules, storage
from headgate.queue.messages.bounds import UNLIMITED, ApplicationLimits, ApplicationUsage, size_of, usage
from headgate.queue.messages.database import Database, DatabaseDown, DataRefused, Open, SqliteDatabase, shown
from headgate.queue.messages.holders import DeadLetterSize, LeaseLost, LeaseMoment
from headgate.queue.messages.posts import GroupLine, MessagePost, Overloaded, PostSignal, Write, digest_of, post_group
from headgate.queueing.ids import Position
from headgate.queueing.partitions import DEAD_LETTERS, QueuePartition


def opener(url: str) -> Open:
    """Return a function that opens `sqlite:///FILE` or `postgresql://…`. Raise UserError, MissingPackage."""
    if url.startswith("sqlite:///"):
        return lambda: SqliteDatabase(Path(url.removeprefix("sqlite:///")))
    if url.startswith(("postgresql://", "postgres://")):
        with needing("PostgreSQL", "postgresql"):
            from headgate.queue.messages.postgres import PostgresDatabase
        return lambda: PostgresDatabase(url)
    raise UserError(f"{shown(url)!r} cannot store messages; use sqlite:///FILE or postgresql://USER@HOST/NAME")


T = TypeVar("T")

PURGE_MAX = 1_000
"""Expired messages removed in one transaction."""
PURGE_INTERVAL_S = 30.0
LOOK_INTERVAL_S = 5.0
"""Seconds between two checks for messages that became due by the clock or through another server."""
READS_MAX = 2
"""Reads of one application that wait for the thread at a time; with two, it is not idle in between."""
INLINE_MAX_CHARS = 50_000
"""Posts with more characters are digested in a thread, so that they do not block the loop."""


class MessageBoard:
    """Use `await MessageBoard.open(url)`.  Reads and writes have a thread and a connection each.

    Raises DatabaseDown from every method; those that name a queue raise NoQueue.
    """

    def __init__(
        self,
        url: str,
        reader: Database,
        writer: Database,
        threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor],
        limits: ApplicationLimits,
    ) -> None:
        self._url = url
        self._reader, self._writer, self._threads = reader, writer, threads
        self._chance = random.Random()
        # RFC 4122 sets the multicast bit in random node numbers, so that they never equal the address of a network
        # card.
        self._node = self._chance.getrandbits(48) | 1 << 40
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()
        """Application, or strangers that read its queues -> the turns of their reads, while there are any."""
        self._waiting = GroupLine()
        self._writing: asyncio.Task[None] | None = None
        self._later = asyncio.Event()
        self.signal = PostSignal()
        self.now_ns: Callable[[], int] = time.time_ns
        self._account = ApplicationUsage(limits, lambda: self.now_ns() / 1e9)

    @classmethod
    async def open(cls, url: str, limits: ApplicationLimits = UNLIMITED) -> MessageBoard:
        """Open the board of messages. Raise UserError."""
        make: Open = opener(url)
        threads = ThreadPoolExecutor(1, "messages-read"), ThreadPoolExecutor(1, "messages-write")
        loop = asyncio.get_running_loop()
        try:
            writer = await loop.run_in_executor(threads[1], make)
            reader = await loop.run_in_executor(threads[0], make)
        except BaseException:
            for thread in threads:
                thread.shutdown(wait=False)
            raise
        return cls(url, reader, writer, threads, limits)

    async def close(self) -> None:
        """Wait for the writes that have started."""
        if self._writing is not None:
            await self._writing
        loop = asyncio.get_running_loop()
        for thread, database in zip(self._threads, (self._reader, self._writer), strict=True):
            await loop.run_in_executor(thread, database.close)
            thread.shutdown()

    # --- queues

    async def create(self, app: str, wanted: records.QueueRecord) -> None:
        """Create a queue, or update the one of this name, whose partitions may only grow. Raise InvalidPost or
        PartitionFull."""
        await self._write(lambda database: queues.create(database, app, wanted, self._account.limits), app)
        self.signal.notify(app, None)

    async def remove(self, app: str, name: str) -> None:
        """Remove a queue immediately; its messages are deleted gradually."""
        await self._write(lambda database: queues.remove(database, app, name), app)
        self.signal.notify(app, None)

    async def queue(self, app: str, name: str, turn: str = "") -> records.QueueRecord:
        """Return the queue. `turn` decides for which other reads this one waits; empty: those of the application."""
        return await self._read(lambda database: queues.find(database, app, name), turn or app)

    async def queues(self, app: str, *, limit: int | None = None, offset: str = "") -> list[records.QueueRecord]:
        """Return queues by name, from `offset` on."""
        return await self._read(lambda database: queues.every(database, app, limit, offset), app)

    # --- messages

    async def post(
        self, app: str, queue: str, drafts: Sequence[records.MessageDraft], *, key: str = ""
    ) -> tuple[list[records.Posted], bool]:
        """Post messages durably. Return True if the same was posted before under the same key. Raise KeyReused,
        InvalidPost or PartitionFull."""
        digest = ""
        if key:
            large = sum(len(draft.body) for draft in drafts) > INLINE_MAX_CHARS
            digest = await asyncio.to_thread(digest_of, drafts) if large else digest_of(drafts)
        await self._refresh_usage(app)
        with self._account.taken(app, len(drafts), size_of(drafts, key), dead=queue == DEAD_LETTERS):
            posted, replayed = await self._write(MessagePost(app, queue, tuple(drafts), key, digest), app)
        # After the commit: readers that are woken read the database immediately.
        for partition in {QueuePartition(queue, one.partition) for one in posted if not one.deliver_at}:
            self.signal.notify(app, partition)
        if any(one.deliver_at for one in posted):
            self._later.set()
        return posted, replayed

    async def put(self, app: str, queue: str, ids: Sequence[tuple[int, str]], body: str, ttl_s: int) -> None:
        """Write the body to each (partition, id), which is created if it does not exist. Raise InvalidPost, or
        PartitionFull: every message counts as a new one, because it may be one."""
        drafts, chars = [records.MessageDraft(body, ttl_s)] * len(ids), len(body) * len(ids)
        if len(ids) > 1 and chars > records.PUT_MAX_CHARS:
            why = f"they would have {chars} characters together; at most {records.PUT_MAX_CHARS} are written at a time"
            raise records.InvalidPost({"message_ids": why})
        put = storage.MessagePut(app, queue, tuple(ids), body, ttl_s, self.now_ns())
        await self._refresh_usage(app)
        with self._account.taken(app, len(drafts), size_of(drafts), dead=queue == DEAD_LETTERS):
            await self._write(lambda database: storage.put_ids(database, put), app, chars=chars, messages=len(ids))
        for partition, _ in ids:
            self.signal.notify(app, QueuePartition(queue, partition))

    async def delete(self, app: str, queue: str, ids: Sequence[tuple[int, str]]) -> None:
        await self._write(lambda database: storage.delete_ids(database, app, queue, ids, self.now_ns()), app)

    async def read(
        self,
        turn: str,
        queue: records.QueueRecord,
        partition: int,
        since: Position,
        *,
        limit: int,
        descending: bool = False,
    ) -> list[records.StoredMessage]:
        """Return messages from `since` on, including it; in descending order if asked. `turn` decides for which other
        reads this one waits."""
        now_ms = self._now_ms()
        return await self._read(
            lambda database: storage.read(database, queue.id, partition, since, limit, descending, now_ms), turn
        )

    async def look(self, turn: str, work: Callable[[Database, int], T]) -> T:
        """Call a read function with the time in milliseconds since 1970, and return its result. Raise what it raises.
        `turn` decides for which other reads this one waits."""
        return await self._read(lambda database: work(database, self._now_ms()), turn)

    async def _refresh_usage(self, app: str) -> None:
        """Read what the application keeps, unless it is known."""
        if self._account.stale(app):
            self._account.saw(app, *await self._read(lambda database: usage(database, app, self._account.limits), app))

    async def change(
        self,
        app: str,
        work: Callable[[Database, LeaseMoment], T],
        *,
        soon: bool = False,
        dead: Callable[[Database, int], DeadLetterSize] | None = None,
    ) -> T:
        """Call a write function, such as those of `leases`, and return its result once it is durable. Raise what it
        raises. `soon`: afterwards, something may be due before the next planned check. `dead`: a read function that
        returns the dead letters that it writes; raise PartitionFull if there is no room for them."""
        await self._refresh_usage(app)
        size = await self.look(app, dead) if dead else DeadLetterSize()
        # Without `dead`, the function itself decides what to do if there is no room.
        no_room = self._account.why_full(app)
        with self._account.taken(app, *size.counted, dead=True) if dead else nullcontext():
            answer: T = await self._write(
                lambda database: work(database, self._moment(no_room)),
                app,
                chars=size.bytes,
                messages=max(size.messages, 1),
            )
        if soon:
            self._later.set()
        return answer

    async def get(
        self, turn: str, queue: records.QueueRecord, ids: Sequence[tuple[int, str]]
    ) -> list[records.StoredMessage]:
        """Return the messages named by (partition, id) that exist. `turn` decides for which other reads this one
        waits."""
        return await self._read(lambda database: storage.read_ids(database, queue.id, ids, self._now_ms()), turn)

    # --- upkeep

    async def _purge(self) -> int:
        """Delete everything that has expired, in bounded pieces, and return the number deleted."""
        total = 0
        while True:
            # In a transaction of its own, so that writes of applications are not made durable only after a thousand
            # deletions.
            removed: int = await self._write(
                lambda database: storage.purge(database, self._now_ms(), PURGE_MAX), alone=True
            )
            total += removed
            if removed < PURGE_MAX:
                return total + await self._purge_overdue()

    async def _purge_overdue(self) -> int:
        total = 0
        while found := await self._read(lambda database: storage.overdue(database, self._now_ms(), PURGE_MAX)):
            for place in found:
                total += await self._write(partial(storage.purge_overdue, place=place, most=PURGE_MAX), alone=True)
        return total

    async def upkeep(self) -> None:
        """Remove expired messages, deliver due ones, and announce messages that other processes post to the same
        PostgreSQL, until cancelled."""
        await run_until(asyncio.Event(), self._keep_purging(), self._keep_delivering(), self._keep_listening())

    async def _keep_purging(self) -> None:
        while True:
            with suppress(DatabaseDown, Overloaded):
                await self._purge()
            await asyncio.sleep(PURGE_INTERVAL_S)

    async def _keep_delivering(self) -> None:
        while True:
            # Clear it before the check: a message that is postponed in the meantime sets it again, and the wait below
            # ends immediately.
            self._later.clear()
            wait_s = LOOK_INTERVAL_S
            with suppress(DatabaseDown, Overloaded):
                wait_s = min(wait_s, await self.deliver())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._later.wait()

    async def deliver(self) -> float:
        """Deliver all due messages and those of schedules, in bounded pieces. Return the seconds until the next one."""
        while True:
            later_ms, schedule_ms = await self._read(lambda d: (later.next_ms(d), schedules.next_ms(d)))
            now_ms = self._now_ms()
            if later_ms is not None and later_ms <= now_ms:
                await self._deliver(lambda database: later.deliver(database, self.now_ns(), self._node))
            if schedule_ms is not None and schedule_ms <= now_ms:
                await self._deliver(lambda database: schedules.post_due(database, self._moment(), self._account.limits))
            # The default is any long time: the caller checks again after LOOK_INTERVAL_S at the latest.
            next_ms = min((ms for ms in (later_ms, schedule_ms) if ms is not None), default=now_ms + 3_600_000)
            if next_ms > now_ms:
                return (next_ms - now_ms) / 1000

    async def _deliver(self, work: Callable[[Database], list[tuple[str, QueuePartition]]]) -> None:
        for app, partition in await self._write(work, alone=True):
            self.signal.notify(app, partition)

    def _moment(self, no_room: str = "") -> LeaseMoment:
        return LeaseMoment(self.now_ns(), self._node, self._chance, no_room)

    async def _keep_listening(self) -> None:
        if self._url.startswith("postgres"):
            from headgate.queue.messages.postgres import hear

            await hear(self._url, self.signal)

    def _now_ms(self) -> int:
        return self.now_ns() // 1_000_000

    async def _read(self, work: Callable[[Database], T], turn: str = "") -> T:
        """Call a read function; upkeep, which has no turn, waits for nobody."""
        if not turn:
            return await asyncio.get_running_loop().run_in_executor(self._threads[0], work, self._reader)
        async with self._turns.setdefault(turn, asyncio.Semaphore(READS_MAX)):
            return await self._read(work)

    async def _write(
        self,
        work: MessagePost | Callable[[Database], Any],
        app: str = "",
        *,
        alone: bool = False,
        chars: int = 0,
        messages: int = 1,
    ) -> Any:  # any answer of the function
        """Queue a write and wait for it; `chars` and `messages` are what a function writes. Raise Overloaded or
        PartitionFull."""
        write = Write(work, asyncio.get_running_loop().create_future(), alone, chars, messages)
        self._waiting.put(app, write)
        # A task exists only while something waits, so an idle board costs nothing.
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._keep_writing())
        # A caller that is cancelled must not cancel the future: the write is made anyway.
        return await asyncio.shield(write.done)

    async def _keep_writing(self) -> None:
        """Write until nothing waits: as much as fits into one transaction."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            group = self._waiting.group()
            try:
                answers = await loop.run_in_executor(self._threads[1], self._answers, [one.work for one in group])
            # Catch all exceptions: a caller without an answer would wait forever.
            except Exception as error:
                answers = [error] * len(group)
            for write, answer in zip(group, answers, strict=True):
                if write.done.done():
                    continue
                if isinstance(answer, Exception):
                    write.done.set_exception(answer)
                    write.done.exception()  # its caller may have been cancelled: that is no failure
                else:
                    write.done.set_result(answer)

    def _answers(self, works: Sequence[MessagePost | Callable[[Database], Any]]) -> list[Any]:  # or reasons
        """Perform the writes together, and return their results. If one of them causes a failure, perform each half
        separately, so that few transactions find the one at fault."""
        try:
            return self._together(works)
        except Exception as error:
            # If the database itself failed, the whole transaction may have taken effect, and must not be repeated.
            own = not isinstance(error, DatabaseDown) or isinstance(error, DataRefused)
            if not own or len(works) == 1:
                return [error] * len(works)
        half = len(works) // 2
        return [*self._answers(works[:half]), *self._answers(works[half:])]

    def _together(self, works: Sequence[MessagePost | Callable[[Database], Any]]) -> list[Any]:  # or reasons
        """Perform the writes in order, and return their results. A write is rejected before it has written anything, so
        the others are valid."""
        answers: list[Any] = [None] * len(works)
        posts = {n: work for n, work in enumerate(works) if isinstance(work, MessagePost)}
        with self._writer.transaction():
            for n, work in enumerate(works):
                if not isinstance(work, MessagePost):
                    answers[n] = _tried(work, self._writer)
            if posts:
                answered = post_group(self._writer, list(posts.values()), self.now_ns(), self._node, self._chance)
                for n, answer in zip(posts, answered, strict=True):
                    answers[n] = answer
        return answers


def _tried(work: Callable[[Database], Any], database: Database) -> Any:  # the answer, or the reason of the rejection
    try:
        return work(database)
    # These are answers to one caller. Everything else ends the transaction, for all writes of the group: the write may
    # already have written something.
    except (records.NoQueue, LeaseLost, records.InvalidPost, records.KeyReused, records.PartitionFull) as error:
        return error
