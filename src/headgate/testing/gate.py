"""Run a whole gate in one process, with jobs that are functions, and measure what one change costs."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headgate.adapters.forges.registry import Connected
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.forge import GitForge
from headgate.adapters.metrics.figures import ProcessMetrics
from headgate.base.tasks import run_until, unless
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.records import Finished, HandAction
from headgate.ports.forge import ForgeWatch
from headgate.ports.history import HistoryWriter
from headgate.ports.messages import Poster
from headgate.ports.occasions import OccasionSource
from headgate.ports.reporter import Reporter
from headgate.ports.work import Contact, Runner
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.courier import Courier
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.forgework import ForgeReporter
from headgate.services.membership import Body, serve
from headgate.services.merger import Merger
from headgate.services.nodes.requester import NodeRequester
from headgate.services.publisher import Publisher, ServerPosts
from headgate.services.recorder import Recorder
from headgate.services.scheduler.refs import looked_at
from headgate.services.scheduler.scheduler import Scheduler
from headgate.services.shares import publish_once
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Backend, Entry
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories

MEASURED_TENANTS = """
- tenant:
    name: bench
    source:
      local:
        config-projects: [config]
        untrusted-projects: [code]
"""
"""The tenant file of the gate that `cost_of_item` measures."""
_MEASURED_PIPELINE = """
- pipeline:
    name: gate
    manager: dependent
    window: WINDOW
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
- job: {name: base, parent: null, run: jobs/unit}
"""

Job = Callable[[BuildSpec, RepoState], BuildOutcome | Awaitable[BuildOutcome]]


@dataclass(slots=True)
class FunctionRunner:
    """Run each build by calling a function; unknown jobs succeed."""

    jobs: Mapping[str, Job] = field(default_factory=dict)
    ran: list[BuildSpec] = field(default_factory=list)
    hold: asyncio.Event | None = None
    """Builds end only while it is set; None: they end immediately."""
    lingering: asyncio.Event | None = None
    """Failing builds report the failure early, and end only once it is set."""
    _started: asyncio.Event = field(default_factory=asyncio.Event)

    async def begun(self, count: int) -> None:
        """Wait until this many builds have started."""
        while len(self.ran) < count:
            self._started.clear()
            await self._started.wait()

    async def run(self, spec: BuildSpec, state: RepoState, cancel: asyncio.Event, contact: Contact) -> BuildOutcome:
        self.ran.append(spec)
        self._started.set()
        if self.hold is not None:
            await unless(cancel, self.hold.wait())
        # A cancelled build does not call its function.
        if cancel.is_set():
            return BuildOutcome(build=spec.build, result="CANCELED")
        job = self.jobs.get(spec.job.name)
        ran = job(spec, state) if job else BuildOutcome(build=spec.build, result="SUCCESS")
        outcome = await ran if inspect.isawaitable(ran) else ran
        if outcome.result == "FAILURE" and self.lingering is not None:
            contact.fails()
            await unless(cancel, self.lingering.wait())
        if outcome.result == "SUCCESS" and outcome.data.get("zuul", {}).get("pause"):
            await unless(cancel, contact.pause(outcome.data))
        return replace(outcome, result="CANCELED") if cancel.is_set() else outcome


@dataclass(slots=True)
class Remembered:
    """Keep a history in memory."""

    finished: dict[str, Finished] = field(default_factory=dict)
    earlier: list[Finished] = field(default_factory=list)
    """Buildsets that others replaced, and attempts that were repeated."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    by_hand: dict[str, HandAction] = field(default_factory=dict)

    async def keep(self, action: HandAction) -> None:
        self.by_hand[action.id] = action
        self.changed.set()

    async def record(self, finished: Finished) -> None:
        if finished.result and finished.final:
            self.finished[finished.buildset] = finished
        else:
            self.earlier.append(finished)
        self.changed.set()

    async def result_of(self, topic: str, pipeline: str) -> Finished:
        """Wait for a result and return it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for one in self.finished.values():
                    if one.change.topic == topic and one.pipeline == pipeline:
                        return one
                self.changed.clear()
                await self.changed.wait()


@dataclass(slots=True)
class Gate:
    context: Context
    scheduler: Scheduler
    runner: FunctionRunner
    history: Remembered

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until a condition holds; check it again whenever anything in the store has changed.

        Raise `TimeoutError` after `DEADLINE_S`.
        """
        mirror = self.context.mirror
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                # Everything that a test can wait for is in the store.
                await mirror.moved(mirror.moves)

    async def looked_at(self, *projects: str) -> None:
        """Wait until each of these projects, such as `git.example/code/api`, has been polled: before, its changes are
        unknown."""
        await self.until(lambda: all(looked_at(self.context, "local", project) for project in projects))


