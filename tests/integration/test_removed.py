"""Test pipelines, queues and tenants that are removed or renamed while changes are in them: nothing keeps running,
and no record stays of what no longer exists."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.base.ids import fresh
from headgate.gate.state.autohold import HoldRequest
from headgate.gate.state.world import Closing
from headgate.map.check import check
from headgate.map.places import Map
from headgate.map.queues import ReadAnew, TenantState
from headgate.recipes.codec import decode
from headgate.recipes.requestforms import Request
from headgate.services.autohold import hold_requests
from headgate.services.context import COMMIT_OPS_MAX, ProcessSettings
from headgate.services.orders import ask, ordered, state_of
from headgate.store.memory import MemoryBackend
from headgate.testing import gate as testing
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import FunctionRunner, Gate, gate
from headgate.testing.repositories import Repositories, run_git

from .conftest import PIPELINES, TENANTS

RENAMED = PIPELINES.replace("name: gate\n", "name: integrate\n").replace("    gate:\n", "    integrate:\n")
_BEFORE, _, _AFTER = PIPELINES.partition("- pipeline:\n    name: gate\n")
WITHOUT = _BEFORE + "- job:" + _AFTER.partition("- job:")[2].replace("    gate:\n      jobs: [unit]\n", "")
HELD = (
    PIPELINES.replace("run: jobs/unit", "run: jobs/unit\n    semaphore: one") + "\n- semaphore: {name: one, max: 9}\n"
)


def pushed(repositories: Repositories, text: str) -> None:
    """Push to the branch of the config project, past the gate."""
    repositories.write("config", {"zuul.yaml": text})
    run_git("commit", "-q", "-m", "Configure", at=repositories.work("config"))
    run_git("push", "-q", "origin", "HEAD:master", at=repositories.work("config"))


def left(backend: MemoryBackend, tenant: str, pipeline: str = "") -> Iterator[str]:
    """Return the places with any record of the pipeline, or of the tenant."""
    map = Map()
    if pipeline:
        places = [map.tenant(tenant).pipeline(pipeline).path, map.events.tenant(tenant).pipelines(pipeline).path]
    else:
        places = [map.tenant(tenant).path, map.events.tenant(tenant).path, map.layout(tenant).record.path]
        places += [map.semaphores(tenant).path]
    for place in places:
        yield from (entry.path for entry in backend.tree.under(place))
    for place in (map.executor.unzoned.requests.path, map.merger.requests.path):
        for entry in backend.tree.under(place):
            meta = decode(entry.value, Request).meta
            if meta.get("tenant") == tenant and pipeline in ("", meta.get("pipeline")) and "item" in meta:
                yield entry.path
    for entry in backend.tree.under(map.semaphores(tenant).path):
        if f'"{pipeline}"' in entry.value.decode():
            yield f"{entry.path} {entry.value.decode()}"


async def held(running: Gate, repositories: Repositories, *topics: str, project: str = "code/api") -> list[str]:
    """Approve changes whose jobs in the gate do not end; return their commits."""
    running.runner.hold = asyncio.Event()
    commits = list[str]()
    for topic in topics:
        commits.append(await asyncio.to_thread(repositories.propose, project, topic, {topic: "x\n"}))
        await asyncio.to_thread(repositories.approve, project, topic)
    async with asyncio.timeout(DEADLINE_S):
        await running.runner.begun(2 * len(topics))
    return commits


async def lands(running: Gate, repositories: Repositories, topic: str, pipeline: str = "gate") -> None:
    if running.runner.hold is not None:
        running.runner.hold.set()
    await asyncio.to_thread(repositories.propose, "code/lib", topic, {topic: "x\n"})
    await asyncio.to_thread(repositories.approve, "code/lib", topic)
    assert (await running.history.result_of(topic, pipeline)).result == "SUCCESS"
    assert repositories.show("code/lib", topic) == "x"


async def noted(running: Gate, repositories: Repositories, commit: str, words: str) -> None:
    """It is there once no merger request is left."""
    await running.until(lambda: not running.context.merges.open(running.context.mirror))
    assert words in await asyncio.to_thread(repositories.note, "code/api", commit)


@pytest.mark.long
@pytest.mark.parametrize("ops_max", [0, 3], ids=["", "cut"])
async def test_items_of_a_renamed_pipeline_leave_it_with_a_report(
    tmp_path: Path, repositories: Repositories, ops_max: int
) -> None:
    pushed(repositories, HELD)
    backend = MemoryBackend()
    settings = ProcessSettings(ops_max=ops_max or COMMIT_OPS_MAX)
    async with gate(tmp_path, repositories.hub, backend, TENANTS, settings=settings) as running:
        one, two = await held(running, repositories, "one", "two")
        await asyncio.to_thread(pushed, repositories, RENAMED)
        for topic in ("one", "two"):
            found = await running.history.result_of(topic, "gate")
            assert found.result == "DEQUEUED"
            assert "The pipeline gate was removed from the configuration of tenant example." in found.message
        assert {b.result for b in (await running.history.result_of("one", "gate")).builds} == {"CANCELED"}
        for commit in (one, two):
            await noted(running, repositories, commit, "pipeline gate was removed")
        await running.until(lambda: not [*left(backend, "example", "gate")])
        await lands(running, repositories, "three", "integrate")
        found = check(backend.tree.under(Map().path))
        assert not found.unknown and not found.undecodable and not backend.tree.under(Map().quarantine.path)


async def test_a_pipeline_removed_while_no_scheduler_runs_is_emptied(
    tmp_path: Path, repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = MemoryBackend()
    monkeypatch.setattr(testing, "FunctionRunner", partial(FunctionRunner, hold=asyncio.Event()))
    async with gate(tmp_path, repositories.hub, backend, TENANTS) as running:
        (commit,) = await held(running, repositories, "one")
    assert [*left(backend, "example", "gate")]
    pushed(repositories, WITHOUT)
    async with gate(tmp_path / "later", repositories.hub, backend, TENANTS) as running:
        found = await running.history.result_of("one", "gate")
        assert found.result == "DEQUEUED" and "was removed" in found.message
        await noted(running, repositories, commit, "pipeline gate was removed")
        await running.until(lambda: not [*left(backend, "example", "gate")])
        assert "gate" not in running.scheduler.tenants["example"].layouts.landed.pipelines


@pytest.mark.long
async def test_a_pipeline_that_comes_back_begins_with_nothing(tmp_path: Path, repositories: Repositories) -> None:
    backend = MemoryBackend()
    async with gate(tmp_path, repositories.hub, backend, TENANTS) as running:
        await held(running, repositories, "one")
        await asyncio.to_thread(pushed, repositories, WITHOUT)
        await running.until(lambda: not [*left(backend, "example", "gate")])
        place, mirror = running.context.map.layout("example").record, running.context.mirror
        before = mirror.get(place.path)
        await asyncio.to_thread(pushed, repositories, PIPELINES)
        await running.until(lambda: mirror.get(place.path) != before)  # another repository may be polled sooner
        await lands(running, repositories, "two")


async def test_a_configuration_that_cannot_be_read_removes_nothing(tmp_path: Path, repositories: Repositories) -> None:
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as running:
        await held(running, repositories, "one")
        place, mirror = running.context.map.layout("example").record, running.context.mirror
        before = mirror.get(place.path)
        await asyncio.to_thread(pushed, repositories, PIPELINES.replace("name: gate\n    manager: dep", "name: [gate"))
        await running.until(lambda: mirror.get(place.path) != before)
        await asyncio.to_thread(pushed, repositories, PIPELINES)
        assert running.runner.hold is not None
        running.runner.hold.set()
        assert (await running.history.result_of("one", "gate")).result == "SUCCESS"


async def test_a_renamed_queue_keeps_its_builds(tmp_path: Path, repositories: Repositories) -> None:
    backend = MemoryBackend()
    async with gate(tmp_path, repositories.hub, backend, TENANTS) as running:
        await held(running, repositories, "one", "two")
        ran = len(running.runner.ran)
        await asyncio.to_thread(pushed, repositories, PIPELINES.replace("queue: integrated", "queue: together"))
        place = Map().tenant("example").pipeline("gate")
        names = lambda: [  # noqa: E731
            place.queue("any").record.decode(e.value).name for e in backend.tree.under(f"{place.path}/queue")
        ]
        await running.until(lambda: names() == ["together"])
        assert running.runner.hold is not None
        running.runner.hold.set()
        for topic in ("one", "two"):
            assert (await running.history.result_of(topic, "gate")).result == "SUCCESS"
        assert len(running.runner.ran) == ran, "nothing was begun anew"
        assert repositories.show("code/api", "two") == "x"


class File:
    """Return what a reader of the tenant file finds."""

    text = TENANTS

    def read(self) -> str:
        return self.text


async def anew(running: Gate) -> None:
    context = running.context
    async with context.store.session(f"web {fresh()}") as session:
        answer = await ask(context, session, context.map.system.requests.stream, lambda path: ReadAnew(path, False))
    assert answer.done, answer


ANOTHER = TENANTS + TENANTS.replace("name: example", "name: another").replace("          - code/lib\n", "")


async def test_a_tenant_that_cannot_be_loaded_for_now_is_not_removed(
    tmp_path: Path, repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, wrong = MemoryBackend(), ANOTHER + "    semaphores: [nothing]\n"
    with monkeypatch.context() as patch:
        patch.setattr(testing, "FunctionRunner", partial(FunctionRunner, hold=asyncio.Event()))
        async with gate(tmp_path, repositories.hub, backend, ANOTHER) as running:
            await asyncio.to_thread(repositories.propose, "code/api", "one", {"one": "x\n"})
            async with asyncio.timeout(DEADLINE_S):
                await running.runner.begun(2)
    async with gate(tmp_path / "later", repositories.hub, backend, wrong) as running:
        assert list(running.scheduler.tenants) == ["example"]
        await lands(running, repositories, "two")
        assert {found.tenant for found in running.history.finished.values()} == {"example"}
        items = [path for path in left(backend, "another") if "/item/" in path]
        assert items
    async with gate(tmp_path / "last", repositories.hub, backend, ANOTHER) as running:
        found = await running.history.result_of("one", "check")
        assert (found.tenant, found.result) == ("another", "SUCCESS")


async def test_nothing_is_left_of_a_tenant_that_is_removed_but_its_history(
    tmp_path: Path, repositories: Repositories
) -> None:
    backend, file = MemoryBackend(), File()
    async with gate(tmp_path, repositories.hub, backend, ANOTHER, read=file.read) as running:
        running.runner.hold = asyncio.Event()
        await asyncio.to_thread(repositories.propose, "code/api", "one", {"one": "x\n"})
        async with asyncio.timeout(DEADLINE_S):
            await running.runner.begun(2)
        await ordered(running.context, "another", lambda now: replace(now, closings=(Closing("gate"),)))
        for id, tenant in (("0000000001", "another"), ("0000000002", "example")):
            hold = HoldRequest(id, tenant, "git.example/code/api", "unit", ".*", count_max=1, expiration_s=60)
            await running.context.store.commit([], [Map().hold_requests(id).record.put(hold)])
            await running.context.mirror.reached(Map().hold_requests(id).record.path)
        await anew(running)
        await running.until(lambda: not [*left(backend, "another")])
        finished = {f.tenant: f for f in running.history.finished.values()}
        assert finished["another"].result == "DEQUEUED" and "tenant another was removed" in finished["another"].message
        assert "example" not in finished, "the other one goes on"
        assert list(running.scheduler.tenants) == ["example"]

        def of_whom() -> list[str]:
            return [one.tenant for one in hold_requests(Map(), running.context.mirror)]

        await running.until(lambda: of_whom() == ["example"])
        file.text = ANOTHER
        await anew(running)
        assert state_of(running.context, "another") == TenantState(), "it begins with nothing"
        running.runner.hold.set()
        await asyncio.to_thread(repositories.propose, "code/api", "two", {"two": "x\n"})
        async with asyncio.timeout(DEADLINE_S):
            while {f.tenant for f in running.history.finished.values() if f.change.topic == "two"} != {
                "example",
                "another",
            }:
                running.history.changed.clear()
                await running.history.changed.wait()


@pytest.mark.long
async def test_a_tenant_removed_while_no_scheduler_runs_is_emptied(tmp_path: Path, repositories: Repositories) -> None:
    backend = MemoryBackend()
    repositories.create("code/mine", {"README": "x\n"})
    mine = TENANTS.replace("name: example", "name: mine").replace("code/api", "code/mine")
    async with gate(tmp_path, repositories.hub, backend, TENANTS + mine) as running:
        running.runner.hold = asyncio.Event()
        await asyncio.to_thread(repositories.propose, "code/mine", "one", {"one": "x\n"})
        async with asyncio.timeout(DEADLINE_S):
            await running.runner.begun(1)
    assert [*left(backend, "mine")] and is_read(running, "code/mine")
    async with gate(tmp_path / "later", repositories.hub, backend, TENANTS) as running:
        found = await running.history.result_of("one", "check")
        assert (found.tenant, found.result) == ("mine", "DEQUEUED")
        await running.until(lambda: not [*left(backend, "mine")])
        await running.until(lambda: not is_read(running, "code/mine"))
        assert is_read(running, "code/api")
        await lands(running, repositories, "two")


def is_read(running: Gate, project: str) -> bool:
    """Return whether its configuration is read."""
    context = running.context
    return bool(context.mirror.under(context.map.config.cache(f"git.example/{project}").path))
