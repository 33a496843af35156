"""Watch message queues, whose messages start pipelines, and post reports to queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from headgate.base.texts import visible
from headgate.config.model import TriggerFilter
from headgate.gate.state.change import EventKind, Occasion
from headgate.gate.state.returns import Unfit, bounded, parsed
from headgate.map.outbox import OutboxMessage
from headgate.ports.messages import MessageNews, NoStream, PostRefused, QueueGone, SourceDown
from headgate.ports.occasions import NextOccasion, OccasionPartition, SourceUnavailable
from headgate.ports.reporter import ReporterAway, ReportRefused
from headgate.queueing.ids import START, Position, position_of
from headgate.queueing.message import Message
from headgate.queueing.partitions import QueuePartition
from headgate.services.publisher import ServerPosts

BODY_MAX_BYTES = 16_000
"""Size limit of a message that starts an item, because every build gets it."""
TRIGGER_MAX_BYTES = 64_000
"""Size limit of the `zuul.trigger` variable."""


class QueueSource(Protocol):
    """Declare the used part of `ports.messages.MessageSource`."""

    async def partitions(self) -> Sequence[QueuePartition]: ...
    async def read(self, partition: QueuePartition, after: Position, limit: int) -> Sequence[Message]: ...
    async def create(self, queue: str, partitions: int = 1) -> None: ...
    def happenings(self) -> AsyncIterator[MessageNews]: ...


class WatchedQueues:
    """Watch the queues of one application; see `ports.occasions.OccasionSource`. Unread messages stay on the server for
    while it stores them."""

    of_a_partition_max = 10

    def __init__(self, name: str, source: QueueSource, partitions: int) -> None:
        """Watch the queues of a source; queues that are created get this many `partitions`."""
        self.name = name
        self._source, self._partitions = source, partitions
        self._known: dict[str, int] = {}
        """Queue -> number of its partitions, until queues are reported to have changed."""

    async def partitions(self, trigger: TriggerFilter) -> Sequence[OccasionPartition]:
        """Return the partitions of the queue, which is created if necessary."""
        queue = str(trigger.more["queue"])
        if queue not in self._known:
            try:
                self._known.update(Counter(one.queue for one in await self._source.partitions()))
                if queue not in self._known:
                    await self._source.create(queue, self._partitions)
                    self._known[queue] = self._partitions
            except (SourceDown, QueueGone, PostRefused) as error:
                raise SourceUnavailable(str(error)) from error
        return [OccasionPartition(queue, str(n + 1)) for n in range(self._known[queue])]

    async def start(self, trigger: TriggerFilter, partition: OccasionPartition) -> str:
        """Return the position of the first message: as with new workers, all existing messages are read."""
        return ""

    async def after(
        self, trigger: TriggerFilter, partition: OccasionPartition, position: str, limit: int
    ) -> Sequence[NextOccasion]:
        behind = position_of(position) if position else START
        try:
            found = await self._source.read(QueuePartition(partition.source, int(partition.name)), behind, limit)
        # A deleted queue has no messages; an error would be reported as a problem of the entire connection.
        except QueueGone:
            return []
        except (SourceDown, PostRefused) as error:
            raise SourceUnavailable(str(error)) from error
        return [NextOccasion(one.message_id, EventKind.POSTED, occasion(self.name, partition, one)) for one in found]

    async def stirs(self) -> AsyncIterator[Collection[OccasionPartition] | None]:
        # Queues may have been created or deleted before the stream started.
        self._known.clear()
        yield None
        try:
            async for happening in self._source.happenings():
                of = happening.partitions
                if of is None:
                    self._known.clear()
                yield None if of is None else [OccasionPartition(one.queue, str(one.number)) for one in of]
        except NoStream:
            # Some servers have no stream; the runner then polls at fixed intervals.
            return
        except SourceDown as error:
            raise SourceUnavailable(str(error)) from error


def occasion(connection: str, partition: OccasionPartition, message: Message) -> Occasion:
    """Return the message as an occasion of the gate; a message that is too large gets a problem."""
    document = {
        "driver": "queue",
        "connection": connection,
        "queue": partition.source,
        "partition": int(partition.name),
        "id": message.message_id,
        "posted": message.timestamp,
    }
    name = visible(f"{partition.source}:{partition.name}:{message.message_id}")
    found = Occasion(connection, partition.source, partition.name, message.message_id, name)
    size_bytes = len(message.body.encode(errors="replace"))
    if size_bytes > BODY_MAX_BYTES:
        why = f"the message has {size_bytes} bytes; one that starts a pipeline may have at most {BODY_MAX_BYTES}"
        return msgspec.structs.replace(found, body=_json(document), problem=why)
    body = _json({**document, "body": message.body, **_data(message.body)})
    if len(body) > TRIGGER_MAX_BYTES:
        why = f"the message has {len(body)} bytes in JSON; at most {TRIGGER_MAX_BYTES} can be passed to jobs"
        return msgspec.structs.replace(found, body=_json(document), problem=why)
    return msgspec.structs.replace(found, body=body)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _data(body: str) -> dict[str, object]:
    """Return the data in the body, if it is JSON within the limits for returned data."""
    with suppress(Unfit):
        value = parsed(body.encode())
        bounded(value)
        return {"data": value}
    return {}


class QueueReporter:
    """Implement `ports.reporter.Reporter`. A message is posted once, even if its report is repeated."""

    def __init__(self, posts: ServerPosts) -> None:
        self._posts = posts

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Post the report. Raise ReporterAway or ReportRefused."""
        report, of = outgoing.report, outgoing.report.answers
        # Answers to messages stay in the order of their source; all other reports in that of their project.
        whose = f"{of.source}/{of.ordering_key}" if of is not None else report.project
        body = (whose, report.document().decode())
        try:
            await self._posts.post(outgoing.queue, [body], f"report-{outgoing.key}", outgoing.ttl_s)
        except (SourceDown, QueueGone) as down:
            raise ReporterAway(f"the message server: {down}") from down
        except PostRefused as refused:
            raise ReportRefused(f"the queue {outgoing.queue} rejects it: {refused}") from refused
