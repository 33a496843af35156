"""Define where logs and artifacts of builds are stored.

A few operations that directories and object stores both support are enough.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

KEY_SIZE_MAX_BYTES = 900
"""Size limit of a key. Object stores take 1,024 bytes, including the prefix from the settings."""
PART_SIZE_MAX_BYTES = 250
"""Size limit of the part of a key between two slashes. File systems take 255 bytes, and a file that is being written
has a longer name."""


class LogStoreError(Exception):
    """Report that the store of logs cannot be reached, or fails now; what was stored before is still there. The text
    is for people."""


class NotStored(LookupError):
    """Report that nothing is stored under this key."""


class StoredLog(NamedTuple):
    key: str
    size_bytes: int
    changed_ms: int
    """Time of the last change, milliseconds since the epoch."""


def checked_key(key: str) -> str:
    """Return a key that every store can have.  Raise ValueError, with a text for people."""
    parts = key.split("/")
    if not key.isprintable() or "\\" in key:
        raise ValueError("its name has characters that a store does not take")
    # Jobs choose these names, and must not write outside the directory of their build.
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError("its name leads elsewhere")
    if len(key.encode()) > KEY_SIZE_MAX_BYTES or any(len(part.encode()) > PART_SIZE_MAX_BYTES for part in parts):
        raise ValueError("its name is too long for a store")
    return key


class LogStore(Protocol):
    """Store content under keys, which are paths with `/` as `checked_key` accepts them. Each has one content, replaced
    as a whole.

    Every operation may be repeated with the same effect.  Raises LogStoreError.
    """

    encodes: bool
    """Whether the store remembers how a content is compressed, and tells that to everybody who reads it elsewhere."""

    async def put(self, key: str, content: AsyncGenerator[bytes, None], *, kind: str, encoding: str = "") -> None:
        """Keep `content`, of the media type `kind`. Until this returns, the key has its earlier content, also if
        `content` raises; that exception is raised again."""
        ...

    def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `start` on, as far as there are any, before `end`.  Raise NotStored before the first
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
    """Keep what a build writes while it runs, and all of it once it has ended."""

    def following(self, build: str) -> AbstractAsyncContextManager[None]:
        """Follow a build for as long as the context lasts. It raises nothing itself and delays nothing: what cannot
        be stored yet is stored later."""
        ...
