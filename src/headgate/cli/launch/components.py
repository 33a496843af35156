"""Put together the components of a process from the settings, and read the tenant file to start with."""

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
from headgate.web.process import Logs, create_process_app
from headgate.web.server import serve
from headgate.web.sessions import LoginSessions
from headgate.web.site import Site

log = logging.getLogger("headgate.tenants")

Begun = tuple[str, TenantFile, RepositoryProblem | None]
"""Text of the tenant file in effect, its content, and why it is not the present file; None: it is."""

LOAD_MULTIPLIER = 2.5
"""Load average per processor above which an executor begins no build, by default."""
RETRY_S = 1.0
"""Seconds after which the tenant file in the store is read again while the store does not answer."""
USUAL_PORTS = {"http": 80, "https": 443}
"""Scheme of an origin -> the port that browsers leave out."""


async def begun(settings: Settings, context: Context, at: dict[str, GitConnection]) -> Begun:
    """Return the tenant file or, if any of it is invalid, the one that was in effect before, if the store has it.
    Raise UserError when nothing can be loaded."""
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
    """Return the tenant file that was in effect, or None when there was none or it cannot be loaded now."""
    in_effect, why = await _stored(context), wrong[:WORDS_MAX_CHARS]
    if in_effect is None:
        return None
    # The earlier file must be valid as a whole: otherwise one broken file would merely replace another.
    with suppress(UserError):
        found = resources.tenant_file(settings, at, in_effect.text)
        if not found.refused:
            log.error("the tenant file is rejected, and the earlier one stays in effect: %s", why)
            return (
                in_effect.text,
                found,
                # The same error keeps its first time: a restart does not make an old problem look new.
                RepositoryProblem(in_effect.refused_ms if in_effect.refused == why else context.now_ms(), why),
            )
    return None


async def _stored(context: Context) -> SystemConf | None:
    """Return the file that the store has; wait until the store answers."""
    while True:
        try:
            return await in_force(context.store)
        except Unavailable as away:
            log.warning("the earlier tenant file cannot be read yet: %s", away)
            await asyncio.sleep(RETRY_S)


