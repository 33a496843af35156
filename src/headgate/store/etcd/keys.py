"""Map paths to keys and keys to paths, and estimate which range of keys fills a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.types import Entry, Lease

KNOWN_MAX = 1_000
"""Limit on the directories whose size is remembered."""


class EtcdKeys:
    """Map paths to keys: below the root, `/a/b` is the key `<root>/a/b`.

    Further keys, which no path maps to, are: `<root>~mark`, which identifies the owner of the tree; `<root>~n/a/b`,
    which counts the children ever appended to `/a/b`; and `<root>~f/<process>`, the fence that a process rewrites to
    make its commits of unknown outcome fail.
    """

    def __init__(self, root: str) -> None:
        self._root = root.encode()
        self.mark = self._root + b"~mark"
        self.tree_range = (self._root + b"/", self._root + b"0")
        """The first possible key of the tree, and the first key after it. `0` is the character after `/`."""

    def key(self, path: str) -> bytes:
        return self._root + path.encode()

    def counter(self, parent: str) -> bytes:
        return self._root + b"~n" + parent.encode()

    def fence(self, process: str) -> bytes:
        return self._root + b"~f/" + process.encode()

    def below(self, path: str) -> tuple[bytes, bytes]:
        """Return the first key below `path` and the end of that range. The range excludes the key of `path` itself."""
        return self.key(path) + b"/", self.key(path) + b"0"

    def entry(self, found: pb.KeyValue) -> Entry:
        lease = Lease(f"{found.lease:016x}") if found.lease else None
        return Entry(self.path(found), found.value, found.mod_revision, found.create_revision, lease)

    def path(self, found: pb.KeyValue) -> str:
        return found.key[len(self._root) :].decode()


@dataclass(frozen=True, slots=True)
class EtcdDirectorySize:
    """Describe a directory: its first key when last read, and how many leading bytes the keys of a full page share."""

    least: bytes
    alike: int


class PageEstimate:
    """Estimate, from pages that were read before, which range of a directory's keys fills a page. etcd counts
    all keys of a range, whatever the limit, so a range that fits costs less."""

    def __init__(self) -> None:
        self._known: dict[bytes, EtcdDirectorySize] = {}

    def blocks(self, first: bytes, start: bytes, end: bytes, level: int) -> list[bytes]:
        """Return the ends of the next two blocks of the directory `first`, from `start` on, neither beyond `end`. Each
        `level` makes the blocks larger."""
        known = self._known.get(first)
        if known is None or known.alike - level <= len(first):
            return [end]
        alike = known.alike - level
        begin = start if len(start) >= alike else known.least
        one = end_of(begin[:alike])
        return [one, min(end_of(one), end)] if start < one < end else [end]

    def learn(self, first: bytes, start: bytes, keys: Sequence[bytes]) -> None:
        """Learn the directory's size from a full page."""
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        known = self._known.get(first)
        least = keys[0] if known is None or start == first else known.least
        self._known[first] = EtcdDirectorySize(least, _alike(keys[0], keys[-1]))


def end_of(prefix: bytes) -> bytes:
    """Return the first key after all keys with this prefix. No path ends in 0xff, so the last byte can be increased."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _alike(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
