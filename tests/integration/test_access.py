"""Test permissions over the API: tokens, rules, roles."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx
import jwt
import pytest
from msgspec import inspect

from headgate.adapters.identity.tokens import authenticator
from headgate.adapters.sql.history import SqlHistory
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection
from headgate.rest import HTTPException, HttpRequest, post
from headgate.store.memory import MemoryBackend
from headgate.store.types import Op
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from headgate.web.access import Access, Realm, Rules
from headgate.web.app import ROUTES, create_app
from headgate.web.routes.actions import Hand
from headgate.web.site import Site
from tests.site import client_of, site_of

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
- role:
    name: lander
    permissions:
      enqueue: true
      enqueue-unapproved:
        conditions: [{project: code/api}]
- authorization-rule:
    name: landers
    conditions: [{groups: landers}]
- role:
    name: holder
    permissions: {autohold: true}
- authorization-rule:
    name: holders
    conditions: [{groups: holders}]
- authorization-rule:
    name: readers
    conditions: [{groups: readers}]
"""
TENANT_FILE = (
    RULES
    + TENANTS
    + """
    role-mappings:
      operators: [admin]
      developers: [enqueuer, read]
      landers: [lander, read]
      holders: [holder, read]
      readers: [read]
    anonymous-read-access: false
"""
)
TENANT = "/api/tenant/example"
VALUES = {"tenant": "example", "kind": "scheduler", "rest": "code/api/enqueue"}
"""Values of parameters of paths; others are "x"."""
ENQUEUE = {"pipeline": "gate", "change": "none"}


def token(**claims: Any) -> dict[str, str]:
    payload = {"iss": "issuer", "aud": "headgate", "sub": "ann", "iat": time.time(), "exp": time.time() + 60, **claims}
    return {"Authorization": f"Bearer {jwt.encode(payload, SECRET, 'HS256')}"}


@pytest.fixture
def access() -> Access:
    file = parse_tenant_file(TENANT_FILE, "tenants.yaml", {"local": Connection("local", "git.example")})
    section = {"issuer_id": "issuer", "client_id": "headgate", "secret": SECRET}
    realm = Realm(authenticator("ours", section, Path("headgate.conf")), "our-realm", override=True)
    return Access("", [realm], lambda: Rules(file.rules, file.roles, file.api_root))


@pytest.fixture
async def client(tmp_path: Path, repositories: Repositories, access: Access) -> AsyncIterator[httpx.AsyncClient]:
    history = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")
    async with (
        gate(tmp_path, repositories.hub, MemoryBackend(), TENANT_FILE, recording=history) as running,
        running.context.store.session("web") as session,
    ):
        await running.looked_at("git.example/code/api", "git.example/code/lib")
        site = site_of(running.context, running.scheduler.tenants, history, tmp_path, access, session)
        async with client_of(site) as found:
            yield found
    history.close()


async def test_roles_say_who_may_do_what(client: httpx.AsyncClient) -> None:
    async def enqueue(project: str, headers: dict[str, str]) -> int:
        url = f"{TENANT}/project/{project}/enqueue"
        return (await client.post(url, json=ENQUEUE, headers=headers)).status_code

    ops, developer, nobody = token(groups=["ops"]), token(groups=["x", "dev-example"]), token(groups=["dev-other"])
    allowed = 404  # the change does not exist, which only authorised callers learn
    assert [await enqueue(p, ops) for p in ("code/api", "code/lib")] == [allowed, allowed]
    assert [await enqueue(p, developer) for p in ("code/api", "code/lib")] == [allowed, 403]
    assert [await enqueue(p, nobody) for p in ("code/api", "code/lib")] == [403, 403]
    promote = {"pipeline": "gate", "changes": ["x"]}
    assert (await client.post(f"{TENANT}/promote", json=promote, headers=developer)).status_code == 403
    assert (await client.post(f"{TENANT}/promote", json=promote, headers=ops)).status_code == 409


async def test_only_people_whose_role_permits_it_bypass_requirements(client: httpx.AsyncClient) -> None:
    async def enqueue(project: str, headers: dict[str, str]) -> int:
        body = {**ENQUEUE, "unapproved": True}
        return (await client.post(f"{TENANT}/project/{project}/enqueue", json=body, headers=headers)).status_code

    lander, ops, admin = token(groups=["landers"]), token(groups=["ops"]), token(zuul={"admin": ["example"]})
    assert [await enqueue(project, lander) for project in ("code/api", "code/lib")] == [404, 403]
    assert [await enqueue("code/api", headers) for headers in (ops, admin, token(groups=["dev-example"]))] == [403] * 3
    may = (await client.get(f"{TENANT}/authorizations", headers=ops)).json()["zuul"]
    assert may["admin"] and "enqueue-unapproved" not in may["permissions"]
    promote = {"pipeline": "gate", "changes": ["x"], "unapproved": True}
    assert (await client.post(f"{TENANT}/promote", json=promote, headers=ops)).status_code == 403


