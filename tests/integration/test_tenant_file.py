"""Test changes of the tenant file at run time: tenants and projects appear and disappear on every process of a
fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headgate.base.errors import UserError
from headgate.base.ids import fresh
from headgate.config.operator.model import Connection
from headgate.map.queues import ReadAnew
from headgate.map.records import ManagementResult
from headgate.services.configuration import Tenancy
from headgate.services.orders import ask
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories

from .conftest import TENANTS

MORE = TENANTS.replace("          - code/lib\n", "          - code/lib\n          - code/new\n")
ANOTHER = TENANTS + TENANTS.replace("name: example", "name: another").replace("          - code/lib\n", "")


class File:
    """Return what a reader of the tenant file finds."""

    def __init__(self) -> None:
        self.text = TENANTS

    def read(self) -> str:
        if self.text == "gone":
            raise UserError("tenants.yaml: the tenant file cannot be read: No such file or directory")
        return self.text


@pytest.fixture
def file() -> File:
    return File()


@pytest.fixture
async def running(tmp_path: Path, repositories: Repositories, file: File) -> AsyncIterator[Gate]:
    repositories.create("code/new", {"README": "new\n"})
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, read=file.read) as found:
        yield found


async def anew(running: Gate, *, full: bool = False) -> ManagementResult:
    context = running.context
    async with context.store.session(f"web {fresh()}") as session:
        return await ask(context, session, context.map.system.requests.stream, lambda path: ReadAnew(path, full))


async def shown(running: Gate, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await running.context.mirror.moved(running.context.mirror.moves)


async def lands(running: Gate, repositories: Repositories, project: str, topic: str) -> None:
    await asyncio.to_thread(repositories.propose, project, topic, {topic: "x\n"})
    await asyncio.to_thread(repositories.approve, project, topic)
    assert (await running.history.result_of(topic, "gate")).result == "SUCCESS"
    assert repositories.show(project, topic) == "x"


@pytest.mark.long
async def test_a_project_comes_and_goes(running: Gate, repositories: Repositories, file: File) -> None:
    await lands(running, repositories, "code/api", "before")
    assert await anew(running) == ManagementResult(True, "no tenant has changed")
    file.text = MORE
    assert await anew(running) == ManagementResult(True, "changed: example")
    await lands(running, repositories, "code/new", "one")
    await lands(running, repositories, "code/api", "two")
    file.text = TENANTS
    assert await anew(running) == ManagementResult(True, "changed: example")
    await shown(running, lambda: running.scheduler.tenants["example"].tenant.find("code/new") is None)
    await asyncio.to_thread(repositories.propose, "code/new", "three", {"three": "x\n"})
    await lands(running, repositories, "code/api", "four")
    assert not [spec for spec in running.runner.ran if spec.change.topic == "three"]


async def test_changes_of_a_removed_project_leave_the_queue(
    running: Gate, repositories: Repositories, file: File
) -> None:
    running.runner.hold = asyncio.Event()
    await asyncio.to_thread(repositories.propose, "code/lib", "one", {"one": "x\n"})
    await asyncio.to_thread(repositories.approve, "code/lib", "one")
    await running.runner.begun(2)
    file.text = TENANTS.replace("          - code/lib\n", "")
    assert (await anew(running)).done
    assert (await running.history.result_of("one", "gate")).result == "DEQUEUED"
    running.runner.hold.set()
    await lands(running, repositories, "code/api", "two")


async def test_a_tenant_comes_and_goes(running: Gate, repositories: Repositories, file: File) -> None:
    file.text = ANOTHER
    assert await anew(running) == ManagementResult(True, "added: another")
    await shown(running, lambda: running.scheduler.tenants["another"].loaded.is_set())
    await asyncio.to_thread(repositories.propose, "code/api", "one", {"one": "x\n"})
    async with asyncio.timeout(DEADLINE_S):
        while {f.tenant for f in running.history.finished.values()} != {"example", "another"}:
            running.history.changed.clear()
            await running.history.changed.wait()
    file.text = TENANTS
    assert await anew(running) == ManagementResult(True, "removed: another")
    await lands(running, repositories, "code/lib", "two")
    assert list(running.scheduler.tenants) == ["example"]
    assert not [f for f in running.history.finished.values() if (f.tenant, f.change.topic) == ("another", "two")]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("- tenant: [", "tenants.yaml"),
        (TENANTS.replace("- code/lib", "- code/lib\n          - {code/lib: {shadow: [nothing"), "tenants.yaml"),
        (TENANTS.replace("      local:", "      elsewhere:"), "elsewhere"),
        (TENANTS + "    semaphores: [nothing]\n", "nothing"),
        ("gone", "No such file"),
    ],
    ids=["no yaml", "torn", "an unknown connection", "one tenant", "not there"],
)
async def test_a_broken_file_leaves_the_old_in_force(
    running: Gate, repositories: Repositories, file: File, broken: str, says: str
) -> None:
    file.text = broken
    answer = await anew(running)
    assert not answer.done and "the previous one stays in effect" in answer.text and says in answer.text
    refused = running.scheduler.tenants.refused
    assert refused is not None and says in refused.text
    await lands(running, repositories, "code/api", "one")
    file.text = TENANTS
    assert (await anew(running)).done and running.scheduler.tenants.refused is None


async def test_every_process_follows_a_changed_tenant_file(running: Gate, file: File) -> None:
    web = Tenancy(running.context, {"local": Connection("local", "git.example")})
    await shown(running, lambda: "example" in web)
    before = web["example"]
    file.text = ANOTHER.replace("          - code/lib\n", "")
    assert (await anew(running)).done
    assert list(web) == ["example", "another"] and web["example"] is before
    assert before.tenant.find("code/lib") is None


async def test_all_projects_are_read_on_request(running: Gate, repositories: Repositories, file: File) -> None:
    place = running.context.map.layout("example").record
    entry = running.context.mirror.get(place.path)
    assert entry is not None
    assert (await anew(running)).done
    assert running.context.mirror.get(place.path) == entry
    assert (await anew(running, full=True)).done
    await shown(running, lambda: running.context.mirror.get(place.path) != entry)


async def test_a_signal_has_the_file_read(running: Gate, repositories: Repositories, file: File) -> None:
    file.text = MORE
    running.scheduler.file.obey()
    await shown(running, lambda: running.scheduler.tenants["example"].tenant.find("code/new") is not None)
    await lands(running, repositories, "code/new", "one")
