"""Handle secrets in clear text: decrypt them for their playbook, and censor them in stored text."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from headgate.base.texts import uncoloured
from headgate.config.keys.job import RESERVED_VARS
from headgate.config.model import Playbook
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import BuildSpec
from headgate.ports.secrets import SecretError, Secrets

SOUGHT_LINES_MAX = 100
SOUGHT_SIZE_MAX = 8_000
"""Limits on the lines and characters of secret data that are censored in logs: jobs may return any amount, and every
secret slows down the search."""
_NAME = re.compile(r"[A-Za-z0-9_]+")
SHORT_ENCODED = 8
"""Length of the shortest base64 string that is censored; shorter ones occur in ordinary words."""
SHORT = 4
"""Length of the shortest secret that is censored; shorter ones occur in ordinary words."""
REDACTED = "[redacted]"


class Clear(dict[str, Any]):
    """Map variables to values in clear text, for the playbook that they belong to. Values are JSON."""

    def __repr__(self) -> str:
        # Only names, because tracebacks and logs print reprs.
        return f"Clear({', '.join(self)})"

    @property
    def texts(self) -> Iterator[str]:
        """Yield all secret strings."""
        return _texts(dict(self))

    @property
    def sought(self) -> list[str]:
        """Return the secret strings that are censored, within the limits of one job."""
        return sought(self.texts)


def sought(texts: Iterable[str], times: int = 1) -> list[str]:
    """Return as many of the strings as fit into `times` times the limit of one job."""
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
            text = f"{secret.name} requests an OpenID Connect token, which Headgate does not issue"
            raise SecretError(f"{text}; use a secret with `data`")
        if keys is None:
            raise SecretError(f"the secret {secret.name} cannot be decrypted here: this executor has no keys")
        short = secret.project.partition("/")[2]
        found[secret.name] = await keys.opened(secret.connection, short, secret.data)
    return found


async def handed(keys: Secrets | None, spec: BuildSpec) -> Clear:
    """Return the secret data of the jobs that this one depends on, as variables. Raise SecretError."""
    found = Clear()
    for sealed in spec.parent_secrets:
        if keys is None:
            raise SecretError("secret data of a parent job cannot be decrypted here: this executor has no keys")
        found.update(msgspec.json.decode(await keys.unsealed(sealed), type=dict[str, Any]))
    # Names come from other jobs, so they must not replace variables that Headgate or Ansible sets.
    return Clear({n: v for n, v in found.items() if _NAME.fullmatch(n) and n not in RESERVED_VARS})


async def of_nodes(keys: Secrets | None, spec: BuildSpec) -> list[dict[str, Any]]:
    """Return the secret data of the nodes, which only this build may read. JSON. Raise SecretError."""
    if spec.node_secrets and keys is None:
        raise SecretError("the credentials of the build's nodes cannot be decrypted here: this executor has no keys")
    every = [await keys.unsealed(sealed) for sealed in spec.node_secrets.values()] if keys is not None else []
    return [msgspec.json.decode(one, type=dict[str, Any]) for one in every]


async def sealed(keys: Secrets | None, spec: BuildSpec, secret: Clear) -> Sealed | None:
    """Encrypt secret data of a job for the jobs that depend on it. Raise SecretError."""
    if not secret:
        return None
    if keys is None:
        raise SecretError("secret data cannot be returned here: this executor has no keys")
    try:
        short = spec.change.project.partition("/")[2]
        return await keys.sealed(spec.change.connection, short, msgspec.json.encode(dict(secret)))
    except SecretError as error:
        raise SecretError(f"secret data cannot be encrypted: {error}") from error


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user can ever read."""
    # Removed first: an existing file would retain its mode, and a link would be followed. O_EXCL makes sure of both.
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _forms(text: str) -> Iterator[str]:
    """Yield the forms in which programs print a string: unchanged, and encoded for JSON, Python, URLs, hexadecimal and
    base64; for a string of several lines only the last two."""
    plain = text.encode("utf-8", "surrogateescape")
    if "\n" not in text:
        yield from (text, json.dumps(text)[1:-1], repr(text)[1:-1])
        yield from (quote(text, safe=""), quote(text), quote_plus(text))
    yield from (plain.hex(), plain.hex().upper())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):  # preceding bytes shift the encoding
            # base64 encodes three bytes in four characters: within a longer text, a secret begins at one of three
            # offsets, and its first and last characters contain bits of its neighbours. These are cut off below.
            known = encode(b"\0" * before + plain).decode().rstrip("=")
            encoded = known[(before * 8 + 5) // 6 : (before + len(plain)) * 8 // 6]
            if len(encoded) >= SHORT_ENCODED:
                yield encoded


def _any_of(texts: Iterable[str]) -> str:
    """Return a pattern that matches any of these strings, the longest first. Strings with the same first character form
    a group, so that text without that character costs very little."""
    groups: dict[str, list[str]] = {}
    for text in sorted(texts, key=len, reverse=True):
        # For example `a(?:bc|b)|x(?:y)`. The longest first, because otherwise a shorter match would leave the rest of a
        # longer secret uncensored.
        groups.setdefault(text[0], []).append(re.escape(text[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rests)})" for first, rests in groups.items())


class Censor:
    """Find secrets in text before it is stored, and remove them."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self._bytes: re.Pattern[bytes] | None = None
        self.found = False
        """Whether any secret was found."""

    @property
    def size_max_bytes(self) -> int:
        """Return the size of the longest form to search for; 0 if there is none."""
        return max((len(text.encode()) for text in self._texts), default=0)

    def learn(self, texts: Iterable[str]) -> None:
        known = len(self._texts)
        for text in texts:
            # Output is searched line by line, so a private key is found only by its single lines.
            variants = (text, text.strip(), *(line.strip() for line in text.splitlines()))
            self._texts.update(form for one in dict.fromkeys(variants) if len(one) >= SHORT for form in _forms(one))
        if len(self._texts) > known:
            pattern = _any_of(self._texts)
            self._known, self._bytes = re.compile(pattern), re.compile(pattern.encode())

    def line(self, line: bytes) -> bytes:
        """Return a line of output without secrets; also without colours if they were inside a secret."""
        if self._bytes is None:
            return line
        cleared, count = self._bytes.subn(REDACTED.encode(), line)
        if b"\x1b" in cleared:  # an escape sequence may divide a secret
            plain, more = self._bytes.subn(REDACTED.encode(), uncoloured(cleared))
            cleared, count = (plain if more else cleared), count + more
        self.found = self.found or count > 0
        return cleared

    def value(self, value: Any) -> Any:  # JSON
        """Return the JSON value without secrets, including those in keys of mappings."""
        if self._known is None:
            return value
        if isinstance(value, str):
            cleared, count = self._known.subn(REDACTED, value)
            self.found = self.found or count > 0
            return cleared
        if isinstance(value, dict):
            return {self.value(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return value
