"""Test how responses of other programs are read within limits."""

from __future__ import annotations

import gzip

import httpx
import msgspec
import pytest

from headgate.adapters.responses import VALUES_MAX, content_of, from_json


def response(body: bytes, encoding: str = "") -> httpx.Response:
    headers = {"Content-Encoding": encoding} if encoding else {}
    request = httpx.Request("GET", "https://forge.example")
    return httpx.Response(200, headers=headers, stream=httpx.ByteStream(body), request=request)


@pytest.mark.parametrize("encoding", ["", "identity", "gzip", "GZIP"])
@pytest.mark.parametrize(("most", "expected"), [(3, b"abc"), (6, b"abcdef"), (100, b"abcdef")])
async def test_the_content_is_read_up_to_the_limit(encoding: str, most: int, expected: bytes) -> None:
    body = gzip.compress(b"abcdef") if encoding.lower() == "gzip" else b"abcdef"
    assert await content_of(response(body, encoding), most) == expected


@pytest.mark.parametrize(
    ("body", "encoding"), [(b"x", "gzip, gzip"), (b"x", "br"), (b"x", "deflate"), (b"no gzip", "gzip")]
)
async def test_an_encoding_that_was_not_requested_or_is_damaged_is_an_error_of_http(body: bytes, encoding: str) -> None:
    with pytest.raises(httpx.HTTPError):
        await content_of(response(body, encoding), 100)


@pytest.mark.parametrize("body", [b"", b"\xff", b'"\xff"', b"[" * 5_000, b"{}{}", b'"\\ud800"'])
def test_everything_that_is_no_json_is_one_kind_of_error(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_json(body)


def test_the_number_of_values_is_limited_whatever_texts_contain() -> None:
    text = '"' + r"[,\",{" * VALUES_MAX + '"'
    assert len(from_json(f"[{text}, 1]".encode())) == 2
    with pytest.raises(msgspec.DecodeError, match="more than 1,000,000 values"):
        from_json(f"[{text}{', 1' * VALUES_MAX}]".encode())


def test_a_document_is_read_as_a_type() -> None:
    assert from_json(b'{"a": 1}', dict[str, int]) == {"a": 1}
    with pytest.raises(msgspec.DecodeError):
        from_json(b'{"a": "x"}', dict[str, int])
