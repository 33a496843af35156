"""`headgate run`: every component in one process."""

from __future__ import annotations

import asyncio
import logging
import signal

import click

from headgate.cli.process import everything
from headgate.cli.settings import Settings, find, read


@click.command()
@click.option("--config", metavar="FILE", help="The settings file.")
@click.option("--verbose", is_flag=True, help="Say more.")
def command(config: str | None, verbose: bool) -> None:
    """Start Headgate: scheduler, merger, executor and web pages in one process, on an embedded store."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    for noisy in ("watchfiles", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    settings = read(find(config))
    asyncio.run(run(settings))


async def run(settings: Settings, stop: asyncio.Event | None = None) -> None:
    """Until a signal, or until `stop`."""
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    host = settings.get("web", "listen_address")
    async with everything(settings) as whole:

        def bound(port: int) -> None:
            whole.context.root_url = whole.context.root_url or f"http://{host}:{port}"
            print(f"Headgate is running; its pages are at {whole.context.root_url}/", flush=True)

        await whole.run(stop, bound)
