"""Test the messages about events of a gate: real repositories, a real message server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from headgate.adapters.metrics.figures import ProcessMetrics
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.check import check
from headgate.map.outbox import PublishedEvent, QueueReport
from headgate.map.places import Map
from headgate.map.trees import StoreTree
from headgate.ports.messages import Poster, QueueGone, SourceDown
from headgate.ports.reporter import Reporter
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.client import MessageClient
from headgate.queueing.ids import START
from headgate.queueing.partitions import QueuePartition
from headgate.services.context import ProcessSettings
from headgate.services.publisher import PARTITIONS, ServerPosts, partition_of, queue_of
from headgate.services.scheduler.occasions.messages import QueueReporter
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import gate
from headgate.testing.queues.harness import APP, KEY, serving
from headgate.testing.repositories import Repositories, run_git

from .conftest import PIPELINES, TENANTS


async def published(client: MessageClient, project: str) -> list[PublishedEvent]:
    """Return the messages of one project, in order."""
    partition = QueuePartition(queue_of("example"), partition_of(project, PARTITIONS))
    try:
        found = [msgspec.json.decode(m.body, type=PublishedEvent) for m in await client.read(partition, START, 1000)]
    except QueueGone:
        return []
    return [one for one in found if one.project == project]


async def published_once(client: MessageClient, project: str, count: int, kind: str) -> list[PublishedEvent]:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await published(client, project)
            if sum(one.kind == kind for one in found) >= count:
                return found


def fails_on_bad(spec: BuildSpec, state: RepoState) -> BuildOutcome:
    good = spec.change.topic != "bad"
    return BuildOutcome(build=spec.build, result="SUCCESS" if good else "FAILURE")


async def test_events_of_a_change_are_published_in_order(tmp_path: Path, repositories: Repositories) -> None:
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    project = "git.example/code/api"
    async with serving(board) as url, MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client:
        async with gate(
            tmp_path, repositories.hub, MemoryBackend(), TENANTS, {"unit": fails_on_bad}, poster=client
        ) as running:
            running.runner.hold = asyncio.Event()
            for topic in ("bad", "good"):
                repositories.propose("code/api", topic, {topic: "x\n"})
            await published_once(client, project, 2, "build-started")
            running.runner.hold.set()
            found = await published_once(client, project, 1, "change-rejected")
            for topic in ("bad", "good"):
                repositories.approve("code/api", topic)
            found = await published_once(client, project, 1, "change-landed")
            left = await published_once(client, project, 2, "change-rejected")
        gates = {t: [n for n in left if n.pipeline == "gate" and n.change.startswith(t)] for t in ("bad", "good")}
        kinds = {topic: [n.kind for n in some] for topic, some in gates.items()}
        assert kinds["bad"] == ["change-enqueued", "build-started", "build-finished", "change-rejected"]
        assert kinds["good"][0] == "change-enqueued" and kinds["good"][-1] == "change-landed"
        if "item-reset" in kinds["good"]:
            assert kinds["good"].index("item-reset") < len(kinds["good"]) - 2, "and it was tested again"
        finished = next(n for n in gates["bad"] if n.kind == "build-finished")
        assert (finished.v, finished.job, finished.result, finished.voting) == (1, "unit", "FAILURE", True)
        assert finished.build and finished.log_url is not None
        assert gates["bad"][-1].result == "FAILURE" and gates["bad"][-1].message
        assert len({n.id for n in left}) == len(left), "each is told once"
        checks = [n.kind for n in found if n.pipeline == "check" and n.change.startswith("good")]
        assert checks[-1] == "change-passed"
    await board.close()


class Faltering:
    """Imitate a server that accepts a post and loses every second answer."""

    def __init__(self, client: MessageClient) -> None:
        self._client, self._count = client, 0

    async def create(self, queue: str, partitions: int = 1) -> None:
        await self._client.create(queue, partitions)

    async def partition_count(self, queue: str) -> int:
        return await self._client.partition_count(queue)

    async def post_many(
        self, queue: str, messages: Sequence[tuple[str, int | None]], key: str, *, ttl_s: int | None = None
    ) -> None:
        await self._client.post_many(queue, messages, key, ttl_s=ttl_s)
        self._count += 1
        if self._count % 2:
            raise SourceDown("the answer was lost")


@pytest.mark.long
async def test_an_event_whose_post_was_not_acknowledged_is_posted_once(
    tmp_path: Path, repositories: Repositories
) -> None:
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    async with (
        serving(board) as url,
        MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client,
        gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, poster=Faltering(client)),
    ):
        repositories.propose("code/lib", "one", {"a": "x\n"})
        found = await published_once(client, "git.example/code/lib", 1, "change-passed")
    assert [n.kind for n in found] == ["change-enqueued", "build-started", "build-finished", "change-passed"]
    await board.close()


def test_a_tenant_of_any_name_has_a_queue_and_a_project_one_partition() -> None:
    assert queue_of("example") == "gate-example"
    assert len(queue_of("ein Mandant " * 20)) <= 50 and queue_of("a b") != queue_of("a-b")
    assert {partition_of(f"p{n}", 8) for n in range(200)} == set(range(1, 9))


async def test_while_the_server_is_down_a_limited_number_waits_and_the_rest_is_counted(
    tmp_path: Path, repositories: Repositories
) -> None:
    backend, figures = MemoryBackend(), ProcessMetrics()
    settings = ProcessSettings(publishing=True, waiting_max=1)
    ran = gate(tmp_path, repositories.hub, backend, TENANTS, poster=Absent(), settings=settings, observer=figures)
    async with ran as running:
        repositories.propose("code/lib", "one", {"a": "x\n"})
        assert (await running.history.result_of("one", "check")).result == "SUCCESS"
        assert len(backend.tree.under(running.context.map.published_events.queue.path)) == 1
        with figures.showing_system(running.context.map, running.context.mirror):
            text = figures.text().decode()
    assert 'headgate_messages_waiting{to="published events"} 1.0' in text
    dropped = float(text.partition('headgate_messages_dropped_total{to="published events"} ')[2].split("\n")[0])
    assert dropped >= 3, "the build, its end, and that of the item"


class Absent:
    """Imitate a server that never answers."""

    async def create(self, queue: str, partitions: int = 1) -> None:
        raise SourceDown("nobody there")

    async def post_many(
        self, queue: str, messages: Sequence[tuple[str, int | None]], key: str, *, ttl_s: int | None = None
    ) -> None:
        raise SourceDown("nobody there")

    async def partition_count(self, queue: str) -> int:
        raise SourceDown("nobody there")


REPORTING = PIPELINES.replace(
    """    success:
      local: {}
    failure:
      local: {}
