"""Define the interfaces that decrypt the secrets of projects and manage their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headgate.base.errors import HeadgateError
from headgate.gate.state.returns import Sealed
from headgate.map.keys import KeyPair
from headgate.store.types import Op


class SecretError(HeadgateError):
    """Report why a secret cannot be decrypted and what to do, without revealing any of it."""


class Secrets(Protocol):
    async def opened(self, connection: str, project: str, data: Any) -> Any:
        """Return `data` as JSON, with everything that the project's key encrypted replaced by clear text. `project` is
        the name in its connection.

        An encrypted value is `{"!encrypted/pkcs1-oaep": [piece, ...]}`.  Raise SecretError.
        """
        ...

    async def sealed(self, connection: str, project: str, plain: bytes) -> Sealed:
        """Return secret data in a form that may be stored, and that only `unsealed` can read.  Raise SecretError."""
        ...

    async def unsealed(self, sealed: Sealed) -> bytes:
        """Return the data that was sealed. Values in it that look like encrypted secrets of a project are not
        decrypted. Raise SecretError."""
        ...


class PublicKeys(Protocol):
    async def public(self, connection: str, project: str) -> str:
        """Return the public key that encrypts secrets of the project, as PEM; create a pair if there is none. Raise
        SecretError."""
        ...


class ProjectKeyStore(PublicKeys, Protocol):
    async def rotate(self, connection: str, project: str, besides: Sequence[Op] = ()) -> Sequence[KeyPair]:
        """Add a key pair and return all pairs, newest first. `besides` is written in the same commit. Raise
        SecretError."""
        ...

    async def retire(
        self, connection: str, project: str, version: int, besides: Sequence[Op] = ()
    ) -> Sequence[KeyPair]:
        """Remove a key pair and return those that are left. Raise SecretError."""
        ...

    async def openers(self, connection: str, project: str, data: Any) -> frozenset[int]:
        """Return the versions of the key pairs that decrypt the values in `data`. Raise SecretError."""
        ...


_NONE = "this Headgate keeps no keys"


class NoKeys:
    """Stand in for a key store that does not exist."""

    async def public(self, connection: str, project: str) -> str:
        raise SecretError(_NONE)

    async def rotate(self, connection: str, project: str, besides: Sequence[Op] = ()) -> Sequence[KeyPair]:
        raise SecretError(_NONE)

    async def retire(
        self, connection: str, project: str, version: int, besides: Sequence[Op] = ()
    ) -> Sequence[KeyPair]:
        raise SecretError(_NONE)

    async def openers(self, connection: str, project: str, data: Any) -> frozenset[int]:
        raise SecretError(_NONE)
