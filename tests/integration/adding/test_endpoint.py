"""An endpoint is a module and its name in a list: `docs/how-to/add/an-endpoint.md`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from headgate.adapters.process.tail import follow
from headgate.adapters.sql.history import SqlHistory
from headgate.cli.pages import api
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from headgate.web import app
from headgate.web.access import Access
from headgate.web.app import create_app
from headgate.web.site import Site

from ..conftest import TENANTS
from . import roll

RULES = "- authorization-rule: {name: staff, conditions: [{groups: staff}]}\n"
CLOSED = (
    "- tenant:\n    name: closed\n    access-rules: [staff]\n    source: {local: {untrusted-projects: [code/lib]}}\n"
)
ROLL = "/api/tenant/example/roll"
OPERATOR = {"Authorization": "Bearer secret"}


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "ROUTES", (*app.ROUTES, *roll.ROUTES))


@pytest.fixture
async def client(tmp_path: Path, repositories: Repositories) -> AsyncIterator[httpx.AsyncClient]:
    history = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")
    async with gate(tmp_path, repositories.hub, MemoryBackend(), RULES + TENANTS + CLOSED) as running:
        site = Site(running.context, running.scheduler.tenants, history, tmp_path, follow, Access("secret"))
        transport = httpx.ASGITransport(create_app(site))
        async with httpx.AsyncClient(transport=transport, base_url="http://headgate.example") as found:
            yield found
    history.close()


async def test_it_answers_with_its_shape_whatever_is_asked(client: httpx.AsyncClient) -> None:
    assert (await client.get(f"{ROLL}/code")).json() == {"projects": ["code/api", "code/lib"], "more": False}
    assert (await client.get(f"{ROLL}/%00%2e%2e")).json() == {"projects": [], "more": False}


async def test_who_may_not_read_a_tenant_does_not_reach_it(client: httpx.AsyncClient) -> None:
    closed = "/api/tenant/closed/roll/code"
    assert (await client.get(closed)).status_code == 401
    assert (await client.get(closed, headers=OPERATOR)).json() == {"projects": ["code/lib"], "more": False}
    assert (await client.get("/api/tenant/nobody/roll/code")).status_code == 404


async def test_it_is_described_where_all_are(client: httpx.AsyncClient) -> None:
    (path,) = (p for p in (await client.get("/openapi/openapi.json")).json()["paths"].items() if "/roll/" in p[0])
    assert path[1]["get"]["description"] == "Return the projects whose names begin so."


def test_the_reference_page_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "ROUTES", app.ROUTES, raising=False)
    assert "/api/tenant/{tenant}/roll/{begins}" in api.page()
