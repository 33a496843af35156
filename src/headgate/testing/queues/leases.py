"""Test leases of queues with priorities under random schedules.

Two servers share real SQL, workers vanish, and an oracle checks every lease.

The model knows when each message was posted, with which priority and key, and which outcomes were reported.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from headgate.queue.messages import leases, outcomes, queues
from headgate.queue.messages.database import SqliteDatabase
from headgate.queue.messages.holders import Failure, Handed, LeaseLost, LeaseMoment, LeaseRequest, MessageLease, Outcome
from headgate.queue.messages.posts import MessagePost, post_group
from headgate.queue.messages.records import MessageDraft, NoQueue, QueueRecord
from headgate.queue.messages.storage import read
from headgate.queueing.ids import START
from headgate.queueing.message import dead_letter
from headgate.queueing.partitions import DEAD_LETTERS
from headgate.testing.sim.worlds import InvariantBroken

APP, QUEUE = "app", "q"
STEPS = 150
STRANDS, PRIORITIES = 2, 3
NAMES = {"high": 1, "": 2, "normal": 2, "low": 3, "1": 1, "2": 2, "3": 3}
LATE_MS, SHARE = 60_000, 5
TTL_MS = 30_000
VANISHED_MAX = 3


@dataclass(slots=True, eq=False)
class LeaseModelMessage:
    """Represent a message of the model."""

    body: str
    priority: int
    strand: int
    posted_ms: int
    ended: bool = False
    """Whether it was completed, or given up."""
    due_ms: int = 0
    """Time of the next attempt after a failure; 0: it has not failed."""
    refused: bool = False
    """Whether it failed and must not be retried."""
    handed: int = 0
    """Number of times that it was handed out."""


@dataclass(slots=True)
class StrandHolder:
    """Represent a worker that has leased a strand."""

    lease: MessageLease
    strand: int
    fetched: tuple[LeaseModelMessage, Handed] | None = None
    """The message that the holder has received and has not answered yet."""
    out_of_turn: bool = False
    """Whether that message overtook one of a higher priority."""


@dataclass(slots=True)
class LeaseSimulation:
    """Run one seed with `run`, which raises InvariantBroken."""

    seed: int
    directory: Path
    now_ms: int = 1_800_000_000_000
    model: list[LeaseModelMessage] = field(default_factory=list)
    holders: dict[int, StrandHolder] = field(default_factory=dict)
    """Strand -> its holder."""
    held_ms: dict[int, int] = field(default_factory=dict)
    """Strand -> time until which it is held."""
    others: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Strand -> number of messages with an outcome since the last late one with an outcome."""
    out_of_turn: int = 0
    """Number of late messages that overtook one of a higher priority; a run without any tests nothing."""
    vanished: int = 0

    def run(self) -> None:
        chance = random.Random(self.seed)
        servers = [SqliteDatabase(self.directory / f"leases-{self.seed}.sqlite") for _ in range(2)]
        for server in servers:
            server.execute("pragma synchronous = off")  # nothing here loses its power
        with servers[0].transaction():
            made = QueueRecord(0, QUEUE, STRANDS * PRIORITIES, "user", "strong", "", 0, priorities=PRIORITIES)
            queues.create(servers[0], APP, made)
        for _ in range(STEPS):
            server = chance.choice(servers)
            match chance.choices(("post", "pass", "take", "work", "vanish", "give back"), (6, 4, 3, 14, 1, 1))[0]:
                case "post":
                    self._post(server, chance)
                case "pass":
                    self.now_ms += chance.choice((0, 1, 500, 5_000, 20_000, 61_000))
                case "take":
                    self._take(server, chance)
                case "work" if self.holders:
                    self._work(server, chance, self.holders[chance.choice(sorted(self.holders))])
                case "vanish" if self.holders:
                    self.holders.pop(chance.choice(sorted(self.holders)))
                    self.vanished += 1
                case "give back" if self.holders:
                    self._give_back(server, chance, self.holders[chance.choice(sorted(self.holders))])
        self._finish(servers[0], chance)
        for server in servers:
            server.close()

    def _moment(self, chance: random.Random) -> LeaseMoment:
        return LeaseMoment(self.now_ms * 1_000_000, 7, chance)

    def _post(self, server: SqliteDatabase, chance: random.Random) -> None:
        for _ in range(chance.randrange(1, 5)):
            name, key = chance.choice(sorted(NAMES)), chance.choice(("", "a", "b", "größe"))
            one = LeaseModelMessage(str(len(self.model)), NAMES[name], 0, self.now_ms)
            post = MessagePost(APP, QUEUE, (MessageDraft(one.body, 86_400, key=key, priority=name),))
            with server.transaction():
                (answer,) = post_group(server, [post], self.now_ms * 1_000_000, 7, chance)
            assert not isinstance(answer, Exception), answer
            partition = answer[0][0].partition
            one.strand = (partition - 1) // PRIORITIES
            _must((partition - 1) % PRIORITIES + 1 == one.priority, f"{name!r} is posted to partition {partition}")
            # Computed again here: clients rely on the strand of a key, which must not change between versions.
            digest = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
            _must(not key or one.strand == digest % STRANDS, f"the key {key!r} is posted to partition {partition}")
            self.model.append(one)

    def _waiting(self, strand: int, priority: int) -> list[LeaseModelMessage]:
        """Return the messages of one partition that may be handed out: due retries, and the first without an
        outcome."""
        those = [one for one in self.model if (one.strand, one.priority) == (strand, priority)]
        fresh = [one for one in those if not one.ended and not one.due_ms][:1]
        return [one for one in those if not one.ended and 0 < one.due_ms <= self.now_ms] + fresh

    def _take(self, server: SqliteDatabase, chance: random.Random) -> None:
        partition = chance.choice((None, None, *range(1, STRANDS * PRIORITIES + 1)))
        wanted = LeaseRequest(APP, QUEUE, "worker", partition=partition, ttl_s=TTL_MS / 1000)
        with server.transaction():
            lease = leases.take(server, wanted, self._moment(chance))
        some = [n for n in range(STRANDS) if partition is None or (partition - 1) // PRIORITIES == n]
        free = [n for n in some if self.held_ms.get(n, 0) <= self.now_ms]
        if lease is None:
            left = [n for n in free if any(self._waiting(n, p) for p in range(1, PRIORITIES + 1))]
            _must(not left, f"nothing is leased, although messages wait in {left}")
            return
        strand = (lease.partition - 1) // PRIORITIES
        _must((lease.partition - 1) % PRIORITIES == 0, f"a lease is of partition {lease.partition}")
        _must(strand in free, f"strand {strand} is leased, but another worker has it or it was not requested")
        self.holders[strand] = StrandHolder(lease, strand)
        self.held_ms[strand] = self.now_ms + TTL_MS

    def _work(self, server: SqliteDatabase, chance: random.Random, holder: StrandHolder) -> None:
        """Fetch, perhaps again; or report the outcome of the fetched message."""
        try:
            with server.transaction():
                # Fetching again without an outcome happens after a lost answer, and must give the same message.
                if holder.fetched is None or chance.random() < 0.2:
                    found = leases.fetch(server, APP, QUEUE, holder.lease.lease, 100, self._moment(chance))
                    self._judge(server, holder, found)
                else:
                    self._tell(server, chance, holder, *holder.fetched)
            _must(self.held_ms[holder.strand] > self.now_ms, "a worker continues after it has lost its lease")
        except LeaseLost:
            _must(self.held_ms[holder.strand] <= self.now_ms, "a lease that still holds is reported as lost")
            del self.holders[holder.strand]

    def _tell(
        self,
        server: SqliteDatabase,
        chance: random.Random,
        holder: StrandHolder,
        known: LeaseModelMessage,
        handed: Handed,
    ) -> None:
        kind = chance.choices(("done", "later", "never"), (16, 3, 1))[0]
        after_s, outcome = chance.choice((0.0, 1.0, 70.0)), Outcome((handed.message_id,), ttl=TTL_MS / 1000)
        if kind != "done":
            failed = Failure(handed.message_id, "why", after_s, kind == "never")
            outcome = Outcome(failed=(failed,), ttl=TTL_MS / 1000, attempts=100)
        outcomes.commit(server, APP, QUEUE, holder.lease.lease, outcome, self._moment(chance))
        known.ended, known.due_ms = kind != "later", self.now_ms + int(after_s * 1000)
        known.refused = kind == "never"
        self.held_ms[holder.strand], holder.fetched = self.now_ms + TTL_MS, None
        # Counted when there is an outcome, and not when a message is handed out: a message of a worker that vanished
        # does not count.
        self.others[holder.strand] = 0 if holder.out_of_turn else self.others[holder.strand] + 1

    def _judge(self, server: SqliteDatabase, holder: StrandHolder, found: list[Handed]) -> None:
        """Check that the message that was handed out is the next one by the documentation."""
        self._bury(server)
        strand = holder.strand
        waiting = {p: some for p in range(1, PRIORITIES + 1) if (some := self._waiting(strand, p))}
        if not found:
            _must(not waiting, f"nothing is handed out, although {waiting} wait")
            return
        _must(len(found) == 1, f"{len(found)} messages of a strand are handed out together")
        known = self.model[int(found[0].body)]
        _must(known in waiting.get(known.priority, ()), f"{known} is handed out, and {waiting} wait")
        higher = [p for p in waiting if p < known.priority]
        late = [p for p in waiting if p > known.priority and all(map(self._is_late, waiting[p]))]
        enough = self.others[strand] >= SHARE - 1
        _must(not higher or (enough and self._is_late(known)), f"{known} comes before {[waiting[p] for p in higher]}")
        _must(bool(higher) or not late or not enough, f"{known} comes, and it is the turn of {late}")
        holder.fetched, holder.out_of_turn = (known, found[0]), bool(higher)
        self.out_of_turn += bool(higher)
        known.handed += 1

    def _is_late(self, one: LeaseModelMessage) -> bool:
        return self.now_ms - one.posted_ms > LATE_MS

    def _bury(self, server: SqliteDatabase) -> None:
        """Check that a message that is given up vanished with its workers often enough or was refused, and that its
        dead letter names its partition."""
        try:
            dead_letters = queues.find(server, APP, DEAD_LETTERS)
        except NoQueue:
            return
        for one in read(server, dead_letters.id, 1, START, 1_000, False, self.now_ms):
            known, body = dead_letter(one.body)
            buried = self.model[int(body)]
            _must(buried.refused or buried.handed >= VANISHED_MAX, f"{buried} is given up")
            partition = buried.strand * PRIORITIES + buried.priority
            _must(known.partition == partition, f"{buried} is reported under partition {known.partition}")
            buried.ended = True

    def _give_back(self, server: SqliteDatabase, chance: random.Random, holder: StrandHolder) -> None:
        try:
            with server.transaction():
                leases.release(server, APP, QUEUE, holder.lease.lease, self._moment(chance))
            self.held_ms[holder.strand] = 0
        except LeaseLost:
            _must(self.held_ms[holder.strand] <= self.now_ms, "a lease that still holds is reported as lost")
        del self.holders[holder.strand]

    def _finish(self, server: SqliteDatabase, chance: random.Random) -> None:
        """Complete everything that was posted, and check that each message is done or given up in the end."""
        # Beyond every lease and every delay of a retry.
        self.now_ms += 100_000
        self.holders.clear()
        for _ in range(20 * len(self.model)):
            if all(one.ended for one in self.model):
                break
            self._take(server, chance)
            for holder in [*self.holders.values()]:
                self._work(server, chance, holder)
            self.now_ms += 5_000
        left = [one for one in self.model if not one.ended]
        _must(not left, f"never done: {left}")


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantBroken(what)
