"""Plan a commit as one multi, without I/O.  The multi proves what the plan assumes about nodes, or fails as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.base.errors import HeadgateError
from headgate.store.model import ancestors, inside
from headgate.store.types import NAME_DIGITS, Append, At, Delete, Entry, Op, Put
from headgate.store.zookeeper.nodes import Fact, birth_path, entry_of, lease_path, numbered_path
from headgate.store.zookeeper.wire import jute

_NUMBERED = re.compile(rf"[0-9]{{{NAME_DIGITS}}}$")

Known = Callable[[str], Fact | None]
"""Returns the known fact about a node; None: it does not exist. Raises ZooKeeperUnread."""


class ZooKeeperUnread(HeadgateError):
    """Report that a node must be read first."""


def needs(checks: Sequence[At], ops: Sequence[Op], known: Known) -> set[str]:
    """Return the paths of the nodes to read before the commit can be made."""
    missing: set[str] = set()

    def look(path: str) -> Fact | None:
        try:
            return known(path)
        except ZooKeeperUnread:
            missing.add(path)
            return None

    for path in (*(check.path for check in checks), *(_place(op) for op in ops)):
        if look(path) is None:
            for above in ancestors(path):
                if look(above) is not None:
                    break
    for op in ops:
        if isinstance(op, Append):
            look(numbered_path(op.parent))
    return missing


def failing(checks: Sequence[At], known: Known) -> At | None:
    """Return the first check that does not hold."""
    for check in checks:
        fact = known(check.path)
        if (fact.stat.mzxid if fact and fact.entry else None) != check.version:
            return check
    return None


def _place(op: Op) -> str:
    return op.parent if isinstance(op, Append) else op.path


@dataclass(slots=True)
class Plan:
    """Hold the operations of one commit: `parts` are sent; `written`, `learned` and `counted` read the answers."""

    checks: Sequence[At]
    ops: Sequence[Op]
    known: Known
    counters: Mapping[str, int]
    """Path of a counter -> number of times that it was written."""
    introduced: bool
    """Whether the `lease_path` of the lease exists."""
    chroot: str
    owner: int
    """Session of the lease under which the commit is made, or 0."""
    acl: bytes
    parts: list[jute.ZooKeeperOperation] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)
    """Nodes that the commit leaves without data."""
    made: set[str] = field(default_factory=set)
    """Nodes that the commit creates."""
    _counters: dict[str, int] = field(default_factory=dict)
    """Counter that the commit writes -> number of the part that writes it."""
    _wrote: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Number of an operation -> number of its part, and the value."""
    _nodes: dict[int, tuple[str, bytes | None]] = field(default_factory=dict)
    """Number of a part -> path and data of the node that it creates or writes."""
    _gone: set[str] = field(default_factory=set)

    def build(self) -> None:
        self._prove()
        numbered = list(enumerate(self.ops))
        # Parents must exist before their children; a path sorts after the paths above it.
        for number, put in _puts(numbered):
            self._put(number, put)
        for number, op in numbered:
            if isinstance(op, Append):
                self._append(number, op)
        # Deletions come last, because a numbered node can be removed only if the commit creates nothing below it.
        for delete in _deletes(numbered):
            self._delete(delete)

    def touched(self) -> list[str]:
        """Return the paths of nodes that are created, written or deleted; a path with a trailing slash stands for any
        path directly below it."""
        appended = [f"{op.parent}/" for op in self.ops if isinstance(op, Append)]
        return [path for path, _ in self._nodes.values() if path] + list(self._gone) + appended

    # --- the checks

    def _prove(self) -> None:
        puts = {op.path for op in self.ops if isinstance(op, Put)}
        deletes = {op.path for op in self.ops if isinstance(op, Delete)}
        vouching: dict[str, int] = {}
        """Node that must exist -> its version; -1 for any version."""
        for check in self.checks:
            fact = self.known(check.path)
            if fact is None:
                # Paths that the commit writes or deletes are proved by these operations themselves.
                if check.path not in puts | deletes:
                    self._prove_absent(check.path)
                continue
            if fact.entry:
                # The version of a node that was created again starts at 0, so the version alone could match another
                # entry.
                vouching[birth_path(check.path)] = self.counters[birth_path(check.path)]
                if fact.stat.owner:
                    vouching[lease_path(fact.stat.owner)] = -1
            if check.path not in puts | deletes:
                self.parts.append(jute.check(self._at(check.path), fact.stat.version))
        for counter, count in vouching.items():
            self.parts.append(jute.check(self._at(counter), count))

    def _prove_absent(self, path: str) -> None:
        """Prove absence by creating the node, or a missing node above it, and deleting it."""
        highest = path
        for above in ancestors(path):
            if self.known(above) is not None:
                break
            highest = above
        where = self._at(highest)
        # ZooKeeper has no check for absence. The pair leaves nothing behind, but makes the multi fail if the node
        # exists.
        self.parts += [jute.create(where, None, 0, self.acl), jute.delete(where, -1)]

    # --- the operations

    def _put(self, number: int, op: Put) -> None:
        owner = self.owner if op.lease is not None else 0
        fact = self.known(op.path)
        if fact is None:
            self._make_above(op.path)
            self._create(number, op.path, op.value, owner)
        # A tombstone with children cannot be deleted, so it is written: the entry then has the directory's `born`.
        elif fact.stat.owner == owner and (fact.entry or fact.stat.children):
            self._wrote[number] = len(self.parts), op.value
            self._nodes[len(self.parts)] = op.path, op.value
            self.parts.append(jute.put(self._at(op.path), op.value, fact.stat.version))
        else:
            self.parts.append(jute.delete(self._at(op.path), fact.stat.version))
            # The owner of a node cannot change, and a new entry needs a new czxid, so the node is created again.
            self._create(number, op.path, op.value, owner)
            self._count(birth_path(op.path))

    def _create(self, number: int, path: str, value: bytes, owner: int) -> None:
        if owner:
            self._introduce()
        self._wrote[number] = len(self.parts), value
        self._nodes[len(self.parts)] = path, value
        self.parts.append(jute.create(self._at(path), value, jute.EPHEMERAL if owner else 0, self.acl))
        self.made.add(path)

    def _append(self, number: int, op: Append) -> None:
        if op.parent not in self.made and self.known(op.parent) is None:
            self._make_above(op.parent)
            self._make(op.parent)
        numbered = numbered_path(op.parent)
        if numbered not in self.made and self.known(numbered) is None:
            self._make(numbered)
        flags = jute.SEQUENTIAL
        if op.lease is not None:
            self._introduce()
            flags |= jute.EPHEMERAL
        self._wrote[number] = len(self.parts), op.value
        self._nodes[len(self.parts)] = "", op.value
        self.parts.append(jute.create(self._at(f"{op.parent}/{op.prefix}"), op.value, flags, self.acl))

    def _delete(self, op: Delete) -> None:
        fact = self.known(op.path)
        if fact is None:
            if op.path not in self.made:
                self._prove_absent_again(op.path)
            return
        where = self._at(op.path)
        # There is no entry to delete. The check proves that no other commit makes it an entry before this one.
        if not fact.entry:
            if op.path not in self.made:
                self.parts.append(jute.check(where, fact.stat.version))
            return
        # No later node gets this name, so no tombstone is needed to tell a later node from this one.
        if _NUMBERED.search(op.path) and not self._has_children(op.path, fact):
            self.parts.append(jute.delete(where, fact.stat.version))
            self._gone.add(op.path)
            return
        if fact.stat.owner:
            self.parts.append(jute.delete(where, fact.stat.version))
            # The tombstone must outlive the session, so it cannot be ephemeral like the node that it replaces.
            self._make(op.path)
        else:
            self._nodes[len(self.parts)] = op.path, None
            self.parts.append(jute.put(where, None, fact.stat.version))
        self.emptied.append(op.path)

    def _prove_absent_again(self, path: str) -> None:
        """Prove absence of a path to delete, unless this commit creates a node above it, which already proves it."""
        if not any(above in self.made for above in ancestors(path)):
            self._prove_absent(path)

    def _has_children(self, path: str, fact: Fact) -> bool:
        return fact.stat.children > 0 or any(inside(made, path) for made in self.made)

    # --- the nodes that the operations need

    def _make_above(self, path: str) -> None:
        missing = []
        for above in ancestors(path):
            if above in self.made or self.known(above) is not None:
                break
            missing.append(above)
        for above in reversed(missing):
            self._make(above)

    def _make(self, path: str) -> None:
        self._nodes[len(self.parts)] = path, None
        self.parts.append(jute.create(self._at(path), None, 0, self.acl))
        self.made.add(path)

    def _introduce(self) -> None:
        """Create the `lease_path` of the lease, unless it exists."""
        path = lease_path(self.owner)
        if path not in self.made and not self.introduced:
            self.made.add(path)
            self.parts.append(jute.create(self._at(path), None, jute.EPHEMERAL, self.acl))

    def _count(self, counter: str) -> None:
        if counter not in self._counters:
            self._counters[counter] = len(self.parts)
            # Any version is accepted, so two processes that count here at the same time do not conflict.
            self.parts.append(jute.put(self._at(counter), None, -1))

    def _at(self, path: str) -> str:
        return self.chroot + path

    # --- the answers

    def written(self, zxid: int, answers: Sequence[jute.Answer]) -> list[Entry | None]:
        """Return an entry for each operation, None for Delete."""
        found: list[Entry | None] = [None] * len(self.ops)
        for number, (part, _) in self._wrote.items():
            path, node = self._node(part, zxid, answers)
            found[number] = entry_of(path, node)
        return found

    def learned(self, zxid: int, answers: Sequence[jute.Answer]) -> Iterator[tuple[str, jute.ZooKeeperNodeRead | None]]:
        """Yield every node that was created, written or deleted, in its new state."""
        for part in self._nodes:
            yield self._node(part, zxid, answers)
        for path in self._gone:
            yield path, None

    def counted(self, answers: Sequence[jute.Answer]) -> Iterator[tuple[str, int]]:
        """Yield every counter that was written, and how often it has ever been written."""
        for counter, part in self._counters.items():
            answer = answers[part]
            yield counter, answer.version if isinstance(answer, jute.Stat) else 0

    def _node(self, part: int, zxid: int, answers: Sequence[jute.Answer]) -> tuple[str, jute.ZooKeeperNodeRead]:
        path, value = self._nodes[part]
        answer = answers[part]
        if isinstance(answer, jute.Stat):
            return path, jute.ZooKeeperNodeRead(value, answer._replace(mzxid=zxid))
        assert isinstance(answer, str), "the answer to a create is a path"
        kind = self.parts[part]
        assert kind.kind is jute.Do.CREATE, "only a create is answered with a path"
        # The flags are the last of the four bytes that end a create.
        ephemeral = kind.body[-1] & jute.EPHEMERAL
        owner = self.owner if ephemeral else 0
        stat = jute.Stat(zxid, zxid, 0, 0, 0, 0, 0, owner, len(value or b""), 0, zxid)
        return answer.removeprefix(self.chroot), jute.ZooKeeperNodeRead(value, stat)


def _puts(ops: Sequence[tuple[int, Op]]) -> list[tuple[int, Put]]:
    """Return the puts, parents before children."""
    return sorted(((n, op) for n, op in ops if isinstance(op, Put)), key=lambda numbered: numbered[1].path)


def _deletes(ops: Sequence[tuple[int, Op]]) -> list[Delete]:
    """Return the deletes, children before parents."""
    return sorted((op for _, op in ops if isinstance(op, Delete)), key=lambda op: op.path, reverse=True)
