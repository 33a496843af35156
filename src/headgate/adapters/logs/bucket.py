"""Store logs in a bucket of S3, or of a compatible service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from headgate.ports.logstore import LogStoreError, NotStored, StoredLog, checked_key

# S3 rejects parts below 5 MiB and more than 10,000 parts, so one file may have up to 80 GB.
PART_SIZE_BYTES = 8_000_000
"""Size from which a file is uploaded in several requests; memory holds two such parts."""
CHUNK_SIZE_BYTES = 1_000_000
REQUEST_TIMEOUT = timedelta(seconds=60)
CONNECT_TIMEOUT = timedelta(seconds=10)
RETRIES_MAX = 4
RETRYING_MAX = timedelta(seconds=60)
DELETED_MAX = 1_000
"""Limit on the objects that one request deletes."""
WORDS_MAX_CHARS = 300


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Locate a bucket. `prefix` has no slash at either end. Without a key, credentials come from the environment, and
    otherwise from the machine."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    """URL of the service; empty: AWS in this region."""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = field(default="", repr=False)


class LogBucket:
    """Store logs in a bucket; see `ports.logstore.LogStore`."""

    encodes = True

    def __init__(self, address: BucketAddress, *, retries_max: int = RETRIES_MAX) -> None:
        """Make a store, without sending a request. `retries_max`: limit on the retries of one request. Raise ValueError
        for an invalid address."""
        settings = {"region": address.region, "endpoint": address.endpoint}
        settings |= {"access_key_id": address.access_key, "secret_access_key": address.secret_key}
        # With an empty key, obstore would not look for credentials in the environment or on the machine.
        given = {name: value for name, value in settings.items() if value}
        try:
            self._store = S3Store(
                address.bucket,
                prefix=address.prefix or None,
                config=given,  # type: ignore[arg-type]  # a TypedDict, whose keys are chosen here
                client_options={
                    "allow_http": address.endpoint.startswith("http://"),
                    "timeout": REQUEST_TIMEOUT,
                    "connect_timeout": CONNECT_TIMEOUT,
                },
                retry_config={"max_retries": retries_max, "retry_timeout": RETRYING_MAX},
            )
        except BaseError as error:
            raise ValueError(_words(error)) from error

    async def put(self, key: str, content: AsyncGenerator[bytes, None], *, kind: str, encoding: str = "") -> None:
        """Upload the content, in several requests if it is large; see `LogStore.put`."""
        about = {"Content-Type": kind, **({"Content-Encoding": encoding} if encoding else {})}
        async with aclosing(content):
            # An object of one part needs one request instead of three, and most files of builds are small.
            first = b""
            async for piece in content:
                first += piece
                if len(first) >= PART_SIZE_BYTES:
                    break
            small = len(first) < PART_SIZE_BYTES
            # "Not found" here means that the bucket is missing; NotStored would mean that only this object is missing.
            with _converted_errors(key, absent=LogStoreError):
                await obstore.put_async(
                    self._store,
                    checked_key(key),
                    first if small else _chained(first, content),
                    attributes=about,
                    use_multipart=not small,
                    chunk_size=PART_SIZE_BYTES,
                    max_concurrency=2,
                )

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield a range of an object; see `LogStore.read`."""
        with _converted_errors(key):
            if start == 0 and end is None:
                answer = await obstore.get_async(self._store, checked_key(key))
            else:
                found = await obstore.head_async(self._store, checked_key(key))
                # S3 returns an empty range, or one beyond the end, with an error (416), but readers expect no bytes.
                last = found["size"] if end is None else min(end, found["size"])
                if start >= last:
                    return
                answer = await obstore.get_async(self._store, key, options={"range": (start, last)})
            async for piece in answer.stream(min_chunk_size=CHUNK_SIZE_BYTES):
                yield bytes(piece)

    async def look(self, key: str) -> StoredLog | None:
        """Return size and time of an object; see `LogStore.look`."""
        try:
            with _converted_errors(key):
                found = await obstore.head_async(self._store, checked_key(key))
        except NotStored:
            return None
        return StoredLog(key, found["size"], int(found["last_modified"].timestamp() * 1000))

    async def keys(self, prefix: str = "") -> AsyncIterator[StoredLog]:
        """Yield the objects below a prefix; see `LogStore.keys`."""
        with _converted_errors(prefix):
            async for some in obstore.list(self._store, prefix=checked_key(prefix) if prefix else None):
                for one in some:
                    yield StoredLog(one["path"], one["size"], int(one["last_modified"].timestamp() * 1000))

    async def delete(self, keys: Collection[str]) -> None:
        """Delete objects in batches; see `LogStore.delete`."""
        every = [checked_key(key) for key in keys]
        for at in range(0, len(every), DELETED_MAX):
            with _converted_errors(every[at]):
                await obstore.delete_async(self._store, every[at : at + DELETED_MAX])


async def _chained(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield first
    async for piece in rest:
        yield piece


@contextmanager
def _converted_errors(key: str, absent: type[Exception] = NotStored) -> Iterator[None]:
    """Convert errors of the bucket to LogStoreError; raise `absent` if something does not exist."""
    try:
        yield
    except FileNotFoundError as error:
        raise absent(f"there is no {key}" if absent is NotStored else f"{key}: {_words(error)}") from error
    except BaseError as error:
        raise LogStoreError(f"{key}: {_words(error)}") from error


def _words(error: Exception) -> str:
    """Return the first line of an error, without the details for developers."""
    return str(error).partition("\n")[0][:WORDS_MAX_CHARS]
