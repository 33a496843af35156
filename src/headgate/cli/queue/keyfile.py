"""Follow the settings file in who may use the queues: read it anew when it changes, and when that is asked."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from headgate.base.errors import UserError
from headgate.cli.identity.authenticators import authenticators
from headgate.cli.identity.token import operator_token
from headgate.cli.queue.workerfile import KEY_FILE
from headgate.cli.settings import APP_DEFAULT, Settings, read
from headgate.queue.server.access import ApplicationKeys


def own_key(directory: Path, app: str) -> str:
    """Return the key, made at the first start and kept where only its owner reads it.  Raise UserError."""
    path = directory / KEY_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(20) + "\n")
        key = path.read_text().strip()
    except OSError as error:
        raise UserError(f"{path}: the key cannot be kept there: {error.strerror}") from error
    print(f"The key of application {app} is in {path}", flush=True)
    return key


LOOK_INTERVAL_S = 1.0
"""How often it is looked whether the file has changed; it is read once it has stayed the same for as long."""
log = logging.getLogger("headgate.messages")


class KeyFile:
    """Hold the keys of a file. `keys` is always the same object; its content follows the file."""

    def __init__(self, settings: Settings, given: Mapping[str, list[str]] | None = None) -> None:
        """Read the keys; those in `given` count in place of those of the file. Raise UserError."""
        self._settings, self._given = settings, given
        self._read_as = self._stamp()
        self._asked = asyncio.Event()
        self.keys = _keys_of(settings, given)

    def obey(self) -> None:
        """Have the file read anew, changed or not, and with it the files that it names."""
        self._asked.set()

    async def watch(self, interval_s: float = LOOK_INTERVAL_S) -> None:
        """Follow the file until cancelled; what cannot be used is logged, and changes nothing."""
        seen = self._read_as
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._asked.wait()
            except TimeoutError:
                before, seen = seen, self._stamp()
                if seen is None or seen != before or seen == self._read_as:
                    continue
            self._asked.clear()
            self._read_anew()

    def _read_anew(self) -> None:
        path, self._read_as = self._settings.path, self._stamp()
        try:
            settings = read(path) if path.is_file() else self._settings
            self.keys.become(_keys_of(settings, self._given))
        except (UserError, OSError, ValueError) as error:
            log.error("keys of applications stay as they were: %s", error)
            return
        self._settings = settings
        log.info("keys of applications are those that %s says now", path)

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return what tells of a change; None: there is no such file now."""
        try:
            told = self._settings.path.stat()
        except OSError:
            return None
        return told.st_mtime_ns, told.st_ino, told.st_size


def _keys_of(settings: Settings, given: Mapping[str, list[str]] | None) -> ApplicationKeys:
    known = given or settings.application_keys or {APP_DEFAULT: [own_key(settings.state_dir, APP_DEFAULT)]}
    tokens = authenticators(settings)
    return ApplicationKeys(known, operator_token(settings), tokens, settings.application_keys_until)
