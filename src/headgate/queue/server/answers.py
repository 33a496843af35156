"""Provide the common parts of the message API's routes: responses, refusals, long polls and streams."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge

from headgate.adapters.metrics.former import FormerMetric
from headgate.base.tasks import unless
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.database import DatabaseDown
from headgate.queue.messages.holders import LeaseLost
from headgate.queue.messages.posts import AGAIN_S, Listener, Overloaded
from headgate.queue.messages.records import InvalidPost, KeyReused, NoQueue, PartitionFull, QueueRecord, StoredMessage
from headgate.queue.server.access import AccessDenied, ApplicationKeys, QueueCaller
from headgate.queue.server.forms import PAGE_MAX_CHARS, MessagePage
from headgate.queueing.ids import Position, position_of
from headgate.queueing.partitions import QueuePartition
from headgate.rest import HTTPException, HttpRequest, Response, ServerSentEvents

OK = {"status": "ok"}
PING_INTERVAL_S = 10.0
"""Seconds after which an idle stream sends a ping, so that both ends notice when the other is gone."""
STREAM_PAGE = 100
ARRIVING_MAX_BYTES = 64_000_000
"""Limit on the bytes of one application's requests whose bodies have not arrived completely."""

Event = dict[str, str]


class MessageMetrics:
    """Keep the metrics of a message server in a registry of its own."""

    def __init__(self) -> None:
        self.registry = of = CollectorRegistry()
        self.posted = Counter("headgate_messages_posted", "Messages posted.", ["app"], registry=of)
        self.read = Counter("headgate_messages_read", "Messages read.", ["app"], registry=of)
        self.waiting = Gauge("headgate_queue_requests_waiting", "Requests that wait for messages.", registry=of)
        of.register(FormerMetric("headgate_messages_waiting", self.waiting))


