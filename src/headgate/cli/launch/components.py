"""The components of a process, put together from the settings."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headgate.adapters.forges.registry import Connected
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.forge import GitForge
from headgate.adapters.git.objects.commits import identity
from headgate.adapters.judge.subprocess_judge import ApartJudge, JudgeLimits
from headgate.adapters.keys.keystore import KeyStore
from headgate.adapters.metrics.figures import ProcessMetrics
from headgate.adapters.metrics.load import MachineLoad
from headgate.adapters.metrics.store import MeasuredBackend, measured
from headgate.adapters.process.runner import ProcessRunner
from headgate.adapters.process.tail import follow
from headgate.adapters.sql.history import HistoryError, SqlHistory
from headgate.base.errors import UserError
from headgate.base.private import private_directory
from headgate.base.tasks import run_until
from headgate.cli.forges import connected
from headgate.cli.identity.tls import scheme, tls_of
from headgate.cli.jobs import runner_settings
from headgate.cli.launch.directories import LOG_MODES, writable
from headgate.cli.launch.earlier import reader
from headgate.cli.launch.entry import access_of
from headgate.cli.launch.fleet import fleet
from headgate.cli.launch.front import front, serves_queues
from headgate.cli.launch.machines import add_launcher
from headgate.cli.launch.outbox import telling, watching
from headgate.cli.launch.retention import kept_logs, kept_ms, pruned, remote, retention, uploads
from headgate.cli.launch.storewait import reached
from headgate.cli.launch.tenantfile import begun
from headgate.cli.launch.traces import traces
from headgate.cli.process import connection_shapes, known_connections, plain, poked, speakers_of, tenant_text
from headgate.cli.settings import FLAGS, Settings
from headgate.config.parse import ParseCache
from headgate.config.tenants import Tenant
from headgate.map.places import Map
from headgate.ports.forge import ForgeWatch
from headgate.ports.judge import Judging
from headgate.ports.observer import Everybody, Observer
from headgate.recipes.mirror import Mirror
from headgate.services.autohold import held_in_store
from headgate.services.context import Context
from headgate.services.executor import Executor
from headgate.services.figures import told_once
from headgate.services.formats import agree
from headgate.services.limits import SharedLimits
from headgate.services.membership import Membership
from headgate.services.merger import Merger
from headgate.services.nodes.requester import NodeRequester
from headgate.services.quarantine.supervision import tended
from headgate.services.recorder import Recorder
from headgate.services.scheduler.scheduler import Scheduler
from headgate.services.tenancy import Tenancy
from headgate.store.store import Session, Store
from headgate.web.app import create_app
from headgate.web.peers.fleet import PeerFleet
from headgate.web.peers.turns import SHARE_ALONE, SHARE_BESIDE, Paced, PeerTurns
from headgate.web.process import Logs, create_process_app
from headgate.web.serve import serve
from headgate.web.site import Site
from headgate.web.vitals import Vitals

if TYPE_CHECKING:
    from headgate.services.inventory.inventory import Inventory

Work = Coroutine[Any, Any, None]
LOAD_MULTIPLIER = 2.5


@dataclass(slots=True)
class Process:
    """What the components of one process share, and those it has so far."""

    settings: Settings
    context: Context
    reach: MeasuredBackend
    figures: ProcessMetrics
    stack: AsyncExitStack
    stop: asyncio.Event
    members: list[Membership] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    """Of the members: the process ends when all of them have."""
    servers: list[Work] = field(default_factory=list)
    anew: list[Callable[[], None]] = field(default_factory=list)
    """Whoever reads settings anew when that is asked."""
    scheduler: Scheduler | None = None
    logs: Logs | None = None
    serves_inventory: bool = False
    _inventory: Inventory | None = None
    _connected: dict[str, Connected] | None = None
    _engine: GitEngine | None = None
    _history: SqlHistory | None = None
    _tenancy: Tenancy | None = None

    @property
    def vitals(self) -> Vitals:
        return Vitals(self.reach, self.figures.text, self.members)

    @property
    def engine(self) -> GitEngine:
        if self._engine is None:
            copies = writable(self.settings, "merger", "git_dir", "git")
            who = identity(*(self.settings.get("merger", f"git_user_{part}") for part in ("name", "email")))
            self._engine = GitEngine(copies, self.git, who)
        return self._engine

    @property
    def forges(self) -> dict[str, Connected]:
        """Return those of the settings, one for all components here.  Raises UserError."""
        if self._connected is None:
            shared = SharedLimits(self.context)
            self._connected = connected(self.settings, lambda: self.engine, shared.of)
            if self._connected:
                self.servers.append(shared.run())
            for one in self._connected.values():
                self.stack.push_async_callback(one.close)
            self.context.forges = {name: one.forge for name, one in self._connected.items()}
        return self._connected

    @property
    def git(self) -> dict[str, GitConnection]:
        """Return how the repositories of each connection are reached.  Raises UserError."""
        return {**plain(self.settings), **{name: one.git for name, one in self.forges.items()}}

    @property
    def inventory(self) -> Inventory:
        """Return the one in the store, which this process follows from now on."""
        if self._inventory is None:
            from headgate.cli.inventory.faces import followed, make_inventory  # large, and for few

            self._inventory = make_inventory(self.settings, self.context.store)
            self.servers.append(followed(self._inventory))
        return self._inventory

    @property
    def tenancy(self) -> Tenancy:
        """Return the tenants that the scheduler of this process has, or without one those in the store."""
        if self.scheduler is not None:
            return self.scheduler.tenants
        if self._tenancy is None:
            known = known_connections(self.settings, self.git)
            self._tenancy = Tenancy(self.context, known, self.settings.budgets)
        return self._tenancy

    def tenants(self) -> Mapping[str, Tenant]:
        """Return the tenants as they are configured now, by name."""
        return self.tenancy.tenants()

    @property
    def keys(self) -> KeyStore:
        return KeyStore(self.context.store, self.settings.get("keystore", "password"), self.context.now_ms)

    @property
    def history(self) -> SqlHistory:
        """Raises UserError."""
        if self._history is None:
            try:
                self._history = SqlHistory(self.settings.dburi)
            except HistoryError as error:
                raise UserError(str(error)) from error
            self.stack.callback(self._history.close)
        return self._history

    def read_anew(self) -> None:
        """Have the scheduler of this process read the tenant file, and the queues their keys, where they are here."""
        for read in self.anew:
            read()
        if self.scheduler is not None:
            self.scheduler.file.obey()

    async def tells(self, session: Session) -> None:
        """Tell the figures of the whole system, while elected."""
        await told_once(self.context, self.figures.whole, session)

    def join(self, member: Membership, body: Callable[[Session], Work]) -> None:
        self.members.append(member)
        self.works.append(member.serve(body, self.stop))

    async def run(self) -> None:
        """Run all components until `stop` is set, or until each of them was asked to stop."""
        done = asyncio.Event()

        async def members() -> None:
            await run_until(asyncio.Event(), *self.works)
            done.set()

        await run_until(done, self.context.mirror.run(), members(), *self.servers)


@asynccontextmanager
async def process(
    settings: Settings, stop: asyncio.Event, ports: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[Process]:
    """Yield a process that has reached the store and has no components yet.  Raise UserError.

    `ports`: (host, port) where health is already told while the store is waited for."""

    def now_ms() -> int:
        return int(time.time() * 1000)

    try:
        private_directory(settings.state_dir)
    except OSError as error:
        raise UserError(f"[scheduler] state_dir: {settings.state_dir} cannot be made: {error.strerror}") from error
    async with AsyncExitStack() as stack:
        figures = ProcessMetrics()
        backend = measured(await reached(settings, ports), figures.store, now_ms)
        stack.push_async_callback(backend.close)
        store = Store(backend, ttl_s=settings.session_timeout_s)
        context = Context(store, Mirror(store, Map().path), now_ms, root_url=settings.get("web", "root").rstrip("/"))
        context.logs_root = settings.get("logs", "root").rstrip("/")
        context.publishing = bool(settings.get("notices", "url"))
        context.waiting_max = int(settings.number("notices", "waiting_max"))
        context.hostname = settings.get("executor", "hostname") or context.hostname
        observers: list[Observer] = [figures]
        if FLAGS[settings.get("tracing", "enabled").lower()]:
            observers.append(traces(settings, context, stack))
        context.observer = Everybody(observers)
        yield Process(settings, context, backend, figures, stack, stop)


async def add_scheduler(process: Process, *, read: bool = False) -> None:
    """Add a scheduler.  `read`: others of this process serve its figures, whatever the settings of schedulers say."""
    settings, context = process.settings, process.context
    at, ours = process.git, {name: one.forge for name, one in process.forges.items()}
    text, file, refused = await begun(settings, context, at)
    forges: dict[str, ForgeWatch] = {n: GitForge(c, process.engine, {}) for n, c in plain(settings).items()}
    forges |= ours
    most = (int(settings.number("scheduler", f"config_reading_max_{unit}")) for unit in ("s", "bytes"))
    judge = ApartJudge(JudgeLimits(*most))
    process.stack.push_async_callback(judge.close)
    context.judging = Judging(judge)
    context.history, context.logs_kept_ms = process.history, kept_ms(settings)
    cache = ParseCache(budgets=settings.budgets)
    known, text_now = known_connections(settings, at), partial(tenant_text, settings)
    watched = await watching(settings, process.stack, lambda: process.inventory)
    scheduler = Scheduler.of(
        context, text, file, str(settings.tenant_config), forges, cache, known, text_now, watched, refused
    )
    process.scheduler = scheduler
    also = await telling(settings, context, process.stack, lambda: process.inventory, ours)

    old = retention(settings, process.history, own=False)

    async def body(session: Session) -> None:
        works = {
            "the history": Recorder(context, process.history, partial(pruned, old, context)).run,
            "the format of records": lambda _: agree(context),
            **also,
        }
        if read or settings.get("scheduler", "prometheus_port"):
            works["the figures of the whole"] = process.tells
        tended_ones = [tended(context, what, run, session) for what, run in works.items()]
        await run_until(asyncio.Event(), scheduler.run(session), *tended_ones)

    process.join(Membership(context, "scheduler"), body)


async def add_merger(process: Process) -> None:
    merger = Merger(process.context, process.engine, jobs_max=int(process.settings.number("merger", "jobs")))
    process.join(merger.membership, merger.run)


async def add_executor(process: Process) -> None:
    settings, context = process.settings, process.context
    get, number = settings.get, settings.number
    log_root = writable(settings, "executor", "log_dir", "logs", LOG_MODES[get("executor", "log_access")])
    job_dir = writable(settings, "executor", "job_dir", "builds")
    found = runner_settings(settings, context.hostname)
    earlier = reader(log_root, await remote(settings, context, process.stack), kept_logs(settings))
    runner = ProcessRunner(job_dir, log_root, process.engine, found, process.keys, fleet(settings, context), earlier)
    process.stack.push_async_callback(runner.close)
    await runner.sweep(partial(held_in_store, context))
    load = MachineLoad(
        job_dir,
        number("executor", "load_multiplier", math.inf if process.scheduler else LOAD_MULTIPLIER),
        number("executor", "min_avail_mem"),
        number("executor", "min_avail_hdd"),
        runner.room.refuses,
    )
    own = {label for machine in found.machines for label in machine.labels}
    executor = Executor(
        context,
        runner,
        builds_max=int(number("executor", "builds", 2 * (os.cpu_count() or 1))),
        zone=get("executor", "zone"),
        unzoned=FLAGS[get("executor", "allow_unzoned").lower()],
        labels=own,
        load=load,
        nodes=NodeRequester(context, process.tenants, zone=get("executor", "zone"), own=own),
        lacks=runner.cells.lacks,
        beginning_max=os.cpu_count() or 1,
        keeping=runner,
        held_max=int(number("executor", "held_builds_max")),
        logs=uploads(settings, log_root, context, process.stack, process.servers),
        containers=await runner.runs_images(),
    )
    process.logs = Logs(context, log_root, follow, PeerFleet(context))
    if (old := retention(settings, None, own=True)).own is not None:
        process.servers.append(pruned(old, context))
    process.join(executor.membership, executor.run)


async def add_web(process: Process, bound: Callable[[int], None]) -> None:
    settings, context = process.settings, process.context
    member, _ = Membership(context, "web"), process.forges  # deliveries come here
    context.poked = poked(settings, process.tenants, context.now_ms)
    served = process.inventory if process.serves_inventory else None
    pooled = None
    if served is not None or any(one.labels for one in process.tenants().values()):
        from headgate.services.nodes.free import FreeMachines  # large, and for few

        pooled = FreeMachines(process.inventory).of
    site = Site(
        context,
        process.tenancy,
        process.history,
        settings.place("executor", "log_dir", "logs"),
        follow,
        access_of(settings, lambda: process.tenancy.file, context),
        connection_shapes(settings),
        process.keys,
        remote=await remote(settings, context, process.stack),
        kept=kept_logs(settings),
        vitals=process.vitals,
        joined=lambda: member.session,
        refused=lambda: process.tenancy.refused,
        hold_default_s=int(settings.number("scheduler", "default_hold_expiration")),
        hold_max_s=int(settings.number("scheduler", "max_hold_expiration")),
        root=settings.get("web", "root").rstrip("/"),
        at_root=settings.get("web", "tenant"),
        speakers=speakers_of(settings),
        pooled=pooled,
        beside=("inventory",) * (served is not None) + ("queues",) * serves_queues(settings),
    )
    host, port = settings.get("web", "listen_address"), int(settings.number("web", "port"))
    root = urlsplit(settings.get("web", "root")).hostname
    names = [root] if root else []
    turns = PeerTurns(SHARE_ALONE if process.scheduler is None else SHARE_BESIDE)
    app, works = await front(
        Paced(create_app(site), turns), settings, served, process.stack, process.stop, process.anew
    )
    tls, process.servers = tls_of(settings), [*process.servers, *works]
    process.servers.append(serve(app, host, port, process.stop, bound, tls=tls, names=names, shared=True))
    process.join(member, process.tells if process.scheduler is None else _forever)


async def add_everything(process: Process, bound: Callable[[int], None]) -> None:
    """Add all components that `headgate run` consists of."""
    await add_scheduler(process, read=True)
    await add_merger(process)
    await add_executor(process)
    await add_launcher(process, always=False)
    if "fingergw" in process.settings.values:
        from headgate.cli.launch.finger import add_fingergw

        await add_fingergw(process, alone=False)
    await add_web(process, bound)


async def _forever(session: Session) -> None:
    """Wait for ever: pages are served whether or not the store can be reached; only the membership comes and goes."""
    await asyncio.Event().wait()


def add_monitor(process: Process, kind: str, *, always: bool, said: Callable[[str], None]) -> None:
    """Serve health and figures at the port that the settings of this `kind` name; if they name none, at a free one with
    `always`, else not at all.  `said` is told the URL."""
    settings = process.settings
    port, host = settings.get(kind, "prometheus_port"), settings.get(kind, "prometheus_addr")
    if not port and not always:
        return
    access = access_of(settings, lambda: process.tenancy.file)
    app, tls = create_process_app(process.vitals, access, process.logs), tls_of(settings)
    name = host if host in ("127.0.0.1", "::1", "localhost") else process.context.hostname

    def bound(number: int) -> None:
        said(f"{scheme(tls)}://{f'[{name}]' if ':' in name else name}:{number}")

    served = serve(app, host, int(port or 0), process.stop, bound, f"[{kind}]", "prometheus_port", tls, (name,))
    process.servers.append(served)
