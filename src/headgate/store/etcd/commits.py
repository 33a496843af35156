"""Translate a commit into one transaction of etcd.

It compares the versions, and then either writes everything or returns the versions that differ.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from uuid import uuid4

from headgate.store.etcd.keys import EtcdKeys
from headgate.store.etcd.link import EtcdLink
from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.model import check_commit
from headgate.store.types import NAME_DIGITS, Append, At, Conflict, Delete, Entry, Op, Put, Unavailable

ATTEMPTS_MAX = 50
"""Limit on the attempts at a commit whose appends other processes overtake."""
COUNTERS_MAX = 10_000
"""Limit on the counters that are remembered, so that an append takes one request."""
FENCE_S = 600
"""Lifetime of a fence, so that fences of killed processes disappear; a live process writes a new one."""


class EtcdCommits:
    """Write commits as transactions of etcd, each with the fence of this process."""

    def __init__(self, link: EtcdLink, keys: EtcdKeys) -> None:
        self._link, self._keys = link, keys
        self._counters: dict[str, tuple[int, int]] = {}
        """Parent -> number of children ever appended, and version of the counter, as last read."""
        self._lines: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fence, self._fenced = keys.fence(uuid4().hex), 0
        """A key of this process, and the version that every commit of it expects; 0 until the fence is first
        written."""
        self._lease = 0
        """Lease of the fence."""
        self._unsure = False
        self._settling = asyncio.Lock()

    async def settle(self) -> None:
        """Make sure that no earlier commit of unknown outcome can still take effect. Every commit checks the version of
        the fence, and this call changes it: a commit that is still in flight then fails, and its caller tries again.
        Raise Unavailable.

        No commit expects the fence to be absent, so a late commit fails even after the fence has expired. A write of
        the fence that arrives late makes valid commits fail, too; `_commit` then tries them again.
        """
        async with self._settling:
            if self._unsure:
                granted = await self._link.ask(
                    "Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=FENCE_S), pb.LeaseGrantResponse
                )
                put = pb.PutRequest(key=self._fence, lease=granted.ID)
                response = await self._link.ask("KV/Put", put, pb.PutResponse)
                self._fenced, self._lease, self._unsure = response.header.revision, granted.ID, False

    async def forget(self) -> None:
        """Delete the fence when the process ends, so that nothing that it sent can take effect afterwards."""
        if self._lease:
            revoke = pb.LeaseRevokeRequest(ID=self._lease)
            await self._link.ask("Lease/LeaseRevoke", revoke, pb.LeaseRevokeResponse)

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        check_commit(checks, ops)
        # Sorted, so that two commits that append to the same parents cannot deadlock.
        parents = sorted({op.parent for op in ops if isinstance(op, Append)})
        async with AsyncExitStack() as lines:
            for parent in parents:
                # Without the lock, commits of this process would race for the counter, and all but one would fail.
                await lines.enter_async_context(self._lines[parent])
            try:
                return await self._commit(checks, ops, parents)
            except Unavailable:
                for parent in parents:
                    self._counters.pop(parent, None)
                raise
            finally:
                if len(self._counters) > COUNTERS_MAX:
                    self._counters.clear()
                    # A lock that is held or awaited must not be replaced by a new one, which would not exclude it.
                    self._lines = defaultdict(asyncio.Lock, {p: one for p, one in self._lines.items() if one.locked()})

    async def _commit(self, checks: Sequence[At], ops: Sequence[Op], parents: Sequence[str]) -> Sequence[Entry | None]:
        for _ in range(ATTEMPTS_MAX):
            # Without a fence, a later `settle` would have nothing to change to make this commit fail.
            self._unsure |= not self._fenced
            await self.settle()
            fenced = self._fenced
            numbered = {parent: self._counters.get(parent, (0, 0)) for parent in parents}
            response = await self._try(self._transaction(checks, ops, numbered))
            if response.succeeded:
                for parent, (count, _) in numbered.items():
                    added = sum(isinstance(op, Append) and op.parent == parent for op in ops)
                    self._counters[parent] = (count + added, response.header.revision)
                return [
                    self._written(op, answer, response)
                    # Not strict: the answers for the counters follow those for the operations.
                    for op, answer in zip(_named(ops, numbered), response.responses, strict=False)
                ]
            self._refused(checks, parents, response)
            if fenced == self._fenced and all(self._counters[parent] == numbered[parent] for parent in parents):
                self._unsure = True  # all other checks hold, so the fence has another version than expected
        raise Unavailable(
            f"{self._link.address}: too many processes append to {', '.join(parents)} concurrently; nothing was written"
        )

    async def _try(self, transaction: pb.TxnRequest) -> pb.TxnResponse:
        try:
            return await self._link.ask("KV/Txn", transaction, pb.TxnResponse, once=True)
        except BaseException:  # including cancellation: the request may be in flight
            self._unsure = True
            raise

    def _transaction(
        self, checks: Sequence[At], ops: Sequence[Op], numbered: dict[str, tuple[int, int]]
    ) -> pb.TxnRequest:
        keys = self._keys
        expected = [(keys.key(check.path), check.version or 0) for check in checks]
        counters = [(keys.counter(parent), version) for parent, (_, version) in numbered.items()]
        out = pb.TxnRequest()
        for key, version in [*expected, *counters, (self._fence, self._fenced)]:
            out.compare.add(target=pb.Compare.MOD, key=key, mod_revision=version)
        # The earlier value shows when an entry was created. A path that must be absent has none, so it is not
        # requested.
        known = {check.path for check in checks if check.version is None}
        for op in _named(ops, numbered):
            if isinstance(op, Delete):
                out.success.add(delete_range=pb.DeleteRangeRequest(key=keys.key(op.path)))
            else:
                lease = int(op.lease, 16) if op.lease else 0
                put = pb.PutRequest(key=keys.key(op.path), value=op.value, lease=lease, prev_kv=op.path not in known)
                out.success.add(put=put)
        for parent, (count, _) in numbered.items():
            added = sum(isinstance(op, Append) and op.parent == parent for op in ops)
            out.success.add(put=pb.PutRequest(key=keys.counter(parent), value=str(count + added).encode()))
        for key, _ in expected:
            out.failure.add(range=pb.RangeRequest(key=key, keys_only=True))
        for key, _ in counters:
            out.failure.add(range=pb.RangeRequest(key=key))
        return out

    def _written(self, op: Put | Delete, answer: pb.ResponseOp, response: pb.TxnResponse) -> Entry | None:
        if isinstance(op, Delete):
            return None
        now, before = response.header.revision, answer.put.prev_kv
        return Entry(op.path, op.value, now, before.create_revision or now, op.lease)

    def _refused(self, checks: Sequence[At], parents: Sequence[str], response: pb.TxnResponse) -> None:
        """Raise Conflict, unless only the counters or the fence differed; remember the counters."""
        found = [next(iter(answer.range.kvs), None) for answer in response.responses]
        for check, now in zip(checks, found, strict=False):
            if (now.mod_revision if now is not None else None) != check.version:
                raise Conflict(check)
        for parent, now in zip(parents, found[len(checks) :], strict=True):
            self._counters[parent] = (int(now.value), now.mod_revision) if now is not None else (0, 0)


def _named(ops: Sequence[Op], numbered: dict[str, tuple[int, int]]) -> list[Put | Delete]:
    """Return the operations, with each append replaced by a put under its numbered name."""
    counts = {parent: count for parent, (count, _) in numbered.items()}
    out: list[Put | Delete] = []
    for op in ops:
        if isinstance(op, Append):
            out.append(Put(f"{op.parent}/{op.prefix}{counts[op.parent]:0{NAME_DIGITS}d}", op.value, op.lease))
            counts[op.parent] += 1
        else:
            out.append(op)
    return out
