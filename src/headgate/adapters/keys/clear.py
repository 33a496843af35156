"""Secrets of a playbook: opened just before it starts, written for it alone, gone when it has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from headgate.config.model import Playbook
from headgate.ports.secrets import SecretError, Secrets


class Clear(dict[str, Any]):
    """Variable -> value, in clear: for the playbook it belongs to.  JSON."""

    def __repr__(self) -> str:
        return f"Clear({', '.join(self)})"

    @property
    def texts(self) -> Iterator[str]:
        """Everything in it that nobody should read."""
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


class _Text(str):
    """Taken as it is: what looks like a template in a password is none."""


def _literal(value: Any) -> Any:  # JSON
    if isinstance(value, dict):
        return {key: _literal(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_literal(inner) for inner in value]
    return _Text(value) if isinstance(value, str) else value


class _Dumper(yaml.SafeDumper):
    def text(self, value: _Text) -> yaml.ScalarNode:
        return self.represent_scalar("!unsafe", value, style='"')


_Dumper.add_representer(_Text, _Dumper.text)


def for_ansible(clear: Clear) -> bytes:
    """A file of variables."""
    found: bytes = yaml.dump(_literal(dict(clear)), Dumper=_Dumper, allow_unicode=True, encoding="utf-8")
    return found


def write_private(path: Path, content: bytes) -> None:
    """For this user alone, from the first byte."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
