"""Putting a process together from the settings."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.forge import GitForge
from headgate.adapters.keys.keystore import KeyStore
from headgate.adapters.process.runner import ProcessRunner
from headgate.adapters.process.tail import follow
from headgate.adapters.sql.history import HistoryError, SqlHistory
from headgate.base.errors import UserError
from headgate.base.tasks import run_until
from headgate.cli.jobs import runner_settings
from headgate.cli.settings import Settings
from headgate.config.tenants import ConfigErrors, Connection, Tenant, parse_tenant_file
from headgate.map.places import Map
from headgate.ports.git import Forge
from headgate.recipes.mirror import Mirror
from headgate.services.context import Body, Context, serve
from headgate.services.executor import Executor
from headgate.services.merger import Merger
from headgate.services.recorder import Recorder
from headgate.services.scheduler.scheduler import Scheduler
from headgate.store.memory import MemoryBackend
from headgate.store.sqlite import SqliteBackend
from headgate.store.store import Session, Store
from headgate.store.types import Backend, StoreError
from headgate.web.app import create_app
from headgate.web.serve import serve as serve_web
from headgate.web.shapes import ConnectionShape
from headgate.web.site import Site


@dataclass(slots=True)
class Everything:
    """All components, ready to run in one process."""

    settings: Settings
    context: Context
    scheduler: Scheduler
    engine: GitEngine
    runner: ProcessRunner
    history: SqlHistory
    log_root: Path
    keys: KeyStore

    async def run(self, stop: asyncio.Event, bound: Callable[[int], None]) -> None:
        """Until `stop`; `bound` is told the port of the web pages once they are served."""
        context, settings = self.context, self.settings
        builds_max = int(settings.number("executor", "builds", 2 * (os.cpu_count() or 1)))
        executor = Executor(context, self.runner, builds_max=builds_max)
        merger = Merger(context, self.engine, jobs_max=int(settings.number("merger", "jobs")))
        recorder = Recorder(context, self.history)
        token = settings.get("web", "token")
        tenants, shown = self.scheduler.tenants, connection_shapes(settings)
        app = create_app(Site(context, tenants, self.history, self.log_root, follow, token, shown, self.keys))
        await self.runner.sweep()
        host, port = settings.get("web", "listen_address"), int(settings.number("web", "port"))
        await run_until(
            stop,
            context.mirror.run(),
            serve(context, "merger", merger.run, stop),
            serve(context, "executor", executor.run, stop),
            serve(context, "scheduler", _together(self.scheduler.run, recorder.run), stop),
            serve(context, "web", lambda _: serve_web(app, host, port, stop, bound), stop),
        )


def _together(*bodies: Body) -> Body:
    """Several bodies in one session: the first that fails ends the others."""

    async def body(session: Session) -> None:
        await run_until(asyncio.Event(), *(one(session) for one in bodies))

    return body


def connections(settings: Settings) -> dict[str, GitConnection]:
    return {
        name: GitConnection(
            name,
            _baseurl(settings, found["baseurl"]),
            found.get("canonical_hostname", ""),
            poll_interval_s=float(found.get("poll_delay", 30)),
        )
        for name, found in settings.connections.items()
    }


def connection_shapes(settings: Settings) -> tuple[ConnectionShape, ...]:
    """As the API tells of them; passwords in URLs are for nobody else."""
    return tuple(
        ConnectionShape(
            name=name,
            driver=found.get("driver", "git"),
            baseurl=re.sub(r"(://)[^/@]*@", r"\1", found["baseurl"]),
            canonical_hostname=connection.canonical_hostname,
        )
        for name, connection in connections(settings).items()
        if (found := settings.connections[name])
    )


def _baseurl(settings: Settings, url: str) -> str:
    """A relative directory is relative to the settings file."""
    if "://" in url or url.startswith(("/", "~")) or ":" in url.split("/")[0]:
        return os.path.expanduser(url)
    return str((settings.path.parent / url).absolute())


def tenants(settings: Settings, at: dict[str, GitConnection]) -> tuple[str, dict[str, Tenant]]:
    """The text of the tenant file, and what it says.  Raises UserError."""
    path = settings.tenant_config
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(f"{path}: the tenant file cannot be read: {error.strerror}") from error
    try:
        known = {
            name: Connection(name, c.canonical_hostname, settings.connections[name].get("driver", "git"))
            for name, c in at.items()
        }
        found = parse_tenant_file(text, str(path), known)
    except ConfigErrors as errors:
        raise UserError(str(errors)) from errors
    for problem in (*found.warnings, *(problem for told in found.refused.values() for problem in told)):
        click.echo(problem.render(), err=True)
    if found.refused and not found.tenants:
        raise UserError(f"{path}: no tenant can be loaded")
    return text, found.tenants


async def open_store(settings: Settings) -> Backend:
    """Raises UserError."""
    url = settings.store_url
    try:
        return MemoryBackend() if url == "memory:" else await SqliteBackend.open(url.removeprefix("sqlite:///"))
    except StoreError as error:
        raise UserError(str(error)) from error


@asynccontextmanager
async def everything(settings: Settings) -> AsyncIterator[Everything]:
    at = connections(settings)
    text, parsed = tenants(settings, at)
    backend = await open_store(settings)
    try:
        history = SqlHistory(settings.dburi)
    except HistoryError as error:
        await backend.close()
        raise UserError(str(error)) from error
    try:
        store = Store(backend)
        root_url = settings.get("web", "root").rstrip("/")
        context = Context(store, Mirror(store, Map().path), lambda: int(time.time() * 1000), root_url=root_url)
        engine = GitEngine(settings.place("merger", "git_dir", "git"), at)
        keys = KeyStore(store, settings.get("keystore", "password"), context.now_ms)
        projects = {p.project: p for tenant in parsed.values() for p in tenant.projects}
        forges: dict[str, Forge] = {
            name: GitForge(c, engine, {k: p for k, p in projects.items() if p.connection == name})
            for name, c in at.items()
        }
        scheduler = Scheduler.of(context, text, parsed, str(settings.tenant_config), forges)
        log_root = settings.place("executor", "log_dir", "logs")
        runner = ProcessRunner(
            settings.place("executor", "job_dir", "builds"),
            log_root,
            engine,
            runner_settings(settings, context.hostname),
            keys,
        )
        try:
            yield Everything(settings, context, scheduler, engine, runner, history, log_root, keys)
        finally:
            runner.close()
    finally:
        history.close()
        await backend.close()
