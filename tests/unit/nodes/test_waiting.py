"""Test builds that wait for machines beside builds that do not, and the labels that an executor announces."""

from __future__ import annotations

import asyncio

from headgate.base.tasks import run_until
from headgate.config.operator.model import Label, Tenant
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.places import Map
from headgate.map.records import ComponentRecord
from headgate.ports.work import Contact
from headgate.recipes.codec import decode, encode
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.services.context import Context, ProcessSettings
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.nodes.requester import NodeRequester
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Put
from headgate.testing.clock import run_virtual
from tests.unit.nodes.test_launcher import Site, a_build, on_site


class Runner:
    """End builds on request."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        self.began.append(spec.build)
        await self._end(spec.build).wait()
        return BuildOutcome(build=spec.build, result="SUCCESS")

    def end(self, build: str) -> None:
        self._end(build).set()

    def _end(self, build: str) -> asyncio.Event:
        return self._ends.setdefault(build, asyncio.Event())


async def ask(context: Context, build: str, *labels: str, precedence: int = 200) -> None:
    meta = {"tenant": "t", "pipeline": "p", "buildset": "s", "job": build}
    spec = a_build(*labels, build=build, state=RepoState())
    request = Request(id=build, precedence=precedence, meta=meta)
    await context.store.commit([], context.builds.submit(request, encode(spec)))
    await asyncio.sleep(2)


@on_site
async def test_builds_without_machines_are_not_delayed_and_those_with_machines_precede_new_ones(site: Site) -> None:
    runner = Runner()
    executor = Executor(
        site.context, runner, ExecutorSettings(1), nodes=NodeRequester(site.context, lambda: site.tenants)
    )
    serving = asyncio.ensure_future(executor.membership.serve(executor.run, site.stop))
    await site.machine("m1", image="debian", size="small")
    async with site.build("debian"):  # somebody else has the machine
        await ask(site.context, "waits", "debian")
        await ask(site.context, "plain")
        assert runner.began == ["plain"]
    await asyncio.sleep(2)
    await ask(site.context, "new")
    assert runner.began == ["plain"] and [claim.state for claim in site.claims] == ["ready"]
    runner.end("plain")
    await asyncio.sleep(2)
    assert runner.began == ["plain", "waits"]
    for build in ("waits", "new"):
        runner.end(build)
    await asyncio.sleep(5)
    assert runner.began == ["plain", "waits", "new"]
    site.stop.set()
    await serving


@on_site
async def test_the_most_urgent_build_has_the_next_machine(site: Site) -> None:
    runner = Runner()
    executor = Executor(
        site.context, runner, ExecutorSettings(9), nodes=NodeRequester(site.context, lambda: site.tenants)
    )
    serving = asyncio.ensure_future(executor.membership.serve(executor.run, site.stop))
    await site.machine("m1", image="debian")
    await ask(site.context, "held", "debian")
    await ask(site.context, "check", "debian", precedence=300)
    await ask(site.context, "gate", "debian", precedence=100)
    for build in ("held", "check", "gate"):
        runner.end(build)
    await asyncio.sleep(5)
    assert runner.began == ["held", "gate", "check"]
    site.stop.set()
    await serving


def test_labels_added_later_are_known_without_a_restart() -> None:
    async def main() -> None:
        store, stop = Store(MemoryBackend()), asyncio.Event()
        context = Context(store, Mirror(store, Map().path), lambda: 0, ProcessSettings("host"))
        tenants: dict[str, Tenant] = {}
        executor = Executor(
            context, Runner(), ExecutorSettings(1), nodes=NodeRequester(context, lambda: tenants, zone="west")
        )
        running = asyncio.ensure_future(
            run_until(stop, context.mirror.run(), executor.membership.serve(executor.run, stop))
        )
        await executor.membership.joined.wait()
        await asyncio.sleep(1)
        tenants["t"] = Tenant(
            "t", (), labels={"debian": Label("image=debian", "west", "*"), "other": Label("x", "east", "*")}
        )
        await store.commit([], [Put(context.map.system.conf.path, b"{}")])
        await asyncio.sleep(1)
        entry = context.mirror.get(executor.membership.session.name if executor.membership.session else "")
        assert entry is not None and decode(entry.value, ComponentRecord).data.labels == ("debian",)
        stop.set()
        await running

    run_virtual(main())
