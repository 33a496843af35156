"""Assemble the components of a process from the settings, and read the initial tenant file."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.forge import GitForge
from headgate.adapters.judge.subprocess_judge import ApartJudge, JudgeLimits
from headgate.adapters.logs.reader import StoredLogs
from headgate.adapters.metrics.capacity import MachineLoad
from headgate.adapters.process.joblog import follow
from headgate.adapters.process.network.sockets import ReadLog
from headgate.adapters.process.runner import ProcessRunner
from headgate.base.errors import UserError
from headgate.base.tasks import run_until
from headgate.cli import resources
from headgate.cli.identity.authenticators import authenticators
from headgate.cli.identity.credentials import operator_token, scheme, tls_of
from headgate.cli.jobs import LOG_MODES, runner_settings, writable
from headgate.cli.launch.fleet import fleet
from headgate.cli.launch.front import add_fingergw, front, serves_queues
from headgate.cli.launch.machines import add_launcher
from headgate.cli.launch.outbox import outbox_senders, watching
from headgate.cli.launch.process import Process
from headgate.cli.launch.retention import pruned, remote, retention, stored_logs, uploads
from headgate.cli.settings import FLAGS, Settings
from headgate.config.operator.model import ConfigErrors, TenantFile
from headgate.config.parse import ParseCache
from headgate.map.records import RepositoryProblem, SystemConf
from headgate.ports.forge import ForgeWatch
from headgate.ports.judge import Judging
from headgate.ports.logstore import LogStoreError
from headgate.rest import HTTPException
from headgate.services.autohold import held_in_store
from headgate.services.context import Context
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.membership import Membership, agree_on_format
from headgate.services.merger import Merger
from headgate.services.nodes.requester import NodeRequester
from headgate.services.quarantine import tended
from headgate.services.recorder import Recorder
from headgate.services.scheduler.scheduler import Scheduler
from headgate.services.scheduler.tenantfile import WORDS_MAX_CHARS, in_force
from headgate.store.store import Session
from headgate.store.types import Unavailable
from headgate.web.access import Access, PeerFleet, Realm, Rules
from headgate.web.app import create_app
from headgate.web.buildlogs import BuildLogs, NoLogs, RemoteLogs
from headgate.web.peers.requests import SHARE_ALONE, SHARE_BESIDE, Paced, PeerTurns
from headgate.web.problems import SystemProblems
from headgate.web.process import Logs, create_process_app
from headgate.web.server import serve
from headgate.web.sessions import LoginSessions
from headgate.web.site import Site, WebSettings

log = logging.getLogger("headgate.tenants")

Begun = tuple[str, TenantFile, RepositoryProblem | None]
"""Text of the tenant file in effect, its content, and the problem with the current file; None if it is in effect."""

LOAD_MULTIPLIER = 2.5
"""Default load average per processor above which an executor starts no build."""
RETRY_S = 1.0
"""Seconds between attempts to read the tenant file in the store while the store does not answer."""
USUAL_PORTS = {"http": 80, "https": 443}
"""Scheme of an origin -> the port that browsers omit."""


async def begun(settings: Settings, context: Context, at: dict[str, GitConnection]) -> Begun:
    """Return the tenant file or, if any part of it is invalid, the previous one from the store, if there is one. Raise
    UserError if nothing can be loaded."""
    try:
        text = resources.tenant_text(settings)
        found = resources.tenant_file(settings, at, text)
    except UserError as error:
        before = await _before(settings, context, at, str(error))
        if before is None:
            raise
        return before
    wrong = tuple(error for errors in found.refused.values() for error in errors)
    before = await _before(settings, context, at, str(ConfigErrors(wrong))) if wrong else None
    return before or (text, resources.loadable(settings, found), None)


async def _before(settings: Settings, context: Context, at: dict[str, GitConnection], wrong: str) -> Begun | None:
    """Return the previous tenant file, or None if there was none or it cannot be loaded now."""
    in_effect, why = await _stored(context), wrong[:WORDS_MAX_CHARS]
    if in_effect is None:
        return None
    # All of the previous file must be valid: otherwise one broken file would merely replace another.
    with suppress(UserError):
        found = resources.tenant_file(settings, at, in_effect.text)
        if not found.refused:
            log.error("the tenant file is rejected, and the earlier one stays in effect: %s", why)
            return (
                in_effect.text,
                found,
                # Keep the time of an unchanged error: a restart must not make an old problem look new.
                RepositoryProblem(in_effect.refused_ms if in_effect.refused == why else context.now_ms(), why),
            )
    return None


async def _stored(context: Context) -> SystemConf | None:
    """Return the tenant file in the store; wait until the store answers."""
    while True:
        try:
            return await in_force(context.store)
        except Unavailable as away:
            log.warning("the earlier tenant file cannot be read yet: %s", away)
            await asyncio.sleep(RETRY_S)


def access_of(settings: Settings, file: Callable[[], TenantFile], context: Context | None = None) -> Access:
    """Return the access rules. A web process, where people log in, passes its `context`. Raise UserError."""
    realms = []
    for found in authenticators(settings):
        section = settings.authenticators[found.name]
        override, default = (FLAGS[section.get(o, "false").lower()] for o in ("allow_authz_override", "default"))
        realms.append(Realm(found, section.get("realm") or section["client_id"], override, default))

    def rules() -> Rules:
        now = file()
        return Rules(now.rules, now.roles, now.api_root)

    sessions = None
    # Only OpenID Connect providers have a login page; bearer tokens of other drivers need no sessions.
    if context is not None and any(realm.authenticator.provider for realm in realms):
        sessions = LoginSessions(context, settings.get("web", "root"), int(settings.number("web", "login_max")))
    figures_open = settings.get("web", "metrics") == "everybody"
    return Access(operator_token(settings), realms, rules, figures_open, sessions)


def dashboards_of(settings: Settings) -> frozenset[str]:
    """Return the origins of dashboards on other servers, as browsers write them. Raise UserError."""
    return frozenset(_origin(url, settings) for url in settings.get("web", "dashboards").split())


def _origin(url: str, settings: Settings) -> str:
    """Return the origin of a URL. Raise UserError."""
    try:
        parts = urlsplit(url)
        # Keep this inside the `try`: reading `port` raises ValueError for a port above 65535.
        port = f":{parts.port}" if parts.port not in (None, USUAL_PORTS.get(parts.scheme)) else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    host = parts.hostname or ""
    # Browsers send origins without path and user, so an entry with either would silently never match.
    if parts.scheme not in USUAL_PORTS or not host or parts.path.strip("/") or parts.query or "@" in parts.netloc:
        raise UserError(
            f"{settings.path}: [web] dashboards: {url!r} is not an origin; give scheme and host: https://zuul.example"
        )
    # `hostname` has lost the brackets of an IPv6 address; browsers send them.
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def reader(log_root: Path, remote: RemoteLogs, stored: StoredLogs | None) -> ReadLog:
    """Return a reader of build logs for an executor, which stores its own in `log_root` and, if there is one, in the
    log store."""
    logs = BuildLogs(log_root, follow, remote, stored)

    async def read(build: str, path: str) -> AsyncGenerator[bytes, None]:
        try:
            if (found := await logs.content(build, path)) is not None:
                # Close immediately if the caller stops early; otherwise the file stays open until the generator is
                # garbage-collected.
                async with aclosing(found.read(0, found.size_bytes)) as content:
                    async for piece in content:
                        yield piece
                return
            async with aclosing(remote.file(build, quote(path))) as pieces:  # type: ignore[type-var]  # it is a generator
                async for piece in pieces:
                    yield piece
        except (HTTPException, NoLogs, LogStoreError) as error:
            raise LookupError(str(error)) from error

    return read


async def add_scheduler(process: Process, *, read: bool = False) -> None:
    """Add a scheduler. With `read`, other components of this process serve its metrics, even if `[scheduler]` sets no
    port for them."""
    settings, at, ours = process.settings, process.git, {name: one.forge for name, one in process.forges.items()}
    context = process.context
    # If the tenant file cannot be loaded, `begun` falls back to the previous one, and `refused` has the reason.
    text, file, refused = await begun(settings, context, at)
    forges: dict[str, ForgeWatch] = {n: GitForge(c, process.engine, {}) for n, c in resources.plain(settings).items()}
    forges |= ours
    most = (int(settings.number("scheduler", f"config_reading_max_{unit}")) for unit in ("s", "bytes"))
    # Read proposed configuration in another process with limits on time and memory, so that no pushed file can stop
    # the scheduler.
    judge = ApartJudge(JudgeLimits(*most))
    process.stack.push_async_callback(judge.close)
    context = process.shares(judging=Judging(judge), history=process.history)
    cache = ParseCache(budgets=settings.budgets)
    known, text_now = resources.known_connections(settings, at), partial(resources.tenant_text, settings)
    watched = await watching(settings, process.stack, lambda: process.inventory)
    scheduler = Scheduler.of(
        context, text, file, str(settings.tenant_config), forges, cache, known, text_now, watched, refused
    )
    process.scheduler = scheduler
    also = await outbox_senders(settings, context, process.stack, lambda: process.inventory, ours)

    old = retention(settings, process.history, own=False)

    async def body(session: Session) -> None:
        works = {
            "the history": Recorder(context, process.history, partial(pruned, old, context)).run,
            "the format of records": lambda _: agree_on_format(context),
            **also,
        }
        if read or settings.get("scheduler", "prometheus_port"):
            works["the metrics of the system"] = process.tells
        tended_ones = [tended(context, what, run, session) for what, run in works.items()]
        # The event is never set: only a cancellation ends this, when the membership ends or the session is lost.
        await run_until(asyncio.Event(), scheduler.run(session), *tended_ones)

    process.join(Membership(context, "scheduler"), body)


async def add_merger(process: Process) -> None:
    """Add a merger."""
    merger = Merger(process.context, process.engine, jobs_max=int(process.settings.number("merger", "jobs")))
    process.join(merger.membership, merger.run)


async def add_executor(process: Process) -> None:
    """Add an executor. Raise UserError."""
    settings, context = process.settings, process.context
    get, number = settings.get, settings.number
    log_root = writable(settings, "executor", "log_dir", "logs", LOG_MODES[get("executor", "log_access")])
    job_dir = writable(settings, "executor", "job_dir", "builds")
    found = runner_settings(settings, context.settings.hostname)
    earlier = reader(log_root, remote(settings, context, process.stack), stored_logs(settings))
    runner = ProcessRunner(job_dir, log_root, process.engine, found, process.keys, fleet(settings, context), earlier)
    process.stack.push_async_callback(runner.close)
    # Sweep before accepting builds: leftovers of a crashed executor still use processes and disk space.
    await runner.sweep(partial(held_in_store, context))
    load = MachineLoad(
        job_dir,
        # With `headgate run`, no other executor could run a build that this one declines because of the load.
        number("executor", "load_multiplier", math.inf if process.scheduler else LOAD_MULTIPLIER),
        number("executor", "min_avail_mem"),
        number("executor", "min_avail_hdd"),
        runner.room.refuses,
    )
    own = {label for machine in found.machines for label in machine.labels}
    executor = Executor(
        context,
        runner,
        ExecutorSettings(
            builds_max=int(number("executor", "builds", 2 * (os.cpu_count() or 1))),
            zone=get("executor", "zone"),
            unzoned=FLAGS[get("executor", "allow_unzoned").lower()],
            labels=own,
            lacks=runner.cells.lacks,
            beginning_max=os.cpu_count() or 1,
            held_max=int(number("executor", "held_builds_max")),
            containers=await runner.runs_images(),
        ),
        load=load,
        nodes=NodeRequester(context, process.tenants, zone=get("executor", "zone"), own=own),
        keeper=runner,
        logs=uploads(settings, log_root, context, process.stack, process.servers),
        machines=runner.machines,
    )
    process.logs = Logs(context, log_root, follow, PeerFleet(context))
    if (old := retention(settings, None, own=True)).own is not None:
        process.servers.append(pruned(old, context))
    process.join(executor.membership, executor.run)


def web_settings(settings: Settings, *, inventory: bool) -> WebSettings:
    """Return the settings of the pages; `inventory`: whether it is served at the same port. Raise UserError."""
    return WebSettings(
        root=settings.get("web", "root").rstrip("/"),
        at_root=settings.get("web", "tenant"),
        beside=("inventory",) * inventory + ("queues",) * serves_queues(settings),
        connections=resources.connection_shapes(settings),
        speakers=resources.speakers_of(settings),
        hold_default_s=int(settings.number("scheduler", "default_hold_expiration")),
        hold_max_s=int(settings.number("scheduler", "max_hold_expiration")),
    )


async def add_web(process: Process, bound: Callable[[int], None]) -> None:
    """Add the pages and the API. Call `bound` with the port. Raise UserError."""
    # Reading `process.forges` connects them, which this component needs to handle their webhooks.
    settings, _ = process.settings, process.forges
    context = process.shares(poked=resources.poked(settings, process.tenants, process.context.now_ms))
    member = Membership(context, "web")
    served = process.inventory if process.serves_inventory else None
    pooled = None
    if served is not None or any(one.labels for one in process.tenants().values()):
        from headgate.services.nodes.search import FreeMachines  # late: a large import that few installations need

        pooled = FreeMachines(process.inventory).of
    logs = settings.place("executor", "log_dir", "logs")
    site = Site(
        context,
        process.tenancy,
        process.history,
        BuildLogs(logs, follow, remote(settings, context, process.stack), stored_logs(settings)),
        SystemProblems(context, lambda: process.tenancy.refused, process.vitals.availability),
        access_of(settings, lambda: process.tenancy.file, context),
        web_settings(settings, inventory=served is not None),
        process.keys,
        joined=lambda: member.session,
        pooled=pooled,
    )
    host, port = settings.get("web", "listen_address"), int(settings.number("web", "port"))
    root = urlsplit(settings.get("web", "root")).hostname
    names = [root] if root else []
    # In a process with a scheduler, requests get a smaller share of the event loop, so that many viewers cannot delay
    # its turns.
    share = SHARE_ALONE if process.scheduler is None else SHARE_BESIDE
    turns = PeerTurns(share, observe=lambda cpu_s: context.observer.shown("request", cpu_s))
    app, works = await front(
        Paced(create_app(site, process.vitals), turns), settings, served, process.stack, process.stop, process.anew
    )
    process.servers.extend(works)
    tls = tls_of(settings)
    pages = dashboards_of(settings)
    process.servers.append(
        serve(app, host, port, process.stop, bound, tls=tls, names=names, shared=True, dashboards=pages)
    )
    # In a process with a scheduler, the scheduler already reports the metrics of the entire system.
    process.join(member, process.tells if process.scheduler is None else _forever)


async def add_everything(process: Process, bound: Callable[[int], None]) -> None:
    """Add all components of `headgate run`. Raise UserError."""
    # Add the scheduler first: the others take tenants, shares and limits from `process.scheduler`.
    await add_scheduler(process, read=True)
    await add_merger(process)
    await add_executor(process)
    await add_launcher(process, always=False)
    if "fingergw" in process.settings.values:
        await add_fingergw(process, alone=False)
    await add_web(process, bound)


async def _forever(session: Session) -> None:
    """Wait forever. The pages are served even while the store is unreachable; only the membership depends on it."""
    await asyncio.Event().wait()


def add_monitor(process: Process, kind: str, *, always: bool, announce: Callable[[str], None]) -> None:
    """Serve health and metrics on the `prometheus_port` of this `kind`. If that is not set, use a free port with
    `always`, or else do nothing. Call `announce` with the URL."""
    settings = process.settings
    port, host = settings.get(kind, "prometheus_port"), settings.get(kind, "prometheus_addr")
    if not port and not always:
        return
    access = access_of(settings, lambda: process.tenancy.file)
    app, tls = create_process_app(process.vitals, access, process.logs), tls_of(settings)
    # Announce a loopback address unchanged: it cannot be reached under the host's name.
    name = host if host in ("127.0.0.1", "::1", "localhost") else process.context.settings.hostname

    def bound(number: int) -> None:
        announce(f"{scheme(tls)}://{f'[{name}]' if ':' in name else name}:{number}")

    served = serve(app, host, int(port or 0), process.stop, bound, f"[{kind}]", "prometheus_port", tls, (name,))
    process.servers.append(served)
