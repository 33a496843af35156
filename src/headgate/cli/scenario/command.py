"""`headgate demo`: a gate at work on four small repositories, from nothing, in a directory of its own."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from headgate.adapters.git.command import check_git
from headgate.cli.board import board
from headgate.cli.running.components import Process, add_everything, process
from headgate.cli.scenario import files, machines
from headgate.cli.scenario.audience import KEY, audience
from headgate.cli.scenario.play import Play
from headgate.cli.settings import read
from headgate.services.scheduler.standings import Standings
from headgate.web.status import Status, timed

REFRESH_S = 0.2


@click.command()
@click.option("--keep", is_flag=True, help="Go on serving the pages afterwards, until interrupted.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), help="Where to play; must be empty.")
@click.option(
    "--story",
    type=click.Choice(["gate", "machines"]),
    default="gate",
    help="Why gating matters; or machines that are burned in before builds are given them (needs sshd).",
)
def command(keep: bool, directory: Path | None, story: str) -> None:
    """Play a scenario that shows what Headgate does.  Exit status 0 only if all is as expected."""
    check_git()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    with tempfile.TemporaryDirectory(prefix="headgate-demo-", ignore_cleanup_errors=True) as name:
        if story == "machines":
            sys.exit(machines.play(directory or Path(name), Console(highlight=False, soft_wrap=True)))
        sys.exit(asyncio.run(_demo(directory or Path(name), keep)))


async def _demo(root: Path, keep: bool) -> int:
    console = Console(highlight=False, soft_wrap=True)
    play = Play(root, lambda text: console.print(f"[bold]»[/] {text}"))
    console.print(
        f"Creating one repository of configuration and three of code in {root}", highlight=False, soft_wrap=True
    )
    await asyncio.to_thread(play.build)
    (root / "tenants.yaml").write_text(files.TENANTS)
    async with audience(root, lambda text: console.print(f"[dim]a worker is told: {text}[/]")) as url:
        server = f"url = {url}\napp_key = {KEY}\n"
        told = f"[notices]\n{server}[connection told]\ndriver = queue\n{server}"
        (root / "headgate.conf").write_text(f"{files.SETTINGS}\n{told}")
        return await _gate(root, play, keep, console)


async def _gate(root: Path, play: Play, keep: bool, console: Console) -> int:
    stop, served = asyncio.Event(), asyncio.Event()
    async with process(read(root / "headgate.conf"), stop) as whole:

        def bound(port: int) -> None:
            whole.context.root_url = f"http://127.0.0.1:{port}"
            served.set()

        await add_everything(whole, bound)
        running = asyncio.ensure_future(whole.run())
        try:
            scenario = asyncio.ensure_future(_scenario(play, whole, served, console))
            await asyncio.wait([running, scenario], return_when=asyncio.FIRST_COMPLETED)
            if not scenario.done():
                scenario.cancel()
                await running
            good = await scenario
            if keep:
                console.print(
                    f"The pages stay at {whole.context.root_url}/ until you press Ctrl-C",
                    highlight=False,
                    soft_wrap=True,
                )
                await running
        finally:
            stop.set()
            await running
    return _verdict(play, good, console)


async def _scenario(play: Play, whole: Process, served: asyncio.Event, console: Console) -> bool:
    await served.wait()
    tenants = whole.scheduler.tenants if whole.scheduler else {}
    await asyncio.gather(*(tenant.loaded.wait() for tenant in tenants.values()))
    console.print(f"Headgate runs; watch the queues at {whole.context.root_url}/")
    await asyncio.to_thread(play.propose)
    mirror = whole.context.mirror
    standings = Standings(whole.context.map, mirror, tuple(whole.settings.connections))

    async def seen(commit: str) -> None:
        while all(known.approved != commit for known in standings.now().values()):
            await mirror.moved(mirror.moves)

    await play.approve(seen)
    status = Status(whole.context, tenants)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        outcomes = asyncio.ensure_future(play.outcomes())
        while not outcomes.done():
            live.update(board(timed(status.of("demo"), whole.context.now_ms())), refresh=True)
            await asyncio.wait([outcomes], timeout=REFRESH_S)
        await outcomes
    return await asyncio.to_thread(play.heads_pass)


def _verdict(play: Play, heads_good: bool, console: Console) -> int:
    """Says why each rejected change was, and the counts; the exit status."""
    for change in play.changes:
        if change.outcome == "rejected":
            console.print(
                f"\n{change.project} {change.topic} was rejected:", style="bold", highlight=False, soft_wrap=True
            )
            console.print(change.note, markup=False)
    wrong = [change for change in play.changes if change.outcome != change.expected]
    for change in wrong:
        console.print(f"\n{change.project} {change.topic}: {change.outcome}, expected {change.expected}", style="red")
    counts = {word: sum(c.outcome == word for c in play.changes) for word in ("landed", "rejected", "lost")}
    print("\ndemo: " + ", ".join(f"{word} {count}" for word, count in counts.items()), flush=True)
    return 0 if heads_good and not wrong else 1
