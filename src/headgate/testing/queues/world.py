"""Hold a world of messages without a server, and check its invariants."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.map.workers import Application
from headgate.ports.messages import MessageNews, NewMessage, PartitionBacklog, QueueGone, SourceDown
from headgate.queueing import ids
from headgate.queueing.message import DeadLetter, Message, dead_letter
from headgate.queueing.partitions import DEAD_LETTERS, QueuePartition
from headgate.queueing.policy import Policy
from headgate.queueing.progress import UNSURE_MORE, Progress, position
from headgate.store.memory import MemoryBackend
from headgate.store.types import EntryChanged, EntryGone
from headgate.testing.sim.worlds import InvariantBroken

BEGINNING_TICKS = ids.ticks_of_unix_ns(10**18) >> 32 << 32
"""Clock value whose ids are in text order for the next seven minutes."""
LATENCY_S = 0.1
"""Time within which a worker of a world without delays notices a message and examines it."""
SHARE = 5
"""One message in this many may be a late one of a lower priority."""
SPARE = 2
"""Number of messages beyond `SHARE` that may begin before a late one, while it is searched for."""


@dataclass(slots=True)
class StrandOracle:
    """Check queues with priorities. Partitions 1 to `priorities` form one strand, the next as many another."""

    priorities: int
    patience_s: float
    strict: bool
    """Whether nothing is slow, so that the order of messages is checked, too, and not only that one worker has a
    strand.
    """
    must: Callable[[bool, str], None]
    owner: Callable[[QueuePartition], str | None]
    taken_s: Mapping[QueuePartition, float]
    """Partition -> time at which its owner took it."""
    waiting_since: Callable[[QueuePartition], float | None]
    """Returns the time at which the first message of a partition was posted; None: it is empty, or a message of it
    runs."""
    overtaken: int = 0
    """Number of late messages that overtook one of a higher priority; a run without any tests nothing."""
    _running: dict[QueuePartition, str] = field(default_factory=dict)
    _in_turn: dict[tuple[QueuePartition, str], int] = field(default_factory=lambda: defaultdict(int))
    """Strand and owner -> messages begun since one was out of turn."""
    _before_late: dict[tuple[QueuePartition, str], int] = field(default_factory=lambda: defaultdict(int))
    """Strand and owner -> messages begun in a row while an older one of a lower priority was late."""

    def begins(self, partition: QueuePartition, id: str, posted_s: float, now_s: float) -> None:
        """Record that a job receives a message of this partition."""
        head, owner = self._head(partition), self.owner(partition) or ""
        strand = [QueuePartition(head.queue, head.number + n) for n in range(self.priorities)]
        self.must(head not in self._running, f"{id} of {partition} is begun alongside {self._running.get(head)}")
        self._running[head] = id
        others = {self.owner(one) for one in strand} - {None, owner}
        self.must(not owner or not others, f"{partition} is {owner}'s, others of its strand are of {others}")
        if not self.strict or not owner:
            return
        # A message or partition that is new may not have been seen yet, so its order is not checked.
        settled = now_s - LATENCY_S
        since = {
            one: since
            for one in strand
            if one != partition and self.owner(one) == owner and self.taken_s.get(one, now_s) < settled
            and (since := self.waiting_since(one)) is not None and since < settled
        }  # fmt: skip
        higher = [one for one in since if one < partition]
        late = [one for one in since if one > partition and since[one] < settled - self.patience_s]
        turns = head, owner
        if higher:
            self.overtaken += 1
            waited_s = now_s - posted_s
            self.must(
                waited_s >= self.patience_s, f"{id} of {partition} waited {waited_s} s, and comes before {higher}"
            )
            enough = self._in_turn[turns] >= SHARE - 1
            self.must(enough, f"{id} of {partition} comes before {higher} after {self._in_turn[turns]} others")
            self._in_turn[turns] = 0
        else:
            self._in_turn[turns] += 1
        passed = any(since[one] < posted_s for one in late)
        self._before_late[turns] = self._before_late[turns] + 1 if passed else 0
        self.must(self._before_late[turns] < SHARE + SPARE, f"{id} of {partition} is begun, and {late} wait forever")

    def ends(self, partition: QueuePartition) -> None:
        """Record that the job has ended."""
        self._running.pop(self._head(partition), None)

    def _head(self, partition: QueuePartition) -> QueuePartition:
        """Return the first partition of its strand."""
        return QueuePartition(partition.queue, partition.number - (partition.number - 1) % self.priorities)


def now_ms() -> int:
    """Return the time in this world, in milliseconds since 1970."""
    elapsed_ms = int(asyncio.get_running_loop().time() * 1000)
    return (BEGINNING_TICKS - ids.UNIX_EPOCH_TICKS) // 10_000 + elapsed_ms


def begun_max(policy: Policy) -> int:
    """Return how often a message may be started: one limit is reached, the others are nearly reached, and its first
    run, as part of a page, was not recorded."""
    counted = policy.attempts + policy.deaths_max + UNSURE_MORE + policy.losses + policy.departures
    return counted - 3 + 1


@dataclass(slots=True)
class QueueWorld:
    """Hold the truth that outlives every process: what was posted, run and recorded."""

    chance: random.Random
    app: Application
    backend: MemoryBackend
    policy: Policy
    priorities: int = 1
    """Number of priorities of each queue."""
    messages: dict[QueuePartition, list[Message]] = field(default_factory=dict)
    poison: set[str] = field(default_factory=set)
    """Ids of messages whose jobs end the process."""
    failing: dict[str, int] = field(default_factory=dict)
    """Id -> number of times that its job fails."""
    begun: Counter[str] = field(default_factory=Counter)
    raised: Counter[str] = field(default_factory=Counter)
    away_until_s: float = 0.0
    """Time until which the store is unreachable."""
    succeeded: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    running: dict[QueuePartition, str] = field(default_factory=dict)
    """Partition -> the worker that runs one of its messages."""
    furthest: dict[QueuePartition, ids.Position] = field(default_factory=dict)
    """Partition -> position of the latest message whose first attempt has begun."""
    listeners: list[asyncio.Event] = field(default_factory=list)
    announced: set[QueuePartition] = field(default_factory=set)
    taken_s: dict[QueuePartition, float] = field(default_factory=dict)
    """Partition -> time at which a worker last took it."""
    posted_s: dict[str, float] = field(default_factory=dict)
    strands: StrandOracle | None = None
    """Checks the order of strands, where queues have priorities; else None."""
    repeated: int = 0
    broken: InvariantBroken | None = None
    _ticks: int = BEGINNING_TICKS

    def create(self, partition: QueuePartition) -> None:
        self.messages[partition] = []
        self._tell()

    def post(self, partition: QueuePartition) -> Message:
        elapsed = int(asyncio.get_running_loop().time() * ids.TICKS_A_SECOND)
        # Ids must rise within a partition, also for messages of the same moment.
        self._ticks = max(self._ticks + self.chance.randrange(1, 100), BEGINNING_TICKS + elapsed)
        id = ids.make_id(self._ticks, 0, 1)
        message = Message(id, f"body {id}", partition.number, ids.unix_text(self._ticks), partition.queue)
        self.messages[partition].append(message)
        self.posted_s[id] = asyncio.get_running_loop().time()
        self._tell()
        return message

    def waiting_since(self, partition: QueuePartition) -> float | None:
        """Return when the first message of a partition was posted that has not started, or None while a started one is
        not done."""
        first = next((m.message_id for m in self.messages.get(partition, ()) if not self.begun[m.message_id]), None)
        begun = [m.message_id for m in self.messages.get(partition, ()) if self.begun[m.message_id]]
        busy = any(id not in self.succeeded and id not in self.dead for id in begun)
        return None if first is None or busy else self.posted_s[first]

    def _tell(self) -> None:
        for event in self.listeners:
            event.set()

    def must(self, holds: bool, what: str) -> None:
        """Check a condition and remember a failure, because a worker may swallow the exception."""
        if not holds:
            self.broken = self.broken or InvariantBroken(what)
            raise self.broken

    # --- jobs

    def begins(self, worker: str, message: Message) -> None:
        partition, id = QueuePartition(message.queue, message.partition), message.message_id
        if self.strands is not None:
            self.strands.begins(partition, id, self.posted_s[id], asyncio.get_running_loop().time())
        self.begun[id] += 1
        self.must(
            partition not in self.running,
            f"{partition} is run by {self.running.get(partition)} and {worker} at the same time",
        )
        self.running[partition] = worker
        recorded = self.recorded(partition)
        parked = {one.id for one in recorded.parked}
        late = position(recorded) >= ids.position_of(id) and id not in parked
        self.must(not late, f"{partition}: {id} is begun again although recorded as done")
        self.must(self.begun[id] <= begun_max(self.policy), f"{id} was begun {self.begun[id]} times")
        if self.begun[id] > 1:
            self.must(
                message.attempt > 1 or id in self.succeeded,
                f"{partition}: {id} is tried again, but counts as a first attempt",
            )
            self.repeated += id in self.succeeded
        else:
            before = [m for m in self.messages[partition] if m.message_id < id and not self.begun[m.message_id]]
            over = [m.message_id for m in before if m.message_id not in self.dead]
            self.must(not over, f"{partition}: {id} is begun before {over}")

    def buries(self, dead: DeadLetter) -> None:
        """Check that a message that is given up was started as often as its dead letter says, and often enough."""
        id, begun = dead.message_id, self.begun[dead.message_id]
        self.must(begun >= 1, f"{id} is given up but was never started")
        self.must(begun >= dead.attempts, f"{id} has {dead.attempts} attempts on record, but had {begun}")
        failed = dead.attempts - dead.died - dead.lost - dead.left
        most = self.policy
        enough = (
            failed >= most.attempts
            or dead.died >= most.deaths_max
            or dead.died + dead.unsure >= most.deaths_max + UNSURE_MORE
            or dead.lost >= most.losses
            or dead.left >= most.departures
        )
        self.must(enough, f"{id} is given up too early: {dead}")
        self.must(failed <= self.raised[id], f"{id} failed {self.raised[id]} times, not {failed}")
        self.dead.add(id)

    def ends(self, message: Message, *, well: bool) -> None:
        partition = QueuePartition(message.queue, message.partition)
        self.running.pop(partition, None)
        if self.strands is not None:
            self.strands.ends(partition)
        if well:
            self.succeeded.add(message.message_id)

    def here(self, since_s: float) -> bool:
        """Return whether the store has been available for this long."""
        return asyncio.get_running_loop().time() >= self.away_until_s + since_s

    def recorded(self, partition: QueuePartition) -> Progress:
        entry = self.backend.tree.entries.get(self.app.progress(partition).path)
        return self.app.progress(partition).decode(entry.value) if entry is not None else Progress("")

    # --- the store

    async def watch(self) -> None:
        """Check until cancelled that progress never goes back and is written only by the owner."""
        seen: dict[QueuePartition, Progress] = {}
        async for change in self.backend.watch(self.app.queues.path):
            if isinstance(change, EntryGone) or not isinstance(change, EntryChanged):
                continue
            partition = self.app.partition_of(change.entry.path)
            if partition is None:
                continue
            now, before = self.app.progress(partition).decode(change.entry.value), seen.get(partition, Progress(""))
            self.must(position(now) >= position(before), f"{partition}: progress went back from {before} to {now}")
            # Each owner writes under a higher epoch, so that a late write of an earlier one shows.
            self.must(now.epoch >= before.epoch, f"{partition}: written by a former owner, {now} after {before}")
            if now.epoch > before.epoch:
                self.taken_s[partition] = asyncio.get_running_loop().time()
            seen[partition] = now

    def heads(self) -> list[QueuePartition]:
        """Return one partition of each strand."""
        return [partition for partition in self.messages if (partition.number - 1) % self.priorities == 0]

    def owner(self, partition: QueuePartition) -> str | None:
        entry = self.backend.tree.entries.get(self.app.owner(partition).path)
        return entry.value.decode() if entry is not None else None

    # --- the end

    def unfinished(self) -> list[str]:
        every = [
            m.message_id for partition, some in self.messages.items() for m in some if partition.queue != DEAD_LETTERS
        ]
        return [id for id in every if id not in self.succeeded and id not in self.dead]

    def unrecorded(self) -> list[QueuePartition]:
        return [
            partition
            for partition, some in self.messages.items()
            if some and (position(now := self.recorded(partition)) < ids.position_of(some[-1].message_id) or now.parked)
        ]


@dataclass(slots=True)
class SimSource:
    """Implement `ports.messages.MessageSource` over the world, for one process."""

    world: QueueWorld
    flaky: float = 0.02

    async def _step(self) -> None:
        await asyncio.sleep(self.world.chance.random() * 0.01)
        if self.world.chance.random() < self.flaky:
            raise SourceDown("the simulated server does not answer")

    async def partitions(self) -> Sequence[QueuePartition]:
        await self._step()
        return list(self.world.messages)

    async def priorities(self) -> Mapping[str, int]:
        return {
            partition.queue: self.world.priorities for partition in self.world.messages if self.world.priorities > 1
        }

    async def read(self, partition: QueuePartition, after: ids.Position, limit: int) -> Sequence[Message]:
        await self._step()
        if partition not in self.world.messages:
            raise QueueGone(str(partition))
        return [m for m in self.world.messages[partition] if ids.position_of(m.message_id) > after][:limit]

    async def get(self, partition: QueuePartition, id: str) -> Message | None:
        await self._step()
        return next((m for m in self.world.messages[partition] if m.message_id == id), None)

    async def post(self, message: NewMessage) -> None:
        await self._step()
        assert message.queue == DEAD_LETTERS, "jobs of the simulation post nothing"
        found, _ = dead_letter(message.body)
        self.world.buries(found)

    async def create(self, queue: str, partitions: int = 1) -> None:
        await self._step()

    async def backlog(self, partition: QueuePartition, after: ids.Position) -> PartitionBacklog:
        return PartitionBacklog(len(await self.read(partition, after, 1_000)), "", "")

    async def happenings(self) -> AsyncIterator[MessageNews]:
        event = asyncio.Event()
        self.world.listeners.append(event)
        try:
            while True:
                event.clear()
                yield MessageNews(None)
                await event.wait()
        finally:
            self.world.listeners.remove(event)
