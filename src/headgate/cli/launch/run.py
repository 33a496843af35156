"""Implement `headgate run`, with every component in one process, and `headgate scheduler` and others, with one kind."""

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

# A thousand viewers alone need more than the 1,024 descriptors that most systems allow by default.
DESCRIPTORS = 65_536
NAMED_MAX = 5
"""Options without effect that the log names one by one."""
NEEDS_A_HAND = 78
"""Exit status (EX_CONFIG of sysexits.h) for errors that a restart does not cure: somebody must correct them first."""

_config = click.option("--config", metavar="FILE", help="The settings file.")
_verbose = click.option("--verbose", is_flag=True, help="Say more.")
Made = Callable[[Process], Coroutine[Any, Any, None]]


@click.command()
@_config
@_verbose
def command(config: str | None, verbose: bool) -> None:
    """Start Headgate: scheduler, merger, executor and web pages in one process, on an embedded store."""
    _start(config, verbose, "", _everything)


@click.command()
@_config
@_verbose
def scheduler(config: str | None, verbose: bool) -> None:
    """Start a scheduler: it reads the tenant file, watches the connections and decides.  Several share the work."""
    _start(config, verbose, "scheduler", _one("scheduler", add_scheduler))


@click.command()
@_config
@_verbose
def merger(config: str | None, verbose: bool) -> None:
    """Start a merger: it does git work.  Several share it."""
    _start(config, verbose, "merger", _one("merger", add_merger))


@click.command()
@_config
@_verbose
def executor(config: str | None, verbose: bool) -> None:
    """Start an executor: it runs builds, and serves their logs to the web.  Several share the builds, by load."""
    _start(config, verbose, "executor", _one("executor", add_executor))


@click.command()
@_config
@_verbose
def launcher(config: str | None, verbose: bool) -> None:
    """Start a launcher: it claims machines of the inventory for builds.  One of several works at a time."""
    _start(config, verbose, "launcher", _one("launcher", add_launcher))


@click.command()
@_config
@_verbose
def fingergw(config: str | None, verbose: bool) -> None:
    """Start a finger gateway: it serves live logs of builds of tenants that everybody may read.  Any number may run."""

    async def made(process: Process) -> None:
        await add_fingergw(process)
        add_monitor(process, "fingergw", always=False, announce=_announce_monitor)

    _start(config, verbose, "fingergw", made)


@click.command()
@_config
@_verbose
def web(config: str | None, verbose: bool) -> None:
    """Start the pages and the API.  Any number may run."""

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
        pages.url = pages.url or f"{scheme(tls_of(process.settings))}://{host}:{port}"
        print(f"Headgate is running; its pages are at {pages.url}/", flush=True)

    return bound


def _announce_monitor(url: str) -> None:
    print(f"Health and figures are at {url}/health/ready and {url}/metrics", flush=True)


def _start(config: str | None, verbose: bool, kind: str, made: Made) -> None:
    """Start the process of this `kind`; empty means all components in one process. Raise UserError with the status
    NEEDS_A_HAND."""
    try:
        # An old git would fail later, in the middle of a merge or a build; the web needs none.
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
        # Most such errors are in files that somebody must correct; a supervisor that restarts at once would only fill
        # the log. The unit in packaging/systemd prevents restarts at this status.
        error.status = NEEDS_A_HAND
        raise


def _tell_of_idle(settings: Settings) -> None:
    """Log which settings have no effect."""
    wanted = [f"[{one.section}] {one.option}".rstrip() for one in settings.idle if one.note.kind != NEEDLESS]
    if wanted:
        more = f" and {len(wanted) - NAMED_MAX} more" if len(wanted) > NAMED_MAX else ""
        log.warning("%s: %s%s: of no effect here; `headgate check` says what is to be done instead", settings.path,
                    ", ".join(wanted[:NAMED_MAX]), more)  # fmt: skip


def _allow_descriptors() -> None:
    """Raise the soft limit on descriptors to the hard one: shells set a low one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The hard limit cannot be exceeded without privileges, so asking for more would only fail.
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _health_ports(settings: Settings, kind: str) -> list[tuple[str, int]]:
    """List the host and port of each server that the settings name for a process of this kind."""
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
    """Run until a signal, until `stop`, or until every component was asked to stop. `ports` is passed to `process`.

    SIGINT, and SIGTERM by default, stop at once: builds are handed back. SIGTERM with `sigterm_method = graceful`,
    and SIGUSR1, let them finish; a second signal stops at once. SIGHUP makes a scheduler read the tenant file
    again, and queues their keys.
    """
    stop = stop or asyncio.Event()
    loop, heard = asyncio.get_running_loop(), _Heard(stop)
    # By default these signals kill, also a process that still waits for its store.
    loop.add_signal_handler(signal.SIGUSR1, heard.gracefully)
    if not sys.stdin.isatty():  # otherwise it means that the terminal was closed
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
    """Pass signals on to the components, also those that come before there are any."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop, self._anew = stop, False
        self._process: Process | None = None

    def pass_on(self, process: Process) -> None:
        self._process = process
        # What the components have read may be older than the signal.
        if self._anew:
            process.read_anew()

    def read_anew(self) -> None:
        if self._process is None:
            self._anew = True
        else:
            self._process.read_anew()

    def gracefully(self) -> None:
        if self._process is None:
            self._stop.set()  # nothing is under way yet that could be finished
            return
        for member in self._process.members:
            member.want("stopped")


def _first_then(loop: asyncio.AbstractEventLoop, first: Callable[[], None], stop: asyncio.Event) -> Callable[[], None]:
    def on_signal() -> None:
        # The handler replaces itself: a person who sends the signal twice does not want to wait for builds.
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        first()

    return on_signal
