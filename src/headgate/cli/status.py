"""`headgate status`: show the queues of a running Headgate, live."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress

import click
import msgspec

from headgate.base.errors import UserError
from headgate.cli.board import board, unreachable
from headgate.cli.identity.pages import pages
from headgate.cli.terminal.screen import LiveDrawing, Terminal
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
    terminal = Terminal()

    def look() -> StatusShape:
        return msgspec.convert(at.get(place), StatusShape)

    if once or not terminal.moves:
        terminal.print(board(look()))
        return
    # The first look may fail loudly: before anything was seen, the address is probably wrong.
    seen = board(look())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the terminal is restored
    with suppress(KeyboardInterrupt), LiveDrawing(terminal, screen=True) as live:
        while True:
            try:
                shown = seen = board(look(), terminal.size[1])
            except UserError as error:  # it answered before: it may be restarting
                shown = unreachable(seen, str(error))
            live.update(shown)
            time.sleep(INTERVAL_S)
