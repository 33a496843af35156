"""Check what every log store does: one suite for all of them, and a server of S3 for those in buckets."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pytest

from headgate.adapters.logs.bucket import BucketAddress
from headgate.ports.logstore import LogStore, NotStored

LARGE_SIZE_BYTES = 20_000_000
"""Size that object stores receive in several pieces."""
TIMEOUT_S = 60.0
"""Limit on the time in which the server makes a bucket."""


async def pieces(*content: bytes) -> AsyncGenerator[bytes, None]:
    for piece in content:
        yield piece


async def read_all(store: LogStore, key: str, start: int = 0, end: int | None = None) -> bytes:
    """Return the bytes of a file, or of a range of it. Raise NotStored, LogStoreError."""
    return b"".join([piece async for piece in store.read(key, start, end)])


async def keys(store: LogStore, prefix: str = "") -> list[str]:
    return sorted([one.key async for one in store.keys(prefix)])


async def is_read_as_it_was_put(store: LogStore) -> None:
    await store.put("b1/a/log.txt", pieces(b"01234", b"56789"), kind="text/plain")
    # Also ranges beyond the end, which object stores reject and readers may ask for.
    for start, end in ((0, None), (3, None), (3, 7), (0, 1), (8, 100), (10, None), (10, 12), (30, 40)):
        assert await read_all(store, "b1/a/log.txt", start, end) == b"0123456789"[start:end], (start, end)
    found = await store.look("b1/a/log.txt")
    assert found is not None and (found.key, found.size_bytes) == ("b1/a/log.txt", 10) and found.changed_ms > 0
    await store.put("b1/empty", pieces(), kind="text/plain")
    assert await read_all(store, "b1/empty") == b""


async def missing_content_is_reported(store: LogStore) -> None:
    for key in ("b2", "b2/none", "b2/none/deeper"):
        assert await store.look(key) is None
        with pytest.raises(NotStored):
            await read_all(store, key)
    await store.delete(["b2/none", "b2"])
    assert await keys(store, "b2") == []


async def is_replaced_completely(store: LogStore) -> None:
    await store.put("b3/log", pieces(b"long as it was"), kind="text/plain")
    await store.put("b3/log", pieces(b"short"), kind="text/plain")
    assert await read_all(store, "b3/log") == b"short"


async def half_of_it_is_nothing(store: LogStore) -> None:
    """Check that an interrupted write leaves the old content and nothing else."""

    async def breaks_off(size: int) -> AsyncGenerator[bytes, None]:
        yield b"x" * size
        raise ConnectionError("the disk is gone")

    await store.put("b4/kept", pieces(b"before"), kind="text/plain")
    for key in ("b4/kept", "b4/new"):
        # Small content is sent in one request and large content in parts: an interruption leaves different remains.
        for size in (5, LARGE_SIZE_BYTES):
            with pytest.raises(ConnectionError):
                await store.put(key, breaks_off(size), kind="text/plain")
    assert await keys(store, "b4") == ["b4/kept"] and await read_all(store, "b4/kept") == b"before"


async def large_content_is_complete(store: LogStore) -> None:
    piece = bytes(range(256)) * 4_000
    await store.put("b5/large", pieces(*[piece] * 20), kind="application/octet-stream")
    found = await store.look("b5/large")
    assert found is not None and found.size_bytes == 20 * len(piece)
    assert await read_all(store, "b5/large", len(piece) - 3, len(piece) + 3) == piece[-3:] + piece[:3]
    assert await read_all(store, "b5/large") == piece * 20


async def keys_are_listed_below_a_path(store: LogStore) -> None:
    # `b66` begins like `b6` but does not lie below it: a prefix of the text is not a prefix of the path.
    names = ["b6/a", "b6/d/e", "b66/a", "_parts/b6/00001"]
    for name in names:
        await store.put(name, pieces(b"1"), kind="text/plain")
    assert await keys(store, "b6") == ["b6/a", "b6/d/e"]
    assert set(names) <= set(await keys(store))
    await store.delete(["b6/a", "b6/d/e", "b6/none"])
    assert await keys(store, "b6") == [] and "b66/a" in await keys(store)


async def odd_names_are_names(store: LogStore) -> None:
    names = ["b7/a b+c%41&?#=.txt", "b7/dé/ü.html", "b7/...", "b7/-rf", "b7/a:b*c'\"<>|~", "b7/" + "x" * 250]
    for name in names:
        await store.put(name, pieces(name.encode()), kind="text/plain")
    assert await keys(store, "b7") == sorted(names)
    for name in names:
        assert await read_all(store, name) == name.encode()


async def names_lead_nowhere_else(store: LogStore) -> None:
    bad = [
        "",
        "/b8",
        "b8/",
        "b8//a",
        "../b8",
        "b8/../../etc/passwd",
        "b8/.",
        "b8/a\nb",
        "b8/\x00",
        "b8/a\\b",
        "b8/\u202ea",
    ]
    for name in [*bad, "b8/" + "x" * 251, "b8" + "/xxxxxxxxx" * 100, "b8/\udcff"]:
        with pytest.raises(ValueError, match="its name"):
            await store.put(name, pieces(b"1"), kind="text/plain")
        with pytest.raises(ValueError, match="its name"):
            await read_all(store, name)
        with pytest.raises(ValueError, match="its name"):
            await store.delete([name])


SUITE: dict[str, Callable[[LogStore], Awaitable[None]]] = {
    one.__name__: one
    for one in (
        is_read_as_it_was_put,
        missing_content_is_reported,
        is_replaced_completely,
        half_of_it_is_nothing,
        large_content_is_complete,
        keys_are_listed_below_a_path,
        odd_names_are_names,
        names_lead_nowhere_else,
    )
}


@contextmanager
def s3() -> Iterator[str]:
    """Serve S3 for as long as the context lasts, to anybody with any key; provide the URL."""
    from moto.server import ThreadedMotoServer  # half a second

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def bucket(url: str, name: str, prefix: str = "") -> BucketAddress:
    """Return the address of a new bucket at a server."""
    with urlopen(Request(f"{url}/{name}", method="PUT"), timeout=TIMEOUT_S):  # noqa: S310 - a server of ours
        return BucketAddress(name, prefix, url, access_key="key", secret_key="secret")  # noqa: S106 - of no worth
