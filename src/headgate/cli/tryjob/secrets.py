"""Secrets of a job that is tried: plain ones as they are, encrypted ones from a file of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headgate.adapters.keys.keystore import ENCRYPTED
from headgate.base.errors import UserError
from headgate.config.files.check import deep_plain
from headgate.config.files.document import load
from headgate.config.files.source import Wrong, nearest
from headgate.config.model import FrozenJob, PlaybookSecret
from headgate.gate.returns.secrets import Sealed
from headgate.ports.secrets import SecretError

Pieces = tuple[str, ...]
"""Encrypted pieces of a value, by which its plain text is looked up."""


class GivenSecrets:
    """Implement `ports.secrets.Secrets` without a key: the user supplies the plain texts."""

    def __init__(self, clear: Mapping[tuple[str, Pieces], str]) -> None:
        self._clear = clear

    async def opened(self, connection: str, project: str, data: Any) -> Any:
        """See `ports.secrets`."""
        return self._opened(project, data)

    async def sealed(self, connection: str, project: str, plain: bytes) -> Sealed:
        """Return an empty value: no job follows one that is tried."""
        return Sealed(connection, project)

    async def unsealed(self, sealed: Sealed) -> bytes:
        """See `ports.secrets`."""
        raise SecretError("no job came before one that is tried")

    def _opened(self, project: str, data: Any) -> Any:
        if (pieces := _pieces(data)) is not None:
            if (project, pieces) not in self._clear:
                raise SecretError(f"a secret of {project} is encrypted, and --secrets does not say what is in it")
            return self._clear[project, pieces]
        if isinstance(data, dict):
            return {key: self._opened(project, value) for key, value in data.items()}
        return [self._opened(project, value) for value in data] if isinstance(data, list) else data


def given_secrets(job: FrozenJob, path: Path | None) -> GivenSecrets:
    """Return the secrets that the job's playbooks read. Raise UserError for missing ones, and for those that no
    playbook reads."""
    contents = _read(path) if path is not None else {}
    # Values from an OpenID provider are made at run time; nobody can give them beforehand.
    wanted = {s.name: s for book in (*job.pre_run, *job.run, *job.post_run) for s in book.secrets if s.oidc is None}
    if unknown := [name for name in contents if name not in wanted]:
        known = ", ".join(wanted) or "none"
        text = (
            f"job {job.name} has no secret {unknown[0]!r}{nearest(unknown[0], list(wanted))}; its secrets are: {known}"
        )
        raise UserError(f"{path}: {text}")
    clear: dict[tuple[str, Pieces], str] = {}
    missing: list[str] = []
    for book in (*job.pre_run, *job.run, *job.post_run):
        for secret in book.secrets:
            for keys, pieces in _encrypted(secret.data):
                value = _value(contents.get(secret.name), keys)
                if value is None:
                    missing.append(".".join((secret.name, *keys)))
                else:
                    # The ciphertext is the key: the runner asks for a value in its encrypted form, without the secret's
                    # name.
                    clear[_short(secret), pieces] = _text(value, path, secret.name, keys)
    if missing:
        raise UserError(_lacking(job, list(dict.fromkeys(missing)), path))
    return GivenSecrets(clear)


def _lacking(job: FrozenJob, missing: list[str], path: Path | None) -> str:
    first, _, rest = missing[0].partition(".")
    names = ", ".join(missing)
    where = f"add it to {path}" if path is not None else "say what they are in a file, --secrets FILE"
    return f"secrets of job {job.name} are encrypted: {names}; {where}, such as\n  {first}: {{{rest or 'data'}: …}}"


def _read(path: Path) -> dict[str, Any]:
    """Read the secrets in a file. Raise UserError."""
    try:
        found = deep_plain(load(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except Wrong as wrong:
        raise UserError(f"{path}:{wrong.line}: {wrong.text}") from wrong
    if found is None or isinstance(found, dict):
        return found or {}
    raise UserError(f"{path}: this must be a mapping of secrets to what is in them, such as\n  pypi: {{token: …}}")


def _value(value: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if isinstance(value, list):
            value = value[int(key)] if key.isdecimal() and int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: Any, path: Path | None, name: str, keys: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise UserError(f"{path}: {'.'.join((name, *keys))} must be text; write it in quotes")
    return value


def _short(secret: PlaybookSecret) -> str:
    """Return the project's name within its connection."""
    return secret.project.partition("/")[2]


def _pieces(data: Any) -> Pieces | None:
    """Return the encrypted pieces of a value; None if it is not encrypted."""
    return tuple(data[ENCRYPTED]) if isinstance(data, dict) and list(data) == [ENCRYPTED] else None


def _encrypted(data: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Pieces]]:
    """Yield every encrypted value, and the path to it."""
    if (pieces := _pieces(data)) is not None:
        yield keys, pieces
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _encrypted(value, (*keys, str(key)))