class MessageSite:
    """Hold the objects that every handler of the message API uses."""

    def __init__(self, board: MessageBoard, keys: ApplicationKeys, stop: asyncio.Event) -> None:
        self.board, self.keys, self.stop = board, keys, stop
        self.metrics = MessageMetrics()
        self._arriving = defaultdict[str, int](int)
        """Application -> bytes of bodies that have not arrived completely."""

    async def body(self, request: HttpRequest, app: str) -> bytes:
        """Return the body of a request. Raise PartitionFull if the application sends too much at the same time."""
        pieces = list[bytes]()
        try:
            async for piece in request.stream():
                pieces.append(piece)
                self._arriving[app] += len(piece)
                if self._arriving[app] > ARRIVING_MAX_BYTES:
                    why = f"application {app} sends at most {ARRIVING_MAX_BYTES} bytes of requests at the same time"
                    raise PartitionFull(why, AGAIN_S)
            return b"".join(pieces)
        finally:
            self._arriving[app] -= sum(map(len, pieces))

    def caller(self, request: HttpRequest, app: str) -> QueueCaller:
        """Return the caller. Raise AccessDenied."""
        return self.keys.caller(app, request.headers.get("authorization", ""))

    def still(self, request: HttpRequest, app: str, queue: QueueRecord | None = None) -> Callable[[], bool]:
        """Return a check whether the request would still be admitted, to this queue or to the whole application:
        keys are revoked, and tokens expire."""

        def allowed() -> bool:
            try:
                caller = self.caller(request, app)
                caller.must_be(app) if queue is None else caller.must_see(app, queue)
            except AccessDenied:
                return False
            return True

        return allowed

    async def queue(self, app: str, name: str, turn: str = "") -> QueueRecord:
        """Return the queue. `turn`: see `QueueCaller.turn`. Raise NoQueue, also for names that no queue can have."""
        return await self.board.queue(app, name, turn)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def answer(record: object, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(msgspec.json.encode(record), status_code=status, media_type="application/json", headers=headers)


def _refusal(status: int, fields: dict[str, str], again_s: float = 0.0) -> Response[bytes]:
    headers = {"WWW-Authenticate": "Application"} if status == 401 else None
    if again_s:
        # The header has whole seconds; rounded down, clients would come too early.
        headers = {"Retry-After": str(math.ceil(again_s))}
    return answer({"status": "error", "error_msg": fields}, status, headers)


def refused(_: HttpRequest, error: Exception) -> Response[bytes]:
    """Answer every error in one shape: `status` and `error_msg`."""
    match error:
        case AccessDenied():
            return _refusal(error.status, error.fields)
        case InvalidPost():
            return _refusal(400, error.fields)
        case NoQueue():
            return _refusal(404, {"queue_name": "there is no such queue"})
        case KeyReused():
            return _refusal(422, {"Idempotency-Key": str(error)})
        case LeaseLost():
            return _refusal(409, {"lease": str(error)})
        case PartitionFull():
            return _refusal(429, {"queue_name": str(error)}, error.again_s)
        case Overloaded():
            return _refusal(503, {"storage": str(error)}, AGAIN_S)
        case DatabaseDown():
            return _refusal(500, {"storage": str(error)})
        case HTTPException():
            return _refusal(error.status_code, {"request": error.detail})
        case _:
            raise error


REFUSALS = (
    AccessDenied,
    InvalidPost,
    PartitionFull,
    NoQueue,
    LeaseLost,
    KeyReused,
    Overloaded,
    DatabaseDown,
    HTTPException,
)


async def messages(
    site: MessageSite, app: str, queue: QueueRecord, page: MessagePage, turn: str
) -> list[StoredMessage]:
    """Return messages partition by partition. If there are none, wait for some as long as the page says. `turn`: see
    `QueueCaller.turn`."""
    found = await _read(site, app, queue, page, turn)
    if not page.wait_s or _news(found, page):
        return found
    end = asyncio.get_running_loop().time() + page.wait_s
    # Most requests find something immediately and need no listener. The others read again: between the first read and
    # listening, a post would wake nobody.
    with site.metrics.waiting.track_inprogress(), site.board.signal.listen(app, queue.name) as listener:
        while not _news(found := await _read(site, app, queue, page, turn), page) and not site.stop.is_set():
            try:
                async with asyncio.timeout_at(end):
                    await unless(site.stop, listener.wait())
            except TimeoutError:
                break
    return found


def _news(found: list[StoredMessage], page: MessagePage) -> bool:
    """Return whether there are messages behind the page's position."""
    return any(one.message_id != page.since.id for one in found)


async def _read(site: MessageSite, app: str, queue: QueueRecord, page: MessagePage, turn: str) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for partition in page.partitions:
        # Each partition has a page of its own, and there may be two hundred of them.
        if sum(len(one.body) for one in found) > PAGE_MAX_CHARS:
            break
        # Reads include the message at the position, so read one more where that one is left out.
        more = page.exclusive
        some = await site.board.read(
            turn, queue, partition, page.since, limit=page.limit + more, descending=page.descending
        )
        if page.exclusive:
            some = [one for one in some if one.message_id != page.since.id]
        found += some[: page.limit]
    site.metrics.read.labels(app).inc(len(found))
    return found


def stream(
    site: MessageSite, app: str, queue: QueueRecord, page: MessagePage, turn: str, still: Callable[[], bool]
) -> ServerSentEvents:
    """Return a stream of the messages behind the page's position and every later one, in order within each partition.
    End when `still` says that the caller would no longer be admitted."""

    async def events() -> AsyncIterator[Event]:
        places: dict[int, Position] = {}
        with site.board.signal.listen(app, queue.name) as listener:
            while True:
                for partition in page.partitions:
                    async for one in _after(site, turn, queue, partition, places, page, still):
                        yield {"event": "message", "id": one.message_id, "data": msgspec.json.encode(one).decode()}
                while not (news := await _posts(site, listener)):
                    if site.stop.is_set() or not still():
                        return
                    yield {"event": "ping", "data": ""}
                if not still():
                    return
                # A queue that was removed and created again is another one: readers must not continue as if nothing
                # were missing.
                if news[1] and not await _exists(site, app, queue, turn):
                    yield {"event": "gone", "data": ""}
                    return

    return ServerSentEvents(events())


async def _after(
    site: MessageSite,
    turn: str,
    queue: QueueRecord,
    partition: int,
    places: dict[int, Position],
    page: MessagePage,
    still: Callable[[], bool],
) -> AsyncIterator[StoredMessage]:
    """Yield the messages posted since the last read, which `places` remembers."""
    while True:
        since = places.get(partition, page.since)
        skip = partition in places or page.exclusive
        # Reads are inclusive, so the message that was sent last is read again and left out.
        found = await site.board.read(turn, queue, partition, since, limit=STREAM_PAGE + 1)
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


async def _exists(site: MessageSite, app: str, queue: QueueRecord, turn: str) -> bool:
    try:
        return (await site.board.queue(app, queue.name, turn)).id == queue.id
    except NoQueue:
        return False
