"""Implement `headgate queue serve`, and follow the keys of applications in the settings file."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from headgate.base.errors import UserError
from headgate.base.tasks import run_until
from headgate.cli.identity.authenticators import authenticators
from headgate.cli.identity.credentials import TokenFile, operator_token, scheme, tls_of
from headgate.cli.logs import set_up
from headgate.cli.queue.workerfile import KEY_FILE
from headgate.cli.settings import APP_DEFAULT, Settings, read, read_or_defaults
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.bounds import ApplicationLimits
from headgate.queue.messages.database import shown
from headgate.queue.server.access import ApplicationKeys
from headgate.queue.server.app import create_app
from headgate.web.peers.connections import Tls
from headgate.web.routes.pages import MESSAGE_PAGES
from headgate.web.server import serve as serve_web

log = logging.getLogger("headgate.messages")

LOOK_INTERVAL_S = 1.0
"""Seconds between two checks whether the file has changed; it is read once it has been stable for as long."""


def own_key(directory: Path, app: str) -> str:
    """Return the server's own key, which is created at the first start in a file that only its owner can read.
    Raise UserError."""
    path = directory / KEY_FILE
    # As the operator's token: an interrupted start must leave no empty file, whose key anybody could give. One that is
    # there already may have been linked by the operator, or opened to a group of workers.
    key = TokenFile(path, ours=not path.exists(), name="the server's own key").made()
    print(f"The key of application {app} is in {path}", flush=True)
    return key


class KeyFile:
    """Hold the keys of applications in a settings file. `keys` is always the same object, which follows the file."""

    def __init__(self, settings: Settings, given: Mapping[str, list[str]] | None = None) -> None:
        """Read the keys; those in `given` replace those of the file. Raise UserError."""
        self._settings, self._given = settings, given
        self._read_as = self._stamp()
        self._demanded = asyncio.Event()
        self.keys = _keys_of(settings, given)

    def obey(self) -> None:
        """Read the file again, changed or not, with the files that it names."""
        self._demanded.set()

    async def watch(self, interval_s: float = LOOK_INTERVAL_S) -> None:
        """Follow the file until cancelled; a file that cannot be used is logged, and changes nothing."""
        seen = self._read_as
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._demanded.wait()
            except TimeoutError:
                before, seen = seen, self._stamp()
                # A file that changed since the last look may still be being written: it is read once two looks agree.
                if seen is None or seen != before or seen == self._read_as:
                    continue
            self._demanded.clear()
            self._read_anew()

    def _read_anew(self) -> None:
        # The stamp is taken before the file is read: a change during the reading is then seen as another change.
        path, self._read_as = self._settings.path, self._stamp()
        try:
            settings = read(path) if path.is_file() else self._settings
            self.keys.become(_keys_of(settings, self._given))
        except (UserError, OSError, ValueError) as error:
            # A typing error in the settings must not lock every application out of a running server.
            log.error("keys of applications stay as they were: %s", error)
            return
        self._settings = settings
        log.info("keys of applications are those that %s says now", path)

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return a value that changes with the file, or None if it does not exist now."""
        try:
            status = self._settings.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size


def _keys_of(settings: Settings, given: Mapping[str, list[str]] | None) -> ApplicationKeys:
    known = given or settings.application_keys or {APP_DEFAULT: [own_key(settings.state_dir, APP_DEFAULT)]}
    tokens = authenticators(settings)
    return ApplicationKeys(known, operator_token(settings), tokens, settings.application_keys_until)


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
