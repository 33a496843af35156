"""Watch a subtree: yield a snapshot, then every change after its revision, over as many connections as that takes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from grpc import aio

from headgate.store.etcd.keys import EtcdKeys
from headgate.store.etcd.link import EtcdLink
from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.model import inside
from headgate.store.types import Change, Entry, EntryChanged, EntryGone, Snapshot, Unavailable

LASTED_S = 1.0
"""Age above which a watch that had nothing to report counts as one that worked."""
RESUME_S = 30.0
"""Time for which a broken watch tries to continue from its last revision."""
RESUME_INTERVAL_S = 0.2

List = Callable[[str], Awaitable[tuple[Sequence[Entry], int]]]
"""Returns a subtree and its revision."""


class Compacted(Exception):
    """Report that the events since the last one seen are no longer available."""


class Watch:
    def __init__(self, link: EtcdLink, keys: EtcdKeys, prefix: str, listed: List) -> None:
        self._link, self._keys, self._prefix, self._listed = link, keys, prefix, listed
        self._seen = 0
        """The revision up to which every change is known."""
        self._begun_s: float | None = None
        """When the server accepted the watch on the latest connection, or None if it has not."""

    async def changes(self) -> AsyncIterator[Change]:
        while True:
            entries, self._seen = await self._listed(self._prefix)
            yield Snapshot(tuple(entries))
            try:
                async for change in self._follow():
                    yield change
            except Compacted:
                continue

    async def _follow(self) -> AsyncIterator[Change]:
        """Yield changes. Raise Compacted, or Unavailable if no server could be reached for long."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + RESUME_S
        while True:
            self._begun_s = None
            try:
                async for change in self._connected():
                    yield change
            except (Unavailable, aio.AioRpcError) as error:
                why = error if isinstance(error, Unavailable) else self._link.translated(error)
                if not isinstance(why, Unavailable) or (loop.time() > until_s and not self._lasted()):
                    raise why from error
            # The time counts from the break: a watch may have had nothing to report for hours.
            if self._lasted():
                until_s = loop.time() + RESUME_S
            await asyncio.sleep(RESUME_INTERVAL_S)

    def _lasted(self) -> bool:
        """Return whether the latest watch was more than an acceptance that was taken back at once."""
        return self._begun_s is not None and asyncio.get_running_loop().time() - self._begun_s > LASTED_S

    async def _connected(self) -> AsyncIterator[Change]:
        """Yield changes until the connection breaks."""
        channel = await self._link.ready()
        try:
            async for change in self._streamed(channel):
                yield change
        except aio.AioRpcError:
            self._link.unanswered(channel)
            raise

    async def _streamed(self, channel: aio.Channel) -> AsyncIterator[Change]:
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
                    raise Unavailable(f"{self._link.address}: the watch was ended: {response.cancel_reason}")
                if self._begun_s is None:
                    self._begun_s = asyncio.get_running_loop().time()
                if response.events:
                    self._begun_s = -math.inf
                self._link.traffic.received_bytes += response.ByteSize()
                events += response.events
                # Changes of one revision are shown together, so the parts of a split response are joined first.
                if response.fragment:
                    continue
                changes = [change for event in events if (change := self._change(event)) is not None]
                # Every change up to here is passed on below, whatever becomes of the connection.
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

    def _change(self, event: pb.Event) -> Change | None:
        path = self._keys.path(event.kv)
        if self._prefix and not inside(path, self._prefix):
            return None
        return EntryGone(path) if event.type == pb.Event.DELETE else EntryChanged(self._keys.entry(event.kv))
