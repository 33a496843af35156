"""Paths as keys, and keys as paths.

Below the root, `/a/b` is the key `<root>/a/b`.  Beside it, where no path can be, lie `<root>~mark`, which says whose
tree this is, `<root>~n/a/b`, how many were ever appended to `/a/b`, and `<root>~f/<process>`, which a process writes
to make its commits of unknown outcome void.
"""

from __future__ import annotations

from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.types import Entry, Lease


class EtcdKeys:
    def __init__(self, root: str) -> None:
        self._root = root.encode()
        self.mark = self._root + b"~mark"
        self.tree_range = (self._root + b"/", self._root + b"0")
        """The first key of the tree, and the end of the range of all its keys."""

    def key(self, path: str) -> bytes:
        return self._root + path.encode()

    def counter(self, parent: str) -> bytes:
        return self._root + b"~n" + parent.encode()

    def fence(self, process: str) -> bytes:
        return self._root + b"~f/" + process.encode()

    def below(self, path: str) -> tuple[bytes, bytes]:
        """Return the first key below `path` and the end of that range. The key of `path` itself lies outside it."""
        return self.key(path) + b"/", self.key(path) + b"0"

    def entry(self, found: pb.KeyValue) -> Entry:
        lease = Lease(f"{found.lease:016x}") if found.lease else None
        return Entry(self.path(found), found.value, found.mod_revision, found.create_revision, lease)

    def path(self, found: pb.KeyValue) -> str:
        return found.key[len(self._root) :].decode()
