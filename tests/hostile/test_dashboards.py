"""Test that pages of other servers can read with a token, and dashboards named in the settings can write with one,
too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.base.errors import UserError
from headgate.cli.launch.components import dashboards_of
from headgate.cli.settings import read
from headgate.web.peers.requests import CheckedApplication

DASHBOARD = "https://zuul.example:8443"
ELSEWHERE = ("https://evil.example", "http://zuul.example:8443", "https://zuul.example", f"{DASHBOARD}.evil", "null")
TOKEN = {"Authorization": "Bearer x"}
API = "/api/tenant/example/promote"


async def _done(scope: Any, receive: Any, send: Any) -> None:  # ASGI
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"true"})


def browser(hosts: tuple[str, ...] = ()) -> httpx.AsyncClient:
    app = CheckedApplication(_done, hosts, shared=True, dashboards={DASHBOARD})
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gate.example")


@pytest.mark.parametrize("hosts", [(), ("gate.example",)])
async def test_a_named_dashboard_writes_with_a_token_and_nobody_else(hosts: tuple[str, ...]) -> None:
    async with browser(hosts) as page:
        for method in ("POST", "PUT", "DELETE"):
            own = {"Origin": DASHBOARD, "Access-Control-Request-Method": method}
            answer = await page.options(API, headers=own)
            allowed = {n: v for n, v in answer.headers.items() if n.startswith("access-control-")}
            assert answer.status_code == 204 and allowed == {
                "access-control-allow-origin": "*", "access-control-max-age": "600",
                "access-control-allow-methods": "DELETE, GET, HEAD, POST, PUT",
                "access-control-allow-headers": "Authorization, Content-Type",
            }, "and no word of credentials"  # fmt: skip
            for path in (API, f"/{API}"):
                url = f"http://gate.example{path}"
                assert (await page.request(method, url, headers={"Origin": DASHBOARD, **TOKEN})).status_code == 200
            for origin in ELSEWHERE:
                answer = await page.options(API, headers={**own, "Origin": origin})
                assert answer.status_code == 403 and "access-control-allow-methods" not in answer.headers, origin
                assert (await page.request(method, API, headers={"Origin": origin, **TOKEN})).status_code == 403, origin


async def test_cookies_of_a_browser_give_a_dashboard_no_rights() -> None:
    async with browser() as page:
        for more in ({}, {"Cookie": "headgate=x"}, {"Authorization": ""}):
            assert (await page.post(API, headers={"Origin": DASHBOARD, **more})).status_code == 403, more
        for path in ("/inventory/objects", "/v1/app/queue", "/login/callback", "/apix"):
            assert (await page.post(path, headers={"Origin": DASHBOARD, **TOKEN})).status_code == 403, path
        answer = await page.options(API, headers={"Origin": DASHBOARD, "Access-Control-Request-Method": "PATCH"})
        assert answer.status_code == 403


def test_an_origin_is_read_as_browsers_write_it(tmp_path: Path) -> None:
    file = tmp_path / "headgate.conf"

    def dashboards_in(text: str) -> frozenset[str]:
        file.write_text(f"[web]\ndashboards = {text}\n")
        return dashboards_of(read(file))

    assert dashboards_in("") == frozenset()
    both = dashboards_in("https://Zuul.Example:443/ http://[::1]:80 https://zuul.example:8443")
    assert both == {"https://zuul.example", "http://[::1]", DASHBOARD}
    for wrong in (
        "*",
        "zuul.example",
        "https://",
        "https://a/b",
        "https://a?x",
        "https://me@a",
        "https://a:x",
        "ftp://a",
    ):
        with pytest.raises(
            UserError, match=r"\[web\] dashboards: .* is not an origin|dashboards is a URL with an invalid host or port"
        ):
            dashboards_in(wrong)