def _couriers(context: Context, takers: Mapping[str, Reporter]) -> list[Body]:
    """Return the tasks that deliver reports, let forges merge, and export the metrics of the system."""
    found = ((name, ForgeReporter(context, forge)) for name, forge in context.forges.items())
    forges = [Courier(context, name, reporter, reporter).run for name, reporter in found]
    couriers = (Courier(context, name, reporter).run for name, reporter in takers.items())
    return [*couriers, *forges, partial(publish_once, context, ProcessMetrics().showing_system)]


def _known(
    at: Mapping[str, GitConnection],
    others: Sequence[Mapping[str, tuple[str, object]] | None],
    clouds: Mapping[str, str],
    *,
    bound: bool,
) -> dict[str, Connection]:
    """Return the connections as a tenant file names them."""
    drivers = {name: driver for of in others for name, (driver, _) in (of or {}).items()} | dict(clouds)
    hosts = {name: at[name].canonical_hostname if name in at else "" for name in drivers}
    found = {name: Connection(name, hosts[name], driver) for name, driver in drivers.items()}
    return {"local": Connection("local", "git.example", bound=bound), **found}


def _asking(context: Context, scheduler: Scheduler) -> NodeRequester:
    """Return the requester of machines for tenants with labels."""
    return NodeRequester(context, lambda: {name: one.tenant for name, one in scheduler.tenants.items()})


def _now_ms() -> int:
    return int(time.time() * 1000)


async def _loaded(scheduler: Scheduler, running: asyncio.Future[object]) -> None:
    """Wait until every tenant is loaded. Raise the error of `running` if it ends before."""
    async with asyncio.timeout(DEADLINE_S):
        for tenant in scheduler.tenants.values():
            loaded: asyncio.Future[object] = asyncio.ensure_future(tenant.loaded.wait())
            await asyncio.wait([running, loaded], return_when=asyncio.FIRST_COMPLETED)
    # If a component has failed while the tenants were loading, raise its error instead of a timeout.
    if running.done():
        await running


