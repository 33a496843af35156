"""Secret data of a job on its way to the jobs that depend on it: nobody but their executors can read it."""

from __future__ import annotations

import msgspec

SIZE_MAX_BYTES = 64_000
"""Of what one job returns, in clear."""


class Sealed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold bytes that only the private key of a project decrypts."""

    connection: str = ""
    project: str = ""
    """As its connection has it."""
    key: tuple[str, ...] = ()
    """What the project's public key made of the key, as a secret of a project has it."""
    box: str = ""
    """The rest, base64."""

    @property
    def size_bytes(self) -> int:
        return len(self.box) + sum(map(len, self.key))
