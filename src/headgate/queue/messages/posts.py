"""Post a group of messages in one transaction, with ids that grow within each partition even if the clock goes back."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headgate.queue.messages import later, queues
from headgate.queue.messages.bounds import PartitionRoom
from headgate.queue.messages.database import Database, Row
from headgate.queue.messages.records import (
    KEYS_KEPT_S,
    InvalidPost,
    KeyReused,
    MessageDraft,
    NoQueue,
    PartitionFull,
    Posted,
    QueueRecord,
)
from headgate.queueing.ids import ticks_of_unix_ns, unix_text
from headgate.queueing.partitions import partition_of, partition_of_key, priority_named

_REUSED = "this Idempotency-Key was used for other messages"

Answer = tuple[list[Posted], bool]


@dataclass(frozen=True, slots=True)
class MessagePost:
    app: str
    queue: str
    drafts: tuple[MessageDraft, ...]
    key: str = ""
    digest: str = ""
    """Digest of the drafts; empty without a key."""


def digest_of(drafts: Sequence[MessageDraft]) -> str:
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
    accepted: list[tuple[int, QueueRecord, list[int]]] = []
    known: dict[tuple[str, str], QueueRecord | NoQueue] = {}
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
        except (NoQueue, InvalidPost, KeyReused) as error:
            answers[n] = error
    _write(database, posts, accepted, answers, now_ns, node)
    for n, first in again:
        answer, same = answers[first], posts[n].digest == posts[first].digest
        # A refusal for lack of room is not remembered under the key: the client may try again later.
        if isinstance(answer, PartitionFull):
            answers[n] = answer
        else:
            answers[n] = (answer[0], True) if same and isinstance(answer, tuple) else KeyReused(_REUSED)
    return [answer for answer in answers if answer is not None]


def _queue(database: Database, post: MessagePost, known: dict[tuple[str, str], QueueRecord | NoQueue]) -> QueueRecord:
    name = (post.app, post.queue)
    if name not in known:
        try:
            known[name] = queues.find(database, post.app, post.queue)
        except NoQueue as error:
            known[name] = error
    found = known[name]
    if isinstance(found, NoQueue):
        raise NoQueue(post.queue)
    return found


def _answered(database: Database, queue: QueueRecord, post: MessagePost) -> list[Posted] | None:
    """Return the earlier answer to the same post, or None if this is the first."""
    rows = database.execute("select digest, answer from posted where queue = ? and key = ?", (queue.id, post.key))
    if not rows:
        return None
    if rows[0][0] != post.digest:
        raise KeyReused(_REUSED)
    return msgspec.json.decode(rows[0][1], type=list[Posted])


def _partitions(post: MessagePost, queue: QueueRecord, chance: random.Random) -> list[int]:
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
        raise InvalidPost(wrong)
    return found


def _write(
    database: Database,
    posts: Sequence[MessagePost],
    accepted: list[tuple[int, QueueRecord, list[int]]],
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
                posted.append(Posted(id, unix_text(at), partition, later.seconds(due_ms)))
                continue
            rows.append((queue.id, partition, at, id, draft.body, now_ms + queue.kept_s(draft.ttl_s) * 1000))
            posted.append(Posted(id, unix_text(at), partition))
            announced.add(f"{post.app}\n{post.queue}\n{partition}")
        if post.key:
            answer = msgspec.json.encode(posted).decode()
            key_rows.append((queue.id, post.key, post.digest, answer, now_ms + KEYS_KEPT_S * 1000))
        answers[n] = posted, False
    if rows:
        database.insert("message", "queue, partition, ticks, id, body, expires_ms", rows)
    aside.write(database)
    room.drop(database)
    if key_rows:
        database.insert("posted", "queue, key, digest, answer, expires_ms", key_rows)
    for payload in announced:
        database.notify(payload)
