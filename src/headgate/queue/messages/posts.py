"""Post groups of messages in one transaction each, queue the writes, and wake readers."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.base.errors import HeadgateError
from headgate.queue.messages import later, queues, records
from headgate.queue.messages.bounds import PartitionRoom
from headgate.queue.messages.database import Database, Row
from headgate.queueing.ids import ticks_of_unix_ns, unix_text
from headgate.queueing.partitions import QueuePartition, partition_of, partition_of_key, priority_named

WAITING_MAX = 10_000
"""Limit on the writes that wait, of all applications."""
EACH_MAX = 1_000
"""Limit on the writes of one application that wait."""
EACH_MAX_CHARS = 64_000_000
"""Limit on the characters of bodies that one application has waiting."""
GROUP_MAX = 200
"""Limit on the writes that are made durable together; fewer when they are large."""
GROUP_MAX_MESSAGES = 10_000
GROUP_MAX_CHARS = 16_000_000
AGAIN_S = 1.0
"""Seconds after which a client whose write was refused may try again."""
_REUSED = "this Idempotency-Key was used for other messages"

Answer = tuple[list[records.Posted], bool]


class Listener:
    """Remember which partitions of one application (or one of its queues) got messages, each once."""

    def __init__(self, app: str, queue: str | None) -> None:
        self.app, self.queue = app, queue
        self._partitions: set[QueuePartition] = set()
        self._queues_changed = False
        self._some = asyncio.Event()

    def tell(self, partition: QueuePartition | None) -> None:
        if partition is None:
            self._queues_changed = True
        elif self.queue in (None, partition.queue):
            self._partitions.add(partition)
        else:
            return
        self._some.set()

    async def wait(self) -> tuple[set[QueuePartition], bool]:
        """Wait, and return the partitions with posts since the last call, and whether queues were added, removed or
        enlarged."""
        await self._some.wait()
        self._some.clear()
        partitions, self._partitions = self._partitions, set()
        changed, self._queues_changed = self._queues_changed, False
        return partitions, changed


class PostSignal:
    """Wake callers that wait for messages of an application."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {}

    @contextmanager
    def listen(self, app: str, queue: str | None = None) -> Iterator[Listener]:
        """Listen inside the block, where no post is missed; read the database after entering it."""
        listener = Listener(app, queue)
        self._listeners.setdefault(app, set()).add(listener)
        try:
            yield listener
        finally:
            self._listeners[app].discard(listener)
            if not self._listeners[app]:
                del self._listeners[app]

    def notify(self, app: str, partition: QueuePartition | None) -> None:
        """Wake callers that wait for a partition; None means that the queues themselves have changed."""
        for listener in self._listeners.get(app, ()):
            listener.tell(partition)

    def notify_all(self) -> None:
        """Wake all listeners, because something may have been missed."""
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.tell(None)
                if listener.queue is not None:
                    listener.tell(QueuePartition(listener.queue))


@dataclass(frozen=True, slots=True)
class MessagePost:
    app: str
    queue: str
    drafts: tuple[records.MessageDraft, ...]
    key: str = ""
    digest: str = ""
    """Digest of the drafts; empty without a key."""


def digest_of(drafts: Sequence[records.MessageDraft]) -> str:
    """Return a digest that is equal for equal drafts in equal order."""
    found = hashlib.blake2b(digest_size=24)
    for draft in drafts:
        body = draft.body.encode()
        found.update(f"{draft.ttl_s} {draft.partition} {len(body)}\n".encode())
        if draft.key:
            found.update(f"key {len(draft.key)}\n{draft.key}".encode())
        if draft.priority:
            found.update(f"priority {draft.priority}\n".encode())
        if draft.delay_ms or draft.at_ms:
            found.update(f"later {draft.delay_ms} {draft.at_ms} {draft.hold}\n".encode())
        found.update(body)
    return found.hexdigest()


