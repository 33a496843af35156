"""Hold the resources that the components of one process share, such as the settings and the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from socket import gethostname
from typing import TYPE_CHECKING, Any

from headgate.adapters.forges.registry import Connected
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.objects import identity
from headgate.adapters.keys.keystore import KeyStore
from headgate.adapters.metrics.figures import ProcessMetrics
from headgate.adapters.metrics.store import MeasuredBackend, measured
from headgate.adapters.sql.history import HistoryError, SqlHistory
from headgate.base.errors import HeadgateError, UserError, needing
from headgate.base.private import private_directory
from headgate.base.tasks import run_until
from headgate.cli.identity.credentials import tls_of
from headgate.cli.jobs import retention_policy, writable
from headgate.cli.resources import connected, known_connections, open_store, plain
from headgate.cli.settings import FLAGS, Settings
from headgate.cli.store.urls import StoreAway
from headgate.config.operator.model import Tenant
from headgate.map.places import Map
from headgate.ports.observer import Everybody, Observer
from headgate.recipes.mirror import Mirror
from headgate.services.configuration import Tenancy
from headgate.services.context import Context, PageAddress, ProcessSettings
from headgate.services.limits import SharedLimits
from headgate.services.membership import Membership
from headgate.services.scheduler.scheduler import Scheduler
from headgate.services.shares import publish_once
from headgate.store.store import Session, Store
from headgate.store.types import Backend
from headgate.web.process import Logs, Vitals, create_waiting_app
from headgate.web.server import serve

if TYPE_CHECKING:
    from headgate.services.inventory.inventory import Inventory

log = logging.getLogger("headgate.store")

Work = Coroutine[Any, Any, None]

WAIT_FIRST_S = 0.5
WAIT_MAX_S = 10.0
"""Limit on the pause between two attempts to reach the store, which doubles from `WAIT_FIRST_S`."""


@dataclass(slots=True)
class _Away:
    """Implement `web.process.StoreAvailability` for a store that has not been reached yet."""

    away_since_ms: int
    away_why: str


class NeverReached(HeadgateError):
    """Report that the process received a request to stop before it could reach its store."""


async def reached(settings: Settings, ports: Sequence[tuple[str, int]], stop: asyncio.Event) -> Backend:
    """Wait until the store can be reached, and return it. Until then, serve health and an empty `/metrics` on `ports`
    (host, port). Raise UserError, and NeverReached if `stop` is set first."""
    try:
        return await open_store(settings)
    except StoreAway as error:
        # Wait only for an unreachable server: waiting cannot cure a wrong URL or a newer format.
        away = _Away(int(time.time() * 1000), str(error))
    log.warning("the store is unavailable; waiting for it: %s", away.away_why)
    over, found = asyncio.Event(), list[Backend]()
    app = create_waiting_app(Vitals(away, lambda: b""))

    async def waiting() -> None:
        found.append(await _waited_for(settings, away))
        over.set()

    tls = tls_of(settings)
    served = [serve(app, host, port, over, lambda port: None, tls=tls) for host, port in ports]
    # `run_until` returns only after these servers are closed, so that the components can bind the same ports.
    await run_until(stop, waiting(), *served)
    if not found:
        raise NeverReached
    log.info("the store can be used after %.1f s", time.time() - away.away_since_ms / 1000)
    return found[0]


async def _waited_for(settings: Settings, away: _Away) -> Backend:
    wait_s = WAIT_FIRST_S
    while True:
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, WAIT_MAX_S)
        try:
            return await open_store(settings)
        except StoreAway as error:
            away.away_why = str(error)


def traces(settings: Settings, hostname: str, stack: AsyncExitStack) -> Observer:
    """Return the sender of traces. Raise MissingPackage."""
    with needing("[tracing]", "tracing"):
        from headgate.adapters.metrics.traces import Traces
    found = Traces.to(settings.get("tracing", "endpoint"), hostname)
    stack.callback(found.close)
    return found


@dataclass(slots=True)
class Process:
    """Hold the resources that the components of one process share, and the components that were added so far."""

    settings: Settings
    context: Context
    backend: MeasuredBackend
    figures: ProcessMetrics
    stack: AsyncExitStack
    stop: asyncio.Event
    members: list[Membership] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    """Tasks of the members: the process ends when all of them have ended."""
    servers: list[Work] = field(default_factory=list)
    anew: list[Callable[[], None]] = field(default_factory=list)
    """Functions that reload settings, called on SIGHUP."""
    scheduler: Scheduler | None = None
    logs: Logs | None = None
    serves_inventory: bool = False
    _inventory: Inventory | None = None
    _connected: dict[str, Connected] | None = None
    _engine: GitEngine | None = None
    _history: SqlHistory | None = None
    _tenancy: Tenancy | None = None

    def shares(self, **parts: Any) -> Context:
        """Return the context with these fields (see `Context`), which components created from now on share."""
        self.context = replace(self.context, **parts)
        return self.context

    @property
    def vitals(self) -> Vitals:
        return Vitals(self.backend, self.figures.text, self.members)

    @property
    def engine(self) -> GitEngine:
        """Return the git engine, which all components of this process share. Raise UserError."""
        if self._engine is None:
            copies = writable(self.settings, "merger", "git_dir", "git")
            committer = identity(*(self.settings.get("merger", f"git_user_{part}") for part in ("name", "email")))
            self._engine = GitEngine(copies, self.git, committer)
        return self._engine

    @property
    def forges(self) -> dict[str, Connected]:
        """Return the forges of the settings, which all components of this process share. Raise UserError."""
        if self._connected is None:
            # The rate limits of an account apply to all processes together, so coordinate them through the store.
            shared = SharedLimits(self.context)
            self._connected = connected(self.settings, lambda: self.engine, shared.of)
            if self._connected:
                self.servers.append(shared.run())
            for one in self._connected.values():
                self.stack.push_async_callback(one.close)
            self.shares(forges={name: one.forge for name, one in self._connected.items()})
        return self._connected

    @property
    def git(self) -> dict[str, GitConnection]:
        """Return the git access of each connection, by name. Raise UserError."""
        return {**plain(self.settings), **{name: one.git for name, one in self.forges.items()}}

    @property
    def inventory(self) -> Inventory:
        """Return the inventory in the store; from the first call on, this process follows its changes."""
        if self._inventory is None:
            with needing("an inventory", "inventory"):
                from headgate.cli.inventory import service

            self._inventory = service.make_inventory(self.settings, self.context.store)
            self.servers.append(service.followed(self._inventory))
        return self._inventory

    @property
    def tenancy(self) -> Tenancy:
        """Return the tenants of this process's scheduler or, without a scheduler, those in the store."""
        if self.scheduler is not None:
            return self.scheduler.tenants
        if self._tenancy is None:
            known = known_connections(self.settings, self.git)
            self._tenancy = Tenancy(self.context, known, self.settings.budgets)
        return self._tenancy

    def tenants(self) -> Mapping[str, Tenant]:
        """Return the currently configured tenants, by name."""
        return self.tenancy.tenants()

    @property
    def keys(self) -> KeyStore:
        return KeyStore(self.context.store, self.settings.get("keystore", "password"), self.context.now_ms)

    @property
    def history(self) -> SqlHistory:
        """Return the history. Raise UserError."""
        if self._history is None:
            try:
                self._history = SqlHistory(self.settings.dburi)
            except HistoryError as error:
                raise UserError(str(error)) from error
            self.stack.callback(self._history.close)
        return self._history

    def read_anew(self) -> None:
        """Make the scheduler of this process, if any, reload the tenant file, and the queues, if any, their keys."""
        for read in self.anew:
            read()
        if self.scheduler is not None:
            self.scheduler.file.obey()

    async def tells(self, session: Session) -> None:
        """Report the metrics of the entire system, while this process is elected for that."""
        await publish_once(self.context, self.figures.showing_system, session)

    def join(self, member: Membership, body: Callable[[Session], Work]) -> None:
        """Add a component: `body` runs it while it is a member."""
        self.members.append(member)
        self.works.append(member.serve(body, self.stop))

    def discard(self) -> None:
        """Close the tasks that an error kept from starting; Python would warn that nobody awaited them."""
        for work in (*self.works, *self.servers):
            work.close()

    async def run(self) -> None:
        """Run all components until `stop` is set, or until each of them received a request to stop."""
        done = asyncio.Event()

        async def members() -> None:
            # The event is never set: `run_until` is used here because the first failure ends all other tasks.
            await run_until(asyncio.Event(), *self.works)
            done.set()

        # `done` ends the mirror and the servers, which would run forever, once all members have ended.
        await run_until(done, self.context.mirror.run(), members(), *self.servers)


