"""Test paths of the previous release: a new client falls back to them on an old server."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec

from headgate.base.errors import UserError
from headgate.cli import components
from headgate.cli.identity.pages import PageClient
from headgate.ports.messages import PostRefused
from headgate.queue.messages.client import MessageClient, MessageLeasing, QueueResponse


class OldQueues:
    """Answer one path, and take every other for ids of messages."""

    async def ask(self, method: str, path: str, query: object = None) -> QueueResponse:
        if path != "/orders/standing":
            raise PostRefused(f"{path}: these are no ids")
        return QueueResponse(
            partitions=msgspec.Raw(b'[{"partition": 1, "messages": 2, "bytes": 3, "delayed": 0, "groups": []}]')
        )


class OldPages:
    def get(self, path: str) -> object:
        if path != "/api/troubles":
            raise UserError(f"{path}: 404")
        return [{"project": "the store", "text": "it is away", "since": 1}]


def test_the_status_of_partitions_answers_under_its_former_path() -> None:
    leasing = MessageLeasing(cast(MessageClient, OldQueues()))
    (row,) = asyncio.run(leasing.partition_status("orders"))
    assert (row.partition, row.messages) == (1, 2)


def test_problems_answer_under_their_former_path() -> None:
    (problem,) = components._problems(cast(PageClient, OldPages()))
    assert problem["text"] == "it is away"
