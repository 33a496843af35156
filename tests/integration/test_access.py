"""Who may do what over the API: tokens, rules, roles; and what may be done where nothing of it is set up."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from headgate.adapters.identity.tokens import authenticator
from headgate.adapters.process.tail import follow
from headgate.adapters.sql.history import SqlHistory
from headgate.config.tenants import Connection, parse_tenant_file
from headgate.store.memory import MemoryBackend
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from headgate.web.access import Access, Realm, Rules
from headgate.web.app import create_app
from headgate.web.site import Site

from .conftest import TENANTS

SECRET = "a secret of thirty-two bytes, or more"
RULES = """
- authorization-rule:
    name: operators
    conditions: [{groups: ops}]
- authorization-rule:
    name: developers
    conditions: [{groups: "dev-{tenant.name}"}]
- role:
    name: enqueuer
    permissions:
      enqueue:
        conditions: [{project: code/api}]
"""
TENANT_FILE = (
    RULES
    + TENANTS
    + """
    role-mappings:
      operators: [admin]
      developers: [enqueuer, read]
    anonymous-read-access: false
"""
)
TENANT = "/api/tenant/example"
ENQUEUE = {"pipeline": "gate", "change": "none"}


def token(**claims: Any) -> dict[str, str]:
    said = {"iss": "issuer", "aud": "headgate", "sub": "ann", "iat": time.time(), "exp": time.time() + 60, **claims}
    return {"Authorization": f"Bearer {jwt.encode(said, SECRET, 'HS256')}"}


@pytest.fixture
def access() -> Access:
    file = parse_tenant_file(TENANT_FILE, "tenants.yaml", {"local": Connection("local", "git.example")})
    said = {"issuer_id": "issuer", "client_id": "headgate", "secret": SECRET}
    realm = Realm(authenticator("ours", said, Path("headgate.conf")), "our-realm", override=True)
    return Access("", [realm], lambda: Rules(file.rules, file.roles, file.api_root))


@pytest.fixture
async def client(tmp_path: Path, repositories: Repositories, access: Access) -> AsyncIterator[httpx.AsyncClient]:
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANT_FILE) as running:
        history = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")
        async with running.context.store.session("web") as session:
            site = Site(
                running.context,
                running.scheduler.tenants,
                history,
                tmp_path,
                follow,
                access=access,
                joined=lambda: session,
            )
            transport = httpx.ASGITransport(create_app(site))
            async with httpx.AsyncClient(transport=transport, base_url="http://headgate.example") as found:
                yield found
        history.close()


async def test_roles_say_who_may_do_what(client: httpx.AsyncClient) -> None:
    async def enqueue(project: str, headers: dict[str, str]) -> int:
        url = f"{TENANT}/project/{project}/enqueue"
        return (await client.post(url, json=ENQUEUE, headers=headers)).status_code

    ops, developer, nobody = token(groups=["ops"]), token(groups=["x", "dev-example"]), token(groups=["dev-other"])
    allowed = 404  # the change is not there, which only who may ask is told
    assert [await enqueue(p, ops) for p in ("code/api", "code/lib")] == [allowed, allowed]
    assert [await enqueue(p, developer) for p in ("code/api", "code/lib")] == [allowed, 403]
    assert [await enqueue(p, nobody) for p in ("code/api", "code/lib")] == [403, 403]
    promote = {"pipeline": "gate", "changes": ["x"]}
    assert (await client.post(f"{TENANT}/promote", json=promote, headers=developer)).status_code == 403
    assert (await client.post(f"{TENANT}/promote", json=promote, headers=ops)).status_code == 409


async def test_a_tenant_that_is_not_for_everybody_is_shown_to_readers_only(client: httpx.AsyncClient) -> None:
    for path in ("status", "builds", "jobs", "events", "key/code/api.pub"):
        answer = await client.get(f"{TENANT}/{path}")
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith('Bearer realm="our-realm"')
        assert answer.json()["extra"]["error"] == "invalid_token"
    assert (await client.get(f"{TENANT}/status", headers=token(groups=[]))).status_code == 403
    assert (await client.get(f"{TENANT}/status", headers=token(groups=["dev-example"]))).status_code == 200
    assert (await client.get("/t/example/logs/abc/job-output.txt")).status_code == 401
    assert (await client.get("/t/example/status")).status_code == 200, "a page holds nothing"
    info = (await client.get(f"{TENANT}/info")).json()["info"]["capabilities"]["auth"]
    assert info["read_protected"] and info["default_realm"] == "our-realm"


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": 1}, "expired"),
        ({"iss": "another"}, "issuer 'another'"),
        ({"aud": "another"}, "udience"),
        ({"sub": None}, "sub"),
    ],
)
async def test_a_token_that_is_not_good_is_refused_with_its_reason(
    client: httpx.AsyncClient, claims: dict[str, Any], why: str
) -> None:
    given = {name: value for name, value in token(**claims).items()}
    answer = await client.get(f"{TENANT}/status", headers=given)
    assert answer.status_code == 401 and why in answer.json()["detail"]


async def test_a_claim_makes_an_administrator_of_the_tenants_it_names(client: httpx.AsyncClient) -> None:
    async def may(tenants: list[str]) -> Any:
        headers = token(zuul={"admin": tenants})
        return (await client.get(f"{TENANT}/authorizations", headers=headers)).json()["zuul"]

    assert (await may(["example"]))["admin"]
    assert not (await may(["another"]))["admin"]
    answer = await client.post(
        "/api/component/web/x", json={"state": "paused"}, headers=token(zuul={"admin": ["example"]})
    )
    assert answer.status_code == 403, "processes are not one tenant's"


def local(access: Access, client: tuple[str, int] | None, **headers: str) -> bool:
    from litestar.connection import Request

    scope: Any = {  # as a server makes it
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "client": client,
        "state": {},
    }
    return access.bearer(Request(scope)) is not None


def test_without_tokens_only_programs_of_this_machine_may_ask_for_anything() -> None:
    open, closed = Access(), Access("a token")
    assert local(open, ("127.0.0.1", 1)) and local(open, ("::1", 1))
    assert not local(open, ("10.0.0.1", 1)) and not local(open, None)
    assert not local(open, ("127.0.0.1", 1), origin="http://evil.example")
    assert not local(open, ("127.0.0.1", 1), x_forwarded_for="10.0.0.1")
    assert not local(closed, ("127.0.0.1", 1))
    assert local(closed, ("10.0.0.1", 1), authorization="Bearer a token")
