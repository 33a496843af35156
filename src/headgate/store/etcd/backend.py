"""etcd as a store.

A path is a key, as it is: `etcdctl get --prefix` reads what is stored.  A version is the revision of the last write,
`born` that of the first.  The number last given to a child that was appended to a parent is kept in `<parent>/~`, a
name that is nobody's: it is compared by every commit that uses it, and stays when the children go.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from headgate.store.etcd.address import parse
from headgate.store.etcd.commits import Commit
from headgate.store.etcd.link import LeaseUnknown, Link
from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.model import check_commit, order
from headgate.store.types import (
    At,
    Change,
    Changed,
    Entry,
    Gone,
    Lease,
    Op,
    SessionLost,
    Snapshot,
    StoreError,
    Unavailable,
)

PAGE_MAX = 5_000
"""Entries read at a time, all of one revision."""
ATTEMPTS_MAX = 30
"""Of a commit that appends where others do."""
LEASE_LEAST_S = 2
"""The server grants none shorter."""
OWN = "/~"
BARRIER = "/~barrier"


class EtcdBackend:
    """Use `await EtcdBackend.open(url)`."""

    def __init__(self, url: str) -> None:
        self.address = parse(url)
        self._link = Link(self.address)
        self._unsure = False
        """May a commit of ours still take effect, of which we do not know?"""

    @classmethod
    async def open(cls, url: str) -> EtcdBackend:
        """Raises StoreError with what is wrong and what to do; Unavailable when no server answers."""
        backend = cls(url)
        try:
            await backend.get("/any")
        except StoreError:
            await backend.close()
            raise
        return backend

    # ---- reading

    async def get(self, path: str) -> Entry | None:
        await self._settled()
        found = await self._link.range(pb.RangeRequest(key=self._key(path)))
        return self._entry(found.kvs[0]) if found.kvs and OWN not in path else None

    async def get_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        await self._settled()
        reads = [pb.RequestOp(request_range=pb.RangeRequest(key=self._key(path))) for path in paths]
        found = await self._link.txn(pb.TxnRequest(success=reads), harmless=True)
        kvs = [one.response_range.kvs for one in found.responses]
        return [self._entry(one[0]) if one and OWN not in path else None for path, one in zip(paths, kvs, strict=True)]

    async def list(self, prefix: str) -> Sequence[Entry]:
        entries, _ = await self._listed(prefix)
        return entries

    async def scan(self, directory: str, *, begins: str, after: str, limit: int) -> Sequence[Entry]:
        await self._settled()
        base = self._key(f"{directory}/")
        key, end = base + begins.encode(), _past(base + begins.encode())
        if after >= begins:
            key = base + after.encode() + b"\x00"
        found: list[Entry] = []
        while key < end and len(found) < limit:
            page = await self._link.range(pb.RangeRequest(key=key, range_end=end, limit=limit - len(found)))
            found += [self._entry(kv) for kv in page.kvs if OWN.encode() not in kv.key]
            if not page.more:
                break
            key = page.kvs[-1].key + b"\x00"
        return found

    async def _listed(self, prefix: str) -> tuple[Sequence[Entry], int]:
        """And the revision at which it was so."""
        await self._settled()
        own = await self._link.range(pb.RangeRequest(key=self._key(prefix))) if prefix else None
        revision = own.header.revision if own else 0
        kvs = list(own.kvs) if own else []
        key, end = self._key(f"{prefix}/"), _past(self._key(f"{prefix}/"))
        while True:
            page = await self._link.range(pb.RangeRequest(key=key, range_end=end, limit=PAGE_MAX, revision=revision))
            revision = revision or page.header.revision
            kvs += page.kvs
            if not page.more:
                break
            key = page.kvs[-1].key + b"\x00"
        return sorted((self._entry(kv) for kv in kvs if OWN.encode() not in kv.key), key=order), revision

    async def watch(self, prefix: str) -> AsyncIterator[Change]:
        while True:
            entries, revision = await self._listed(prefix)
            yield Snapshot(tuple(entries))
            changes = self._since(prefix, revision)
            try:
                async with aclosing(changes):  # type: ignore[type-var]  # an async generator behind its protocol
                    async for change in changes:
                        yield change
            except (Unavailable, _Missed):
                continue  # from a new snapshot on; raises Unavailable if there is none to be had

    async def _since(self, prefix: str, revision: int) -> AsyncIterator[Change]:
        """Raises Unavailable, _Missed."""
        key = self._key(prefix or "/")
        answers = self._link.watch(key, _past(key), revision + 1)
        async with aclosing(answers):  # type: ignore[type-var]  # an async generator behind its protocol
            async for events in _whole(answers):
                for change in self._changes(prefix, events):
                    yield change

    def _changes(self, prefix: str, events: Sequence[pb.Event]) -> Sequence[Change]:
        found: list[Change] = []
        for event in events:
            path = self._path(event.kv.key)
            if OWN in path or not (path == prefix or path.startswith(f"{prefix}/")):
                continue
            found.append(Gone(path) if event.type == pb.Event.DELETE else Changed(self._entry(event.kv)))
        return found

    # ---- writing

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        check_commit(checks, ops)
        await self._settled()
        commit = Commit(self._key, checks, ops)
        for _ in range(ATTEMPTS_MAX):
            try:
                answer = await self._link.txn(commit.request())
            except LeaseUnknown as unknown:
                raise SessionLost("the lease has run out") from unknown
            except Unavailable:
                self._unsure = True
                raise
            if answer.succeeded:
                return commit.written(answer)
            commit.refused(answer)
        raise Unavailable(f"{self.address}: others append faster than we do")

    async def _settled(self) -> None:
        """After an answer that was lost: a write of our own, after which nothing of ours is still under way."""
        if self._unsure:
            put = pb.RequestOp(request_put=pb.PutRequest(key=self._key(BARRIER)))
            await self._link.txn(pb.TxnRequest(success=[put]), harmless=True)
            self._unsure = False

    # ---- leases

    async def grant(self, ttl_s: float) -> Lease:
        id = await self._link.grant(max(LEASE_LEAST_S, math.ceil(ttl_s)))
        return Lease(f"{id:016x}")

    async def keep_alive(self, lease: Lease) -> None:
        try:
            await self._link.keep_alive(int(lease, 16))
        except LeaseUnknown as unknown:
            raise SessionLost(f"the lease {lease} has run out") from unknown

    async def revoke(self, lease: Lease) -> None:
        try:
            await self._link.revoke(int(lease, 16))
        except LeaseUnknown:
            return  # it is gone

    async def close(self) -> None:
        await self._link.close()

    # ---- names

    def _key(self, path: str) -> bytes:
        return (self.address.prefix + path).encode()

    def _path(self, key: bytes) -> str:
        return key.decode().removeprefix(self.address.prefix)

    def _entry(self, kv: pb.KeyValue) -> Entry:
        lease = Lease(f"{kv.lease:016x}") if kv.lease else None
        return Entry(self._path(kv.key), kv.value, kv.mod_revision, kv.create_revision, lease)


class _Missed(Exception):
    """What came after that revision is no longer kept."""


async def _whole(answers: AsyncIterator[pb.WatchResponse]) -> AsyncIterator[Sequence[pb.Event]]:
    """The events of whole answers.  Raises _Missed."""
    events: list[pb.Event] = []
    async for answer in answers:
        if answer.canceled:
            raise _Missed(answer.cancel_reason)
        events += answer.events
        if not answer.fragment:
            if events:
                yield events
            events = []


def _past(key: bytes) -> bytes:
    """The first key that does not begin so."""
    return key[:-1] + bytes([key[-1] + 1])
