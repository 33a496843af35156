"""Opening the secrets of projects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headgate.gate.returns.secrets import Sealed
from headgate.map.keys import KeyPair
from headgate.store.types import Op


class SecretError(Exception):
    """Why it cannot be opened and what to do; never says any of what is in it."""


class Secrets(Protocol):
    async def opened(self, connection: str, project: str, data: Any) -> Any:
        """`data` as JSON, with what the project's key encrypted in clear.  `project` is named as in its connection.

        An encrypted value is `{"!encrypted/pkcs1-oaep": [piece, ...]}`.  Raises SecretError."""
        ...

    async def sealed(self, connection: str, project: str, plain: bytes) -> Sealed:
        """Return secret data as it may be kept, for `unsealed` alone.  Raises SecretError."""
        ...

    async def unsealed(self, sealed: Sealed) -> bytes:
        """Return what was sealed.  What is in it is nobody's secret of a project, whatever it looks like, and is opened
        no further.  Raises SecretError."""
        ...


class PublicKeys(Protocol):
    async def public(self, connection: str, project: str) -> str:
        """The key that encrypts secrets of the project, as PEM; made when there is none.  Raises SecretError."""
        ...


class ProjectKeyStore(PublicKeys, Protocol):
    async def rotate(self, connection: str, project: str, besides: Sequence[Op] = ()) -> Sequence[KeyPair]:
        """All pairs, newest first, with a new one; `besides` is written with it.  Raises SecretError."""
        ...

    async def retire(
        self, connection: str, project: str, version: int, besides: Sequence[Op] = ()
    ) -> Sequence[KeyPair]:
        """Those that are left.  Raises SecretError."""
        ...

    async def openers(self, connection: str, project: str, data: Any) -> frozenset[int]:
        """Versions of the pairs that open what is encrypted in `data`.  Raises SecretError."""
        ...


_NONE = "this Headgate keeps no keys"


class NoKeys:
    """Without a key store."""

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
