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

from collections.abc import Iterable
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

    def recount(self, path: str, count: int) -> None:
        """Record a counter as read. If other processes changed it, forget what depended on it."""
        if path in self.counters and self.counters[path] != count:
            self._doubt(path)
        self.counters[path] = count

    def counted(self, path: str, count: int) -> None:
        """Record a counter as written by this process."""
        before = self.counters.get(path)
        # Somebody else counted in between: nodes of this counter may have been born again without our knowledge.
        if before is None or before + 1 != count:
            self._doubt(path)
        self.counters[path] = count

    def _doubt(self, counter: str) -> None:
        for path in [p for p, fact in self.nodes.items() if fact is not None and birth_path(p) == counter]:
            del self.nodes[path]

    def forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.nodes.pop(path, None)
