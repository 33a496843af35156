"""Test that HEAD is answered like GET, without the body."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from headgate.web.peers.requests import HeadApplication


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """Answer GET with the path, and `/stream` endlessly."""
    if scope["method"] != "GET":
        await send({"type": "http.response.start", "status": 405, "headers": [(b"allow", b"GET, HEAD")]})
        return await send({"type": "http.response.body", "body": b""})
    body = scope["path"].encode()
    status = 404 if body == b"/none" else 200
    headers = [(b"content-length", b"%d" % len(body)), (b"etag", b'"one"')] if body != b"/stream" else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if body != b"/stream":
        return await send({"type": "http.response.body", "body": body})
    while (await receive())["type"] != "http.disconnect":
        await send({"type": "http.response.body", "body": b"more", "more_body": True})


@pytest.mark.parametrize("path", ["/page", "/none"])
async def test_its_head_is_that_of_get(path: str) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(HeadApplication(pages)), base_url="http://h") as client:
        read, looked = await client.get(path), await client.head(path)
        assert (looked.status_code, looked.headers) == (read.status_code, read.headers)
        assert read.content == path.encode() and looked.content == b""
        assert (await client.post(path)).status_code == 405


async def test_a_head_request_of_a_stream_ends() -> None:
    sent = list[dict[str, Any]]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async with asyncio.timeout(60):
        await HeadApplication(pages)({"type": "http", "method": "HEAD", "path": "/stream"}, receive, send)
    assert [one["type"] for one in sent] == ["http.response.start", "http.response.body"]
    assert (sent[1]["body"], sent[1]["more_body"]) == (b"", False)
