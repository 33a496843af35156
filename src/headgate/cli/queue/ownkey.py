"""The key of queues whose settings name none."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from headgate.base.errors import UserError
from headgate.cli.queue.workerfile import KEY_FILE


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
