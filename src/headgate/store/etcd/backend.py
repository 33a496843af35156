"""Implement the tree in etcd, 3.4 or newer. Every read returns the newest state."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
from grpc import aio

from headgate.base.errors import HeadgateError
from headgate.store import types
from headgate.store.etcd.address import EtcdAddress, parse
from headgate.store.etcd.commits import EtcdCommits
from headgate.store.etcd.keys import EtcdKeys, PageEstimate, end_of
from headgate.store.etcd.link import KEEP_ALIVE, EtcdLink, EtcdTraffic
from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.model import inside, order

FORMAT = 1
_MARK = msgspec.json.encode({"headgate": FORMAT})
LASTED_S = 1.0
"""Age from which a watch counts as one that worked, even if it had nothing to report."""
RESUME_S = 30.0
"""Time for which a broken watch tries to continue from its last revision."""
RESUME_INTERVAL_S = 0.2

List = Callable[[str], Awaitable[tuple[Sequence[types.Entry], int]]]
"""Returns a subtree and its revision."""


class EtcdBackend:
    """Implement the backend on etcd; create one with `await EtcdBackend.open(url)`."""

    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self.traffic = EtcdTraffic()
        self._keys = EtcdKeys(self.address.root)
        self._link = EtcdLink(self.address, self.traffic)
        self._commits = EtcdCommits(self._link, self._keys)
        self._estimate = PageEstimate()

    @classmethod
    async def open(cls, url: str) -> EtcdBackend:
        """Connect and check the tree. Raise StoreError, which says what is wrong and what to do, or Unavailable if no
        server answers."""
        backend = cls(parse(url))
        try:
            await backend._claim()
        except BaseException:
            await backend._link.close()
            raise
        return backend

    @classmethod
    def beside(cls, url: str, root: str) -> EtcdBackend:
        """Return a view of the keys below another root of this etcd: the path `/a` is the key `<root>/a`, byte for
        byte.

        The keys need not form a tree of Headgate, and no mark is written there.
        """
        return cls(replace(parse(url), root=root, bare=""))

    async def get(self, path: str) -> types.Entry | None:
        (found,) = (await self._read(pb.RangeRequest(key=self._keys.key(path))))[0]
        return self._keys.entry(found[0]) if found else None

    async def list(self, prefix: str) -> Sequence[types.Entry]:
        return (await self._list(prefix))[0]

    async def get_many(self, paths: Sequence[str]) -> Sequence[types.Entry | None]:
        found, _ = await self._read(*(pb.RangeRequest(key=self._keys.key(path)) for path in paths))
        return [self._keys.entry(kvs[0]) if kvs else None for kvs in found]

    async def scan(self, directory: str, *, begins: str, after: str, limit: int) -> Sequence[types.Entry]:
        first = self._keys.key(f"{directory}/{begins}")
        # The key followed by a zero byte is the next possible key.
        start = max(first, self._keys.key(f"{directory}/{after}") + b"\0") if after else first
        end = end_of(first)
        found: list[pb.KeyValue] = []
        level, begin = 0, start
        while begin < end and len(found) < limit:
            count = 0
            blocks = self._estimate.blocks(first, begin, end, level)
            ranges = [
                pb.RangeRequest(key=low, range_end=high, limit=limit - len(found))
                for low, high in pairwise([begin, *blocks])
            ]
            for kvs in (await self._read(*ranges))[0]:
                count += len(kvs)
                found += kvs
            begin, level = blocks[-1], level if count else level + 1
        found = found[:limit]
        if len(found) == limit > 1:
            self._estimate.learn(first, start, [one.key for one in found])
        return [self._keys.entry(one) for one in found]

    async def commit(self, checks: Sequence[types.At], ops: Sequence[types.Op]) -> Sequence[types.Entry | None]:
        return await self._commits.commit(checks, ops)

    async def watch(self, prefix: str) -> AsyncIterator[types.Change]:
        changes = Watch(self._link, self._keys, prefix, self._list).changes()
        async with aclosing(changes):  # type: ignore[type-var]  # an async generator behind its protocol
            async for change in changes:
                yield change

    async def grant(self, ttl_s: float) -> types.Lease:
        # TTLs of etcd are whole seconds, and a lease must not be shorter than requested.
        request = pb.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        response = await self._link.ask("Lease/LeaseGrant", request, pb.LeaseGrantResponse)
        return types.Lease(f"{response.ID:016x}")

    async def keep_alive(self, lease: types.Lease) -> None:
        self.traffic.pinged()
        channel, limit_s = await self._link.ready(), self._link.limit_s()
        try:
            async with asyncio.timeout(limit_s):
                call = await self._link.stream(channel, KEEP_ALIVE, pb.LeaseKeepAliveResponse)
                try:
                    await call.write(pb.LeaseKeepAliveRequest(ID=int(lease, 16)))
                    response = await call.read()
                finally:
                    call.cancel()
        except aio.AioRpcError as error:
            self._link.unanswered(channel)
            raise self._link.translated(error) from error
        except TimeoutError:
            self._link.unanswered(channel, limit_s)
            raise types.Unavailable(f"{self.address}: no answer for {limit_s:.1f} s") from None
        if not isinstance(response, pb.LeaseKeepAliveResponse):
            self._link.unanswered(channel)
            raise types.Unavailable(f"{self.address}: the server ended the request without an answer")
        self._link.answered(channel)
        if response.TTL <= 0:
            raise types.SessionLost(f"the lease {lease} has expired")

    async def revoke(self, lease: types.Lease) -> None:
        request = pb.LeaseRevokeRequest(ID=int(lease, 16))
        with suppress(types.SessionLost):
            await self._link.ask("Lease/LeaseRevoke", request, pb.LeaseRevokeResponse)

    async def close(self) -> None:
        """Close the connections. Leases that were not revoked expire."""
        with suppress(types.StoreError):
            await self._commits.forget()
        await self._link.close()

    async def _list(self, prefix: str) -> tuple[Sequence[types.Entry], int]:
        """Return the subtree, oldest first, and its revision."""
        begin, end = self._keys.below(prefix) if prefix else self._keys.tree_range
        own = [pb.RangeRequest(key=self._keys.key(prefix))] if prefix else []
        found, revision = await self._read(*own, pb.RangeRequest(key=begin, range_end=end))
        return sorted((self._keys.entry(one) for kvs in found for one in kvs), key=order), revision

    async def _read(self, *ranges: pb.RangeRequest) -> tuple[Sequence[Sequence[pb.KeyValue]], int]:
        """Read all ranges in one transaction, in their newest state."""
        # A read must not return a state that an unanswered commit of this process changes afterwards.
        await self._commits.settle()
        request = pb.TxnRequest(success=[pb.RequestOp(range=one) for one in ranges])
        large = any(one.range_end for one in ranges)
        response = await self._link.ask("KV/Txn", request, pb.TxnResponse, large=large)
        return [answer.range.kvs for answer in response.responses], response.header.revision

    async def _claim(self) -> None:
        """Begin a tree in an empty place, or check that an existing one belongs to Headgate. Raise StoreError."""
        begin, end = self._keys.tree_range
        ranges = [pb.RangeRequest(key=self._keys.mark), pb.RangeRequest(key=begin, range_end=end, limit=5)]
        (mark, others), _ = await self._read(*ranges)
        if mark:
            self._known(mark[0])
            return
        if others and not self.address.shared:
            names = ", ".join(one.key.decode(errors="replace") for one in others)
            raise types.StoreError(
                f"{self.address}: the root has keys of another program ({names}); nothing was written. "
                f"Choose an empty root: {self.address}/headgate; or let both share this one: ?shared=yes"
            )
        begun = pb.TxnRequest()
        begun.compare.add(target=pb.Compare.MOD, key=self._keys.mark, mod_revision=0)
        begun.success.add(put=pb.PutRequest(key=self._keys.mark, value=_MARK))
        # The comparison fails if another process wrote the mark first; it wrote the same value, so that is no error.
        await self._link.ask("KV/Txn", begun, pb.TxnResponse)

    def _known(self, mark: pb.KeyValue) -> None:
        try:
            document: Any = msgspec.json.decode(mark.value)  # any program may have written any value there
            found = int(document["headgate"])
        except (msgspec.DecodeError, LookupError, TypeError, ValueError):
            name = self._keys.mark.decode()
            raise types.StoreError(
                f"{self.address}: {name} has a value that Headgate did not write; nothing was written"
            ) from None
        if found > FORMAT:
            known = f"format {found}, this one knows {FORMAT}"
            raise types.StoreError(f"{self.address}: written by a newer Headgate ({known}); upgrade")


async def connect(url: str) -> types.Backend:
    """Open the tree that a URL names.  Raise what `EtcdBackend.open` raises."""
    return await EtcdBackend.open(url)


class Compacted(HeadgateError):
    """Report that etcd has dropped events that this watch has not received yet."""


class Watch:
    """Follow the entries below a prefix over any number of connections."""

    def __init__(self, link: EtcdLink, keys: EtcdKeys, prefix: str, listed: List) -> None:
        self._link, self._keys, self._prefix, self._listed = link, keys, prefix, listed
        self._seen = 0
        """Revision up to which this watch has received every change."""
        self._begun_s: float | None = None
        """Time at which the server accepted the watch on the latest connection, or None if it has not."""

    async def changes(self) -> AsyncIterator[types.Change]:
        while True:
            entries, self._seen = await self._listed(self._prefix)
            yield types.Snapshot(tuple(entries))
            try:
                async for change in self._follow():
                    yield change
            except Compacted:
                continue

    async def _follow(self) -> AsyncIterator[types.Change]:
        """Yield changes over one connection after the other. Raise Compacted, or Unavailable if no watch worked for
        RESUME_S."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + RESUME_S
        while True:
            self._begun_s = None
            try:
                async for change in self._connected():
                    yield change
            except (types.Unavailable, aio.AioRpcError) as error:
                why = error if isinstance(error, types.Unavailable) else self._link.translated(error)
                if not isinstance(why, types.Unavailable) or (loop.time() > until_s and not self._lasted()):
                    raise why from error
            # The time starts when the connection breaks: before that, the watch may have been silent for hours.
            if self._lasted():
                until_s = loop.time() + RESUME_S
            await asyncio.sleep(RESUME_INTERVAL_S)

    def _lasted(self) -> bool:
        """Return whether the latest watch worked: the server did not end it right after accepting it."""
        return self._begun_s is not None and asyncio.get_running_loop().time() - self._begun_s > LASTED_S

    async def _connected(self) -> AsyncIterator[types.Change]:
        """Yield changes until the connection breaks."""
        channel = await self._link.ready()
        try:
            async for change in self._streamed(channel):
                yield change
        except aio.AioRpcError:
            self._link.unanswered(channel)
            raise

    async def _streamed(self, channel: aio.Channel) -> AsyncIterator[types.Change]:
        """Yield the changes that one watch reports. Raise Compacted, Unavailable or AioRpcError."""
        call = await self._link.stream(channel, "Watch/Watch", pb.WatchResponse)
        try:
            begin, end = self._range()
            # Fragments let the server split a revision that is larger than a message.
            create = pb.WatchCreateRequest(key=begin, range_end=end, start_revision=self._seen + 1, fragment=True)
            await call.write(pb.WatchRequest(create_request=create))
            events = list[pb.Event]()
            async for response in call:
                assert isinstance(response, pb.WatchResponse), "the stream has one kind of message"
                # The server has dropped the events in between, so only another snapshot can close the gap.
                if response.compact_revision:
                    raise Compacted
                if response.canceled:
                    raise types.Unavailable(f"{self._link.address}: the watch was ended: {response.cancel_reason}")
                if self._begun_s is None:
                    self._begun_s = asyncio.get_running_loop().time()
                # A watch that has delivered events has worked, whatever its age.
                if response.events:
                    self._begun_s = -math.inf
                self._link.traffic.received(response.ByteSize())
                events += response.events
                # All changes of one revision are yielded together, so the parts of a split response are joined first.
                if response.fragment:
                    continue
                changes = [change for event in events if (change := self._change(event)) is not None]
                # Set before the changes are yielded: even if the connection breaks in the meantime, all of them are
                # passed on.
                self._seen = max([self._seen, *(event.kv.mod_revision for event in events)])
                events = []
                for change in changes:
                    yield change
        finally:
            call.cancel()

    def _range(self) -> tuple[bytes, bytes]:
        """Return a range wide enough for the path and everything below it; other keys in it are filtered out."""
        if not self._prefix:
            return self._keys.tree_range
        return self._keys.key(self._prefix), self._keys.below(self._prefix)[1]

    def _change(self, event: pb.Event) -> types.Change | None:
        path = self._keys.path(event.kv)
        if self._prefix and not inside(path, self._prefix):
            return None
        return (
            types.EntryGone(path) if event.type == pb.Event.DELETE else types.EntryChanged(self._keys.entry(event.kv))
        )