@pytest.mark.long
async def test_autoholds_are_managed_by_those_whom_a_role_names_and_listed_like_in_the_reference(
    client: httpx.AsyncClient,
) -> None:
    holder, developer, nobody = token(groups=["holders"]), token(groups=["dev-example"]), token()
    body = {"job": "unit", "count": 2, "reason": "to look", "node_hold_expiration": 60, "change": "", "ref": ""}
    ask, all_of = f"{TENANT}/project/code/api/autohold", f"{TENANT}/autohold"

    async def request_autohold(headers: dict[str, str], **more: Any) -> tuple[int, Any]:
        answer = await client.post(ask, json={**body, **more}, headers=headers)
        return answer.status_code, answer.json()

    assert [(await request_autohold(headers))[0] for headers in ({}, nobody, developer)] == [401, 403, 403]
    assert await request_autohold(holder) == (200, True)
    (one,) = (await client.get(all_of, headers=developer)).json()
    assert len(one["id"]) == 10 and one["id"].isdigit()
    expected = {
        "tenant": "example", "project": "git.example/code/api", "job": "unit", "ref_filter": ".*", "max_count": 2,
        "current_count": 0, "reason": "to look", "node_expiration": 60, "expired": None, "nodes": [],
    }  # fmt: skip
    assert {name: one[name] for name in expected} == expected and one["who"] == "ann"
    for url in (ask, f"{all_of}?project=code/api"):
        assert (await client.get(url, headers=developer)).json() == [one]
    assert (await client.get(f"{TENANT}/project/nothing/autohold", headers=developer)).json() == []
    assert (await client.get(f"{all_of}/{one['id']}", headers=developer)).json() == one
    missing = await client.get(f"{all_of}/0000000001", headers=developer)
    assert (missing.status_code, missing.json()["description"]) == (404, "Hold request 0000000001 not found.")
    wrong: tuple[dict[str, Any], ...] = (
        {"count": -1},
        {"count": 0},
        {"ref": "("},
        {"ref": "a", "change": "b"},
        {"count": "two"},
    )
    assert [(await request_autohold(holder, **more))[0] for more in wrong] == [400] * 5
    assert (
        (await request_autohold(holder, change="nothing"))[0]
        == (await request_autohold(holder, job="nothing"))[0]
        == 404
    )
    lacking = await client.post(ask, json={"reason": "to look", "count": 1}, headers=holder)
    assert lacking.status_code == 400 and "job" in lacking.json()["description"]
    assert (await client.post(ask, json={"job": "unit", "count": 1}, headers=holder)).status_code == 200
    assert (await client.get(all_of, headers=holder)).json()[-1]["reason"] is None, "nobody has to say why"
    for expiration, held_s in ((None, 86_400), (0, 172_800), (10**9, 172_800)):
        assert await request_autohold(holder, node_hold_expiration=expiration, ref="refs/heads/.*") == (200, True)
        assert (await client.get(all_of, headers=holder)).json()[-1]["node_expiration"] == held_s
    place = f"{all_of}/{one['id']}"
    ended = [await client.delete(place, headers=headers) for headers in ({}, developer, holder, holder)]
    assert [answer.status_code for answer in ended] == [401, 403, 204, 404] and ended[2].content == b""
    assert one["id"] not in {hold["id"] for hold in (await client.get(all_of, headers=holder)).json()}
    may = (await client.get(f"{TENANT}/authorizations", headers=holder)).json()["zuul"]["permissions"]
    assert may["autohold"] and "enqueue" not in may
    for _ in range(100 - 4):
        assert await request_autohold(holder) == (200, True)
    assert (await request_autohold(holder))[0] == 409, "so many, and no more"


async def test_actions_name_the_caller(client: httpx.AsyncClient) -> None:
    named = token(groups=["ops"], sub="token\x1b]0;x\x07\nann")
    promote = {"pipeline": "gate", "changes": ["x"]}
    assert (await client.post(f"{TENANT}/promote", json=promote, headers=named)).status_code == 409
    (one,) = (await client.get(f"{TENANT}/actions", headers=named)).json()
    assert one["who"] == "token ]0;x  ann" and one["authenticator"] == "ours" and one["verb"] == "promote"
    assert "not in the pipeline" in one["outcome"] and one["origin"].startswith("127.0.0.1")
    assert (await client.get(f"{TENANT}/actions")).status_code == 401
    assert (await client.get("/api/actions", headers=named)).status_code == 403


