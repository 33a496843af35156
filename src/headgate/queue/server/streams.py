"""Waiting for messages: long polls, and streams of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from headgate.base.tasks import unless
from headgate.queue.messages.postsignal import Listener
from headgate.queue.messages.records import NoQueue, QueueRecord, StoredMessage
from headgate.queue.server.forms import MessagePage
from headgate.queue.server.state import MessageSite
from headgate.queueing.ids import Position, position_of
from headgate.queueing.partitions import QueuePartition
from headgate.rest import ServerSentEvents

PING_INTERVAL_S = 10.0
"""Seconds after which an idle stream sends a ping, so that both ends notice when the other is gone."""
STREAM_PAGE = 100
Event = dict[str, str]


async def messages(site: MessageSite, app: str, queue: QueueRecord, page: MessagePage) -> list[StoredMessage]:
    """Return messages partition by partition. If there are none, wait for some as long as the page says."""
    found = await _read(site, app, queue, page)
    if not page.wait_s or _news(found, page):
        return found
    end = asyncio.get_running_loop().time() + page.wait_s
    # Most requests find something at once and need no listener. The others read again: between the first read and
    # listening, a post would wake nobody.
    with site.waiting.track_inprogress(), site.board.signal.listen(app, queue.name) as listener:
        while not _news(found := await _read(site, app, queue, page), page) and not site.stop.is_set():
            try:
                async with asyncio.timeout_at(end):
                    await unless(site.stop, listener.wait())
            except TimeoutError:
                break
    return found


def _news(found: list[StoredMessage], page: MessagePage) -> bool:
    """Tell whether there are messages behind the page's position."""
    return any(one.message_id != page.since.id for one in found)


async def _read(site: MessageSite, app: str, queue: QueueRecord, page: MessagePage) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for partition in page.partitions:
        more = page.exclusive
        some = await site.board.read(queue, partition, page.since, limit=page.limit + more, descending=page.descending)
        if page.exclusive:
            some = [one for one in some if one.message_id != page.since.id]
        found += some[: page.limit]
    site.read.labels(app).inc(len(found))
    return found


def stream(
    site: MessageSite, app: str, queue: QueueRecord, page: MessagePage, still: Callable[[], bool]
) -> ServerSentEvents:
    """Stream the messages behind the page's position and every later one, in order within each partition. End when
    `still` says that the caller would no longer be admitted."""

    async def events() -> AsyncIterator[Event]:
        places: dict[int, Position] = {}
        with site.board.signal.listen(app, queue.name) as listener:
            while True:
                for partition in page.partitions:
                    async for one in _after(site, queue, partition, places, page, still):
                        yield {"event": "message", "id": one.message_id, "data": msgspec.json.encode(one).decode()}
                while not (news := await _posts(site, listener)):
                    if site.stop.is_set() or not still():
                        return
                    yield {"event": "ping", "data": ""}
                if not still():
                    return
                # A queue that was removed and created again is another one: readers must not go on as if nothing were
                # missing.
                if news[1] and not await _exists(site, app, queue):
                    yield {"event": "gone", "data": ""}
                    return

    return ServerSentEvents(events())


async def _after(
    site: MessageSite,
    queue: QueueRecord,
    partition: int,
    places: dict[int, Position],
    page: MessagePage,
    still: Callable[[], bool],
) -> AsyncIterator[StoredMessage]:
    """Yield the messages posted since the last look, which `places` remembers."""
    while True:
        since = places.get(partition, page.since)
        skip = partition in places or page.exclusive
        # Reads are inclusive, so the message that was sent last is read again and left out.
        found = await site.board.read(queue, partition, since, limit=STREAM_PAGE + 1)
        fresh = [one for one in found if not (skip and one.message_id == since.id)]
        for one in fresh:
            places[partition] = position_of(one.message_id)
            yield one
        if not fresh or not still():
            return


def happenings(site: MessageSite, app: str, still: Callable[[], bool]) -> ServerSentEvents:
    """Stream where something was posted, and when queues are created, removed or enlarged: one stream for all queues of
    an application.

    `ready` comes first; a caller that reads queues after that misses nothing.  It ends as `stream` does.
    """

    async def events() -> AsyncIterator[Event]:
        with site.board.signal.listen(app) as listener:
            yield {"event": "ready", "data": ""}
            while True:
                while not (news := await _posts(site, listener)):
                    if site.stop.is_set() or not still():
                        return
                    yield {"event": "ping", "data": ""}
                partitions, changed = news
                if not still():
                    return
                if changed:
                    yield {"event": "queues", "data": ""}
                if partitions:
                    yield {"event": "posted", "data": " ".join(str(partition) for partition in sorted(partitions))}

    return ServerSentEvents(events())


async def _posts(site: MessageSite, listener: Listener) -> tuple[set[QueuePartition], bool] | None:
    """Wait for the listener; return None when nothing happened for PING_INTERVAL_S, or the server is to stop."""
    try:
        async with asyncio.timeout(PING_INTERVAL_S):
            return await unless(site.stop, listener.wait())
    except TimeoutError:
        return None


async def _exists(site: MessageSite, app: str, queue: QueueRecord) -> bool:
    try:
        return (await site.board.queue(app, queue.name)).id == queue.id
    except NoQueue:
        return False
