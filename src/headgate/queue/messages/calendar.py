"""Client of the parts of the message API that act later: delayed messages, and schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import msgspec

from headgate.ports.messages import SourceDown
from headgate.queue.messages.client import MessageClient
from headgate.queue.messages.later import Delayed
from headgate.queue.messages.schedules import MessageSchedule
from headgate.queueing.partitions import QueuePartition


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
            raise SourceDown(f"messages are not in the shape of the message API: {error}") from error

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
