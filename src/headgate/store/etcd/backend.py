"""The tree in etcd, 3.4 or newer.  Every read is of the newest state."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
from grpc import aio

from headgate.store.etcd import pagesize
from headgate.store.etcd.address import EtcdAddress, parse
from headgate.store.etcd.commits import EtcdCommits
from headgate.store.etcd.keys import EtcdKeys
from headgate.store.etcd.link import KEEP_ALIVE, EtcdLink, EtcdTraffic
from headgate.store.etcd.watch import Watch
from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.model import order
from headgate.store.types import At, Backend, Change, Entry, Lease, Op, SessionLost, StoreError, Unavailable

FORMAT = 1
_MARK = msgspec.json.encode({"headgate": FORMAT})


class EtcdBackend:
    """Implement the backend on etcd; create one with `await EtcdBackend.open(url)`."""

    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self.traffic = EtcdTraffic()
        self._keys = EtcdKeys(self.address.root)
        self._link = EtcdLink(self.address, self.traffic)
        self._commits = EtcdCommits(self._link, self._keys)
        self._estimate = pagesize.PageEstimate()

    @classmethod
    async def open(cls, url: str) -> EtcdBackend:
        """Connect and check the tree. Raise StoreError that says what is wrong and what to do, or Unavailable if no
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

        The keys need not form a tree of ours, and no mark is written there.
        """
        return cls(replace(parse(url), root=root, bare=""))

    async def get(self, path: str) -> Entry | None:
        (found,) = (await self._read(pb.RangeRequest(key=self._keys.key(path))))[0]
        return self._keys.entry(found[0]) if found else None

    async def list(self, prefix: str) -> Sequence[Entry]:
        return (await self._list(prefix))[0]

    async def get_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        found, _ = await self._read(*(pb.RangeRequest(key=self._keys.key(path)) for path in paths))
        return [self._keys.entry(kvs[0]) if kvs else None for kvs in found]

    async def scan(self, directory: str, *, begins: str, after: str, limit: int) -> Sequence[Entry]:
        first = self._keys.key(f"{directory}/{begins}")
        # A zero byte leads to the next possible key.
        start = max(first, self._keys.key(f"{directory}/{after}") + b"\0") if after else first
        end = pagesize.after(first)
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

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        return await self._commits.commit(checks, ops)

    async def watch(self, prefix: str) -> AsyncIterator[Change]:
        changes = Watch(self._link, self._keys, prefix, self._list).changes()
        async with aclosing(changes):  # type: ignore[type-var]  # an async generator behind its protocol
            async for change in changes:
                yield change

    async def grant(self, ttl_s: float) -> Lease:
        # TTLs of etcd are whole seconds, and a lease may not be shorter than what was asked for.
        request = pb.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        response = await self._link.ask("Lease/LeaseGrant", request, pb.LeaseGrantResponse)
        return Lease(f"{response.ID:016x}")

    async def keep_alive(self, lease: Lease) -> None:
        self.traffic.pings += 1
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
            raise Unavailable(f"{self.address}: no answer for {limit_s:.1f} s") from None
        if not isinstance(response, pb.LeaseKeepAliveResponse):
            self._link.unanswered(channel)
            raise Unavailable(f"{self.address}: the server went away")
        self._link.answered(channel)
        if response.TTL <= 0:
            raise SessionLost(f"the lease {lease} has run out")

    async def revoke(self, lease: Lease) -> None:
        request = pb.LeaseRevokeRequest(ID=int(lease, 16))
        with suppress(SessionLost):
            await self._link.ask("Lease/LeaseRevoke", request, pb.LeaseRevokeResponse)

    async def close(self) -> None:
        """Close the connections. Leases that were not revoked expire."""
        with suppress(StoreError):
            await self._commits.forget()
        await self._link.close()

    async def _list(self, prefix: str) -> tuple[Sequence[Entry], int]:
        """Return the subtree, oldest first, and its revision."""
        begin, end = self._keys.below(prefix) if prefix else self._keys.tree_range
        own = [pb.RangeRequest(key=self._keys.key(prefix))] if prefix else []
        found, revision = await self._read(*own, pb.RangeRequest(key=begin, range_end=end))
        return sorted((self._keys.entry(one) for kvs in found for one in kvs), key=order), revision

    async def _read(self, *ranges: pb.RangeRequest) -> tuple[Sequence[Sequence[pb.KeyValue]], int]:
        """Read all ranges as of one moment, the newest."""
        # A read must not show a state that an unanswered commit of this process changes afterwards.
        await self._commits.settle()
        request = pb.TxnRequest(success=[pb.RequestOp(range=one) for one in ranges])
        large = any(one.range_end for one in ranges)
        response = await self._link.ask("KV/Txn", request, pb.TxnResponse, large=large)
        return [answer.range.kvs for answer in response.responses], response.header.revision

    async def _claim(self) -> None:
        """Begin a tree in an empty place, or check that the existing one is ours. Raise StoreError."""
        begin, end = self._keys.tree_range
        ranges = [pb.RangeRequest(key=self._keys.mark), pb.RangeRequest(key=begin, range_end=end, limit=5)]
        (mark, others), _ = await self._read(*ranges)
        if mark:
            self._known(mark[0])
            return
        if others and not self.address.shared:
            names = ", ".join(one.key.decode(errors="replace") for one in others)
            raise StoreError(
                f"{self.address}: something else lives here ({names}); nothing was written. "
                f"Choose an empty root: {self.address}/headgate; or say that they are to live together: ?shared=yes"
            )
        begun = pb.TxnRequest()
        begun.compare.add(target=pb.Compare.MOD, key=self._keys.mark, mod_revision=0)
        begun.success.add(put=pb.PutRequest(key=self._keys.mark, value=_MARK))
        await self._link.ask("KV/Txn", begun, pb.TxnResponse)  # another process may write the same first

    def _known(self, mark: pb.KeyValue) -> None:
        try:
            document: Any = msgspec.json.decode(mark.value)  # anybody may have written anything there
            found = int(document["headgate"])
        except (msgspec.DecodeError, LookupError, TypeError, ValueError):
            name = self._keys.mark.decode()
            raise StoreError(f"{self.address}: {name} is not what Headgate writes there; nothing was written") from None
        if found > FORMAT:
            known = f"format {found}, this one knows {FORMAT}"
            raise StoreError(f"{self.address}: written by a newer Headgate ({known}); upgrade")


async def connect(url: str) -> Backend:
    """Open the tree that a URL names.  Raise what `EtcdBackend.open` raises."""
    return await EtcdBackend.open(url)
