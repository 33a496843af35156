"""Test delayed messages under random schedules: two servers on real SQL, a clock that also goes back, and an oracle.

The model does not depend on how messages are stored: it computes when each is due and which one it follows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from headgate.queue.messages import later, queues
from headgate.queue.messages.database import SqliteDatabase
from headgate.queue.messages.posts import MessagePost, post_group
from headgate.queue.messages.records import MessageDraft, QueueRecord
from headgate.queue.messages.storage import read
from headgate.queueing.ids import START, Position, position_of
from headgate.testing.sim.worlds import InvariantBroken

APP = "app"
STEPS = 60
PARTITIONS = (("a", 1), ("a", 2), ("b", 1))
DELAYS_MS = (0, 0, 1, 50, 50, 200, 1_000)


@dataclass(slots=True)
class DelayModelMessage:
    """Represent a message of the model."""

    body: str
    own_ms: int
    """Due time of the message alone, without regard to earlier messages that hold it up."""
    posted: int
    """Step in which it was posted."""
    prompt: bool
    """Whether it was posted without a delay."""
    holds: bool
    """Whether messages posted after it wait for it."""
    due_ms: int = 0
    """Due time that takes into account the messages that it waits for."""
    key: str = ""
    """Key by which it can be withdrawn; empty: it cannot."""
    came: int = -1
    """Step in which it was delivered; -1: not yet."""
    withdrawn: bool = False

    @property
    def waits(self) -> bool:
        return self.came < 0 and not self.withdrawn


@dataclass(slots=True)
class DelaySimulation:
    """Run one seed with `run`, which raises InvariantBroken."""

    seed: int
    directory: Path
    now_ms: int = 1_800_000_000_000
    model: dict[tuple[str, int], list[DelayModelMessage]] = field(
        default_factory=lambda: {partition: [] for partition in PARTITIONS}
    )
    seen: dict[tuple[str, int], list[str]] = field(default_factory=lambda: {partition: [] for partition in PARTITIONS})
    places: dict[tuple[str, int], Position] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, START))
    step: int = 0
    held_up: int = 0
    """Number of messages that another one delayed; a run without any tests nothing."""

    def run(self) -> None:  # noqa: C901 - one step after the other
        chance = random.Random(self.seed)
        # Two connections to one file, as two servers have: nothing may be remembered in only one of them.
        servers = [self._open(), self._open()]
        with servers[0].transaction():
            for name, count in (("a", 2), ("b", 1)):
                queues.create(servers[0], APP, QueueRecord(0, name, count, "user", "strong", "", 0))
        for self.step in range(STEPS):
            n = chance.randrange(2)
            match chance.choices(("post", "pass", "deliver", "read", "restart", "withdraw"), (8, 6, 6, 4, 1, 1))[0]:
                case "post":
                    self._post(servers[n], chance)
                # Time goes back now and then, as after an adjustment of the clock.
                case "pass":
                    self.now_ms += chance.choice((-30, 0, 1, 20, 100, 400))
                case "deliver":
                    self._deliver(servers[n])
                case "read":
                    self._read(servers[n], chance.choice(PARTITIONS))
                case "restart":
                    servers[n].close()
                    servers[n] = self._open()
                case "withdraw":
                    self._withdraw(servers[n], chance)
        self.now_ms += 10_000
        self.step = STEPS
        while (due_ms := later.next_ms(servers[0])) is not None:
            _must(due_ms <= self.now_ms, f"the server waits until {due_ms}, although nothing is left to wait for")
            self._deliver(servers[0])
        for partition in PARTITIONS:
            self._read(servers[0], partition)
            self._judge(partition)
        counted = "select sum(messages), sum(bytes) from kept", "select count(*), sum(octet_length(body)) from message"
        recorded, stored = (servers[0].execute(sql)[0] for sql in counted)
        _must(recorded == stored, f"{recorded} messages and bytes are counted, but {stored} are stored")
        for server in servers:
            server.close()

    def _open(self) -> SqliteDatabase:
        return SqliteDatabase(self.directory / f"{self.seed}.sqlite")

    def _post(self, server: SqliteDatabase, chance: random.Random) -> None:
        """Post some messages in one transaction, to some partitions."""
        posts, known = list[MessagePost](), list[tuple[tuple[str, int], DelayModelMessage]]()
        for _ in range(chance.randrange(1, 4)):
            partition = chance.choice(PARTITIONS)
            delay_ms = chance.choice(DELAYS_MS)
            absolute = bool(delay_ms) and chance.random() < 0.3
            hold = bool(delay_ms) and chance.random() < 0.3
            body = f"{partition[0]}{partition[1]} {len(self.model[partition])}"
            one = DelayModelMessage(body, self.now_ms + delay_ms, self.step, not delay_ms, hold)
            self._behind(partition, one)
            self.model[partition].append(one)
            known.append((partition, one))
            at_ms = self.now_ms + delay_ms if absolute else 0
            draft = MessageDraft(one.body, 60, partition[1], "", 0 if absolute else delay_ms, at_ms, hold)
            posts.append(MessagePost(APP, partition[0], (draft,)))
        with server.transaction():
            answers = post_group(server, posts, self.now_ms * 1_000_000, 7, chance)
        for answer, (_, one) in zip(answers, known, strict=True):
            assert not isinstance(answer, Exception), answer
            (posted,) = answer[0]
            one.key = posted.key
            _must(posted.deliver_at == (later.seconds(one.due_ms) if one.waits else ""), f"{one.body} {posted}")

    def _behind(self, partition: tuple[str, int], one: DelayModelMessage) -> None:
        """Determine what a message has to wait for, as the documentation says."""
        holders = [other.due_ms for other in self.model[partition] if other.holds and other.waits]
        one.due_ms = max(one.own_ms, *holders) if holders else one.own_ms
        if holders and one.own_ms <= max(*holders, self.now_ms):
            one.holds, self.held_up = True, self.held_up + 1
        elif one.own_ms <= self.now_ms:
            one.came = self.step

    def _deliver(self, server: SqliteDatabase) -> None:
        with server.transaction():
            later.deliver(server, self.now_ms * 1_000_000, 7)
        for partition in PARTITIONS:
            queue = queues.find(server, APP, partition[0])
            stored = {one.body for one in read(server, queue.id, partition[1], START, 1_000, False, self.now_ms)}
            for one in self.model[partition]:
                if one.body in stored and one.came < 0:
                    _must(one.due_ms <= self.now_ms, f"{one.body} arrives {one.due_ms - self.now_ms} ms too early")
                    _must(not one.withdrawn, f"{one.body} arrives although it was withdrawn")
                    one.came = self.step

    def _withdraw(self, server: SqliteDatabase, chance: random.Random) -> None:
        """Withdraw a message that delays no others, so that the model need not track when it did."""
        partition = chance.choice(PARTITIONS)
        some = [one for one in self.model[partition] if one.waits and not one.holds]
        if some:
            one = chance.choice(some)
            queue = queues.find(server, APP, partition[0])
            with server.transaction():
                count = later.withdraw(server, queue.id, [(partition[1], one.key)], self.now_ms * 1_000_000)
            _must(count == 1, f"{one.body} cannot be withdrawn")
            one.withdrawn = True

    def _read(self, server: SqliteDatabase, partition: tuple[str, int]) -> None:
        """Read on from the last position, as every worker does."""
        queue = queues.find(server, APP, partition[0])
        for one in read(server, queue.id, partition[1], self.places[partition], 1_000, False, self.now_ms):
            if position_of(one.message_id) > self.places[partition]:
                self.seen[partition].append(one.body)
                self.places[partition] = position_of(one.message_id)

    def _judge(self, partition: tuple[str, int]) -> None:
        seen = self.seen[partition]
        wanted = sorted(one.body for one in self.model[partition] if not one.withdrawn)
        _must(sorted(seen) == wanted, f"{partition}: a reader saw {sorted(seen)} instead of {wanted}")
        place = {body: n for n, body in enumerate(seen)}
        remaining = [one for one in self.model[partition] if not one.withdrawn]
        for n, first in enumerate(remaining):
            for one in remaining[n + 1 :]:
                # Only messages that waited at the same time can be compared: what was delivered before the other came
                # is no overtaking.
                together = max(first.posted, one.posted) < min(first.came, one.came)
                if (first.prompt and one.prompt) or (together and first.due_ms <= one.due_ms):
                    _must(place[first.body] < place[one.body], f"{one.body} overtook {first.body}")
                elif together:
                    _must(place[one.body] < place[first.body], f"{first.body} came before {one.body}, due earlier")


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantBroken(what)
