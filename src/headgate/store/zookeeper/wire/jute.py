"""Encode and decode ZooKeeper's wire format, without I/O.

A frame begins with its length and a header. Strings and buffers begin with their length; -1 means that there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

FRAME_MAX_BYTES = 1_048_575
"""Size limit of a request: the server's default jute.maxbuffer. Answers are not limited."""
# Limits the size of the answer, which a server builds in memory completely.
MULTI_READS_MAX = 400

_INT = Struct(">i")
_TWO = Struct(">ii")
_LONG = Struct(">q")
_REPLY = Struct(">iqi")
_STAT = Struct(">qqqqiiiqiiq")
_MULTI = Struct(">i?i")
_CONNECT = Struct(">iqiq")
_CONNECTED = Struct(">iiq")

WATCH_XID, PING_XID, AUTH_XID = -1, -2, -4
# 31 is the sum of all five rights.
OPEN_ACL = _INT.pack(1) + _INT.pack(31) + b"\x00\x00\x00\x05world\x00\x00\x00\x06anyone"
EPHEMERAL, SEQUENTIAL = 1, 2
# A mode of ADD_WATCH, and a type of REMOVE_WATCHES.
PERSISTENT_RECURSIVE = 1
ANY_WATCH = 3


class Do(IntEnum):
    """Name the kinds of requests."""

    CREATE = 1
    DELETE = 2
    GET = 4
    SET = 5
    CHILDREN = 8
    SYNC = 9
    PING = 11
    CHECK = 13
    MULTI = 14
    REMOVE_WATCHES = 18
    MULTI_READ = 22
    AUTH = 100
    SASL = 102
    SET_WATCHES = 105
    ADD_WATCH = 106
    CLOSE = -11
    ERROR = -1


class ZooKeeperWatchEvent(IntEnum):
    """List what a watch can report."""

    STATE = -1
    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


class Code(IntEnum):
    """List the codes with which a server answers a request."""

    OK = 0
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    EPHEMERAL_PARENT = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NO_WATCHER = -121
    LOGIN_REQUIRED = -124


class Stat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    """Session that owns the ephemeral node; 0 for other nodes."""
    length: int
    children: int
    pzxid: int


@dataclass(frozen=True, slots=True)
class ZooKeeperNodeRead:
    """Represent a node as it was read; a `value` of None means that the node exists only to have children."""

    value: bytes | None
    stat: Stat


@dataclass(frozen=True, slots=True)
class ZooKeeperOperation:
    """Represent one operation of a multi."""

    kind: Do
    body: bytes


Answer = str | Stat | ZooKeeperNodeRead | list[str] | int | None
"""Answer to one operation: a created path, the stat of a changed node, a node, children, an error code, or nothing."""


def text(value: str) -> bytes:
    encoded = value.encode()
    return _INT.pack(len(encoded)) + encoded


def buffer(value: bytes | None) -> bytes:
    return _INT.pack(-1) if value is None else _INT.pack(len(value)) + value


def acl(user: str) -> bytes:
    """Return an access list that gives all rights to this user only; for an empty name, to everybody."""
    return _INT.pack(1) + _INT.pack(31) + text("sasl") + text(user) if user else OPEN_ACL


def number(value: int) -> bytes:
    return _INT.pack(value)


def request(xid: int, kind: int, body: bytes) -> bytes:
    """Return a complete frame."""
    return _INT.pack(8 + len(body)) + _TWO.pack(xid, kind) + body


def connect(last_zxid: int, timeout_ms: int, session: int, password: bytes) -> bytes:
    # The last byte (readOnly: false) makes servers refuse that are cut off from the others and could only read.
    body = _CONNECT.pack(0, last_zxid, timeout_ms, session) + buffer(password) + b"\x00"
    return _INT.pack(len(body)) + body


def create(path: str, value: bytes | None, flags: int, acl: bytes) -> ZooKeeperOperation:
    return ZooKeeperOperation(Do.CREATE, text(path) + buffer(value) + acl + _INT.pack(flags))


