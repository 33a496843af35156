"""Inspect the place of the tree: it may be empty, hold a tree of ours, or hold something else, which is left alone."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.store.types import StoreError
from headgate.store.zookeeper.address import ZooKeeperAddress
from headgate.store.zookeeper.facts import Facts
from headgate.store.zookeeper.nodes import BIRTHS, BIRTHS_COUNT, LEASES, OWN, read
from headgate.store.zookeeper.wire import jute
from headgate.store.zookeeper.wire.jute import Code, Do, ZooKeeperNodeRead
from headgate.store.zookeeper.wire.link import ZooKeeperLink

FORMAT = 1
_MARK = msgspec.json.encode({"headgate": FORMAT})
_COUNTERS = [f"{BIRTHS}/{number:03d}" for number in range(BIRTHS_COUNT)]


async def claim(link: ZooKeeperLink, address: ZooKeeperAddress, facts: Facts) -> None:
    """Begin a tree in an empty place, or read the counters of one of ours. Raise StoreError if something else is
    there."""
    found = await read(link, address.chroot, [OWN, "", *_COUNTERS])
    if found[OWN] is None:
        if found[""] is None and address.adopt:
            await _made(link, address)
            found = await read(link, address.chroot, [""])
        await _begin(link, address, found[""])
        found = await read(link, address.chroot, [OWN, "", *_COUNTERS])
    _known(found[OWN], address)
    counts = dict[str, int]()
    for path in _COUNTERS:
        counter = found[path]
        if counter is None:
            raise StoreError(f"{address}: {path} is missing: the tree is damaged; restore it from an export")
        counts[path] = counter.stat.version
    facts.recount(counts)


async def _begin(link: ZooKeeperLink, address: ZooKeeperAddress, root: ZooKeeperNodeRead | None) -> None:
    if root is None:
        raise StoreError(
            f"{address}: there is no node {address.chroot}; create it first, "
            f"for example: zkCli.sh -server {address.hosts[0][0]}:{address.hosts[0][1]} create {address.chroot} ''"
        )
    (names,) = (await link.multi(Do.MULTI_READ, [jute.children(address.chroot or "/")])).answers
    names = names if isinstance(names, list) else []
    known = {OWN.removeprefix("/"), *(() if address.chroot else ("zookeeper",))}  # another process may be making it
    if not address.adopt and (others := sorted(set(names) - known)):
        raise StoreError(
            f"{address}: something else lives here ({', '.join(others[:5])}{', …' if len(others) > 5 else ''}); "
            f"nothing was written. Choose an empty node: {address}/headgate"
        )
    parts = [jute.create(address.chroot + OWN, _MARK, 0, jute.acl(address.user))]
    parts += [
        jute.create(address.chroot + path, None, 0, jute.acl(address.user)) for path in (LEASES, BIRTHS, *_COUNTERS)
    ]
    # Another process may have begun the same tree first: then this fails as a whole, and the next read finds its mark.
    if Code.NO_AUTH in (await link.multi(Do.MULTI, parts)).answers:
        raise StoreError(f"{address}: we may not write here; the ACL of {address.chroot or '/'} is for somebody else")


async def _made(link: ZooKeeperLink, address: ZooKeeperAddress) -> None:
    """Create the node of the tree and those above it."""
    names = address.chroot.removeprefix("/").split("/")
    for depth in range(len(names)):
        path = "/" + "/".join(names[: depth + 1])
        (code,) = (await link.multi(Do.MULTI, [jute.create(path, None, 0, jute.acl(address.user))])).answers
        if code is Code.NO_AUTH:
            raise StoreError(f"{address}: we may not write here: {path} cannot be made")


def _known(mark: ZooKeeperNodeRead | None, address: ZooKeeperAddress) -> None:
    try:
        document: Any = (
            msgspec.json.decode(mark.value or b"") if mark else None
        )  # anybody may have written anything there
        found = int(document["headgate"])
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        raise StoreError(f"{address}: {OWN} is not what Headgate writes there; nothing was written") from None
    if found > FORMAT:
        raise StoreError(f"{address}: written by a newer Headgate (format {found}, this one knows {FORMAT}); upgrade")
