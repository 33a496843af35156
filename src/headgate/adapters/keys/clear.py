"""Secrets of a playbook: opened just before it starts, written for it alone, gone when it has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headgate.config.model import Playbook
from headgate.ports.secrets import SecretError, Secrets


class Clear(dict[str, Any]):
    """Variable -> value, in clear: for the playbook it belongs to.  JSON."""

    def __repr__(self) -> str:
        return f"Clear({', '.join(self)})"

    @property
    def texts(self) -> Iterator[str]:
        """Return everything in it that nobody should read."""
        return _texts(dict(self))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


async def opened(keys: Secrets | None, book: Playbook) -> Clear:
    """Raises SecretError."""
    found = Clear()
    for secret in book.secrets:
        if secret.oidc is not None:
            text = f"{secret.name} is to be a token of OpenID Connect, which this Headgate does not issue"
            raise SecretError(f"{text}; use a secret with `data`")
        if keys is None:
            raise SecretError(f"the secret {secret.name} cannot be opened here: this executor has no keys")
        short = secret.project.partition("/")[2]
        found[secret.name] = await keys.opened(secret.connection, short, secret.data)
    return found


def write_private(path: Path, content: bytes) -> None:
    """For this user alone, from the first byte."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