@asynccontextmanager
async def gate(
    root: Path,
    hub: Path,
    backend: Backend,
    tenant_file: str,
    jobs: Mapping[str, Job] | None = None,
    poster: Poster | None = None,
    reporting: Mapping[str, tuple[str, Reporter]] | None = None,
    builds_max: int = 8,
    recording: HistoryWriter | None = None,
    read: Callable[[], str] | None = None,
    watched: Mapping[str, tuple[str, OccasionSource]] | None = None,
    forges: Mapping[str, tuple[str, Connected]] | None = None,
    clouds: Mapping[str, str] | None = None,
    bound: bool = False,
    machines: Runner | None = None,
    **shared: Any,
) -> AsyncIterator[Gate]:
    """Run every component on the repositories below `hub`, under the connection name `local`. Events are published to
    `poster`; `reporting`: connections that pipelines report to, with drivers and receivers; `recording`: keeps the
    history, by default in memory; `read`: reads the tenant file again; `watched`: connections whose messages or objects
    start pipelines; `forges`: forges other than plain git, with their dialects; `clouds`: connections that make
    machines, with their drivers; `machines`: runs builds, in place of `jobs`; `shared`: fields of the context."""
    store = Store(backend)
    at = {"local": GitConnection("local", str(hub), "git.example")}
    at |= {name: one.git for name, (_, one) in (forges or {}).items()}
    shared = {"now_ms": _now_ms, "settings": ProcessSettings(publishing=poster is not None), **shared}
    named = {name: one.forge for name, (_, one) in (forges or {}).items()}
    context = Context(store, Mirror(store, "/zuul"), forges=named, **shared)
    engine = GitEngine(root / "git", at)
    known = _known(at, (reporting, watched, forges), clouds or {}, bound=bound)
    tenants = parse_tenant_file(tenant_file, "tenants.yaml", known)
    watching: dict[str, ForgeWatch] = {"local": GitForge(at["local"], engine, {}), **context.forges}
    also = {name: one for name, (_, one) in (watched or {}).items()}
    scheduler = Scheduler.of(
        context, tenant_file, tenants, "tenants.yaml", watching, connections=known, read=read, watched=also
    )
    runner, history, stop = FunctionRunner(jobs or {}), Remembered(), asyncio.Event()
    executor = Executor(context, machines or runner, ExecutorSettings(builds_max), nodes=_asking(context, scheduler))
    bodies: dict[str, Body] = {
        "merger": Merger(context, engine).run,
        "executor": executor.run,
        "scheduler": scheduler.run,
        "web": Recorder(context, recording or history).run,
    }
    works = [serve(context, kind, body, stop) for kind, body in bodies.items()]
    if poster is not None:
        works.append(serve(context, "web", Publisher(context, ServerPosts(poster)).run, stop))
    takers = {name: reporter for name, (_, reporter) in (reporting or {}).items()}
    works += [serve(context, "web", body, stop) for body in _couriers(context, takers)]
    task: asyncio.Future[object] = asyncio.ensure_future(run_until(stop, context.mirror.run(), *works))
    try:
        await _loaded(scheduler, task)
        yield Gate(context, scheduler, runner, history)
    finally:
        # Components end on their own, as after a signal.
        stop.set()
        await task


@dataclass(frozen=True, slots=True)
class ItemCost:
    """Sum up the cost of one item: events, merging, builds on both sides, landing, history."""

    jobs: int
    commits: int
    reads: int
    written_bytes: int

    @property
    def requests(self) -> int:
        return self.commits + self.reads


def measured_configuration(jobs: int, window: int = 20) -> str:
    """Return the configuration for `MEASURED_TENANTS`. `window` is the number of items under test at a time."""
    names = [f"job{n}" for n in range(jobs)]
    defined = "".join(f"- job: {{name: {name}}}\n" for name in names)
    pipeline = _MEASURED_PIPELINE.replace("WINDOW", str(window))
    return f"{pipeline}{defined}- project: {{name: code, gate: {{jobs: [{', '.join(names)}]}}}}\n"


async def cost_of_item(
    root: Path, jobs: int, backend: Backend | None = None, mark: Callable[[], None] = lambda: None
) -> ItemCost:
    """Land one change with this many jobs that take no time. `mark` is called when counting begins and ends."""
    repositories = Repositories(root)
    repositories.create("config", {"zuul.yaml": measured_configuration(jobs), "jobs/unit": "#!/bin/sh\n"})
    repositories.create("code", {"README": "x\n"})
    async with gate(root, repositories.hub, backend or MemoryBackend(), MEASURED_TENANTS) as running:
        counts, mirror = running.context.store.counts, running.context.mirror
        repositories.propose("code", "one", {"a": "1\n"})
        place = running.context.map.cache.connection("local").cache.path
        # The measurement starts after the proposal is known, so that the poll does not count.
        while not mirror.under(place):
            await mirror.moved(mirror.moves)
        mark()
        before = (counts.commits, counts.reads, counts.written_bytes)
        repositories.approve("code", "one")
        await running.history.result_of("one", "gate")
        root_of_events = running.context.map.events.path
        # Some writes for the item come after its result.
        while mirror.under(running.context.map.history.queue.path) or _waiting(mirror.under(root_of_events)):
            await mirror.moved(mirror.moves)
        mark()
        after = (counts.commits, counts.reads, counts.written_bytes)
        commits, reads, written = (b - a for a, b in zip(before, after, strict=True))
        return ItemCost(jobs, commits, reads, written)


def _waiting(entries: Sequence[Entry]) -> bool:
    # Election locks stay while the components run.
    return any("/election" not in entry.path for entry in entries)
