"""Test that a scheduler that takes over a tenant reads only the projects that must be read."""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headgate.base.ids import fresh
from headgate.base.tasks import run_until
from headgate.config.operator.model import Connection
from headgate.config.parse import ParseCache
from headgate.gate.state.change import Change, EventKind, TriggerEvent
from headgate.gate.state.works import CatAnswer, CatRequest, MergerAnswer, MergerWork
from headgate.map.places import Map
from headgate.map.records import Reread
from headgate.recipes import blob
from headgate.recipes.mirror import Mirror
from headgate.services.configuration import Configuration, readers
from headgate.services.context import Context
from headgate.services.membership import serve
from headgate.services.merger import Merger
from headgate.services.scheduler.tenant import TenantRunner
from headgate.services.scheduler.tenantconfig import Reading
from headgate.store.archive import parsed, restore, written
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Put, Snapshot
from headgate.testing.clock import run_virtual
from headgate.testing.layouts import parse_tenants

TENANTS = """
- tenant:
    name: one
    source: {local: {config-projects: [config], untrusted-projects: [shared, own]}}
- tenant:
    name: two
    source: {local: {config-projects: [config], untrusted-projects: [shared]}}
"""
WIDER = TENANTS.replace("[shared]", "[{shared: {extra-config-paths: [more.yaml]}}]")
FEWER = TENANTS.replace("[shared, own]", "[shared]")
CHARACTERS = string.ascii_letters + string.digits + "-_"
PIPELINE = "- pipeline: {name: gate, manager: dependent}\n- job: {name: base, parent: null, run: x}\n"
HEAD = "refs/heads/master"


@dataclass
class Repositories:
    """Imitate `ports.work.GitWork`, and record which projects are read."""

    texts: dict[str, dict[str, str]] = field(
        default_factory=lambda: {"git/config": {"zuul.yaml": PIPELINE}, "git/shared": {}, "git/own": {}}
    )
    broken: set[str] = field(default_factory=set)
    requested: list[str] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    """Further files of the shared project."""
    slow: list[asyncio.Event] = field(default_factory=list)
    """The next reads of the shared project return its content now, and answer then."""

    async def do(self, work: MergerWork) -> MergerAnswer:
        assert isinstance(work, CatRequest)
        self.requested.append(work.project.removeprefix("git/"))
        if work.project in self.broken:
            return CatAnswer(work.project, False, error="it is broken")
        texts = {path: text for path, text in self.texts[work.project].items() if path in work.paths}
        if work.project == "git/shared" and self.slow:
            await self.slow.pop(0).wait()
        more = dict.fromkeys(self.branches if work.project == "git/shared" else [], "c")
        return CatAnswer(work.project, True, branches={"master": "c", **more}, files={"master": texts})

    def read(self) -> list[str]:
        """Return the reads since the last call."""
        paths, self.requested = sorted(self.requested), []
        return paths


@dataclass
class Gate:
    """Simulate a store, a merger, and schedulers one after the other."""

    repositories: Repositories
    context: Context

    async def scheduler(self, tenants: str, *names: str, seconds: float = 5.0) -> dict[str, Configuration]:
        """Run a scheduler that has these tenants for so long; then it ends."""
        parsed = parse_tenants(tenants, "tenants.yaml", {"local": Connection("local", "git")})
        readings = {p: Reading(tuple(found)) for p, found in readers(parsed.values()).items()}
        cache = ParseCache()
        configurations = {name: Configuration(self.context, parsed[name], cache) for name in names}
        async with self.context.store.session("scheduler") as session:
            runners = [TenantRunner(self.context, one, readings).run(session) for one in configurations.values()]
            stop = asyncio.Event()
            running = asyncio.ensure_future(run_until(stop, *runners))
            await asyncio.sleep(seconds)
            stop.set()
            await running
        return configurations

    async def pushed(self, tenant: str, *files: str) -> None:
        """Push to the shared project."""
        change = Change("local", "git/shared", "master", commit="d", old_commit="c", ref=HEAD, files=files)
        stream = self.context.map.events.tenant(tenant).trigger.stream
        await self.context.store.commit([], stream.append(TriggerEvent(EventKind.REF_UPDATED, change, fresh())))

    async def moved(self) -> Gate:
        """Move the gate to another store, whose versions begin again."""
        entries = await self.context.store.list("")
        backend = MemoryBackend()
        await restore(backend, parsed(written(entries, "here"), "there"), lambda path: False)
        store = Store(backend)
        return Gate(self.repositories, Context(store, Mirror(store, Map().path), lambda: 0))