""",
    """    start:
      bus:
    success:
      local: {}
      bus:
        queue: passed
        ttl: 600
    failure:
      local: {}
      bus:
        - queue: broken
        - {}
    enqueue:
      bus:
        queue: passed
""",
    1,
)


def queues(poster: Poster) -> tuple[str, Reporter]:
    return "queue", QueueReporter(ServerPosts(poster))


def configured(repositories: Repositories, text: str) -> None:
    repositories.write("config", {"zuul.yaml": text})
    run_git("commit", "-q", "-m", "Report to queues", at=repositories.work("config"))
    run_git("push", "-q", "origin", "master", at=repositories.work("config"))


@pytest.mark.long
async def test_pipelines_report_to_the_queues_they_name(tmp_path: Path, repositories: Repositories) -> None:
    configured(repositories, REPORTING)
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    async with serving(board) as url, MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client:
        await client.create("broken", 2)
        jobs = {"unit": fails_on_bad}
        async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, jobs, reporting={"bus": queues(client)}):
            for topic in ("bad", "good"):
                repositories.propose("code/api", topic, {topic: "x\n"})
            usual, good = queue_of("example"), await reports(client, "passed", 3)
            broken = [*await reports(client, "broken", 1), *await reports(client, usual, 3)]
    began = [one for one in broken if one.report == "start"]
    failed = [one for one in broken if one.report == "failure"]
    of_good = [one.report for one in good if one.change.startswith("good")]
    assert of_good == ["enqueue", "success"], "in order"
    assert len(began) == 2 and len(failed) == 2, "the failure went to both queues, the starts to the tenant's"
    assert {(one.kind, one.v, one.tenant, one.pipeline, one.project) for one in (*good, *broken)} == {
        ("report", 1, "example", "check", "git.example/code/api")
    }
    build = good[-1].builds[0]
    assert (build.job, build.result, build.voting, build.attempt) == ("unit", "SUCCESS", True, 1)
    assert failed[0].result == "FAILURE" and "unit : FAILURE" in failed[0].message
    assert "unit : SUCCESS" in good[-1].message and not any(one.result for one in began)
    await board.close()


async def reports(client: MessageClient, queue: str, count: int) -> list[QueueReport]:
    """Return the messages of all partitions, in order; wait until there are so many."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            partitions = [partition for partition in await client.partitions() if partition.queue == queue]
            bodies = [message.body for partition in partitions for message in await client.read(partition, START, 1000)]
            if len(bodies) >= count:
                found = [msgspec.json.decode(body, type=QueueReport) for body in bodies]
                return sorted(found, key=lambda one: one.at_ms)


@pytest.mark.long
async def test_an_unavailable_server_delays_no_other(tmp_path: Path, repositories: Repositories) -> None:
    configured(repositories, REPORTING.replace("    enqueue:\n", "    enqueue:\n      away:\n"))
    board, backend = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}"), MemoryBackend()
    async with serving(board) as url, MessageClient.open([f"{url}/v1/{APP}/"], KEY) as client:
        to = {"bus": queues(client), "away": queues(Absent())}
        async with gate(tmp_path, repositories.hub, backend, TENANTS, reporting=to) as running:
            repositories.propose("code/lib", "one", {"a": "x\n"})
            assert [one.report for one in await reports(client, "passed", 2)] == ["enqueue", "success"]
            assert len(backend.tree.under(running.context.map.reports("away").queue.path)) == 1
            entries = await backend.list("/zuul")
    findings = check(entries, [StoreTree("/zuul", Map)])
    assert not findings.unknown and not findings.undecodable, findings.text()
    await board.close()
