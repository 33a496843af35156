"""Remember facts about nodes, so that most commits take one request: a multi that checks the facts, or else fails and
writes nothing.

ZooKeeper can check how often a node's data was written, not that it is still the same node.  Further checks prove that
it was not deleted and created again:

- The deletion of an entry leaves a node without data in its place for SWEEP_S.  A commit that creates an entry where
  such a node exists also writes the counter `birth_path` of the place; a commit that checks a version checks that
  counter, too.  A fact is used for AGE_MAX_S, well below SWEEP_S, or for as long as a watch confirms it.
- An entry under a lease disappears with the lease and leaves no trace: a commit that checks its version also checks
  that `lease_path` exists.
- A numbered name is never used again after its deletion: no other child of that parent gets it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from headgate.store.zookeeper.nodes import birth_path
from headgate.store.zookeeper.wire.jute import Stat, ZooKeeperNodeRead

AGE_MAX_S = 240.0
SWEEP_S = 600.0
NODES_MAX = 50_000


@dataclass(frozen=True, slots=True)
class Fact:
    """Represent a node as it was at `at_s`."""

    stat: Stat
    entry: bool
    """Whether the node has data, which makes it an entry."""
    at_s: float


@dataclass(slots=True)
class Facts:
    nodes: dict[str, Fact | None] = field(default_factory=dict)
    """Path -> fact; None if the node did not exist."""
    counters: dict[str, int] = field(default_factory=dict)
    """Path of a birth counter -> number of times that it was written."""
    introduced: set[int] = field(default_factory=set)
    """Sessions whose `lease_path` exists."""

    def know(self, path: str, found: ZooKeeperNodeRead | None, at_s: float) -> None:
        if len(self.nodes) >= NODES_MAX and path not in self.nodes:
            # A forgotten fact costs one read. Dropping a quarter at a time keeps the average cost of a new fact low.
            for old in list(self.nodes)[: NODES_MAX // 4]:
                del self.nodes[old]
        self.nodes[path] = None if found is None else Fact(found.stat, found.value is not None, at_s)

    def recount(self, counts: Mapping[str, int]) -> None:
        """Record counters as read. Of those that other processes changed, forget what depended on them."""
        self._doubt({path for path, count in counts.items() if self.counters.get(path, count) != count})
        self.counters.update(counts)

    def counted(self, counts: Mapping[str, int]) -> None:
        """Record counters as written by this process."""
        # Somebody else counted in between: nodes of this counter may have been born again without our knowledge.
        self._doubt({path for path, count in counts.items() if self.counters.get(path) != count - 1})
        self.counters.update(counts)

    def _doubt(self, counters: Collection[str]) -> None:
        """Forget the nodes of these counters, in one pass: all of them may change while a process is cut off."""
        if counters:
            self.forget([p for p, fact in self.nodes.items() if fact is not None and birth_path(p) in counters])

    def forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.nodes.pop(path, None)
