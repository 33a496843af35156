"""Test that an endpoint is a module and its name in a list: `docs/how-to/add/an-endpoint.md`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import msgspec
import pytest

from headgate.adapters.identity.tokens import authenticator
from headgate.adapters.sql.history import SqlHistory
from headgate.cli.pages import api
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from headgate.web import app
from headgate.web.access import Access, Realm, Rules
from tests.site import client_of, site_of

from ..conftest import TENANTS
from . import roll

SECRET = "a secret of thirty-two bytes, or more"
RULES = (
    "- authorization-rule: {name: staff, conditions: [{groups: staff}]}\n"
    "- role: {name: caller, permissions: {set-tenant-state: true}}\n"
)
OPEN = f"{TENANTS.rstrip()}\n    role-mappings: {{staff: [caller]}}\n"
CLOSED = (
    "- tenant:\n    name: closed\n    access-rules: [staff]\n    source: {local: {untrusted-projects: [code/lib]}}\n"
)
FILE = RULES + OPEN + CLOSED
ROLL = "/api/tenant/example/roll"
OPERATOR = {"Authorization": "Bearer secret"}


def token(**claims: Any) -> dict[str, str]:
    payload = {"iss": "issuer", "aud": "headgate", "sub": "ann", "iat": time.time(), "exp": time.time() + 60, **claims}
    return {"Authorization": f"Bearer {jwt.encode(payload, SECRET, 'HS256')}"}


def access() -> Access:
    """Return the access rules: the operator, and people with groups in their tokens."""
    file = parse_tenant_file(FILE, "tenants.yaml", {"local": Connection("local", "git.example")})
    section = {"issuer_id": "issuer", "client_id": "headgate", "secret": SECRET}
    realm = Realm(authenticator("ours", section, Path("headgate.conf")), "realm")
    return Access("secret", [realm], lambda: Rules(file.rules, file.roles, file.api_root))


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "ROUTES", (*app.ROUTES, *roll.ROUTES))


@pytest.fixture
async def client(tmp_path: Path, repositories: Repositories) -> AsyncIterator[httpx.AsyncClient]:
    history = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")
    async with (
        gate(tmp_path, repositories.hub, MemoryBackend(), FILE, recording=history) as running,
        running.context.store.session("web") as session,
    ):
        site = site_of(running.context, running.scheduler.tenants, history, tmp_path, access(), session)
        async with client_of(site) as found:
            yield found
    history.close()


async def test_the_endpoint_answers_in_its_shape(client: httpx.AsyncClient) -> None:
    assert (await client.get(f"{ROLL}/code")).json() == {"projects": ["code/api", "code/lib"], "more": False}
    assert (await client.get(f"{ROLL}/%00%2e%2e")).json() == {"projects": [], "more": False}


async def test_a_tenant_is_hidden_from_those_who_may_not_read_it(client: httpx.AsyncClient) -> None:
    closed = "/api/tenant/closed/roll/code"
    assert (await client.get(closed)).status_code == 401
    assert (await client.get(closed, headers=OPERATOR)).json() == {"projects": ["code/lib"], "more": False}
    assert (await client.get("/api/tenant/nobody/roll/code")).status_code == 404


async def test_only_people_with_the_permission_may_act_and_the_action_is_recorded(client: httpx.AsyncClient) -> None:
    body = {"project": "code/api", "reason": "it moved"}
    assert (await client.post(ROLL, json=body)).status_code == 401
    assert (await client.post(ROLL, json=body, headers=token(groups=["guests"]))).status_code == 403
    staff = token(groups=["staff"])
    assert (await client.post(ROLL, content=msgspec.json.encode(body), headers=staff)).status_code == 415
    assert (await client.post(ROLL, json={**body, "path": "/etc"}, headers=staff)).status_code == 400
    assert (await client.post(ROLL, json=body, headers=staff)).status_code == 201
    actions = {action["verb"]: action for action in (await client.get("/api/tenant/example/actions")).json()}
    done, refused = actions.pop("call"), actions.pop("roll")
    assert (done["subject"], done["reason"], done["outcome"]) == ("code/api", "it moved", "done")
    assert not actions and "lacks the permission set-tenant-state" in refused["outcome"]


async def test_the_endpoint_is_in_the_openapi_description(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi/openapi.json")).json()["paths"]
    found = paths["/api/tenant/{tenant}/roll/{begins}"]["get"]["description"]
    assert found == "Return the projects whose names have this prefix. Headgate only."


@pytest.mark.long
def test_the_reference_page_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "ROUTES", app.ROUTES, raising=False)
    page = api.page()
    assert "/api/tenant/{tenant}/roll/{begins}" in page and "- Permission: set-tenant-state.\n- Body: [ForRoll]" in page
