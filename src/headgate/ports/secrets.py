"""Opening the secrets of projects."""

from __future__ import annotations

from typing import Any, Protocol


class SecretError(Exception):
    """Why it cannot be opened and what to do; never says any of what is in it."""


class Secrets(Protocol):
    async def opened(self, connection: str, project: str, data: Any) -> Any:
        """`data` as JSON, with what the project's key encrypted in clear.  `project` is named as in its connection.

        An encrypted value is `{"!encrypted/pkcs1-oaep": [piece, ...]}`.  Raises SecretError."""
        ...


class PublicKeys(Protocol):
    async def public(self, connection: str, project: str) -> str:
        """The key that encrypts secrets of the project, as PEM; made when there is none.  Raises SecretError."""
        ...


class NoKeys:
    """Without a key store."""

    async def public(self, connection: str, project: str) -> str:
        raise SecretError("this Headgate keeps no keys")
