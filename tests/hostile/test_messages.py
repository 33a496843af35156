"""Test people who may post messages that start a pipeline: floods and garbage affect only themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from headgate.base.ids import fresh
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient
from headgate.services.scheduler.occasions.messages import BODY_MAX_BYTES, TRIGGER_MAX_BYTES, WatchedQueues
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import APP, KEY, serving
from headgate.testing.repositories import Repositories
from tests.integration.conftest import TENANTS
from tests.integration.test_message_triggers import answers, board, post, repositories, started

__all__ = ["board", "repositories"]  # fixtures

OTHER = """
- tenant:
    name: other
    source: {local: {config-projects: [config], untrusted-projects: [code/lib]}}
"""


BODIES = (
    "x" * (BODY_MAX_BYTES + 1),
    "\x01" * BODY_MAX_BYTES,
    "é" * BODY_MAX_BYTES,
    "{{ lookup('pipe', 'touch /tmp/x') }}{% raw %}",
    "[" * BODY_MAX_BYTES,
    '{"a":' * 2_000 + "1" + "}" * 2_000,
    '{"zuul": {"pipeline": "gate"}, "__proto__": {}, "n": 1e999}',
    '"\\ud800"',
    "1" * 10_000,
    "\x1b[2J\u202e\r\n\ufeff",
    "{",
    " ",
)


@pytest.mark.long
async def test_a_message_of_garbage_is_that_messages_problem(
    tmp_path: Path, repositories: Repositories, board: MessageBoard
) -> None:
    async with serving(board) as url, MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client:
        ids = await post(client, *BODIES, "good")
        async with started(tmp_path, repositories.hub, MemoryBackend(), client) as running:
            replies = {one.answers.id: one for one in await answers(client, len(ids)) if one.answers}
            assert not running.context.mirror.under(running.context.map.quarantine.path)
            specs = {one.zuul["trigger"]["id"]: one for one in running.runner.ran}
    assert sorted(replies) == sorted(ids), "each has one answer"
    for id, body in zip(ids, (*BODIES, "good"), strict=True):
        if len(body.encode()) > BODY_MAX_BYTES or body.startswith("\x01"):
            assert replies[id].result == "FAILURE" and "at most" in replies[id].message and id not in specs
            continue
        assert replies[id].result == "SUCCESS"
        trigger = specs[id].zuul["trigger"]
        assert trigger["body"] == body and specs[id].zuul["pipeline"] == "orders", "it is a text, as it was posted"
        assert len(msgspec.json.encode(trigger)) <= TRIGGER_MAX_BYTES
    data = [body for id, body in zip(ids, BODIES, strict=False) if id in specs and "data" in specs[id].zuul["trigger"]]
    assert data == [], "nothing of this is JSON that every program reads"


@pytest.mark.long
async def test_a_flood_of_messages_waits_where_it_is_and_delays_nobody_else(
    tmp_path: Path, repositories: Repositories, board: MessageBoard
) -> None:
    async with serving(board) as url, MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client:
        await client.create("orders", 4)
        for partition in range(1, 5):
            await client.post_many("orders", [("{}", partition)] * 250, fresh())
        both = TENANTS.replace("          - code/lib\n", "") + OTHER
        async with started(
            tmp_path, repositories.hub, MemoryBackend(), client, 4, tenants=both, builds_max=4
        ) as running:
            running.runner.hold = asyncio.Event()
            async with asyncio.timeout(DEADLINE_S):
                await running.runner.begun(4)
            repositories.propose("code/lib", "honest", {"a": "x\n"})
            begun, mirror = running.context.map.cache.connection("bus").occasions.begun.path, running.context.mirror
            async with asyncio.timeout(DEADLINE_S):
                with mirror.part(begun) as part:
                    while len(mirror.under(begun)) < 4 * WatchedQueues.of_a_partition_max:
                        await part.moved(part.moves)
            running.runner.hold.set()
            result = await running.history.result_of("honest", "check")
            done = sum(spec.job.name == "pack" for spec in running.runner.ran)
            assert result.result == "SUCCESS" and done < 100, f"{done} of 1,000 messages came before it"
            assert len(mirror.under(begun)) <= 4 * WatchedQueues.of_a_partition_max, "the rest stays in its queue"
