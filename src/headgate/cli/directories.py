"""Directories that the settings name."""

from __future__ import annotations

import tempfile
from pathlib import Path

from headgate.base.errors import UserError
from headgate.base.private import DIRECTORY, private_directory
from headgate.cli.settings import Settings

LOG_MODES = {"owner": DIRECTORY, "group": 0o750, "all": 0o755}


def writable(settings: Settings, section: str, option: str, default: str, mode: int = DIRECTORY) -> Path:
    """Return the directory, which is created if necessary with this `mode`. Raise UserError when it is not writable."""
    path = settings.place(section, option, default)
    try:
        private_directory(path, mode)
        # Permission bits do not tell everything, such as a read-only file system: try it, before the first build does.
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        why = f"[{section}] {option}: {path} cannot be written: {error.strerror}; mend it, or set {option} to another"
        raise UserError(why) from error
