"""Test messages of a real server that start pipelines of a real gate: the jobs' data, the answers, and fairness in
floods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.base.ids import fresh
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.check import check
from headgate.map.outbox import QueueReport
from headgate.map.places import Map
from headgate.ports.messages import QueueGone
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient
from headgate.queueing.ids import START
from headgate.queueing.partitions import QueuePartition
from headgate.services.publisher import ServerPosts
from headgate.services.scheduler.occasions import runner
from headgate.services.scheduler.occasions.messages import BODY_MAX_BYTES, QueueReporter, WatchedQueues
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import Gate, gate
from headgate.testing.queues.harness import APP, KEY, serving
from headgate.testing.repositories import Repositories
from headgate.web.status import Status
from tests.waiting import nothing_happens, until

from .conftest import PIPELINES, TENANTS

ORDERS = (
    PIPELINES
    + """
- pipeline:
    name: orders
    manager: serial
    trigger: {bus: [{queue: orders, project: code/api}]}
    success: {bus: {queue: answers}}
    failure: {bus: {queue: answers}}
- job: {name: pack, run: jobs/unit}
- project: {name: code/api, orders: {jobs: [pack]}}
"""
)


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    found = Repositories(tmp_path)
    found.create("config", {"zuul.yaml": ORDERS, "jobs/unit": "#!/bin/sh\n"})
    found.create("code/api", {"README": "api\n"})
    found.create("code/lib", {"README": "lib\n"})
    return found


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[MessageBoard]:
    found = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    yield found
    await found.close()


@asynccontextmanager
async def started(
    tmp_path: Path, hub: Path, backend: MemoryBackend, client: MessageClient, partitions: int = 1, **more: Any
) -> AsyncIterator[Gate]:
    watched = {"bus": ("queue", WatchedQueues("bus", client, partitions))}
    reporting: Mapping[str, Any] = {"bus": ("queue", QueueReporter(ServerPosts(client, 1)))}
    async with gate(
        tmp_path, hub, backend, more.pop("tenants", TENANTS), watched=watched, reporting=reporting, **more
    ) as running:
        yield running


async def answers(client: MessageClient, count: int) -> list[QueueReport]:
    """Wait until there are so many."""

    async def enough() -> Sequence[Any]:  # messages
        try:
            found = await client.read(QueuePartition("answers", 1), START, 500)
        except QueueGone:
            return ()
        return found if len(found) >= count else ()

    found = await until(f"{count} answers are there", enough, every_s=0.01)
    return [msgspec.json.decode(one.body, type=QueueReport) for one in found]


async def post(client: MessageClient, *bodies: str, queue: str = "orders") -> list[str]:
    """Return the ids in the only partition."""
    await client.create(queue)
    for body in bodies:
        await client.post_many(queue, [(body, 1)], fresh())
    return [one.message_id for one in await client.read(QueuePartition(queue, 1), START, 1_000)]


def failing_on(word: str) -> dict[str, Any]:
    def pack(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        bad = word in spec.zuul["trigger"].get("body", "")
        return BuildOutcome(build=spec.build, result="FAILURE" if bad else "SUCCESS")

    return {"pack": pack}


async def test_messages_are_items_in_order_and_their_ends_are_answers(
    tmp_path: Path, repositories: Repositories, board: MessageBoard
) -> None:
    backend, bodies = MemoryBackend(), ('{"n": 1}', "bad {{ 7 * 7 }}\x1b[2J\u202e", "x" * (BODY_MAX_BYTES + 1), "4")
    async with serving(board) as url, MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client:
        ids = await post(client, *bodies[:2])
        async with started(tmp_path, repositories.hub, backend, client, jobs=failing_on("bad")) as running:
            ids = await post(client, *bodies[2:])
            replies = await answers(client, 4)
            specs = [spec for spec in running.runner.ran if spec.job.name == "pack"]
        async with started(tmp_path, repositories.hub, backend, client) as again:  # another process takes over
            ids += (await post(client, "5"))[-1:]
            replies = await answers(client, 5)
            assert len(again.runner.ran) == 1
            await nothing_happens(lambda: again.runner.ran[1:], for_s=0.1)  # completed work is not repeated
        assert sorted(one.answers.id for one in replies if one.answers) == sorted(ids)
        by_id = {one.answers.id: one for one in replies if one.answers}
        assert [by_id[id].result for id in ids] == ["SUCCESS", "FAILURE", "FAILURE", "SUCCESS", "SUCCESS"]
        assert f"at most {BODY_MAX_BYTES}" in by_id[ids[2]].message and not by_id[ids[2]].builds
        one = by_id[ids[0]].answers
        assert one is not None and (one.connection, one.source, one.ordering_key) == ("bus", "orders", "1")
        assert [spec.zuul["trigger"]["body"] for spec in specs] == [bodies[0], bodies[1], bodies[3]], "in order"
        first = specs[0]
        assert first.zuul["trigger"]["data"] == {"n": 1} and "data" not in specs[1].zuul["trigger"]
        head = repositories.head("code/api")
        assert (first.zuul["branch"], first.zuul["commit_id"], first.change.project) == (
            "master",
            head,
            "git.example/code/api",
        )
    entries = await backend.list("/zuul")
    findings = check(entries)
    assert not findings.unknown and not findings.undecodable
    place = Map().cache.connection("bus").occasions
    assert not [e for e in entries if e.path.startswith(place.begun.path)], "all have ended"


async def test_an_unavailable_server_is_reported_and_waited_for(
    tmp_path: Path, repositories: Repositories, board: MessageBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PAUSE_FIRST_S", 0.05)
    monkeypatch.setattr(runner, "PAUSE_MAX_S", 0.1)
    async with serving(board) as url:
        port = int(url.rpartition(":")[2])
    async with (
        MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client,
        started(tmp_path, repositories.hub, MemoryBackend(), client) as running,
    ):
        place = running.context.map.cache.connection("bus").problems
        async with asyncio.timeout(DEADLINE_S):
            with running.context.mirror.part(place.path) as part:
                while (entry := running.context.mirror.get(place.path)) is None or not place.decode(
                    entry.value
                ).projects:
                    await part.moved(part.moves)
        assert str(port) in place.decode(entry.value).projects["bus"].text
        shown = Status(running.context, running.scheduler.tenants).of("example").problems
        assert [one.project for one in shown] == ["the connection bus"]
        async with serving(board, port):
            await post(client, "late")
            assert [one.result for one in await answers(client, 1)] == ["SUCCESS"]
            again = running.context.mirror.get(place.path)
            assert again is not None and place.decode(again.value).projects == {}
