"""Limit how much is kept: usage is counted where it changes, and bounded for each partition and each application."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headgate.queue.messages.database import ROW_BYTES, Database
from headgate.queue.messages.records import MessageDraft, PartitionFull, QueueRecord

DROP_MAX = 20_000
"""Messages dropped in one transaction; later posts to the same partitions drop the rest."""
FULL_AGAIN_S = 10.0
"""Seconds after which a post that was refused because there is no room may be tried again."""
DEAD_ROOM = 2
"""Dead letters are accepted up to this multiple of an application's limits: a full application could otherwise not give
up what fills it, and without a limit their queue would hold any number of messages."""
ANSWER_BYTES = 120
"""Bytes for each message of the answer that is stored under an Idempotency-Key."""
KNOWN_S = 0.5
"""Seconds for which the usage of an application, once read from the database, counts as current."""
_PLACE = "queue = ? and partition = ?"


@dataclass(frozen=True, slots=True)
class ApplicationLimits:
    """Limit each application; 0 means no limit."""

    messages_max: int = 0
    bytes_max: int = 0
    """Bytes of everything that is kept, with ROW_BYTES for each row."""
    rate_max: int = 0
    """Messages that may be posted in a second."""
    queues_max: int = 0
    partitions_max: int = 0
    """Partitions of all queues."""


UNLIMITED = ApplicationLimits()


class PartitionRoom:
    """Check the room in the partitions that one transaction posts to and whose rows it has locked."""

    def __init__(self, database: Database, partitions: Mapping[tuple[int, int], QueueRecord]) -> None:
        self._bounded = {
            queue_partition: queue
            for queue_partition, queue in partitions.items()
            if queue.messages_max or queue.bytes_max
        }
        self._usage: dict[tuple[int, int], tuple[int, int]] = {}
        for queue_partition in self._bounded:
            found = database.execute(f"select messages, bytes from kept where {_PLACE}", queue_partition)
            self._usage[queue_partition] = found[0] if found else (0, 0)

    def take(
        self, queue: QueueRecord, partitions: Sequence[int], drafts: Sequence[MessageDraft]
    ) -> PartitionFull | None:
        """Make room for all of these messages; return None, or why there is no room for all of them."""
        then = dict[tuple[int, int], tuple[int, int]]()
        for partition, draft in zip(partitions, drafts, strict=True):
            queue_partition = queue.id, partition
            if queue_partition in self._bounded:
                messages, size = then.get(queue_partition) or self._usage[queue_partition]
                then[queue_partition] = messages + 1, size + draft.size_bytes
        # With `drop` the messages are accepted now, and `drop` deletes the oldest once they are written.
        for (_, partition), (messages, size) in then.items():
            over = queue.messages_max and messages > queue.messages_max, queue.bytes_max and size > queue.bytes_max
            if any(over) and queue.full == "refuse":
                what = f"{queue.messages_max} messages" if over[0] else f"{queue.bytes_max} bytes"
                return PartitionFull(
                    f"partition {partition} of {queue.name} is full: its limit is {what}", FULL_AGAIN_S
                )
        self._usage |= then
        return None

    def drop(self, database: Database) -> None:
        """Delete the oldest messages of partitions that hold too much, where their queues allow that."""
        room = DROP_MAX
        for queue_partition, queue in sorted(self._bounded.items(), key=lambda one: one[0]):
            messages, size = self._usage[queue_partition]
            over = messages - queue.messages_max if queue.messages_max else 0
            over_bytes = size - queue.bytes_max if queue.bytes_max else 0
            if over <= 0 and over_bytes <= 0:
                continue
            # How many of the oldest messages make up the bytes is known only after looking at their sizes.
            sql = f"select ticks, id, octet_length(body) from message where {_PLACE} order by ticks, id limit ?"
            most = room if over_bytes > 0 else min(over, room)
            for ticks, id, length in database.execute(sql, (*queue_partition, most)):
                if over <= 0 and over_bytes <= 0:
                    break
                database.execute(
                    f"delete from message where {_PLACE} and ticks = ? and id = ?", (*queue_partition, ticks, id)
                )
                database.growth.add(queue_partition, -1, -length)
                over, over_bytes, room = over - 1, over_bytes - length, room - 1


@dataclass(slots=True)
class _Seen:
    """Hold the usage of one application."""

    messages: int
    size_bytes: int
    at_s: float


@dataclass(slots=True)
class ApplicationUsage:
    """Count what applications keep and post, as one server sees it; with several servers, slightly more may get in."""

    limits: ApplicationLimits
    now_s: Callable[[], float]
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _pending: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Application -> messages and bytes that were accepted and are not written yet."""
    _rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Application -> number of messages it may post in one burst, and the time at which that was computed."""

    def stale(self, app: str) -> bool:
        """Return whether the usage must be read from the database again."""
        if not self.limits.messages_max and not self.limits.bytes_max:
            return False
        return app not in self._seen or self.now_s() - self._seen[app].at_s > KNOWN_S

    def saw(self, app: str, messages: int, size_bytes: int) -> None:
        """Record the usage in the database, which excludes pending writes."""
        # A write that is committed while the usage is read may count twice, or not at all, until it is read again.
        more = self._pending.get(app, (0, 0))
        self._seen[app] = _Seen(messages + more[0], size_bytes + more[1], self.now_s())

    @contextmanager
    def taken(self, app: str, messages: int, size_bytes: int, *, dead: bool = False) -> Iterator[None]:
        """Count messages and bytes as pending inside the context. Raise PartitionFull if they are too many or too
        fast. `dead`: they are dead letters, for which a full application has as much room again."""
        if full := self._full(app, messages, size_bytes, DEAD_ROOM if dead else 1):
            raise PartitionFull(full, FULL_AGAIN_S)
        if self.limits.rate_max and not dead:
            self._pace(app, messages)
        if (seen := self._seen.get(app)) is not None:
            seen.messages += messages
            seen.size_bytes += size_bytes
        self._pend(app, messages, size_bytes)
        try:
            yield
        finally:
            # If the write failed, `_seen` is too high until it is read again, after KNOWN_S.
            self._pend(app, -messages, -size_bytes)

    def _pend(self, app: str, messages: int, size_bytes: int) -> None:
        before = self._pending.pop(app, (0, 0))
        if (now := (before[0] + messages, before[1] + size_bytes)) != (0, 0):
            self._pending[app] = now

    def why_full(self, app: str) -> str:
        """Return why the application has no room for dead letters either, or an empty string."""
        return self._full(app, 0, 0, DEAD_ROOM)

    def _full(self, app: str, messages: int, size_bytes: int, times: int) -> str:
        """Return why the application has no room for more, or an empty string."""
        if (seen := self._seen.get(app)) is None:
            return ""
        return _why_full(app, seen.messages + messages, seen.size_bytes + size_bytes, self.limits, times)

    def _pace(self, app: str, count: int) -> None:
        """Limit the rate. One second's quota may be used in one burst; a larger batch must wait until the whole quota
        is available."""
        rate, now_s = self.limits.rate_max, self.now_s()
        left, since_s = self._rates.get(app, (float(rate), now_s))
        left = min(float(rate), left + (now_s - since_s) * rate)
        # A batch above the quota could never be paid in advance: it takes the whole quota and leaves a debt, which
        # later posts wait for.
        wanted = min(count, rate)
        if left < wanted:
            again_s = math.ceil(((wanted - left) / rate) * 1000) / 1000
            raise PartitionFull(f"application {app} posts at most {rate} messages a second", again_s)
        self._rates[app] = left - count, now_s


class ApplicationRoom:
    """Check the room of the applications for which one transaction posts."""

    def __init__(self, database: Database, limits: ApplicationLimits) -> None:
        self._database, self._limits = database, limits
        self._usage: dict[str, tuple[int, int]] = {}

    def take(self, app: str, drafts: Sequence[MessageDraft]) -> str:
        """Count the messages; return why there is no room for them, or an empty string."""
        limits = self._limits
        if not limits.messages_max and not limits.bytes_max:
            return ""
        messages, size = self._usage.get(app) or usage(self._database, app, limits)
        then = messages + len(drafts), size + size_of(drafts)
        full = _why_full(app, *then, limits)
        self._usage[app] = (messages, size) if full else then
        return full


def _why_full(app: str, messages: int, size_bytes: int, limits: ApplicationLimits, times: int = 1) -> str:
    """Return why an application may not keep so much, or an empty string; limits are multiplied by `times`."""
    if limits.messages_max and messages > limits.messages_max * times:
        return f"application {app} is full: its limit is {limits.messages_max} messages"
    if limits.bytes_max and size_bytes > limits.bytes_max * times:
        return f"application {app} is full: its limit is {limits.bytes_max} bytes"
    return ""


def size_of(drafts: Sequence[MessageDraft], key: str = "") -> int:
    """Return the bytes that these messages count, with the answer if they have an Idempotency-Key."""
    size = sum(draft.size_bytes for draft in drafts) + len(drafts) * ROW_BYTES
    return size + ROW_BYTES + len(key) + len(drafts) * ANSWER_BYTES if key else size


def usage(database: Database, app: str, limits: ApplicationLimits) -> tuple[int, int]:
    """Return the number of messages that an application keeps, and the bytes of everything that it keeps."""
    queues = "queue in (select id from queue where app = ?)"
    sql = (
        f"select coalesce(sum(messages), 0), coalesce(sum(bytes), 0) from kept where {queues}"
        f" union all select 0, coalesce(sum(bytes), 0) from extra where {queues}"
        " union all select 0, coalesce(sum(bytes), 0) from remains where app = ?"
    )
    (messages, size), (_, extra), (_, remains) = database.execute(sql, (app, app, app))
    # A full application that removes a queue has room immediately, before its messages are deleted; one that keeps
    # filling and removing queues has not.
    left = max(int(remains) - limits.bytes_max, 0)
    return int(messages), int(size) + int(messages) * ROW_BYTES + int(extra) + left
