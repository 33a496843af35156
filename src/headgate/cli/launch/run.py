"""Implement `headgate run`, which starts all components in one process, and the commands that start one of them."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import click

from headgate.adapters.git.command import check_git
from headgate.base.errors import UserError
from headgate.cli.identity.credentials import scheme, tls_of
from headgate.cli.launch.components import add_everything, add_executor, add_merger, add_monitor, add_scheduler, add_web
from headgate.cli.launch.front import add_fingergw
from headgate.cli.launch.machines import add_launcher
from headgate.cli.launch.process import NeverReached, Process, process
from headgate.cli.logs import set_up
from headgate.cli.reference import NEEDLESS
from headgate.cli.settings import Settings, find, read
from headgate.cli.terminal.say import say
from headgate.services.membership import TooOld

log = logging.getLogger("headgate.settings")

# A thousand viewers already need more than the 1,024 descriptors that most systems allow by default.
DESCRIPTORS = 65_536
IDLE_NAMED_MAX = 5
"""Maximum number of options without effect that the log names."""
NEEDS_A_HAND = 78
"""Exit status (EX_CONFIG of sysexits.h) for errors that a restart does not cure, because a person must correct them."""

_config = click.option("--config", metavar="FILE", help="The settings file.")
_verbose = click.option("--verbose", is_flag=True, help="Print more details.")
Made = Callable[[Process], Coroutine[Any, Any, None]]


@click.command()
@_config
@_verbose
def command(config: str | None, verbose: bool) -> None:
    """Start Headgate: scheduler, merger, executor and web pages in one process, with an embedded store."""
    _start(config, verbose, "", _everything)


@click.command()
@_config
@_verbose
def scheduler(config: str | None, verbose: bool) -> None:
    """Start a scheduler: it reads the tenant file, watches the connections, and decides what to test and land.

    Several schedulers share the work."""
    _start(config, verbose, "scheduler", _one("scheduler", add_scheduler))


@click.command()
@_config
@_verbose
def merger(config: str | None, verbose: bool) -> None:
    """Start a merger: it merges, inspects and pushes git commits. Several mergers share the work."""
    _start(config, verbose, "merger", _one("merger", add_merger))


@click.command()
@_config
@_verbose
def executor(config: str | None, verbose: bool) -> None:
    """Start an executor: it runs builds, and serves their logs to the web server.

    Several executors share the builds, according to their load."""
    _start(config, verbose, "executor", _one("executor", add_executor))


@click.command()
@_config
@_verbose
def launcher(config: str | None, verbose: bool) -> None:
    """Start a launcher: it claims, creates and removes machines for builds.

    If you start several, one is active at a time."""
    _start(config, verbose, "launcher", _one("launcher", add_launcher))


@click.command()
@_config
@_verbose
def fingergw(config: str | None, verbose: bool) -> None:
    """Start a finger gateway: it serves live logs of builds in tenants that everybody may read.

    You can start any number of gateways."""

    async def made(process: Process) -> None:
        await add_fingergw(process)
        add_monitor(process, "fingergw", always=False, announce=_announce_monitor)

    _start(config, verbose, "fingergw", made)


@click.command()
@_config
@_verbose
def web(config: str | None, verbose: bool) -> None:
    """Start a web server for the pages and the API.  You can start any number of them."""

    async def made(process: Process) -> None:
        await add_web(process, _pages_announcer(process))
        add_monitor(process, "web", always=False, announce=_announce_monitor)

    _start(config, verbose, "web", made)


def _one(kind: str, add: Made) -> Made:
    async def made(process: Process) -> None:
        await add(process)
        (member,) = process.members

        def announce(url: str) -> None:
            member.say(url=url)
            _announce_monitor(url)

        add_monitor(process, kind, always=kind == "executor", announce=announce)
        say(f"Headgate's {kind} is starting.")

    return made


async def _everything(process: Process) -> None:
    await add_everything(process, _pages_announcer(process))


def _pages_announcer(process: Process) -> Callable[[int], None]:
    def bound(port: int) -> None:
        host = process.settings.get("web", "listen_address")
        pages = process.context.pages
        pages.learn(f"{scheme(tls_of(process.settings))}://{host}:{port}")
        print(f"Headgate is running; its pages are at {pages.url}/", flush=True)

    return bound


def _announce_monitor(url: str) -> None:
    # Scripts read this line, so its words stay as they are.
    print(f"Health and figures are at {url}/health/ready and {url}/metrics", flush=True)


def _start(config: str | None, verbose: bool, kind: str, made: Made) -> None:
    """Start a process of this `kind`; empty means all components. Raise UserError with the status NEEDS_A_HAND."""
    try:
        # An old git would fail later, in the middle of a merge or a build. Web servers do not use git.
        if kind in ("", "scheduler", "merger", "executor"):
            check_git()
        settings = read(find(config))
        set_up(settings.get("log", "format"), "debug" if verbose else settings.get("log", "level"))
        for warning in settings.warnings:
            log.warning("%s", warning)
        _tell_of_idle(settings)
        _allow_descriptors()
        asyncio.run(run(settings, made, ports=_health_ports(settings, kind)))
    except UserError as error:
        # Most such errors are in files that a person must correct, so restarts would only fill the log. The unit in
        # packaging/systemd does not restart after this status.
        error.status = NEEDS_A_HAND
        raise


def _tell_of_idle(settings: Settings) -> None:
    """Log which settings have no effect."""
    wanted = [f"[{one.section}] {one.option}".rstrip() for one in settings.idle if one.note.kind != NEEDLESS]
    if wanted:
        more = f" and {len(wanted) - IDLE_NAMED_MAX} more" if len(wanted) > IDLE_NAMED_MAX else ""
        log.warning("%s: these options have no effect: %s%s; `headgate check` shows what to use instead", settings.path,
                    ", ".join(wanted[:IDLE_NAMED_MAX]), more)  # fmt: skip


def _allow_descriptors() -> None:
    """Raise the soft limit on descriptors, which shells set low, up to DESCRIPTORS or the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Exceeding the hard limit needs privileges, so do not try.
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _health_ports(settings: Settings, kind: str) -> list[tuple[str, int]]:
    """Return the host and port of each server that a process of this kind will run with a fixed port."""
    named = [(settings.get(kind, "prometheus_addr"), settings.get(kind, "prometheus_port"))] if kind else []
    if kind in ("", "web"):
        named.append((settings.get("web", "listen_address"), settings.get("web", "port")))
    return [(host, int(port)) for host, port in named if port and int(port)]