async def test_a_private_tenant_is_shown_to_its_readers_only(client: httpx.AsyncClient) -> None:
    for path in ("status", "builds", "jobs", "events", "key/code/api.pub"):
        answer = await client.get(f"{TENANT}/{path}")
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith('Bearer realm="our-realm"')
        assert answer.json()["error"] == "MissingAuthError"
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
    assert answer.status_code == 401 and why in answer.json()["description"]


async def test_a_claim_makes_an_administrator_of_the_tenants_it_names(client: httpx.AsyncClient) -> None:
    async def may(tenants: list[str]) -> httpx.Response:
        return await client.get(f"{TENANT}/authorizations", headers=token(zuul={"admin": tenants}))

    assert (await may(["example"])).json()["zuul"]["admin"]
    assert (await may(["another"])).status_code == 403
    answer = await client.post(
        "/api/component/web/x", json={"state": "paused"}, headers=token(zuul={"admin": ["example"]})
    )
    assert answer.status_code == 403, "processes are not one tenant's"


def local(access: Access, client: tuple[str, int] | None, **headers: str) -> bool:
    scope: Any = {  # as a server makes it
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "client": client,
        "state": {},
    }
    return access.bearer(HttpRequest(scope)) is not None


def test_wherever_a_request_comes_from_it_needs_a_token() -> None:
    for access in (Access(), Access("a token")):
        for client in (("127.0.0.1", 1), ("::1", 1), ("10.0.0.1", 1), None):
            assert not local(access, client)
    assert local(Access("a token"), ("10.0.0.1", 1), authorization="Bearer a token")
    for wrong in ("Bearer another", "Bearer ", "Bearer", "Basic YTpi", "a token"):
        with pytest.raises(HTTPException) as refused:
            local(Access("a token"), ("127.0.0.1", 1), authorization=wrong)
        assert refused.value.status_code == 401
    with pytest.raises(HTTPException):
        local(Access(""), ("127.0.0.1", 1), authorization="Bearer  ")


def filled(type: inspect.Type) -> Any:
    """Return some value of a type that a request's body may have."""
    match type:
        case inspect.StructType() as struct:
            return {f.encode_name: filled(f.type) for f in struct.fields if f.required}
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.UnionType(types=types):
            return filled(types[0])
        case inspect.ListType() | inspect.VarTupleType():
            return []
        case inspect.IntType():
            return 1
        case inspect.BoolType():
            return True
    return "x"


async def test_readers_are_refused_by_every_route_that_writes(client: httpx.AsyncClient) -> None:
    """Each writing route is called with a body that it takes, so that no refusal of the body hides a missing check."""
    reader, answers = token(groups=["readers"]), dict[str, int]()
    assert (await client.get(f"{TENANT}/status", headers=reader)).status_code == 200
    for route in ROUTES:
        for method in {*route.methods} - {"GET", "HEAD", "OPTIONS"}:
            for path in route.paths:
                place = re.sub(r"\{(\w+):\w+\}", lambda m: VALUES.get(m[1], "x"), path)
                hints = get_type_hints(route.fn, include_extras=True)
                if path.endswith("/project/{rest:path}"):  # the end of the name determines the body
                    body = ENQUEUE
                else:
                    body = filled(inspect.type_info(get_args(hints["data"])[0])) if "data" in hints else {}
                found = await client.request(method, place, json=body, headers=reader)
                answers[f"{method} {path}"] = found.status_code
    others = {path.rpartition("/")[2]: status for path, status in answers.items() if status != 403}
    assert len(answers) > 25 and others == {
        **dict.fromkeys(("approve", "recheck", "remark"), 404),  # readers may learn that there is no change "x"
        **dict.fromkeys(("payload", "logout"), 404),  # no such forge; nobody can log in here
    }


async def test_a_route_that_forgets_to_check_its_caller_does_nothing(
    tmp_path: Path, repositories: Repositories, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    @post("/api/forgetful", status_code=200)
    async def forgetful(site: Site, request: HttpRequest) -> bool:
        """Perform the action for anybody."""

        async def work(besides: Sequence[Op]) -> None:
            done.append(besides)

        await Hand(site, request, "forget").does(work)
        return True

    monkeypatch.setattr("headgate.web.app.ROUTES", (*ROUTES, forgetful))
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANT_FILE) as running:
        site = site_of(running.context, running.scheduler.tenants, None, tmp_path, access)
        transport = httpx.ASGITransport(create_app(site), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://headgate.example") as client:
            answer = await client.post("/api/forgetful", json={}, headers=token(groups=["ops"]))
    assert answer.status_code == 500 and not done
