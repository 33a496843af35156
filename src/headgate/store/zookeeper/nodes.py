"""Map entries to ZooKeeper's nodes, and read them.

A node's data is its entry's value. A node without data is not an entry: it exists for the nodes below it, or
because its entry was deleted a moment ago. A version is the zxid of the last write. Names that begin with `~` are
the backend's own: `/~` marks the tree as Headgate's, `facts` explains `/~/leases/<session>` and `/~/births/<nnn>`,
and `<parent>/~` keeps a parent whose children are numbered from being removed, because ZooKeeper starts counting
again when a parent is created again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from zlib import crc32

from headgate.store.types import Entry, Lease
from headgate.store.zookeeper.wire import jute
from headgate.store.zookeeper.wire.jute import MULTI_READS_MAX, Answer, Code, Do, ZooKeeperNodeRead, ZooKeeperOperation
from headgate.store.zookeeper.wire.link import ZooKeeperLink

OWN = "/~"
LEASES = f"{OWN}/leases"
BIRTHS = f"{OWN}/births"
# One counter for all would make every rebirth void the checks of all other commits. All of them are read whenever a
# connection is made, in one request, which allows no more than MULTI_READS_MAX.
BIRTHS_COUNT = 256
SYSTEM = "/zookeeper"
"""Root of the servers' own nodes."""


def birth_path(path: str) -> str:
    return f"{BIRTHS}/{crc32(path.encode()) % BIRTHS_COUNT:03d}"


def lease_path(owner: int) -> str:
    return f"{LEASES}/{lease_of(owner)}"


def numbered_path(parent: str) -> str:
    return f"{parent}/~"


def hidden(path: str) -> bool:
    """Return whether the node belongs to the backend or to ZooKeeper, so that it is not an entry."""
    return "/~" in path or path == SYSTEM or path.startswith(SYSTEM + "/")


def lease_of(session: int) -> Lease:
    # Session ids are signed on the wire, and negative ones occur.
    return Lease(f"{session & 0xFFFFFFFFFFFFFFFF:016x}")


def entry_of(path: str, found: ZooKeeperNodeRead | None) -> Entry | None:
    if found is None or found.value is None or not path:
        return None
    stat = found.stat
    return Entry(path, found.value, stat.mzxid, stat.czxid, lease_of(stat.owner) if stat.owner else None)


async def read(link: ZooKeeperLink, chroot: str, paths: Sequence[str]) -> dict[str, ZooKeeperNodeRead | None]:
    """Return the nodes; None where there is none.  Up to MULTI_READS_MAX are read as of one moment.  Raise
    ZooKeeperConnectionLost, Denied."""
    answers = await _answers(link, [jute.get(chroot + path or "/") for path in paths])
    return {path: _found(path, answer) for path, answer in zip(paths, answers, strict=True)}


async def read_with_children(
    link: ZooKeeperLink, chroot: str, paths: Sequence[str]
) -> dict[str, tuple[ZooKeeperNodeRead | None, list[str]]]:
    """Return the nodes, each with the paths of its children, without hidden ones."""
    parts: list[ZooKeeperOperation] = []
    for path in paths:
        where = chroot + path or "/"
        parts += [jute.get(where), jute.children(where)]
    answers = await _answers(link, parts)
    found: dict[str, tuple[ZooKeeperNodeRead | None, list[str]]] = {}
    for number, path in enumerate(paths):
        names = answers[2 * number + 1]
        below = [f"{path}/{name}" for name in names if name[:1] != "~"] if isinstance(names, list) else []
        if not path or hidden(path):
            below = [one for one in below if not hidden(one)]
        found[path] = _found(path, answers[2 * number]), below
    return found


async def walk(link: ZooKeeperLink, chroot: str, roots: Iterable[str]) -> dict[str, ZooKeeperNodeRead]:
    """Return every node at and below `roots`, level by level: not as of one moment, unless there is a watch."""
    nodes: dict[str, ZooKeeperNodeRead] = {}
    level = list(roots)
    while level:
        found = await read_with_children(link, chroot, level)
        nodes.update((path, node) for path, (node, _) in found.items() if node is not None)
        level = [path for _, below in found.values() for path in below]
    return nodes


async def glance(link: ZooKeeperLink, chroot: str, root: str) -> dict[str, ZooKeeperNodeRead] | None:
    """Return every node at and below `root` as of one moment, read in one request; None when one request cannot hold
    them."""
    paths = [root]
    while 2 * len(paths) <= MULTI_READS_MAX:
        found = await read_with_children(link, chroot, paths)
        below = [path for _, names in found.values() for path in names]
        # The paths are a guess from an earlier read. It is right if this one, made as of one moment, finds no others.
        if set(below) <= found.keys():
            return {path: node for path, (node, _) in found.items() if node is not None}
        paths = [root, *below]
    return None


async def _answers(link: ZooKeeperLink, parts: Sequence[ZooKeeperOperation]) -> list[Answer]:
    pieces = [parts[n : n + MULTI_READS_MAX] for n in range(0, len(parts), MULTI_READS_MAX)]
    answers: list[Answer] = []
    for done in await asyncio.gather(*(link.multi(Do.MULTI_READ, piece) for piece in pieces)):
        answers += done.answers
    return answers


class Denied(Exception):
    """Report that the servers refuse access to a node."""


def _found(path: str, answer: Answer) -> ZooKeeperNodeRead | None:
    if isinstance(answer, ZooKeeperNodeRead):
        return answer
    if answer == Code.NO_AUTH:
        raise Denied(path)
    return None
