"""A resource that was renamed is found at its new place, if that is at the same host."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest

from headgate.adapters.forges.rest import ForgeKey, NotThere, Rest

API, KEY = "https://forge.example/api", ForgeKey("us", "secret")


class Plain(Rest):
    def headers(self, key: ForgeKey) -> Mapping[str, str]:
        return {"Authorization": key.token}


async def got(location: str) -> list[str]:
    """Return the requested addresses, the first of which leads to `location`."""
    requests: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(str(request.url))
        if len(requests) == 1:
            return httpx.Response(301, headers={"Location": location} if location else {}, stream=httpx.ByteStream(b""))
        return httpx.Response(200, stream=httpx.ByteStream(b"{}"))

    client = Plain("forge", API, lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    try:
        await client.get(KEY, "/repos/acme/old?page=2")
    finally:
        await client.close()
    return requests


@pytest.mark.parametrize("location", ["/api/repos/acme/new", "new", f"{API}/repos/acme/new"])
async def test_a_redirection_may_be_relative(location: str) -> None:
    assert await got(location) == [f"{API}/repos/acme/old?page=2", f"{API}/repos/acme/new"]


@pytest.mark.parametrize(
    "location",
    [
        "https://other.example/api/repos/acme/new",
        "http://forge.example/api/repos/acme/new",
        "//other.example/api",
        "https://forge.example@other.example/api",
        "https://[",
        "",
    ],
)
async def test_a_redirection_elsewhere_gets_no_credentials(location: str) -> None:
    with pytest.raises(NotThere, match="another host"):
        await got(location)
