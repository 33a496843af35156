"""Follow the settings file for the keys of queues: read it again when it changes, and on request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from headgate.base.errors import UserError
from headgate.cli.identity.authenticators import authenticators
from headgate.cli.identity.token import TokenFile, operator_token
from headgate.cli.queue.workerfile import KEY_FILE
from headgate.cli.settings import APP_DEFAULT, Settings, read
from headgate.queue.server.access import ApplicationKeys


def own_key(directory: Path, app: str) -> str:
    """Return the server's own key, which is created at the first start in a file that only its owner can read.
    Raise UserError."""
    path = directory / KEY_FILE
    # As the operator's token: an interrupted start must leave no empty file, whose key anybody could give. One that is
    # there already may have been linked by the operator, or opened to a group of workers.
    key = TokenFile(path, ours=not path.exists(), name="the server's own key").made()
    print(f"The key of application {app} is in {path}", flush=True)
    return key


LOOK_INTERVAL_S = 1.0
"""Seconds between two checks whether the file has changed; it is read once it has been stable for as long."""
log = logging.getLogger("headgate.messages")


class KeyFile:
    """Hold the keys of a file. `keys` is always the same object; its content follows the file."""

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
