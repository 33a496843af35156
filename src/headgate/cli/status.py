"""`headgate status`: the queues, live, from a running Headgate."""

from __future__ import annotations

import time

import click
import msgspec
from rich.console import Console
from rich.live import Live

from headgate.base.errors import UserError
from headgate.cli.board import board, unreachable
from headgate.cli.identity.pages import pages
from headgate.web.shapes import StatusShape

INTERVAL_S = 0.5


@click.command()
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--url", help="Where Headgate's pages are; by default as the settings say.")
@click.option("--tenant", help="By default the only one.")
@click.option(
    "--once", is_flag=True, help="Print the status once and exit; the default if the output is not a terminal."
)
def command(config: str | None, url: str | None, tenant: str | None, once: bool) -> None:
    """Show the queues of a running Headgate."""
    at = pages(config, url)
    place = f"{at.of(tenant)}/status"
    console = Console(highlight=False)

    def look() -> StatusShape:
        return msgspec.convert(at.get(place), StatusShape)

    if once or not console.is_terminal:
        console.print(board(look()), soft_wrap=not console.is_terminal)
        return
    seen = board(look())
    with Live(seen, console=console, auto_refresh=False, screen=True) as live:
        try:
            while True:
                try:
                    shown = seen = board(look(), console.height)
                except UserError as error:  # it was there when we began: it may be started again
                    shown = unreachable(seen, str(error))
                live.update(shown, refresh=True)
                time.sleep(INTERVAL_S)
        except KeyboardInterrupt:
            return
