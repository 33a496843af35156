"""Implement `headgate demo`: run a gate on four small repositories in a directory that the demo creates."""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pygit2

from headgate.adapters.git.command import check_git
from headgate.base.errors import HeadgateError, UserError
from headgate.base.tasks import end
from headgate.cli.groups import own_command
from headgate.cli.launch.components import add_everything
from headgate.cli.launch.process import Process, process
from headgate.cli.scenario import files, machines
from headgate.cli.scenario.play import SERIAL_CHANGES, DemoPlay, SerialTester, Venue
from headgate.cli.scenario.venues import VENUES
from headgate.cli.settings import read
from headgate.cli.status import board
from headgate.cli.terminal.screen import LiveDrawing, Terminal, paragraph
from headgate.web.shapes import StatusShape
from headgate.web.status import Status, timed

REFRESH_S = 0.2
INTERRUPTED = 130
GATE = "gate"
BUSY = 4
"""Load per processor above which the demo prints the load with its times. The jobs that run one by one mostly sleep,
so other programs delay the gate more than they delay these."""

_UNWRITABLE = re.compile("No space left on device|Disk quota exceeded|Read-only file system|Permission denied")

held_back = logging.handlers.MemoryHandler(capacity=100, flushLevel=logging.ERROR)
"""Warnings of the executor, mostly about what this machine lacks to isolate jobs, until the story has been told."""


@click.command()
@click.option("--keep", is_flag=True, help="Continue to serve the pages afterwards, until interrupted.")
@click.option("-v", "--verbose", is_flag=True, help="Print events as a worker receives them, and complete answers.")
@click.option(
    "--directory", type=click.Path(file_okay=False, path_type=Path), help="The directory to use; must be empty."
)
@click.option(
    "--forge",
    type=click.Choice(list(VENUES)),
    default="git",
    help="Play on plain git, on a local stand-in for a forge, or on a local Gerrit; forges have pages to look at.",
)
@click.option(
    "--story",
    type=click.Choice(["gate", "machines"]),
    default="gate",
    help="gate: why gating matters; machines: new machines are burned in before builds get them (needs sshd).",
)
def command(keep: bool, verbose: bool, directory: Path | None, forge: str, story: str) -> None:
    """Play a scenario that shows what Headgate does. The exit status is 0 only if everything is as expected."""
    check_git()
    if directory is not None:
        _check_empty(directory)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if not verbose and story == "gate":
        held_back.setTarget(logging.root.handlers[0])
        executor = logging.getLogger("headgate.executor")
        executor.addHandler(held_back)
        executor.propagate = False
    # Builds that were just stopped may still write a file or two while the directory is removed.
    with tempfile.TemporaryDirectory(prefix="headgate-demo-", ignore_cleanup_errors=True) as name:
        # Programs run in directories of their own, where a relative path would name something else.
        root = (directory or Path(name)).absolute()
        with _written_to(root):
            if story == "machines":
                sys.exit(machines.play(root, Terminal()))
            sys.exit(asyncio.run(_demo(root, forge, keep, verbose)))


@contextmanager
def _written_to(root: Path) -> Iterator[None]:
    """Raise UserError, which names the directory, if the demo fails because it cannot write there: the libraries that
    make the repositories report that in errors of their own."""
    try:
        yield
    except UserError:
        raise
    except (OSError, RuntimeError, HeadgateError, pygit2.GitError) as error:
        if (found := _UNWRITABLE.search(str(error))) is None:
            raise
        text = f"{root}: the demo cannot write its files: {found[0]}"
        raise UserError(f"{text}; name a directory elsewhere with --directory") from error


def _check_empty(directory: Path) -> None:
    """Raise UserError unless the directory is empty or does not exist: the demo would overwrite settings in it."""
    try:
        found = os.listdir(directory) if os.path.lexists(directory) else []
    except OSError as error:  # among others, a link that leads nowhere
        raise UserError(f"{directory}: cannot be used: {error.strerror}") from error
    if found:
        raise UserError(f"{directory} is not empty; name another directory, or one that does not exist yet")


async def _demo(root: Path, forge: str, keep: bool, verbose: bool) -> int:
    terminal = Terminal()

    async with VENUES[forge](root, terminal.print if verbose or forge != "git" else None) as venue:
        await venue.build()
        (root / "tenants.yaml").write_text(venue.tenants)
        (root / "headgate.conf").write_text(files.SETTINGS + venue.settings)
        play = DemoPlay(root, venue, terminal.print)
        if not await asyncio.to_thread(play.without_gate):
            return 1
        # Clone before anything lands: the comparison must start from the same commits as the gate.
        serial = await asyncio.to_thread(SerialTester, root / "serial", venue.clone)
        return await _gate(root, play, serial, venue, keep, verbose, terminal)


