"""Simulate messages: posters, the server that stores them, receivers of the answers, and the invariants."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from headgate.map.outbox import OutboxMessage
from headgate.map.records import Finished
from headgate.ports.messages import MessageNews, SourceDown
from headgate.ports.reporter import ReporterAway
from headgate.queueing.ids import Position, make_id, position_of, unix_text
from headgate.queueing.message import Message
from headgate.queueing.partitions import QueuePartition
from headgate.services.scheduler.occasions.messages import BODY_MAX_BYTES

QUEUE, PARTITIONS, TICKS = "orders", 2, 10**17
POSTS_MAX, AT_ONCE_MAX, PAUSE_MAX_S = 5, 14, 1.5
AWAY = 0.15
"""Chance that the server does not answer, or not in time."""
# One body that is JSON, and others that break readers: templates, control characters, depth, size, nothing.
BODIES = ('{"n": 1}', "no JSON {{ lookup('env', 'HOME') }}", "\x00\x1b[2J", "[" * 5_000, "x" * (BODY_MAX_BYTES + 1), "")


@dataclass(slots=True)
class SimPosts:
    """Hold the truth: what was posted, what ran, what was answered."""

    posted: dict[QueuePartition, list[Message]] = field(
        default_factory=lambda: {QueuePartition(QUEUE, n + 1): [] for n in range(PARTITIONS)}
    )
    ran: dict[str, list[str]] = field(default_factory=dict)
    """Partition -> ids of messages, in the order in which their builds began."""
    answered: dict[str, OutboxMessage] = field(default_factory=dict)
    """Key -> the message sent under it; sending it again has no effect."""
    listeners: list[asyncio.Event] = field(default_factory=list)

    def post(self, chance: random.Random) -> None:
        """Post any body to any partition."""
        partition = chance.choice(list(self.posted))
        number = sum(map(len, self.posted.values()))
        id = make_id(TICKS + number, number, 7)
        body = chance.choice(BODIES) if chance.random() < 0.5 else BODIES[0]
        self.posted[partition].append(Message(id, body, partition.number, unix_text(TICKS + number), QUEUE))
        for listener in self.listeners:
            listener.set()

    @property
    def ids(self) -> list[str]:
        return [one.message_id for some in self.posted.values() for one in some]

    def unanswered(self, ended: Iterable[Finished]) -> list[str]:
        """Return the messages without an end or without an answer."""
        over = {f.change.occasion.id for f in ended if f.change.occasion is not None}
        answered = {one.report.answers.id for one in self.answered.values() if one.report.answers is not None}
        return [f"message {id}" for id in self.ids if id not in over or id not in answered]

    def wrong(self, ended: Iterable[Finished]) -> str:
        """Return the violated invariant once all is quiet; empty: there is none."""
        items = {(f.change.occasion.id, f.item) for f in ended if f.change.occasion is not None}
        answers = Counter(one.report.answers.id for one in self.answered.values() if one.report.answers is not None)
        for id, count in Counter(id for id, _ in items).items():
            if count != 1:
                return f"message {id} started {count} items"
        if twice := [id for id in self.ids if answers[id] != 1]:
            return f"message {twice[0]} was answered {answers[twice[0]]} times"
        for partition, messages in self.posted.items():
            # A build may be repeated, which is no second run of the message: only its first beginning counts for the
            # order.
            order = list(dict.fromkeys(self.ran.get(str(partition.number), ())))
            if order != sorted(order):
                return f"the messages of {partition} ran in another order than they were posted in"
            good = [one.message_id for one in messages if _can_run(one)]
            if order != good:
                return f"of {partition} {good} were to run, and {order} did"
        return ""


def _can_run(message: Message) -> bool:
    return len(message.body) <= BODY_MAX_BYTES


@dataclass(slots=True)
class Customer:
    """Post, one message or many together."""

    posts: SimPosts
    chance: random.Random

    async def run(self) -> None:
        for _ in range(self.chance.randrange(1, POSTS_MAX + 1)):
            for _ in range(self.chance.randrange(1, AT_ONCE_MAX + 1) if self.chance.random() < 0.3 else 1):
                self.posts.post(self.chance)
            await asyncio.sleep(self.chance.random() * PAUSE_MAX_S)


@dataclass(slots=True)
class SimMessages:
    """Implement the used part of `ports.messages.MessageSource`, for a server that is sometimes away."""

    posts: SimPosts
    chance: random.Random

    async def _request(self) -> None:
        await asyncio.sleep(self.chance.random() * 0.05)
        if self.chance.random() < AWAY:
            raise SourceDown("it does not answer")

    async def partitions(self) -> Sequence[QueuePartition]:
        await self._request()
        return list(self.posts.posted)

    async def read(self, partition: QueuePartition, after: Position, limit: int) -> Sequence[Message]:
        await self._request()
        return [one for one in self.posts.posted[partition] if position_of(one.message_id) > after][:limit]

    async def happenings(self) -> AsyncIterator[MessageNews]:
        """Yield news, but break at random and omit posts."""
        event = asyncio.Event()
        self.posts.listeners.append(event)
        try:
            yield MessageNews(None)
            while self.chance.random() > AWAY:
                await event.wait()
                event.clear()
                yield MessageNews(frozenset(self.posts.posted))
        finally:
            self.posts.listeners.remove(event)
        raise SourceDown("the stream broke")

    async def create(self, queue: str, partitions: int = 1) -> None:
        """Do nothing: the queue exists."""


@dataclass(slots=True)
class SimTaker:
    """Implement `ports.reporter.Reporter`: take each answer once, and sometimes fail to confirm it."""

    posts: SimPosts
    chance: random.Random

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Take an answer. Raise ReporterAway."""
        await asyncio.sleep(self.chance.random() * 0.05)
        if self.chance.random() < AWAY:
            raise ReporterAway("it does not answer")
        # The same key is the same answer: a reporter that got no confirmation sends it again.
        self.posts.answered.setdefault(outgoing.key, outgoing)
        if self.chance.random() < AWAY:
            raise ReporterAway("its answer was lost")
