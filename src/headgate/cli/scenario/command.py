"""`headgate demo`: a gate at work on four small repositories, from nothing, in a directory of its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from headgate.adapters.git.command import check_git
from headgate.base.tasks import end
from headgate.cli.board import board
from headgate.cli.running.components import Process, add_everything, process
from headgate.cli.scenario import files, machines
from headgate.cli.scenario.forges.table import VENUES
from headgate.cli.scenario.play import Play
from headgate.cli.scenario.venue import Venue
from headgate.cli.settings import read
from headgate.web.status import Status, timed

REFRESH_S = 0.2
INTERRUPTED = 130


@click.command()
@click.option("--keep", is_flag=True, help="Go on serving the pages afterwards, until interrupted.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), help="Where to play; must be empty.")
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
    help="Why gating matters; or machines that are burned in before builds are given them (needs sshd).",
)
def command(keep: bool, directory: Path | None, forge: str, story: str) -> None:
    """Play a scenario that shows what Headgate does.  Exit status 0 only if all is as expected."""
    check_git()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    with tempfile.TemporaryDirectory(prefix="headgate-demo-", ignore_cleanup_errors=True) as name:
        if story == "machines":
            sys.exit(machines.play(directory or Path(name), Console(highlight=False, soft_wrap=True)))
        sys.exit(asyncio.run(_demo(directory or Path(name), forge, keep)))


async def _demo(root: Path, forge: str, keep: bool) -> int:
    console = Console(highlight=False, soft_wrap=True)
    async with VENUES[forge](root, console.print) as venue:
        console.print(f"Creating one repository of configuration and three of code in {root}")
        await venue.build()
        (root / "tenants.yaml").write_text(venue.tenants)
        (root / "headgate.conf").write_text(files.SETTINGS + venue.settings)
        play = Play(root, venue, lambda text: console.print(f"[bold]»[/] {text}"))
        return await _gate(root, play, venue, keep, console)


async def _gate(root: Path, play: Play, venue: Venue, keep: bool, console: Console) -> int:
    """Return the exit status; a signal ends all of it."""
    stop, served = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with process(read(root / "headgate.conf"), stop) as whole:

        def bound(port: int) -> None:
            whole.context.root_url = f"http://127.0.0.1:{port}"
            served.set()

        await add_everything(whole, bound)
        running = asyncio.ensure_future(whole.run())
        scenario = asyncio.ensure_future(_scenario(play, venue, whole, served, console))
        try:
            await asyncio.wait([running, scenario], return_when=asyncio.FIRST_COMPLETED)
            if not scenario.done():
                await running
                console.print("\nThe demo was stopped before its end.")
                return INTERRUPTED
            if keep:
                for line in venue.doors():
                    console.print(line, markup=False)
                console.print(f"The pages stay at {whole.context.root_url}/ until you press Ctrl-C")
                await running
        finally:
            stop.set()
            await end(scenario)
            await running
    return _verdict(play, scenario.result(), console)


async def _scenario(play: Play, venue: Venue, whole: Process, served: asyncio.Event, console: Console) -> bool:
    await served.wait()
    tenants = whole.scheduler.tenants if whole.scheduler else {}
    await asyncio.gather(*(tenant.loaded.wait() for tenant in tenants.values()))
    console.print(f"Headgate runs; watch the queues at {whole.context.root_url}/")
    await venue.attend(whole)
    await play.propose()
    status = Status(whole.context, tenants)
    await play.approve()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        outcomes = asyncio.ensure_future(play.outcomes())
        try:
            while not outcomes.done():
                live.update(board(timed(status.of(venue.tenant), whole.context.now_ms())), refresh=True)
                await asyncio.wait([outcomes], timeout=REFRESH_S)
            await outcomes
        finally:
            await end(outcomes)
    return await asyncio.to_thread(play.heads_pass)


def _verdict(play: Play, heads_good: bool, console: Console) -> int:
    """Says why each rejected change was, and the counts; the exit status."""
    for played in play.changes:
        if played.outcome == "rejected":
            console.print(f"\n{played.change} was rejected:", style="bold")
            console.print(played.note, markup=False)
    wrong = [played for played in play.changes if played.outcome != played.expected]
    for played in wrong:
        console.print(f"\n{played.change}: {played.outcome}, expected {played.expected}", style="red")
    counts = {word: sum(played.outcome == word for played in play.changes) for word in ("landed", "rejected", "lost")}
    print("\ndemo: " + ", ".join(f"{word} {count}" for word, count in counts.items()), flush=True)
    return 0 if heads_good and not wrong else 1