def post_group(
    database: Database, posts: Sequence[MessagePost], now_ns: int, node: int, chance: random.Random
) -> list[Answer | Exception]:
    """Post in the caller's transaction and return one answer for each post, or why it is rejected: NoQueue,
    InvalidPost, KeyReused or PartitionFull."""
    answers: list[Answer | Exception | None] = [None] * len(posts)
    accepted: list[tuple[int, records.QueueRecord, list[int]]] = []
    known: dict[tuple[str, str], records.QueueRecord | records.NoQueue] = {}
    firsts: dict[tuple[int, str], int] = {}
    again: list[tuple[int, int]] = []
    for n, post in enumerate(posts):
        try:
            queue = _queue(database, post, known)
            # A client that repeats a post after a timeout may meet its own first post in the same group: the database
            # does not know the key yet, so the second takes the answer of the first.
            first = firsts.get((queue.id, post.key), n)
            if first != n:
                again.append((n, first))
            elif post.key and (before := _answered(database, queue, post)) is not None:
                answers[n] = before, True
            else:
                accepted.append((n, queue, _partitions(post, queue, chance)))
                # Only now: a post that is refused does not use its key up.
                if post.key:
                    firsts[queue.id, post.key] = n
        except (records.NoQueue, records.InvalidPost, records.KeyReused) as error:
            answers[n] = error
    _write(database, posts, accepted, answers, now_ns, node)
    for n, first in again:
        answer, same = answers[first], posts[n].digest == posts[first].digest
        # A refusal for lack of room is not remembered under the key: the client may try again later.
        if isinstance(answer, records.PartitionFull):
            answers[n] = answer
        else:
            answers[n] = (answer[0], True) if same and isinstance(answer, tuple) else records.KeyReused(_REUSED)
    return [answer for answer in answers if answer is not None]


def _queue(
    database: Database, post: MessagePost, known: dict[tuple[str, str], records.QueueRecord | records.NoQueue]
) -> records.QueueRecord:
    name = (post.app, post.queue)
    if name not in known:
        try:
            known[name] = queues.find(database, post.app, post.queue)
        except records.NoQueue as error:
            known[name] = error
    found = known[name]
    if isinstance(found, records.NoQueue):
        raise records.NoQueue(post.queue)
    return found


def _answered(database: Database, queue: records.QueueRecord, post: MessagePost) -> list[records.Posted] | None:
    """Return the earlier answer to the same post, or None if this is the first."""
    rows = database.execute("select digest, answer from posted where queue = ? and key = ?", (queue.id, post.key))
    if not rows:
        return None
    if rows[0][0] != post.digest:
        raise records.KeyReused(_REUSED)
    return msgspec.json.decode(rows[0][1], type=list[records.Posted])


def _partitions(post: MessagePost, queue: records.QueueRecord, chance: random.Random) -> list[int]:
    """Return the partition of each draft. Raise InvalidPost that names every draft with a partition or priority that
    the queue lacks."""
    found, wrong = list[int](), dict[str, str]()
    strands = queue.partitions // queue.priorities
    for n, draft in enumerate(post.drafts):
        if draft.partition is not None:
            if not 1 <= draft.partition <= queue.partitions:
                wrong[f"{n}.partition"] = f"the queue has partitions 1 to {queue.partitions}, not {draft.partition}"
            found.append(draft.partition)
            continue
        try:
            priority = priority_named(draft.priority, queue.priorities)
        except ValueError as error:
            wrong[f"{n}.priority"] = str(error)
            continue
        strand = partition_of_key(draft.key, strands) if draft.key else chance.randrange(strands) + 1
        found.append(partition_of(strand, priority, queue.priorities))
    if wrong:
        raise records.InvalidPost(wrong)
    return found


