"""Post and schedule messages: `Queues` for async programs, `SyncQueues` for others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from headgate.adapters.identity.trust import trusting
from headgate.base.ids import fresh
from headgate.ports.messages import NewMessage, QueueGone, SourceDown
from headgate.queue.messages.client import MessageClient
from headgate.queue.messages.later import Delayed
from headgate.queue.messages.schedules import MessageSchedule
from headgate.queueing.partitions import QueuePartition, shape_for

T = TypeVar("T")


def text_of(body: Any) -> str:  # any JSON value
    """Return a string unchanged, and everything else as JSON. Raise TypeError if JSON cannot express it."""
    return body if isinstance(body, str) else msgspec.json.encode(body).decode()


class PostOptions(TypedDict, total=False):
    """Set how a message is posted."""

    key: str
    """Messages with the same key (and priority) keep their order."""
    partition: int | None
    """Number of the partition, instead of a key and a priority."""
    ttl_s: int | None
    """Seconds for which the message is kept."""
    once: str
    """Any string; posts with the same string make one message, however often they are repeated."""
    delay_s: float
    """Seconds from posting to delivery; messages posted later to the partition overtake it in the meantime."""
    deliver_at: datetime | None
    """Time of delivery, with a time zone, instead of `delay_s`."""
    hold: bool
    """Whether messages posted later to the partition wait until this one is delivered."""
    priority: str | int
    """`high`, `normal` (the default), `low`, or a number from 1, the highest, to the queue's number of priorities."""


class ScheduleOptions(TypedDict, total=False):
    """Set how a schedule posts."""

    zone: str
    """Time zone of the fields of `cron`; UTC by default."""
    missed: Literal["once", "all", "skip"]
    """What to post for times that passed while no server ran: one message in all (the default), one each, or none."""
    key: str
    priority: str | int


class Queues:
    """Post to the queues of one application: `async with Queues(url, app_key) as queues`."""

    def __init__(self, url: str, app_key: str, *, ca: str | Path = "") -> None:
        """Use a URL that ends with the application, as in http://127.0.0.1:5000/v1/queuey/. `ca` is a PEM file with the
        CA of the server's certificate, if the system does not trust it."""
        self._url, self._key, self._ca = url, app_key, ca
        self._stack = AsyncExitStack()
        self._client: MessageClient | None = None

    async def __aenter__(self) -> Queues:
        tls = trusting(*([Path(self._ca)] if self._ca else ()))
        self._client = await self._stack.enter_async_context(MessageClient.open([self._url], self._key, tls=tls))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client = None
        await self._stack.aclose()

    async def create(self, queue: str, partitions: int | None = None, priorities: int = 1) -> None:
        """Create the queue if it does not exist. With priorities, each strand of partitions, one for each priority,
        is processed together."""
        await self._open().create(queue, partitions or priorities, priorities)

    async def post(self, queue: str, body: Any, **how: Unpack[PostOptions]) -> None:  # any JSON value
        """Post a message; it is durable when this returns. A queue that does not exist is created, with priorities
        if `priority` is given. Raise SourceDown (the message may have been stored: post it again with the same
        `once`), QueueFull (it was not stored), PostRefused."""
        deliver_at, priority = how.get("deliver_at"), str(how.get("priority", ""))
        message = NewMessage(
            queue,
            text_of(body),
            # The key makes it safe that the client below repeats a request whose response was lost.
            key=how.get("once") or fresh(),
            partition=how.get("partition"),
            ttl_s=how.get("ttl_s"),
            of=how.get("key", ""),
            delay_s=how.get("delay_s", 0.0),
            at=deliver_at.isoformat() if deliver_at is not None else "",
            hold=how.get("hold", False),
            priority=priority,
        )
        client = self._open()
        try:
            await client.post(message)
        except QueueGone:
            await client.create(queue, *shape_for(message.priority, message.partition))
            await client.post(message)

    async def schedule(
        self,
        queue: str,
        name: str,
        cron: str,
        body: Any,
        **how: Unpack[ScheduleOptions],  # any JSON value
    ) -> None:
        """Let the server post a message at each time that `cron` (minute hour day month weekday) names; an existing
        schedule of this name is changed. Raise SourceDown, PostRefused."""
        wanted = {"cron": cron, "body": text_of(body), **how}
        client = self._open()
        try:
            await Calendar(client).schedule(queue, name, wanted)
        except QueueGone:
            await client.create(queue, *shape_for(str(how.get("priority", ""))))
            await Calendar(client).schedule(queue, name, wanted)

    async def unschedule(self, queue: str, name: str) -> None:
        """Delete the schedule."""
        await Calendar(self._open()).unschedule(queue, name)

    def _open(self) -> MessageClient:
        if self._client is None:
            raise RuntimeError("these queues are not open: write `async with Queues(…) as queues`")
        return self._client


