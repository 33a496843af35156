"""Implement `headgate demo`: run a gate on four small repositories in a directory that the demo creates."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tempfile
import time
from pathlib import Path

import click

from headgate.adapters.git.command import check_git
from headgate.base.tasks import end
from headgate.cli.launch.components import add_everything
from headgate.cli.launch.process import Process, process
from headgate.cli.scenario import files, machines
from headgate.cli.scenario.play import DemoPlay, Venue
from headgate.cli.scenario.venues import VENUES
from headgate.cli.settings import read
from headgate.cli.status import board
from headgate.cli.terminal.screen import LiveDrawing, Terminal, paragraph
from headgate.ports.history import HistoryQuery
from headgate.web.shapes import StatusShape
from headgate.web.status import Status, timed

REFRESH_S = 0.2
INTERRUPTED = 130
RECORDED_LOOKS = 50
GATE = "gate"


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
    help="Play on plain git; or on this machine on a stand-in for a forge, or a real Gerrit, with pages to look at.",
)
@click.option(
    "--story",
    type=click.Choice(["gate", "machines"]),
    default="gate",
    help="Why gating matters; or machines that are burned in before builds get them (needs sshd).",
)
def command(keep: bool, verbose: bool, directory: Path | None, forge: str, story: str) -> None:
    """Play a scenario that shows what Headgate does.  The exit status is 0 only if everything is as expected."""
    check_git()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # Builds that were just stopped may still write a file or two while the directory is removed.
    with tempfile.TemporaryDirectory(prefix="headgate-demo-", ignore_cleanup_errors=True) as name:
        if story == "machines":
            sys.exit(machines.play(directory or Path(name), Terminal()))
        sys.exit(asyncio.run(_demo(directory or Path(name), forge, keep, verbose)))


async def _demo(root: Path, forge: str, keep: bool, verbose: bool) -> int:
    terminal = Terminal()

    async with VENUES[forge](root, terminal.print if verbose or forge != "git" else None) as venue:
        await venue.build()
        (root / "tenants.yaml").write_text(venue.tenants)
        (root / "headgate.conf").write_text(files.SETTINGS + venue.settings)
        play = DemoPlay(root, venue, terminal.print)
        if not await asyncio.to_thread(play.without_gate):
            return 1
        return await _gate(root, play, venue, keep, verbose, terminal)


async def _gate(root: Path, play: DemoPlay, venue: Venue, keep: bool, verbose: bool, terminal: Terminal) -> int:
    """Play the scenario of the gate, and return the exit status; a signal ends all of it."""
    stop, served = asyncio.Event(), asyncio.Event()
    # Handlers of this loop, before anything starts: an interrupt must end jobs and servers, too.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with process(read(root / "headgate.conf"), stop) as system:

        def bound(port: int) -> None:
            system.context.pages.url = f"http://127.0.0.1:{port}"
            served.set()

        await add_everything(system, bound)
        running = asyncio.ensure_future(system.run())
        scenario = asyncio.ensure_future(_scenario(play, venue, system, served, terminal))
        try:
            await asyncio.wait([running, scenario], return_when=asyncio.FIRST_COMPLETED)
            # The system alone ended: a signal, or an error, which awaiting it raises.
            if not scenario.done():
                await running
                terminal.print()
                terminal.print("The demo was stopped before its end.")
                return INTERRUPTED
            if keep:
                for line in venue.next_steps():
                    terminal.print(line)
                terminal.print(f"The pages stay at {system.context.pages.url}/ until you press Ctrl-C")
                await running
            else:
                terminal.print("Your turn: headgate demo --keep")
        finally:
            # Stop the system before the scenario's result is read: its error, if any, must not leave processes behind.
            stop.set()
            await end(scenario)
            await running
    return _verdict(play, scenario.result(), verbose, terminal)


async def _scenario(play: DemoPlay, venue: Venue, system: Process, served: asyncio.Event, terminal: Terminal) -> bool:
    # With port 0, the address that is printed below is known only now.
    await served.wait()
    tenants = system.scheduler.tenants if system.scheduler else {}
    # Without the layouts the first pushes would start nothing.
    await asyncio.gather(*(tenant.loaded.wait() for tenant in tenants.values()))
    await venue.attend(system)
    terminal.print()
    terminal.print("With Headgate, both are pushed, and six more changes; all are approved.")
    terminal.print(f"Each is tested on what is ahead of it: {system.context.pages.url}/")
    await play.propose()
    status, begun_s = Status(system.context, tenants), time.monotonic()
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
    took_s, alone_s = time.monotonic() - begun_s, await _in_turn_s(system, venue.tenant, len(play.changes))
    terminal.print(f"{took_s:.1f} s, as up to {most} are tested at once; one by one, their jobs take {alone_s:.1f} s.")
    return await asyncio.to_thread(play.heads_pass)


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


async def _in_turn_s(system: Process, tenant: str, changes: int) -> float:
    """Return the seconds that the last builds of all changes in the gate would have taken one after another."""
    query = HistoryQuery({"pipeline": (GATE,), "final": (True,), "complete": (True,)}, limit=200)
    # The recorder writes after the landing that people see, so the history is a little late.
    for _ in range(RECORDED_LOOKS):
        if len(await system.history.buildsets(tenant, query)) >= changes:
            break
        await asyncio.sleep(REFRESH_S)
    builds = await system.history.builds(tenant, query)
    return sum(build.duration or 0.0 for build in builds if build.job_name in files.IN_TURN)


def _verdict(play: DemoPlay, heads_good: bool, verbose: bool, terminal: Terminal) -> int:
    """Print the counts and, with `verbose`, the whole answer to each rejected change; return the exit status."""
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
