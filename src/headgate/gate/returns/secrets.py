"""Secret data of a job on its way to the jobs that depend on it: only their executors can read it."""

from __future__ import annotations

import msgspec

SIZE_MAX_BYTES = 64_000
"""Size limit of the secret data that one job returns, in clear text."""


class Sealed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold bytes that only the private key of a project decrypts."""

    connection: str = ""
    project: str = ""
    """The name of the project in its connection."""
    key: tuple[str, ...] = ()
    """Key of the box, encrypted with the project's public key, in pieces as in a secret of a project."""
    box: str = ""
    """The encrypted data, base64."""

    @property
    def size_bytes(self) -> int:
        return len(self.box) + sum(map(len, self.key))