class SyncQueues:
    """Post like `Queues` from programs without a loop: `with SyncQueues(url, app_key) as queues`. Threads may share
    it."""

    def __init__(self, url: str, app_key: str, *, ca: str | Path = "") -> None:
        self._queues = Queues(url, app_key, ca=ca)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> SyncQueues:
        self._loop = asyncio.new_event_loop()
        # A program that forgets to leave the block can still end.
        self._thread = threading.Thread(target=self._loop.run_forever, name="queues", daemon=True)
        self._thread.start()
        self._wait(self._queues.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._wait(self._queues.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        self._loop = self._thread = None

    def create(self, queue: str, partitions: int | None = None, priorities: int = 1) -> None:
        """Create the queue if it does not exist; see `Queues.create`."""
        self._wait(self._queues.create(queue, partitions, priorities))

    def post(self, queue: str, body: Any, **how: Unpack[PostOptions]) -> None:  # any JSON value
        """Post a message and wait until it is durable; see `Queues.post`."""
        self._wait(self._queues.post(queue, body, **how))

    def schedule(
        self,
        queue: str,
        name: str,
        cron: str,
        body: Any,
        **how: Unpack[ScheduleOptions],  # any JSON value
    ) -> None:
        """Create or change a schedule; see `Queues.schedule`."""
        self._wait(self._queues.schedule(queue, name, cron, body, **how))

    def unschedule(self, queue: str, name: str) -> None:
        """Delete the schedule."""
        self._wait(self._queues.unschedule(queue, name))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            # A coroutine that is dropped without this makes Python warn that it was never awaited.
            work.close()
            raise RuntimeError("these queues are not open: write `with SyncQueues(…) as queues`")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class Calendar:
    """Call the calendar of a client's application. Every method raises SourceDown and QueueGone."""

    def __init__(self, client: MessageClient) -> None:
        self._client = client

    async def delayed(self, partition: QueuePartition, limit: int) -> list[Delayed]:
        """Return the first messages that are not due yet, in order of delivery."""
        query = {"partition": str(partition.number), "limit": str(limit)}
        found = await self._client.ask("GET", f"/{quote(partition.queue)}/delayed", query)
        try:
            return msgspec.json.decode(found.messages, type=list[Delayed])
        except ValueError as error:
            raise SourceDown(f"messages are not in the form of the message API: {error}") from error

    async def withdraw(self, partition: QueuePartition, ids: Sequence[str]) -> int:
        """Withdraw messages and return how many of them had not been delivered yet."""
        named = "%2C".join(f"{partition.number}%3A{id}" for id in ids)
        return (await self._client.ask("DELETE", f"/{quote(partition.queue)}/delayed/{named}")).withdrawn

    async def schedule(self, queue: str, name: str, wanted: Mapping[str, object]) -> str:
        """Make or change a schedule, `wanted` in the form of the API. Return when it posts next. Raise PostRefused."""
        data, headers = msgspec.json.encode(wanted), {"Content-Type": "application/json"}
        path = f"/{quote(queue)}/schedules/{quote(name)}"
        return (await self._client.ask("PUT", path, data=data, headers=headers)).next_at

    async def schedules(self, queue: str) -> tuple[MessageSchedule, ...]:
        return (await self._client.ask("GET", f"/{quote(queue)}/schedules")).schedules

    async def unschedule(self, queue: str, name: str) -> bool:
        """Delete a schedule and return whether it existed."""
        return (await self._client.ask("DELETE", f"/{quote(queue)}/schedules/{quote(name)}")).removed > 0