def _write(
    database: Database,
    posts: Sequence[MessagePost],
    accepted: list[tuple[int, records.QueueRecord, list[int]]],
    answers: list[Answer | Exception | None],
    now_ns: int,
    node: int,
) -> None:
    counts = Counter((queue.id, partition) for _, queue, partitions in accepted for partition in partitions)
    now_ticks, now_ms = ticks_of_unix_ns(now_ns), now_ns // 1_000_000
    # Rows are locked in one order, so servers never wait for each other in a circle. Ticks of posts that are refused
    # below stay unused; gaps do no harm.
    ticks = {
        queue_partition: queues.reserve(database, queue_partition, count, now_ticks)
        for queue_partition, count in sorted(counts.items())
    }
    room = PartitionRoom(database, {(queue.id, partition): queue for _, queue, some in accepted for partition in some})
    aside = later.waiting(database, ticks, now_ms)
    rows: list[Row] = []
    key_rows: list[Row] = []
    announced: set[str] = set()
    for n, queue, partitions in accepted:
        post, posted = posts[n], []
        # A post is stored completely or not at all, so room is checked for all of its messages before the first.
        if (full := room.take(queue, partitions, post.drafts)) is not None:
            answers[n] = full
            continue
        for draft, partition in zip(post.drafts, partitions, strict=True):
            database.growth.add((queue.id, partition), 1, draft.size_bytes)
            at = ticks[queue.id, partition]
            ticks[queue.id, partition] = at + 1
            id = queue.id_of(partition, at, node)
            if due_ms := aside.take((queue.id, partition), at, id, draft):
                posted.append(records.Posted(id, unix_text(at), partition, later.seconds(due_ms)))
                continue
            rows.append((queue.id, partition, at, id, draft.body, now_ms + queue.lifetime_s(draft.ttl_s) * 1000))
            posted.append(records.Posted(id, unix_text(at), partition))
            announced.add(f"{post.app}\n{post.queue}\n{partition}")
        if post.key:
            answer = msgspec.json.encode(posted).decode()
            key_rows.append((queue.id, post.key, post.digest, answer, now_ms + records.KEYS_MAX_S * 1000))
            database.growth.add_extra(queue.id, 1, len(post.key.encode()) + len(answer))
        answers[n] = posted, False
    if rows:
        database.insert("message", "queue, partition, ticks, id, body, expires_ms", rows)
    aside.write(database)
    room.drop(database)
    if key_rows:
        database.insert("posted", "queue, key, digest, answer, expires_ms", key_rows)
    for payload in announced:
        database.notify(payload)


class Overloaded(HeadgateError, OSError):
    """Report that the database receives more than it can handle; try again later."""


@dataclass(slots=True, eq=False)
class Write:
    """Hold one write, and the caller that waits for it."""

    work: MessagePost | Callable[[Database], Any]  # any answer that its caller expects
    done: asyncio.Future[Any]
    alone: bool = False
    """Whether the write needs a transaction of its own."""
    written_chars: int = 0
    """Characters of bodies that a function writes."""
    written_messages: int = 1

    @property
    def messages(self) -> int:
        """Return the number of messages that are written."""
        return len(self.work.drafts) if isinstance(self.work, MessagePost) else self.written_messages

    @property
    def chars(self) -> int:
        """Return the number of characters in their bodies."""
        if isinstance(self.work, MessagePost):
            return sum(len(draft.body) for draft in self.work.drafts)
        return self.written_chars


class GroupLine:
    """Group writes so that no application waits for more than one group of the others."""

    def __init__(self) -> None:
        self._of: dict[str, deque[Write]] = {}
        """Application -> its writes that wait; the first application is the next in turn."""
        self._chars: dict[str, int] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, app: str, write: Write) -> None:
        """Append a write to the application's line. Raise Overloaded, or PartitionFull if the application has too
        much waiting."""
        if self._count >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} writes are already waiting")
        waiting, chars = self._of.get(app, ()), self._chars.get(app, 0)
        # Upkeep has no application and is limited only by WAITING_MAX. A single write of any size is accepted if
        # nothing of its application waits; otherwise it could never be written.
        if app and (len(waiting) >= EACH_MAX or (waiting and chars + write.chars > EACH_MAX_CHARS)):
            raise records.PartitionFull(f"{len(waiting)} requests of application {app} are already waiting", AGAIN_S)
        self._of.setdefault(app, deque()).append(write)
        self._chars[app] = chars + write.chars
        self._count += 1

    def group(self) -> list[Write]:
        """Return the next group: one write of each application in turn, while there is room."""
        found, messages, chars = list[Write](), 0, 0
        while self._of and len(found) < GROUP_MAX:
            app, waiting = next(iter(self._of.items()))
            one = waiting[0]
            # The first write of a group is always taken, however large: it would fit into no later group either.
            full = messages + one.messages > GROUP_MAX_MESSAGES or chars + one.chars > GROUP_MAX_CHARS
            if found and (full or one.alone):
                break
            found.append(waiting.popleft())
            messages, chars = messages + one.messages, chars + one.chars
            self._chars[app] -= one.chars
            self._count -= 1
            # Dictionaries keep the order of insertion: removed and added again, the application is behind all others.
            del self._of[app]
            if waiting:
                self._of[app] = waiting
            else:
                del self._chars[app]
            if one.alone:
                break
        return found