async def _gate(
    root: Path, play: DemoPlay, serial: SerialTester, venue: Venue, keep: bool, verbose: bool, terminal: Terminal
) -> int:
    """Play the scenario of the gate, and return the exit status. A signal ends everything that it started."""
    stop, served = asyncio.Event(), asyncio.Event()
    # Install handlers before anything starts: an interrupt must also end jobs and servers.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with process(read(root / "headgate.conf"), stop) as system:

        def bound(port: int) -> None:
            system.context.pages.learn(f"http://127.0.0.1:{port}")
            served.set()

        await add_everything(system, bound)
        running = asyncio.ensure_future(system.run())
        scenario = asyncio.ensure_future(_scenario(play, serial, venue, system, served, terminal))
        try:
            await asyncio.wait([running, scenario], return_when=asyncio.FIRST_COMPLETED)
            # Only the system has ended: by a signal, or by an error, which awaiting it raises.
            if not scenario.done():
                await running
                terminal.print()
                terminal.print("The demo was interrupted.")
                return INTERRUPTED
            held_back.flush()
            scenario.result()  # raises its error, after which there is nothing to look at
            if keep:
                for line in venue.next_steps():
                    terminal.print(line)
                terminal.print(f"The pages stay at {system.context.pages.url}/ until you press Ctrl-C")
                await running
            else:
                terminal.print(f"Your turn: {own_command()} demo --keep (the pages stay; -v prints events)")
        finally:
            # Stop the system before the scenario's result is read: its error, if any, must not leave processes behind.
            stop.set()
            await end(scenario)
            await running
    return _verdict(play, scenario.result(), verbose, terminal)


async def _scenario(
    play: DemoPlay, serial: SerialTester, venue: Venue, system: Process, served: asyncio.Event, terminal: Terminal
) -> bool:
    """Play the changes through the gate and then one by one; return whether all tests pass afterwards."""
    # With port 0, the address that is printed below is known only once the pages are served.
    await served.wait()
    tenants = system.scheduler.tenants if system.scheduler else {}
    # Until the layouts are loaded, pushes would start nothing.
    await asyncio.gather(*(tenant.loaded.wait() for tenant in tenants.values()))
    await venue.attend(system)
    terminal.print()
    terminal.print(f"With Headgate, these two and six more are approved: {system.context.pages.url}/")
    await play.propose()
    status, begun_s, load = Status(system.context, tenants), time.monotonic(), _load()
    most = 0
    with LiveDrawing(terminal) as live:
        outcomes = asyncio.ensure_future(play.answers())
        try:
            while not outcomes.done():
                now = timed(status.of(venue.tenant), system.context.now_ms())
                live.update(board(now))
                most = max(most, tested(now))
                await asyncio.wait([outcomes], timeout=REFRESH_S)
            await outcomes
        finally:
            await end(outcomes)
    took_s = time.monotonic() - begun_s
    terminal.print(f"All take {took_s:.1f} s{load}: up to {most} in parallel, each on top of those ahead.")
    failures = await asyncio.to_thread(play.heads_fail)
    serial_s, as_expected = await _measured(play, serial)
    heads = f"The heads {'FAIL' if failures else 'pass'} all tests together."
    terminal.print(f"One by one, the first {SERIAL_CHANGES} alone take {serial_s:.1f} s. {heads}")
    for line in failures:
        terminal.print(f"  {line}")
    return as_expected and not failures


def _load() -> str:
    """Return the load of the machine as a part of a sentence if it delays the builds; otherwise an empty string."""
    average = os.getloadavg()[0]
    return f" at load {average:.0f}" if average > BUSY * (os.cpu_count() or 1) else ""


async def _measured(play: DemoPlay, serial: SerialTester) -> tuple[float, bool]:
    """Test the first changes one by one; return the seconds that this took, and whether exactly the expected ones
    passed."""
    begun_s, good = time.monotonic(), True
    for played in play.changes[:SERIAL_CHANGES]:
        # Use one thread per change: an interrupt then waits only for the current one.
        passes = await asyncio.to_thread(serial.passes, played.proposed)
        good = good and passes == (played.expected == "landed")
    return time.monotonic() - begun_s, good


def tested(status: StatusShape) -> int:
    """Return the number of items in the gate that have a running job."""
    items = (
        item
        for pipeline in status.pipelines
        if pipeline.name == GATE
        for queue in pipeline.change_queues
        for head in queue.heads
        for item in head
    )
    return sum(any(job.start_time and job.result is None for job in item.jobs) for item in items)


def _verdict(play: DemoPlay, heads_good: bool, verbose: bool, terminal: Terminal) -> int:
    """Print the counts and, with `verbose`, the complete answer to each rejected change; return the exit status."""
    for played in play.changes:
        if verbose and played.outcome == "rejected":
            terminal.print()
            terminal.print(f"{played.change} was rejected:", "bold")
            terminal.print(paragraph(played.note))
    wrong = [played for played in play.changes if played.outcome != played.expected]
    for played in wrong:
        terminal.print()
        terminal.print(f"{played.change}: {played.outcome}, expected {played.expected}", "red")
    counts = {word: sum(played.outcome == word for played in play.changes) for word in ("landed", "rejected", "lost")}
    print("\ndemo: " + ", ".join(f"{word} {count}" for word, count in counts.items()), flush=True)
    return 0 if heads_good and not wrong else 1
