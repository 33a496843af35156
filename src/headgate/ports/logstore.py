"""Where logs and artifacts of builds stay: a few verbs that a directory and an object store both have."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

KEY_SIZE_MAX_BYTES = 900
"""Object stores take 1,024 with the prefix of the settings."""
PART_SIZE_MAX_BYTES = 250
"""Of what stands between two slashes: file systems take 255, and what is being written has a longer name."""


class LogStoreError(Exception):
    """It cannot be reached, or does not do it just now; what was put before is still there.  The text is for people."""


class NotStored(LookupError):
    """Nothing has this key."""


class StoredLog(NamedTuple):
    key: str
    size_bytes: int
    changed_ms: int
    """Since the epoch."""


def checked_key(key: str) -> str:
    """Return a key that every store can have.  Raise ValueError, with a text for people."""
    parts = key.split("/")
    if not key.isprintable() or "\\" in key:
        raise ValueError("its name has characters that a store does not take")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError("its name leads elsewhere")
    if len(key.encode()) > KEY_SIZE_MAX_BYTES or any(len(part.encode()) > PART_SIZE_MAX_BYTES for part in parts):
        raise ValueError("its name is too long for a store")
    return key


class LogStore(Protocol):
    """Keys are paths with `/`, as `checked_key` has them; each has one content, replaced whole.

    Everything may be done again, and means the same.  Raises LogStoreError."""

    encodes: bool
    """Whether it remembers how a content is compressed, and tells everybody who reads it elsewhere."""

    async def put(self, key: str, content: AsyncGenerator[bytes, None], *, kind: str, encoding: str = "") -> None:
        """Keep `content`, of the media type `kind`.  Until it returns the key has what it had before, also when
        `content` raises, which is raised again."""
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
        """Delete what is there of them."""
        ...


class Following(Protocol):
    """Has what a build writes kept while it runs, and all of it once it has ended."""

    def following(self, build: str) -> AbstractAsyncContextManager[None]:
        """For as long as the build runs.  Raises nothing of its own and holds nothing up: what cannot be kept yet is
        kept later."""
        ...