@asynccontextmanager
async def alive(gate: Gate) -> AsyncIterator[Gate]:
    """Run with a merger."""
    stop = asyncio.Event()
    merger = serve(gate.context, "merger", Merger(gate.context, gate.repositories).run, stop)
    running = asyncio.ensure_future(run_until(stop, gate.context.mirror.run(), merger))
    try:
        yield gate
    finally:
        stop.set()
        await running


def played(play: Callable[[Gate], Awaitable[None]]) -> None:
    async def main() -> None:
        store = Store(MemoryBackend())
        context = Context(store, Mirror(store, Map().path), lambda: 0)
        async with alive(Gate(Repositories(), context)) as gate:
            await play(gate)

    run_virtual(main())


def test_the_next_holder_reads_nothing_that_was_read() -> None:
    async def play(gate: Gate) -> None:
        await gate.scheduler(TENANTS, "one")
        assert gate.repositories.read() == ["config", "own", "shared"]
        found = await gate.scheduler(TENANTS, "one")
        assert gate.repositories.read() == []
        assert list(found["one"].layouts.landed.pipelines) == ["gate"]

    played(play)


def test_an_error_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def play(gate: Gate) -> None:
        async def push() -> None:
            gate.repositories.texts["git/shared"] = {"zuul.yaml": "- job: {name: new}\n"}
            await gate.pushed("one", "zuul.yaml")

        gate.repositories.texts["git/config"] = {"zuul.yaml": PIPELINE + "- job: {nam: x}\n"}
        tasks = list[asyncio.Future[None]]()
        asyncio.get_running_loop().call_later(2, lambda: tasks.append(asyncio.ensure_future(push())))
        found = await gate.scheduler(TENANTS, "one")
        await tasks[0]
        assert "new" in found["one"].layouts.landed.jobs

    played(play)
    assert sum("no key 'nam'" in message for message in caplog.messages) == 1


def test_a_project_of_which_other_files_are_needed_is_read_again() -> None:
    async def play(gate: Gate) -> None:
        await gate.scheduler(TENANTS, "one", "two")
        gate.repositories.read()
        await gate.scheduler(WIDER, "one")
        assert gate.repositories.read() == ["shared"]

    played(play)


def test_a_project_that_could_not_be_read_is_read_by_the_next_holder() -> None:
    async def play(gate: Gate) -> None:
        await gate.scheduler(TENANTS, "one")
        gate.repositories.read()
        gate.repositories.broken = {"git/shared"}
        await gate.pushed("one", "zuul.yaml")
        await gate.scheduler(TENANTS, "one")
        assert gate.repositories.read() == ["shared"]
        gate.repositories.broken = set()
        await gate.scheduler(TENANTS, "one")
        assert gate.repositories.read() == ["shared"]
        await gate.scheduler(TENANTS, "one")
        assert gate.repositories.read() == []

    played(play)


def test_a_push_that_nobody_acted_on_is_acted_on_by_the_next_holder() -> None:
    async def play(gate: Gate) -> None:
        await gate.scheduler(TENANTS, "one")
        gate.repositories.read()
        gate.repositories.texts["git/shared"] = {"zuul.yaml": "- job: {name: fresh}\n"}
        await gate.pushed("one", "zuul.yaml")
        found = await gate.scheduler(TENANTS, "one")
        assert gate.repositories.read() == ["shared"]
        assert "fresh" in found["one"].layouts.landed.jobs

    played(play)


def test_a_project_that_was_out_of_the_tenant_for_a_while_is_read() -> None:
    async def play(gate: Gate) -> None:
        for tenants, read in ((TENANTS, ["config", "own", "shared"]), (FEWER, []), (TENANTS, ["own"])):
            await gate.scheduler(tenants, "one")
            assert gate.repositories.read() == read

    played(play)


def test_on_another_store_pushes_are_followed() -> None:
    """A read there is not newer than a read here, however high its versions were."""

    async def play(gate: Gate) -> None:
        for _ in range(1_000):
            await gate.context.store.commit([], [Put("/zuul/ltime", b"")])
        await gate.scheduler(TENANTS, "one")
        async with alive(await gate.moved()) as here:
            here.repositories.texts["git/shared"] = {"zuul.yaml": "- job: {name: fresh}\n"}
            await here.pushed("one", "zuul.yaml")
            found = await here.scheduler(TENANTS, "one")
            assert "fresh" in found["one"].layouts.landed.jobs

    played(play)


