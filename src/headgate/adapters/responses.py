"""Call other programs over HTTP, and read their responses within limits, whatever they send."""

from __future__ import annotations

import re
import ssl
import zlib
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar, overload

import httpx
import msgspec

VALUES_MAX = 1_000_000
"""Limit on the values of a JSON document: a byte of JSON can become a hundred bytes of memory."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_GZIP = 16 + zlib.MAX_WBITS

T = TypeVar("T")


def cautious_client(timeout_s: float, verify: ssl.SSLContext | bool, **more: Any) -> httpx.AsyncClient:
    """Return a client that calls only the addresses it is given: it follows no redirects, ignores proxies and other
    settings of the environment, and requests no encoding that `content_of` does not read. `more`: further arguments of
    httpx."""
    # A server could send a thousand cookies in each response, and all of them would be searched for each request.
    cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return httpx.AsyncClient(
        headers={"Accept-Encoding": "gzip"},
        cookies=cookies,
        timeout=timeout_s,
        follow_redirects=False,
        trust_env=False,
        verify=verify,
        **more,
    )


async def content_of(answer: httpx.Response, most_bytes: int) -> bytes:
    """Return the content of a response; if it is longer than `most_bytes`, its beginning of that size. Raise
    httpx.HTTPError."""
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise httpx.DecodingError(f"the encoding {encoding[:100]!r} was not requested", request=answer.request)
    unpacking = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
    found = bytearray()
    # Not `aiter_bytes`, which unpacks each piece completely: kilobytes that are compressed twice become gigabytes.
    async for piece in answer.aiter_raw():
        try:
            found += unpacking.decompress(piece, most_bytes - len(found)) if unpacking is not None else piece
        except zlib.error as error:
            raise httpx.DecodingError(str(error), request=answer.request) from error
        if len(found) >= most_bytes:
            break
    return bytes(found[:most_bytes])


@overload
def from_json(body: bytes) -> Any: ...
@overload
def from_json(body: bytes, kind: type[T]) -> T: ...
def from_json(body: bytes, kind: Any = Any) -> Any:
    """Return the values of a JSON document as `kind`. Raise msgspec.DecodeError, also for a document that is not UTF-8,
    is nested too deeply, or has too many values."""
    if _values(body) > VALUES_MAX and _values(_STRING.sub(b"", body)) > VALUES_MAX:
        raise msgspec.DecodeError(f"it has more than {VALUES_MAX:,} values")
    try:
        return msgspec.json.decode(body, type=kind)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


def _values(body: bytes) -> int:
    """Return an upper limit on the number of values."""
    return sum(map(body.count, (b",", b"[", b"{")))