@asynccontextmanager
async def process(
    settings: Settings, stop: asyncio.Event, ports: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[Process]:
    """Yield a process that has reached its store and has no components yet. While it waits for the store, it serves
    health on `ports`, pairs (host, port). Raise UserError, and NeverReached if `stop` is set first."""

    def now_ms() -> int:
        return int(time.time() * 1000)

    try:
        # Make the directory private before writing keys and the operator's token into it.
        private_directory(settings.state_dir)
    except OSError as error:
        raise UserError(f"[scheduler] state_dir: {settings.state_dir} cannot be created: {error.strerror}") from error
    async with AsyncExitStack() as stack:
        figures = ProcessMetrics()
        # Everything below needs the store; until it answers, `reached` serves only health.
        ttl_s = settings.session_timeout_s
        backend = measured(await reached(settings, ports, stop), figures.store, now_ms, ttl_s)
        stack.push_async_callback(backend.close)
        store = Store(backend, ttl_s=ttl_s)
        shared = ProcessSettings(
            hostname=settings.get("executor", "hostname") or gethostname(),
            logs_root=settings.get("logs", "root").rstrip("/"),
            logs_retention_ms=retention_policy(settings).least_ms,
            publishing=bool(settings.get("published_events", "url")),
            waiting_max=int(settings.number("published_events", "waiting_max")),
        )
        observers: list[Observer] = [figures]
        if FLAGS[settings.get("tracing", "enabled").lower()]:
            observers.append(traces(settings, shared.hostname, stack))
        pages, mirror = PageAddress(settings.get("web", "root").rstrip("/")), Mirror(store, Map().path)
        context = Context(store, mirror, now_ms, shared, pages=pages, observer=Everybody(observers))
        made = Process(settings, context, backend, figures, stack, stop)
        stack.callback(made.discard)
        yield made