async def run(
    settings: Settings,
    made: Made = _everything,
    stop: asyncio.Event | None = None,
    ports: Sequence[tuple[str, int]] = (),
) -> None:
    """Run until a signal arrives, `stop` is set, or every component received a request to stop. Pass `ports` to
    `process`.

    SIGINT, and by default SIGTERM, stop immediately, and builds run again elsewhere. SIGUSR1, and SIGTERM with
    `sigterm_method = graceful`, let builds finish; a second SIGTERM stops immediately. SIGHUP makes the scheduler
    reload the tenant file, and the queues their keys."""
    stop = stop or asyncio.Event()
    loop, heard = asyncio.get_running_loop(), _Heard(stop)
    # Install handlers early: by default, these signals would kill a process that still waits for its store.
    loop.add_signal_handler(signal.SIGUSR1, heard.gracefully)
    if not sys.stdin.isatty():  # in a terminal, SIGHUP means that the terminal was closed
        loop.add_signal_handler(signal.SIGHUP, heard.read_anew)
    with suppress(NeverReached):
        async with process(settings, stop, ports) as own_process:
            await made(own_process)
            heard.pass_on(own_process)
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop.set)
            if settings.get("executor", "sigterm_method") == "graceful":
                loop.add_signal_handler(signal.SIGTERM, _first_then(loop, heard.gracefully, stop))
            try:
                await own_process.run()
            except TooOld as old:
                raise UserError(str(old)) from old


class _Heard:
    """Pass signals on to the components; remember a SIGHUP that arrives before there are any."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop, self._anew = stop, False
        self._process: Process | None = None

    def pass_on(self, process: Process) -> None:
        self._process = process
        # The components may have read their files before the signal arrived.
        if self._anew:
            process.read_anew()

    def read_anew(self) -> None:
        if self._process is None:
            self._anew = True
        else:
            self._process.read_anew()

    def gracefully(self) -> None:
        if self._process is None:
            self._stop.set()  # no work has begun yet
            return
        for member in self._process.members:
            member.want("stopped")


def _first_then(loop: asyncio.AbstractEventLoop, first: Callable[[], None], stop: asyncio.Event) -> Callable[[], None]:
    def on_signal() -> None:
        # The handler replaces itself: whoever sends the signal twice does not want to wait for builds.
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        first()

    return on_signal
