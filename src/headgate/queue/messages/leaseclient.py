"""Leases of partitions, as a worker asks a message server for them over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from headgate.ports.messages import SourceDown
from headgate.queue.messages.client import MessageClient
from headgate.queue.messages.holders import Handed, MessageLease, Outcome
from headgate.queue.messages.status import PartitionRow


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
        answer = await self._client.ask("GET", f"/{quote(queue)}/standing", {"group": group} if group else None)
        found: list[PartitionRow] = _shaped(answer.partitions, list[PartitionRow])
        return found

    async def give_back(self, queue: str, lease: MessageLease) -> None:
        """End the lease: messages that were fetched and have no outcome count as not started."""
        await self._client.ask("DELETE", _path(queue, lease))


def _path(queue: str, lease: MessageLease) -> str:
    return f"/{quote(queue)}/lease/{lease.lease}"


def _shaped(raw: msgspec.Raw, kind: Any) -> Any:  # decoded to that type
    try:
        return msgspec.json.decode(raw, type=kind)
    except ValueError as error:
        raise SourceDown(f"a lease is not in the shape of the message API: {error}") from error