USED = "- job: {name: used, run: x}\n"


def test_a_broken_push_that_one_tenant_has_read_does_not_break_the_layout_of_another() -> None:
    """The files of the layout stay stored until the layout uses others."""

    async def play(gate: Gate) -> None:
        former = gate.context.map.config.former.path
        gate.repositories.texts["git/shared"] = {"zuul.yaml": USED}
        await gate.scheduler(TENANTS, "one", "two")
        for torn in ("- job: [", "- job: ]["):
            gate.repositories.texts["git/shared"] = {"zuul.yaml": torn}
            for tenant in ("one", "two"):
                await gate.pushed(tenant, "zuul.yaml")
            found = await gate.scheduler(TENANTS, "two")
            assert "used" in found["two"].layouts.landed.jobs and gate.context.mirror.under(former)
            found = await gate.scheduler(TENANTS, "one")
            assert "used" in found["one"].layouts.landed.jobs and found["one"].layouts.refused
        gate.repositories.texts["git/shared"] = {"zuul.yaml": USED + "- job: {name: mended, run: x}\n"}
        for tenant in ("one", "two"):
            await gate.pushed(tenant, "zuul.yaml")
        found = await gate.scheduler(TENANTS, "one", "two")
        for one in found.values():
            assert "mended" in one.layouts.landed.jobs and one.layouts.errors == ()
        assert not gate.context.mirror.under(former)

    played(play)


class Observed(Store):
    """After each commit, the test checks what a process that starts then would have."""

    def __init__(self, store: Store, look: Callable[[Mirror], None]) -> None:
        super().__init__(store.backend)
        self.look, self.commits = look, 0

    async def commit(self, *arguments: Any, **guards: Any) -> Any:
        written = await super().commit(*arguments, **guards)
        mirror = Mirror(self, Map().path)
        mirror._apply(Snapshot(tuple(await self.list(Map().path))))
        self.look(mirror)
        self.commits += 1
        return written


def test_the_former_configuration_stays_in_force_at_whichever_commit_a_reader_dies() -> None:
    async def play(gate: Gate) -> None:
        tenant = parse_tenants(TENANTS, "tenants.yaml", {"local": Connection("local", "git")})["one"]

        def look(mirror: Mirror) -> None:
            found = Configuration(replace(gate.context, mirror=mirror), tenant, ParseCache()).layouts
            assert "used" in found.landed.jobs

        gate.repositories.texts["git/shared"] = {"zuul.yaml": USED}
        await gate.scheduler(TENANTS, "one")
        gate.repositories.texts["git/shared"] = {"zuul.yaml": "- job: ["}
        await gate.pushed("one", "zuul.yaml")
        store = Observed(gate.context.store, look)
        observed = Gate(gate.repositories, replace(gate.context, store=store, _queues={}))
        found = await observed.scheduler(TENANTS, "one")
        assert store.commits > 5 and found["one"].layouts.refused

    played(play)


MANY = 630


