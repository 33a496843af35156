"""Define the vocabulary of the store: entries, checks, operations, changes, errors. It does not depend on the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NewType, Protocol, runtime_checkable

import msgspec

from headgate.base.errors import HeadgateError

Lease = NewType("Lease", str)

OPS_MAX = 100
"""Operations (and, separately, checks) in one commit; etcd refuses more than 128."""
COMMIT_SIZE_MAX_BYTES = 900_000
"""Size limit of the paths and values of one commit; ZooKeeper's default frame is 1 MiB, etcd's 1.5 MiB."""
# On etcd, a parent adds a compare and a write, and the process's fence adds a compare: 100 + 20 + 1 stay below 128.
PARENTS_MAX = 20
"""Limit on the different parents to which one commit appends; each needs its own operation on etcd."""
# ZooKeeper numbers sequential nodes with ten digits; the other backends do the same, so names look alike everywhere.
NAME_DIGITS = 10
"""Number of digits of the sequence number in the name of an appended child."""


class StoreError(HeadgateError):
    """Serve as the base class of all errors of the store."""


class Conflict(StoreError):
    """Report that a check did not hold and nothing was written.  `check` is the one that failed."""

    def __init__(self, check: At) -> None:
        super().__init__(f"{check.path} is not at version {check.version}")
        self.check = check


class SessionLost(StoreError):
    """Report that the session ended and all its entries are gone. Give up all locks under it, and start again."""


class TooLarge(StoreError):
    """Report a commit or a value over the limits above; nothing was written."""


class Unavailable(StoreError):
    """Report that the store did not answer.  Whether a commit happened is unknown: re-read, never repeat blindly."""


class Unwritable(Unavailable):
    """Report that the store answers reads but cannot write, for example because its disk is full."""


class Corrupt(StoreError):
    """Report that stored data cannot be read back.  The message names the file or path and what to do."""


# Mirrors hold entries in great numbers, and none can be part of a cycle, so the garbage collector need not visit them.
class Entry(msgspec.Struct, frozen=True, gc=False):
    """Represent one node as it was at `version`, which changes with every write and is never used again, even after
    deletion.

    `born` is the commit that created it. An entry that is put above existing entries, or under another lease than
    before, may keep its `born` or get a new one. An entry with a lease has no entries below it.
    """

    path: str
    value: bytes
    version: int
    born: int
    lease: Lease | None = None


class At(msgspec.Struct, frozen=True, gc=False):
    """Check that `path` is at exactly `version`; None means absent.  The guard of a lock is such a check."""

    path: str
    version: int | None


class Put(msgspec.Struct, frozen=True, gc=False):
    """Create or replace an entry. With a lease, the entry vanishes with the lease."""

    path: str
    value: bytes
    lease: Lease | None = None


class Append(msgspec.Struct, frozen=True, gc=False):
    """Create `<parent>/<prefix><ten digits>`; the number is greater than all that were ever used below `parent`.
    Numbers need not be consecutive."""

    parent: str
    value: bytes
    lease: Lease | None = None
    prefix: str = ""


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove one entry, but not the entries below it; removing an absent entry is no error."""

    path: str


Op = Put | Append | Delete


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """Hold the complete subtree, oldest entry first: the first message of a watch, and the first one after any gap."""

    entries: tuple[Entry, ...]


class EntryChanged(msgspec.Struct, frozen=True, gc=False):
    entry: Entry


class EntryGone(msgspec.Struct, frozen=True, gc=False):
    path: str


Change = Snapshot | EntryChanged | EntryGone


class Backend(Protocol):
    """Declare what a backend provides. `store.model` specifies the behaviour, and the conformance suite tests every
    backend against it.

    Paths are absolute (`/a/b`). The keyspace is flat: a parent need not exist, and an entry may have both a value and
    children.  A subtree is the entry itself and everything below it; `""` is the complete tree.  Every method may raise
    Unavailable; only for a commit does that leave the outcome unknown.
    """

    async def get(self, path: str) -> Entry | None: ...
    async def list(self, prefix: str) -> Sequence[Entry]:
        """Return the subtree at `prefix` as of one moment, oldest entry first, and by path within a commit."""
        ...

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        """Commit everything durably, or raise `Conflict`.  A commit has at most one operation per path, and one lease.
        Return an entry for each operation, None for Delete."""
        ...

    def watch(self, prefix: str) -> AsyncIterator[Change]:
        """Yield a Snapshot, then changes in commit order, without a pause within a commit. Changes that were soon
        overwritten may be missing. After a gap comes another Snapshot. The watch ends with Unavailable, never
        silently."""
        ...

    async def grant(self, ttl_s: float) -> Lease:
        """Return a lease that ends no sooner than `ttl_s` after it was last kept alive."""
        ...

    async def keep_alive(self, lease: Lease) -> None:
        """Renew the lease. Raise SessionLost if it no longer exists."""
        ...

    async def revoke(self, lease: Lease) -> None: ...
    async def close(self) -> None: ...


@runtime_checkable
class Wide(Protocol):
    """Declare optional methods of a backend, which read several entries in one request. `Store` works without them."""

    async def get_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        """Return one entry per path, at most OPS_MAX."""
        ...

    async def scan(self, directory: str, *, begins: str, after: str, limit: int) -> Sequence[Entry]:
        """Return entries as `Store.scan` does."""
        ...
