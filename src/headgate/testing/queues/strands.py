"""Check what must never happen where queues have priorities; know nothing of how turns are taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headgate.queueing.partitions import QueuePartition

LATENCY_S = 0.1
"""Time within which a worker of a world without delays notices a message and examines it."""
SHARE = 5
SPARE = 2
"""Number of messages of higher priorities that may begin before a late one beyond its share, while it is searched for.
"""


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
        """Note that a job receives a message of this partition."""
        first = partition.number - (partition.number - 1) % self.priorities
        strand = [QueuePartition(partition.queue, first + n) for n in range(self.priorities)]
        head, owner = strand[0], self.owner(partition) or ""
        self.must(head not in self._running, f"{id} of {partition} is begun beside {self._running.get(head)}")
        self._running[head] = id
        others = {self.owner(one) for one in strand} - {None, owner}
        self.must(not owner or not others, f"{partition} is {owner}'s, others of its strand are of {others}")
        if not self.strict or not owner:
            return
        # What came or was taken a moment ago may not have been seen yet: no order is demanded of it.
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
        self.must(self._before_late[turns] < SHARE + SPARE, f"{id} of {partition} is begun, and {late} wait for ever")

    def ends(self, partition: QueuePartition) -> None:
        """Note that the job has ended."""
        self._running.pop(
            QueuePartition(partition.queue, partition.number - (partition.number - 1) % self.priorities), None
        )
