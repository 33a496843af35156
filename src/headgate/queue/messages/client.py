"""Call the message API, of Headgate's server and others that implement it: messages, queues, leases."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec

from headgate.base.errors import UserError
from headgate.ports import messages
from headgate.queue.messages.holders import Handed, MessageLease, Outcome
from headgate.queue.messages.queues import PartitionRow
from headgate.queue.messages.records import COUNT_MAX, READ_MAX
from headgate.queue.messages.schedules import MessageSchedule
from headgate.queueing.ids import BEHIND_ALL, START, Position, position_of, unix_text
from headgate.queueing.message import Message
from headgate.queueing.partitions import QueuePartition, parse_partition

if TYPE_CHECKING:
    import aiohttp
# Importing it takes as long as all else of a command, and some commands send no request: so it is imported at the first
# one. That it is missing must show before.
if find_spec("aiohttp") is None:
    raise ModuleNotFoundError("No module named 'aiohttp'", name="aiohttp")

TIMEOUT_S = 30.0
IDLE_MAX_S = 2.0
"""Time after which an idle connection is not used again: servers of earlier releases close it after 5 s, and a request
that arrives at that moment is lost."""
SILENCE_MAX_S = 35.0
"""Seconds without data after which a stream counts as broken; the server sends pings more often."""
QUEUES_PAGE = 1_000
CONNECTIONS_MAX = 100
LOCAL = ("localhost", "127.", "::1")


class QueueResponse(msgspec.Struct):
    """Hold the fields that responses may have."""

    messages: msgspec.Raw = msgspec.Raw(b"[]")
    """Messages in the response to a GET. The client ignores those in the response to a POST."""
    queues: tuple[dict[str, Any], ...] = ()  # JSON
    error_msg: Any = None  # text by field, or anything from another server
    waiting: int = 0
    newest: str = ""
    oldest_waiting: str = ""
    delayed: int = 0
    withdrawn: int = 0
    schedules: tuple[MessageSchedule, ...] = ()
    removed: int = 0
    next_at: str = ""
    lease: msgspec.Raw = msgspec.Raw(b"null")
    partitions: msgspec.Raw = msgspec.Raw(b"[]")


class _Draft(msgspec.Struct, omit_defaults=True):
    """Represent one message of a batch."""

    body: str
    partition: int | msgspec.UnsetType = msgspec.UNSET
    ttl: int | msgspec.UnsetType = msgspec.UNSET


def ordered(urls: Sequence[str]) -> list[str]:
    """Return the URLs, those on this machine first. Raise UserError."""
    for url in urls:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).path.strip("/"):
            raise UserError(
                f"{url!r} is not a URL of an application's queues, such as http://127.0.0.1:5000/v1/queuey/"
            )
    local = [url for url in urls if (urlsplit(url).hostname or "").startswith(LOCAL)]
    return [url.rstrip("/") for url in (*local, *(url for url in urls if url not in local))]


class MessageClient:
    """Implement `ports.messages.MessageSource` over HTTP; use `open`. If one URL does not answer, try the next."""

    def __init__(self, urls: Sequence[str], http: Callable[[], aiohttp.ClientSession]) -> None:
        self._urls, self._http = ordered(urls), http

    @classmethod
    @asynccontextmanager
    async def open(
        cls, urls: Sequence[str], key: str, token: str = "", tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[MessageClient]:
        """Open a client with a key of the application, or with a bearer token. `tls` says which certificates to
        trust, see `trusting`."""
        credential = f"Application {key}" if key else f"Bearer {token}" if token else ""
        headers = {"Authorization": credential} if credential else {}
        async with AsyncExitStack() as opened:

            @cache
            def http() -> aiohttp.ClientSession:
                import aiohttp

                connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=IDLE_MAX_S, ssl=tls or True)
                timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
                session = aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout)
                opened.push_async_callback(session.close)
                return session

            yield cls(urls, http)

    async def partitions(self) -> list[QueuePartition]:
        every = await self._listed()
        return [QueuePartition(one["queue_name"], n + 1) for one in every for n in range(one.get("partitions", 1))]

    async def priorities(self) -> dict[str, int]:
        return {one["queue_name"]: one["priorities"] for one in await self._listed() if one.get("priorities", 1) > 1}

    async def _listed(self) -> list[dict[str, Any]]:  # JSON
        found: list[dict[str, Any]] = []  # JSON
        offset = ""
        while True:
            query = {"details": "true", "limit": str(QUEUES_PAGE), "offset": offset}
            page = (await self.ask("GET", "", query)).queues
            # The offset is inclusive: the last queue of a page is the first of the next.
            fresh = [one for one in page if one["queue_name"] != offset]
            found += fresh
            if len(page) < QUEUES_PAGE or not fresh:
                return found
            offset = fresh[-1]["queue_name"]

    async def read(self, partition: QueuePartition, after: Position, limit: int) -> list[Message]:
        since = after
        while True:
            # `since` is inclusive, so the message at `after` comes again; a page of nothing but known messages is not
            # the end.
            count = min(limit + 1, READ_MAX)
            query = {"partitions": str(partition.number), "limit": str(count), "since": _since(since)}
            page = _messages(await self.ask("GET", f"/{quote(partition.queue)}", query))
            fresh = [
                msgspec.structs.replace(m, queue=partition.queue) for m in page if position_of(m.message_id) > after
            ]
            if fresh or len(page) < count:
                return fresh[:limit]
            since = position_of(page[-1].message_id)

    async def get(self, partition: QueuePartition, id: str) -> Message | None:
        try:
            found = _messages(await self.ask("GET", _one(partition, id)))
        except messages.PostRefused:  # the original server cannot return single messages of partitions from 10 on
            query = {"partitions": str(partition.number), "limit": "1", "since": id}
            found = _messages(await self.ask("GET", f"/{quote(partition.queue)}", query))
        found = [message for message in found if message.message_id == id]
        return msgspec.structs.replace(found[0], queue=partition.queue) if found else None

    async def delete(self, partition: QueuePartition, id: str) -> None:
        await self.ask("DELETE", _one(partition, id))

    async def post(self, message: messages.NewMessage) -> None:
        headers = {"Idempotency-Key": message.key, "Content-Type": "text/plain; charset=utf-8", **_due(message)}
        if message.partition is not None:
            headers["X-Partition"] = str(message.partition)
        if message.of:
            headers["X-Key"] = message.of
        if message.priority:
            headers["X-Priority"] = message.priority
        if message.ttl_s is not None:
            headers["X-TTL"] = str(message.ttl_s)
        await self.ask("POST", f"/{quote(message.queue)}", data=message.body.encode(), headers=headers)

    async def post_many(
        self, queue: str, messages: Sequence[tuple[str, int | None]], key: str, *, ttl_s: int | None = None
    ) -> None:
        drafts = [_Draft(body, partition or msgspec.UNSET, ttl_s or msgspec.UNSET) for body, partition in messages]
        data = msgspec.json.encode({"messages": drafts})
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        await self.ask("POST", f"/{quote(queue)}", data=data, headers=headers)

    async def partition_count(self, queue: str) -> int:
        page = (await self.ask("GET", "", {"details": "true", "limit": "1", "offset": queue})).queues
        if not page or page[0]["queue_name"] != queue:
            raise messages.QueueGone(queue)
        return int(page[0].get("partitions", 1))

    async def create(self, queue: str, partitions: int = 1, priorities: int = 1) -> None:
        try:
            # Query it first, because a POST for a queue that exists would change its settings.
            await self.ask("GET", f"/{quote(queue)}", {"limit": "1"})
        except messages.QueueGone:
            form = {"queue_name": queue, "partitions": str(partitions)}
            await self.ask("POST", "", data={**form, "priorities": str(priorities)} if priorities > 1 else form)

    async def change(self, queue: str, form: Mapping[str, str]) -> None:
        """Change the settings of the queue that the form names. Raise what `ask` raises."""
        await self.ask("PUT", f"/{quote(queue)}", data=dict(form))

    async def backlog(self, partition: QueuePartition, after: Position) -> messages.PartitionBacklog:
        query = {"partition": str(partition.number)}
        if after != START:
            query["after"] = _since(after)
        try:
            found = await self.ask("GET", f"/{quote(partition.queue)}/lag", query)
        except messages.PostRefused:  # another server, which does not count them
            left = await self.read(partition, after, READ_MAX - 1)
            newest = left[-1].message_id if left else ""
            return messages.PartitionBacklog(min(len(left), COUNT_MAX), newest, left[0].timestamp if left else "")
        return messages.PartitionBacklog(found.waiting, found.newest, found.oldest_waiting, found.delayed)

    async def happenings(self) -> AsyncIterator[messages.MessageNews]:
        http = self._http()
        import aiohttp

        # A stream has no end that could be awaited; only silence shows that it is broken.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=SILENCE_MAX_S)
        headers = {"Accept": "text/event-stream"}
        try:
            # The first URL is one that answers: `ask` moves the others behind it.
            async with http.get(self._urls[0], headers=headers, timeout=timeout) as answer:
                if answer.status >= 500:
                    raise messages.SourceDown(f"{self._urls[0]} returned status {answer.status}")
                if answer.content_type != "text/event-stream":
                    raise messages.NoStream
                async for event, data in _events(answer.content):
                    if event in ("ready", "queues"):
                        yield messages.MessageNews(None)
                    elif event == "posted":
                        yield messages.MessageNews(frozenset(parse_partition(text) for text in data.split()))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise messages.SourceDown(f"{self._urls[0]}: {_text(error)}") from error
        raise messages.SourceDown(f"{self._urls[0]} ended its stream")

    async def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        **more: Any,  # arguments of aiohttp
    ) -> QueueResponse:
        """Call the API at a path below its application and return the response. Raise SourceDown, QueueGone or
        PostRefused."""
        http = self._http()
        import aiohttp

        # The server may have executed a request whose response was lost. Posts carry a key, so a repetition elsewhere,
        # on the same database, stores nothing twice.
        for url in (*self._urls,):
            try:
                async with http.request(method, url + path, params=query, **more) as answer:
                    again = answer.headers.get("Retry-After", "")
                    return _checked(url, answer.status, await answer.read(), again)
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                down = messages.SourceDown(f"{url}: {_text(error)}")
                # Move it to the end of the list, so that the next request does not wait for the same dead server again.
                self._urls = [*(one for one in self._urls if one != url), url]
            except aiohttp.ClientError as error:
                raise messages.SourceDown(f"{url}: {_text(error)}") from error
        raise down


class MessageLeasing:
    """Lease partitions. Every method raises SourceDown, QueueGone or PostRefused, and LeaseGone if it works under a
    lease."""

    def __init__(self, client: MessageClient) -> None:
        self._client = client

    async def take(
        self, queue: str, worker: str, group: str, ttl_s: float, partition: int | None = None
    ) -> MessageLease | None:
        """Return a partition that has something to do and that nobody holds, or None."""
        wanted = {"worker": worker, "group": group, "partition": partition, "ttl": ttl_s}
        answer = await self._client.ask("POST", f"/{quote(queue)}/lease", json=wanted)
        found: MessageLease | None = _shaped(answer.lease, MessageLease | None)
        return found

    async def fetch(self, queue: str, lease: MessageLease, limit: int) -> list[Handed]:
        """Return the next messages; repeated calls return the same ones until an outcome names them."""
        answer = await self._client.ask("GET", _path(queue, lease), {"limit": str(limit)})
        found: list[Handed] = _shaped(answer.messages, list[Handed])
        return found

    async def tell(self, queue: str, lease: MessageLease, outcome: Outcome, key: str = "") -> None:
        """Record the outcome of messages, and extend the lease. Repeated with the same key, it is recorded once."""
        body, headers = msgspec.json.encode(outcome), {"Idempotency-Key": key} if key else {}
        await self._client.ask("POST", _path(queue, lease), data=body, headers=headers)

    async def partition_status(self, queue: str, group: str = "") -> list[PartitionRow]:
        """Return the state of the partitions, for this group or for all groups."""
        query = {"group": group} if group else None
        try:
            answer = await self._client.ask("GET", f"/{quote(queue)}/status", query)
        except messages.PostRefused:  # a server of the previous release, which takes the word for the id of a message
            answer = await self._client.ask("GET", f"/{quote(queue)}/standing", query)
        found: list[PartitionRow] = _shaped(answer.partitions, list[PartitionRow])
        return found

    async def give_back(self, queue: str, lease: MessageLease) -> None:
        """End the lease: messages that were fetched and have no outcome count as not started."""
        await self._client.ask("DELETE", _path(queue, lease))


def _checked(url: str, status: int, body: bytes, again: str) -> QueueResponse:
    try:
        answer = msgspec.json.decode(body, type=QueueResponse)
    except (msgspec.DecodeError, ValueError) as error:
        raise messages.SourceDown(
            f"{url} returned status {status}, but not in the format of the message API"
        ) from error
    if status < 300:
        return answer
    text = _plain(answer.error_msg)
    if status == 404:
        raise messages.QueueGone(text)
    if status == 409:
        raise messages.LeaseGone(text)
    if status == 429:
        # Proxies may answer with a date here, which is legal HTTP.
        raise messages.QueueFull(text, float(again) if again.isdecimal() else 1.0)
    if status == 422:
        raise messages.PostedAlready(text)
    if status in (400, 413):
        raise messages.PostRefused(text)
    raise messages.SourceDown(f"{url} returned status {status}: {text}")


def _plain(reason: object) -> str:
    """Return the reason of a server as a line: `field: text` for each field, or JSON in any other form."""
    if isinstance(reason, dict) and reason:
        return "; ".join(f"{name}: {text if isinstance(text, str) else _json(text)}" for name, text in reason.items())
    return reason if isinstance(reason, str) else _json(reason)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[tuple[str, str]]:
    """Yield type and data of each server-sent event."""
    kind = data = ""
    async for raw in content:
        line = raw.decode().rstrip("\r\n")
        name, _, value = line.partition(":")
        if not line:
            yield kind, data
            kind = data = ""
        elif name == "event":
            kind = value.strip()
        elif name == "data":
            data += value.removeprefix(" ")


def _due(message: messages.NewMessage) -> dict[str, str]:
    found = {"X-Hold": "yes"} if message.hold else {}
    if message.delay_s:
        found["X-Delay"] = f"{message.delay_s:.3f}"
    elif message.at:
        found["X-Deliver-At"] = message.at
    return found


def _since(position: Position) -> str:
    if position.ticks <= 0:
        return "0"
    return unix_text(position.ticks) if position.id in ("", BEHIND_ALL) else position.id


def _one(partition: QueuePartition, id: str) -> str:
    return f"/{quote(partition.queue)}/{partition.number}%3A{id}"


def _text(error: BaseException) -> str:
    import aiohttp

    # The text of aiohttp has internals of its own; the number of the system's error is enough.
    if type(error) is aiohttp.ClientConnectorError and (error.os_error.errno or 0) > 0:
        return f"cannot connect: {os.strerror(error.os_error.errno or 0)}"
    return str(error) or type(error).__name__


def _path(queue: str, lease: MessageLease) -> str:
    return f"/{quote(queue)}/lease/{lease.lease}"


def _messages(answer: QueueResponse) -> list[Message]:
    found: list[Message] = _shaped(answer.messages, list[Message], "messages are")
    return found


def _shaped(raw: msgspec.Raw, kind: Any, what: str = "a lease is") -> Any:  # decoded to that type
    """Decode a part of a response. Raise SourceDown; `what` begins its text."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except ValueError as error:
        raise messages.SourceDown(f"{what} not in the form of the message API: {error}") from error
