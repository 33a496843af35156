"""Define where logs and artifacts of builds are stored.

A few operations that directories and object stores both support are enough.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from headgate.base.errors import HeadgateError

KEY_SIZE_MAX_BYTES = 900
"""Size limit of a key. Object stores take 1,024 bytes, including the prefix from the settings."""
PART_SIZE_MAX_BYTES = 250
"""Size limit of the part of a key between two slashes. File systems take 255 bytes, and a file that is being written
has a longer name."""


class LogStoreError(HeadgateError):
    """Report that the log store is unreachable or fails now; what was stored before is not lost. The message is shown
    to users."""


class NotStored(HeadgateError, LookupError):
    """Report that nothing is stored under this key."""


class StoredLog(NamedTuple):
    key: str
    size_bytes: int
    changed_ms: int
    """Time of the last change, milliseconds since the epoch."""


def checked_key(key: str) -> str:
    """Return the key if every log store accepts it.  Raise ValueError with a readable reason."""
    parts = key.split("/")
    if not key.isprintable() or "\\" in key:
        raise ValueError("its name has characters that log stores do not accept")
    # Jobs choose these names, and must not write outside the directory of their build.
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError("its name leads outside the directory of the build")
    if len(key.encode()) > KEY_SIZE_MAX_BYTES or any(len(part.encode()) > PART_SIZE_MAX_BYTES for part in parts):
        raise ValueError("its name is too long for a log store")
    return key


class LogStore(Protocol):
    """Store content under keys, which are paths with `/` that `checked_key` accepts. A key has one content, which is
    replaced atomically.

    Every operation may be repeated with the same effect.  Raises LogStoreError.
    """

    encodes: bool
    """Whether the store records how a content is compressed, and sends that to clients that read it there directly."""

    async def put(self, key: str, content: AsyncGenerator[bytes, None], *, kind: str, encoding: str = "") -> None:
        """Store `content`, of the media type `kind`. Until this returns, the key has its earlier content. It keeps that
        if `content` raises, and the exception is raised again."""
        ...

    def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `start` to before `end`, as far as they exist.  Raise NotStored before the first
        piece."""
        ...

    async def look(self, key: str) -> StoredLog | None: ...

    def keys(self, prefix: str = "") -> AsyncIterator[StoredLog]:
        """Yield everything at or below `prefix`, a path, in any order."""
        ...

    async def delete(self, keys: Collection[str]) -> None:
        """Delete the contents of these keys; keys without content are no error."""
        ...


class Following(Protocol):
    """Store what a build writes while it runs, and all of it once it has ended."""

    def following(self, build: str) -> AbstractAsyncContextManager[None]:
        """Follow a build for as long as the context lasts. The context raises nothing itself and delays nothing:
        content that cannot be stored now is stored later."""
        ...