@pytest.mark.heavy
def test_a_layout_of_more_branches_than_one_entry_can_name_is_in_force_and_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The names do not compress. An entry has a tenth of its usual limit."""
    monkeypatch.setattr(blob, "INLINE_MAX_BYTES", blob.INLINE_MAX_BYTES // 10)
    monkeypatch.setattr(blob, "PIECE_SIZE_BYTES", blob.PIECE_SIZE_BYTES // 10)

    async def play(gate: Gate) -> None:
        chance = random.Random(1)
        gate.repositories.branches = ["".join(chance.choices(CHARACTERS, k=230)) for _ in range(MANY)]
        path = gate.context.map.layout("one").record.path
        await gate.scheduler(TENANTS, "one")
        assert len(gate.context.mirror.under(path)) > 2, "it lies in pieces"
        found = await gate.scheduler(TENANTS, "one")
        assert len(found["one"].layouts.landed.branches["git/shared"]) == MANY + 1
        gate.repositories.texts["git/shared"] = {"zuul.yaml": USED}
        await gate.pushed("one", "zuul.yaml")
        found = await gate.scheduler(TENANTS, "one")
        assert "used" in found["one"].layouts.landed.jobs
        gate.repositories.branches = []
        await gate.pushed("one", "zuul.yaml")
        found = await gate.scheduler(TENANTS, "one")
        assert list(found["one"].layouts.landed.branches["git/shared"]) == ["master"]
        assert len(gate.context.mirror.under(path)) == 1, "nothing is left of the pieces"

    played(play)


def test_a_damaged_text_is_read_again_at_intervals() -> None:
    async def play(gate: Gate) -> None:
        await gate.scheduler(TENANTS, "one")
        gate.repositories.read()
        text = gate.context.map.config.cache("git/config").branch("master").file("zuul.yaml").text
        await gate.context.store.commit([], [Put(text.path, b"(cut")])
        gate.repositories.broken = {"git/config"}
        found = await gate.scheduler(TENANTS, "one", seconds=100.0)
        assert not found["one"].layouts.landed.pipelines
        assert 5 <= gate.repositories.read().count("config") <= 12
        gate.repositories.broken = set()
        found = await gate.scheduler(TENANTS, "one")
        assert list(found["one"].layouts.landed.pipelines) == ["gate"]

    played(play)


def test_an_unreadable_push_is_not_replaced_by_an_earlier_read_of_another_tenant() -> None:
    """A read begins, and a push follows that one tenant cannot read; the read ends, and that tenant has another
    holder, before the other tenant reads the push."""

    async def play(gate: Gate) -> None:
        await gate.scheduler(TENANTS, "one", "two")
        before, after = asyncio.Event(), asyncio.Event()
        gate.repositories.slow = [before]
        other = asyncio.ensure_future(gate.scheduler(TENANTS, "two", seconds=100.0))
        stream = gate.context.map.events.tenant("two").management.stream
        await gate.context.store.commit([], stream.append(Reread(("git/shared",))))
        await asyncio.sleep(1.0)
        gate.repositories.texts["git/shared"] = {"zuul.yaml": "- job: {name: fresh}\n"}
        gate.repositories.broken = {"git/shared"}
        for tenant in ("one", "two"):
            await gate.pushed(tenant, "zuul.yaml")
        await gate.scheduler(TENANTS, "one")
        gate.repositories.broken, gate.repositories.slow = set(), [after]
        before.set()
        await asyncio.sleep(1.0)
        next_one = asyncio.ensure_future(gate.scheduler(TENANTS, "one", seconds=60.0))
        await asyncio.sleep(1.0)
        after.set()
        assert "fresh" in (await next_one)["one"].layouts.landed.jobs
        assert "fresh" in (await other)["two"].layouts.landed.jobs

    played(play)


def test_manually_requested_projects_are_read() -> None:
    async def play(gate: Gate) -> None:
        await gate.scheduler(TENANTS, "one")
        stream = gate.context.map.events.tenant("one").management.stream
        for projects, read in ((("git/own",), ["own"]), ((), ["config", "own", "shared"])):
            gate.repositories.read()
            await gate.context.store.commit([], stream.append(Reread(projects)))
            await gate.scheduler(TENANTS, "one")
            assert gate.repositories.read() == read

    played(play)


def test_a_project_that_another_tenant_has_read_again_is_read() -> None:
    async def play(gate: Gate) -> None:
        await gate.scheduler(TENANTS, "one", "two")
        gate.repositories.texts["git/shared"] = {"zuul.yaml": "- job: {name: fresh}\n"}
        await gate.pushed("one", "zuul.yaml")
        await gate.scheduler(TENANTS, "one")
        gate.repositories.read()
        found = await gate.scheduler(TENANTS, "two")
        assert gate.repositories.read() == ["shared"]
        assert "fresh" in found["two"].layouts.landed.jobs

    played(play)


def test_a_push_to_a_file_that_only_one_tenant_reads_is_followed_by_all_tenants_of_the_project() -> None:
    """They share the stored files: a tenant that does not follow could not load them any more."""

    async def play(gate: Gate) -> None:
        await gate.scheduler(WIDER, "one", "two")
        gate.repositories.texts["git/shared"] = {"more.yaml": "- job: {name: fresh}\n"}
        for tenant in ("one", "two"):
            await gate.pushed(tenant, "more.yaml")
        await gate.scheduler(WIDER, "one", "two")
        for tenant in ("one", "two"):
            parsed = parse_tenants(WIDER, "tenants.yaml", {"local": Connection("local", "git")})[tenant]
            anew = Configuration(gate.context, parsed, ParseCache())
            assert anew.current(), tenant
            assert ("fresh" in anew.layouts.landed.jobs) is (tenant == "two")

    played(play)
