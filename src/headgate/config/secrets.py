"""Open encrypted secrets. They stay encrypted in the configuration and in frozen jobs until a component with the keys
needs them."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Protocol

from headgate.config.files.document import ENCRYPTED, Encrypted

CHUNKS_MAX = 1_000
"""Largest number of pieces of one encrypted text."""


class SecretClosed(Exception):
    """Report why a secret cannot be opened."""


class SecretOpener(Protocol):
    """Decrypt with the projects' private keys (RSA; PKCS#1 OAEP with SHA-1 and MGF1-SHA-1)."""

    def open(self, project: str, chunks: Sequence[bytes]) -> str:
        """Return the text of `chunks`, which were encrypted with the public key of `project` (canonical name). Raise
        SecretClosed."""
        ...


def chunks_of(encrypted: Encrypted) -> list[bytes]:
    """Return the encrypted pieces. Raise SecretClosed."""
    return _decoded(encrypted.chunks)


def _decoded(chunks: Sequence[str]) -> list[bytes]:
    # Every piece costs an operation with the private key.
    if not 0 < len(chunks) <= CHUNKS_MAX:
        raise SecretClosed(f"what is encrypted has 1 to {CHUNKS_MAX} pieces")
    try:
        return [b64decode(chunk, validate=True) for chunk in chunks]
    except (binascii.Error, ValueError) as error:
        raise SecretClosed(f"what is encrypted is not base64: {error}") from error


def revealed(data: Any, project: str, opener: SecretOpener) -> Any:
    """Return `data` of a `model.PlaybookSecret` as JSON with every encrypted text opened. Raise SecretClosed."""
    if isinstance(data, dict):
        if set(data) == {ENCRYPTED} and isinstance(data[ENCRYPTED], list):
            return opener.open(project, _decoded(data[ENCRYPTED]))
        return {key: revealed(value, project, opener) for key, value in data.items()}
    if isinstance(data, list):
        return [revealed(value, project, opener) for value in data]
    return data
