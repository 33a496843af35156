"""Secrets of a playbook: opened just before it starts, written for it alone, gone when it has ended."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headgate.config.keys.job import RESERVED_VARS
from headgate.config.model import Playbook
from headgate.gate.returns.secrets import Sealed
from headgate.gate.work import BuildSpec
from headgate.ports.secrets import SecretError, Secrets

SOUGHT_LINES_MAX = 100
SOUGHT_SIZE_MAX = 8_000
"""Most lines, and most characters, of secret data that are censored in logs: jobs may return any amount, at a cost."""
_NAME = re.compile(r"[A-Za-z0-9_]+")


class Clear(dict[str, Any]):
    """Map variables to values in clear, for the playbook that they belong to. Values are JSON."""

    def __repr__(self) -> str:
        # Names only: tracebacks and logs print reprs.
        return f"Clear({', '.join(self)})"

    @property
    def texts(self) -> Iterator[str]:
        """Return all texts in it that are secret."""
        return _texts(dict(self))

    @property
    def sought(self) -> list[str]:
        """Return as many of the texts as are censored for any job."""
        return sought(self.texts)


def sought(texts: Iterable[str], times: int = 1) -> list[str]:
    """Return as many of the texts as fit into `times` times the limit of one job."""
    lines, size, found = times * SOUGHT_LINES_MAX, times * SOUGHT_SIZE_MAX, list[str]()
    for text in texts:
        lines, size = lines - max(1, len(text.splitlines())), size - len(text)
        if min(lines, size) >= 0:
            found.append(text)
    return found


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
    """Decrypt the secrets of a playbook. Raise SecretError."""
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


async def handed(keys: Secrets | None, spec: BuildSpec) -> Clear:
    """Return the secret data of the jobs that this one depends on, as variables. Raises SecretError."""
    found = Clear()
    for sealed in spec.parent_secrets:
        if keys is None:
            raise SecretError("secret data of a job before cannot be opened here: this executor has no keys")
        found.update(msgspec.json.decode(await keys.unsealed(sealed), type=dict[str, Any]))
    # Names come from other jobs: none may become a variable that Headgate or Ansible sets.
    return Clear({n: v for n, v in found.items() if _NAME.fullmatch(n) and n not in RESERVED_VARS})


async def of_nodes(keys: Secrets | None, spec: BuildSpec) -> list[dict[str, Any]]:
    """Return the nodes' data that only this build may read. JSON. Raise SecretError."""
    if spec.node_secrets and keys is None:
        raise SecretError("what opens the nodes of the build cannot be read here: this executor has no keys")
    every = [await keys.unsealed(sealed) for sealed in spec.node_secrets.values()] if keys is not None else []
    return [msgspec.json.decode(one, type=dict[str, Any]) for one in every]


async def sealed(keys: Secrets | None, spec: BuildSpec, secret: Clear) -> Sealed | None:
    """Encrypt secret data of a job for the jobs after it. Raises SecretError."""
    if not secret:
        return None
    if keys is None:
        raise SecretError("secret data cannot be returned here: this executor has no keys")
    try:
        short = spec.change.project.partition("/")[2]
        return await keys.sealed(spec.change.connection, short, msgspec.json.encode(dict(secret)))
    except SecretError as error:
        raise SecretError(f"secret data cannot be kept: {error}") from error


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user can read, from its first byte."""
    # Removed first: an existing file would keep its mode, and a link would be followed. O_EXCL makes sure of both.
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
