"""Implement `headgate queue serve`, and reload the keys of applications when the settings file changes."""

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
"""Seconds between two checks of the file; a changed file is read after it was unchanged for this time."""


def own_key(directory: Path, app: str) -> str:
    """Return the server's own key. The first start creates it in a file that only its owner can read. Raise
    UserError."""
    path = directory / KEY_FILE
    # Create it like the operator's token: an interrupted start must not leave an empty file, whose key anybody would
    # know. An operator may have replaced an existing file by a symlink, or let a group of workers read it.
    key = TokenFile(path, ours=not path.exists(), name="the server's own key").made()
    print(f"The key of application {app} is in {path}", flush=True)
    return key


class KeyFile:
    """Hold the keys of applications in a settings file. `keys` stays the same object, and is updated in place."""

    def __init__(self, settings: Settings, given: Mapping[str, list[str]] | None = None) -> None:
        """Read the keys; those in `given` replace those of the file. Raise UserError."""
        self._settings, self._given = settings, given
        self._read_as = self._stamp()
        self._demanded = asyncio.Event()
        self.keys = _keys_of(settings, given)

    def obey(self) -> None:
        """Request a reload of the file, even if it has not changed, and of the files that it names."""
        self._demanded.set()

    async def watch(self, interval_s: float = LOOK_INTERVAL_S) -> None:
        """Reload the file when it changes, until cancelled. If it is invalid, log that, and keep the previous keys."""
        seen = self._read_as
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._demanded.wait()
            except TimeoutError:
                before, seen = seen, self._stamp()
                # Somebody may still be writing a file that changed just now: read it once two checks agree.
                if seen is None or seen != before or seen == self._read_as:
                    continue
            self._demanded.clear()
            self._read_anew()

    def _read_anew(self) -> None:
        # Take the stamp before reading: a change during the read then counts as another change.
        path, self._read_as = self._settings.path, self._stamp()
        try:
            settings = read(path) if path.is_file() else self._settings
            self.keys.become(_keys_of(settings, self._given))
        except (UserError, OSError, ValueError) as error:
            # A typo in the settings must not lock all applications out of a running server.
            log.error("the previous keys of applications stay in effect: %s", error)
            return
        self._settings = settings
        log.info("reloaded the keys of applications from %s", path)

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return a value that changes with the file, or None if the file does not exist."""
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
@click.option(
    "-c", "--config", metavar="FILE", help="The settings file; the command uses [messages] and [application_keys]."
)
@click.option("--database", metavar="URL", help="Database: sqlite:///FILE or postgresql://USER@HOST/NAME.")
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on.")
@click.option("--key", "keys", metavar="APP=KEY", multiple=True, help="A key of an application; repeatable.")
def serve(config: str | None, database: str | None, listen: str | None, keys: tuple[str, ...]) -> None:
    """Serve message queues over HTTP.

    Without --config, the settings file is found like that of every command; the log names the file that is used.

    Without a key in the settings or on the command line, the server creates one, and stores it in state_dir. It
    reloads keys from the settings when the file changes, and on SIGHUP.
    """
    set_up()
    settings = read_or_defaults(config)
    # The file may be in a directory above, or belong to a gate, so that nobody expects it to be used.
    if settings.path.is_file():
        log.info("settings: %s", settings.path.absolute())
    host, port = _address(settings, listen)
    url = database or settings.messages_url
    asyncio.run(run(url, limits_of(settings), settings, _given(keys), host, port, tls_of(settings)))


def limits_of(settings: Settings) -> ApplicationLimits:
    """Return the limits on what each application may store, post and create."""
    names = ("messages", "bytes", "rate", "queues", "partitions")
    return ApplicationLimits(
        **{f"{name}_max": int(settings.number("messages", f"application_{name}_max")) for name in names}
    )


async def run(
    url: str,
    limits: ApplicationLimits,
    settings: Settings,
    given: dict[str, list[str]],
    host: str,
    port: int,
    tls: Tls | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; on SIGHUP, reload the keys. Raise UserError."""
    stop, file = asyncio.Event(), KeyFile(settings, given)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if not sys.stdin.isatty():  # in a terminal, SIGHUP means that the terminal was closed
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
        raise UserError(f"--listen {listen}: write it as HOST:PORT, as in 127.0.0.1:5000")
    return host or "127.0.0.1", int(port)


def _given(keys: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for given in keys:
        app, equals, key = given.partition("=")
        if not app or not equals or not key:
            raise UserError(f"--key {given}: write it as APP=KEY")
        found.setdefault(app, []).append(key)
    return found
