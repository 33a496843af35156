"""`headgate queue serve`: the message server."""

from __future__ import annotations

import asyncio
import signal
import sys

import click

from headgate.base.errors import UserError
from headgate.base.tasks import run_until
from headgate.cli.identity.tls import scheme, tls_of
from headgate.cli.logs import set_up
from headgate.cli.queue.keyfile import KeyFile
from headgate.cli.settings import Settings, read_or_defaults
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.bounds import ApplicationLimits
from headgate.queue.messages.database import shown
from headgate.queue.server.app import create_app
from headgate.web.routes.messages import MESSAGE_PAGES
from headgate.web.serve import Tls
from headgate.web.serve import serve as serve_web


@click.command()
@click.option("-c", "--config", metavar="FILE", help="The settings file; [messages] and [application_keys] are read.")
@click.option("--database", metavar="URL", help="sqlite:///FILE or postgresql://USER@HOST/NAME.")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen.")
@click.option("--key", "keys", metavar="APP=KEY", multiple=True, help="An application and one of its keys; repeatable.")
def serve(config: str | None, database: str | None, listen: str | None, keys: tuple[str, ...]) -> None:
    """Serve queues of messages over HTTP.

    Without a key in the settings or on the command line, one is made and stored beside the database.  Keys of the
    settings are read again when the file changes, and on SIGHUP.
    """
    set_up()
    settings = read_or_defaults(config)
    host, port = _address(settings, listen)
    url = database or settings.messages_url
    asyncio.run(run(url, limits_of(settings), settings, _given(keys), host, port, tls_of(settings)))


def limits_of(settings: Settings) -> ApplicationLimits:
    """Return what each application may keep and post."""
    messages_max, bytes_max, rate_max = (
        int(settings.number("messages", f"application_{name}_max")) for name in ("messages", "bytes", "rate")
    )
    return ApplicationLimits(messages_max, bytes_max, rate_max)


async def run(
    url: str,
    limits: ApplicationLimits,
    settings: Settings,
    given: dict[str, list[str]],
    host: str,
    port: int,
    tls: Tls | None = None,
) -> None:
    """Serve until a signal; on SIGHUP, read the keys again. Raise UserError."""
    stop, file = asyncio.Event(), KeyFile(settings, given)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if not sys.stdin.isatty():  # otherwise it means that the terminal was closed
        loop.add_signal_handler(signal.SIGHUP, file.obey)
    board = await MessageBoard.open(url, limits)

    def bound(port: int) -> None:
        urls = ", ".join(f"{scheme(tls)}://{host}:{port}/v1/{app}/" for app in sorted(file.keys.apps))
        print(f"Messages are stored in {shown(url)} and served at {urls}", flush=True)

    try:
        app = create_app(board, file.keys, stop, MESSAGE_PAGES)
        web = serve_web(app, host, port, stop, bound, "[messages]", tls=tls)
        await run_until(stop, board.upkeep(), file.watch(), web)
    finally:
        await board.close()


def _address(settings: Settings, listen: str | None) -> tuple[str, int]:
    if listen is None:
        return settings.get("messages", "listen_address"), int(settings.number("messages", "port"))
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise UserError(f"--listen {listen}: HOST:PORT is wanted, as in 127.0.0.1:5000")
    return host or "127.0.0.1", int(port)


def _given(keys: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for given in keys:
        app, equals, key = given.partition("=")
        if not app or not equals or not key:
            raise UserError(f"--key {given}: APP=KEY is wanted")
        found.setdefault(app, []).append(key)
    return found