def access_of(settings: Settings, file: Callable[[], TenantFile], context: Context | None = None) -> Access:
    """Return the access rules. `context` is that of the web, where people log in. Raise UserError."""
    realms = []
    for found in authenticators(settings):
        section = settings.authenticators[found.name]
        override, default = (FLAGS[section.get(o, "false").lower()] for o in ("allow_authz_override", "default"))
        realms.append(Realm(found, section.get("realm") or section["client_id"], override, default))

    def rules() -> Rules:
        now = file()
        return Rules(now.rules, now.roles, now.api_root)

    sessions = None
    # Only an OpenID Connect provider has a login page; bearer tokens of the other drivers need no session.
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
        # Reading `port` raises ValueError for a port above 65535, so it belongs into the `try`, too.
        port = f":{parts.port}" if parts.port not in (None, USUAL_PORTS.get(parts.scheme)) else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    host = parts.hostname or ""
    # A browser's Origin header has neither path nor user: such an entry could never match, and nobody would notice.
    if parts.scheme not in USUAL_PORTS or not host or parts.path.strip("/") or parts.query or "@" in parts.netloc:
        raise UserError(
            f"{settings.path}: [web] dashboards: {url!r} is no origin; give scheme and host: https://zuul.example"
        )
    # `hostname` has lost the brackets of an IPv6 address; browsers send them.
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def reader(log_root: Path, remote: RemoteLogs, stored: StoredLogs | None) -> ReadLog:
    """Return a reader for an executor that keeps its logs in `log_root` and, if there is one, in the log store."""
    logs = BuildLogs(log_root, follow, remote, stored)

    async def read(build: str, path: str) -> AsyncGenerator[bytes, None]:
        try:
            if (found := await logs.content(build, path)) is not None:
                # Close at once when the reader stops early; otherwise the file stays open until the generator is
                # collected.
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
    """Add a scheduler. With `read`, other components of this process serve its metrics, whatever the settings of
    schedulers are."""
    settings, at, ours = process.settings, process.git, {name: one.forge for name, one in process.forges.items()}
    context = process.context
    # A tenant file that cannot be loaded falls back to the one in effect before; `refused` says why.
    text, file, refused = await begun(settings, context, at)
    forges: dict[str, ForgeWatch] = {n: GitForge(c, process.engine, {}) for n, c in resources.plain(settings).items()}
    forges |= ours
    most = (int(settings.number("scheduler", f"config_reading_max_{unit}")) for unit in ("s", "bytes"))
    # Configuration that a change proposes is read in another process, with limits on time and memory: no file that
    # somebody pushes can stop the scheduler.
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
            works["the figures of the whole"] = process.tells
        tended_ones = [tended(context, what, run, session) for what, run in works.items()]
        # The event is never set: this ends by cancellation alone, when the membership ends or the session is lost.
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
    found = runner_settings(settings, context.settings.hostname)
    earlier = reader(log_root, await remote(settings, context, process.stack), stored_logs(settings))
    runner = ProcessRunner(job_dir, log_root, process.engine, found, process.keys, fleet(settings, context), earlier)
    process.stack.push_async_callback(runner.close)
    # Sweep before the first build is accepted: what a dead executor left still holds processes and disk space.
    await runner.sweep(partial(held_in_store, context))
    load = MachineLoad(
        job_dir,
        # With `headgate run` nobody else could take a build that this executor refuses.
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


async def add_web(process: Process, bound: Callable[[int], None]) -> None:
    settings, _ = process.settings, process.forges  # deliveries of webhooks arrive here
    context = process.shares(poked=resources.poked(settings, process.tenants, process.context.now_ms))
    member = Membership(context, "web")
    served = process.inventory if process.serves_inventory else None
    pooled = None
    if served is not None or any(one.labels for one in process.tenants().values()):
        from headgate.services.nodes.search import FreeMachines  # a large import that few need

        pooled = FreeMachines(process.inventory).of
    site = Site(
        context,
        process.tenancy,
        process.history,
        settings.place("executor", "log_dir", "logs"),
        follow,
        access_of(settings, lambda: process.tenancy.file, context),
        resources.connection_shapes(settings),
        process.keys,
        remote=await remote(settings, context, process.stack),
        stored=stored_logs(settings),
        vitals=process.vitals,
        joined=lambda: member.session,
        refused=lambda: process.tenancy.refused,
        hold_default_s=int(settings.number("scheduler", "default_hold_expiration")),
        hold_max_s=int(settings.number("scheduler", "max_hold_expiration")),
        root=settings.get("web", "root").rstrip("/"),
        at_root=settings.get("web", "tenant"),
        speakers=resources.speakers_of(settings),
        pooled=pooled,
        beside=("inventory",) * (served is not None) + ("queues",) * serves_queues(settings),
    )
    host, port = settings.get("web", "listen_address"), int(settings.number("web", "port"))
    root = urlsplit(settings.get("web", "root")).hostname
    names = [root] if root else []
    # Beside a scheduler, requests have the smaller share of the loop, so that many viewers cannot delay its turns.
    share = SHARE_ALONE if process.scheduler is None else SHARE_BESIDE
    turns = PeerTurns(share, observe=lambda cpu_s: context.observer.shown("request", cpu_s))
    app, works = await front(
        Paced(create_app(site), turns), settings, served, process.stack, process.stop, process.anew
    )
    tls, process.servers = tls_of(settings), [*process.servers, *works]
    pages = dashboards_of(settings)
    process.servers.append(
        serve(app, host, port, process.stop, bound, tls=tls, names=names, shared=True, dashboards=pages)
    )
    # Beside a scheduler, the scheduler's own work reports the metrics of the whole system already.
    process.join(member, process.tells if process.scheduler is None else _forever)


async def add_everything(process: Process, bound: Callable[[int], None]) -> None:
    """Add all components that `headgate run` consists of."""
    # The scheduler comes first: the others look at `process.scheduler` for their tenants, shares and limits.
    await add_scheduler(process, read=True)
    await add_merger(process)
    await add_executor(process)
    await add_launcher(process, always=False)
    if "fingergw" in process.settings.values:
        await add_fingergw(process, alone=False)
    await add_web(process, bound)


async def _forever(session: Session) -> None:
    """Wait for ever: pages are served whether or not the store can be reached; only the membership in the store
    comes and goes."""
    await asyncio.Event().wait()


def add_monitor(process: Process, kind: str, *, always: bool, announce: Callable[[str], None]) -> None:
    """Serve health and metrics at the port that the settings of this `kind` name; if they name none, at a free one
    with `always`, otherwise not at all. `announce` is called with the URL."""
    settings = process.settings
    port, host = settings.get(kind, "prometheus_port"), settings.get(kind, "prometheus_addr")
    if not port and not always:
        return
    access = access_of(settings, lambda: process.tenancy.file)
    app, tls = create_process_app(process.vitals, access, process.logs), tls_of(settings)
    # An address of the loopback is announced as it is: under the name of the host nobody would reach it.
    name = host if host in ("127.0.0.1", "::1", "localhost") else process.context.settings.hostname

    def bound(number: int) -> None:
        announce(f"{scheme(tls)}://{f'[{name}]' if ':' in name else name}:{number}")

    served = serve(app, host, int(port or 0), process.stop, bound, f"[{kind}]", "prometheus_port", tls, (name,))
    process.servers.append(served)
