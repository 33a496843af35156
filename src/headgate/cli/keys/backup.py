"""Read a key export of Zuul's admin command: one JSON object `{"keys": {PATH: RECORD}}`.

Keys for secrets have the path `/keystorage/CONNECTION/PREFIX/NAME/secrets`, where NAME is the project's full name,
URL-quoted. A record contains versions, each a PEM that is encrypted with the password of Zuul's key store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import msgspec

from headgate.base.errors import UserError
from headgate.base.texts import line

SECRETS = "secrets"
SCHEMA = 1
_ELSEWHERE = {
    "ssh": "an ssh key, which Headgate does not use: give jobs that log in elsewhere such a key as a secret; machines "
    "are reached with the executor's key",
}
_OTHER = "not a key for secrets, so Headgate does not use it"


class Version(msgspec.Struct, frozen=True):
    """Represent one version of a key."""

    version: int
    created: float
    """Time of creation, in seconds since 1970."""
    private_key: str
    """Private key in PEM, encrypted."""


class KeyRecord(msgspec.Struct, frozen=True):
    """Represent all keys of one project."""

    schema: int
    keys: tuple[Version, ...]


class OpeningKeys(NamedTuple):
    """Hold the keys that decrypt a project's secrets, newest first."""

    connection: str
    project: str
    versions: tuple[Version, ...]


class Backup(NamedTuple):
    """Hold the content of an export."""

    projects: tuple[OpeningKeys, ...]
    left_out: Mapping[str, str]
    """Path of each entry that is not imported -> the reason."""


def is_backup(document: Any) -> bool:  # JSON
    """Return whether the document looks like such an export, without validating its content."""
    return isinstance(document, dict) and isinstance(document.get("keys"), dict)


def read_backup(document: Mapping[str, Any], where: str) -> Backup:  # JSON
    """Return the content of an export. Raise UserError that names the path of an invalid part."""
    projects, left_out = dict[tuple[str, str], OpeningKeys](), dict[str, str]()
    for path, record in sorted(document["keys"].items()):
        parts = path.strip("/").split("/")
        if len(parts) != 5 or parts[0] != "keystorage" or parts[4] != SECRETS:
            left_out[path] = _ELSEWHERE.get(parts[-1], _OTHER)
            continue
        # Project names contain slashes, so they are quoted to form one element of the path.
        connection, project = unquote_plus(parts[1]), unquote_plus(parts[3])
        if project.partition("/")[0] != unquote_plus(parts[2]):
            raise UserError(f"{where}: {line(path)}: project {project!r} is not below {unquote_plus(parts[2])!r}")
        found = OpeningKeys(connection, project, tuple(_versions(record, f"{where}: {line(path)}")))
        if (connection, project) in projects:
            raise UserError(f"{where}: {line(path)}: the keys of {project} ({connection}) occur twice")
        projects[connection, project] = found
    return Backup(tuple(projects.values()), left_out)


def _versions(record: Any, where: str) -> Iterator[Version]:  # JSON
    """Yield the keys, newest first. Raise UserError."""
    try:
        found = msgspec.convert(record, KeyRecord)
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: this is not a valid key record: {error}") from error
    if found.schema != SCHEMA:
        raise UserError(f"{where}: its schema is {found.schema}; only {SCHEMA} is supported")
    # With duplicate numbers it would be unclear which key decrypts a secret.
    numbers = [one.version for one in found.keys]
    if not numbers or min(numbers) < 0 or len(set(numbers)) != len(numbers):
        raise UserError(f"{where}: its versions are {numbers}; they must be distinct numbers from 0")
    yield from sorted(found.keys, key=lambda one: one.version, reverse=True)