def put(path: str, value: bytes | None, version: int) -> ZooKeeperOperation:
    return ZooKeeperOperation(Do.SET, text(path) + buffer(value) + _INT.pack(version))


def delete(path: str, version: int) -> ZooKeeperOperation:
    return ZooKeeperOperation(Do.DELETE, text(path) + _INT.pack(version))


def check(path: str, version: int) -> ZooKeeperOperation:
    return ZooKeeperOperation(Do.CHECK, text(path) + _INT.pack(version))


def get(path: str) -> ZooKeeperOperation:
    return ZooKeeperOperation(Do.GET, text(path) + b"\x00")


def children(path: str) -> ZooKeeperOperation:
    return ZooKeeperOperation(Do.CHILDREN, text(path) + b"\x00")


def texts(values: Sequence[str]) -> bytes:
    return _INT.pack(len(values)) + b"".join(text(value) for value in values)


def set_watches(zxid: int, nodes: Sequence[str]) -> bytes:
    """Encode a request that makes the server report which of `nodes`, or their children, changed after `zxid`, and
    watch the others."""
    none, some = texts(()), texts(nodes)
    # The lists are: data watches, existence watches, child watches, persistent watches, recursive ones.
    return _LONG.pack(zxid) + some + none + some + none + none


def multi(parts: Sequence[ZooKeeperOperation]) -> bytes:
    # A header that is marked as done ends the list.
    body = [_MULTI.pack(part.kind, False, -1) + part.body for part in parts]
    return b"".join((*body, _MULTI.pack(-1, True, -1)))


class ZooKeeperReader:
    """Read values one after the other.  Raise ValueError when the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def _take(self, size: int) -> bytes:
        if self.left < size:
            raise ValueError("an answer from ZooKeeper is truncated")
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def number(self) -> int:
        return int(_INT.unpack(self._take(4))[0])

    def buffer(self) -> bytes | None:
        size = self.number()
        return None if size < 0 else self._take(size)

    def text(self) -> str:
        return (self.buffer() or b"").decode()

    def texts(self) -> list[str]:
        """Read a list of strings in one loop, because there may be very many."""
        count, data, at, end = self.number(), self._data, self._at, len(self._data)
        found = []
        for _ in range(count):
            start = at + 4
            at = start + max(0, int.from_bytes(data[at:start], "big", signed=True))
            if at > end or start > end:
                raise ValueError("an answer from ZooKeeper is truncated")
            found.append(data[start:at].decode())
        self._at = at
        return found

    def stat(self) -> Stat:
        return Stat._make(_STAT.unpack(self._take(_STAT.size)))

    def reply(self) -> tuple[int, int, int]:
        """Read the header of a reply: xid, zxid, code."""
        xid, zxid, code = _REPLY.unpack(self._take(_REPLY.size))
        return xid, zxid, code

    def connected(self) -> tuple[int, int, bytes]:
        """Read the answer to `connect`: timeout in ms (0: the session has expired), session, password."""
        _, timeout_ms, session = _CONNECTED.unpack(self._take(_CONNECTED.size))
        return timeout_ms, session, self.buffer() or b""

    def event(self) -> tuple[int, str]:
        """Read the type and the path of a watch event."""
        kind, _ = _TWO.unpack(self._take(8))
        return kind, self.text()

    def multi(self) -> list[Answer]:
        found: list[Answer] = []
        while True:
            kind, done, _ = _MULTI.unpack(self._take(_MULTI.size))
            if done:
                return found
            found.append(self._one(kind))

    def _one(self, kind: int) -> Answer:
        match kind:
            case Do.ERROR:
                return self.number()
            case Do.CREATE:
                return self.text()
            case Do.SET:
                return self.stat()
            case Do.GET:
                value = self.buffer()
                return ZooKeeperNodeRead(value, self.stat())
            case Do.CHILDREN:
                return self.texts()
            case Do.DELETE | Do.CHECK:
                return None
            case _:
                raise ValueError(f"an answer from ZooKeeper has the unknown kind {kind}")
