"""Test that nobody can log in as somebody else, and no foreign page can act for people who are logged in."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from headgate.adapters.identity.tokens import authenticator
from headgate.adapters.sql.history import SqlHistory
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from headgate.web.access import Access, Realm, Rules
from headgate.web.app import create_app
from headgate.web.peers.requests import CheckedApplication
from headgate.web.routes.login import OF_PEER_MAX, RETURNING_MAX
from headgate.web.sessions import OF_ONE_MAX, LoginSessions
from headgate.web.site import Site
from tests.integration.conftest import PIPELINES
from tests.site import site_of
from tests.waiting import until

from .pretender import GATE, KEY, OTHER_KEY, PEM, Pretender, jwk, pretending

TENANT_FILE = """
- authorization-rule: {name: operators, conditions: [{groups: ops}]}
- tenant:
    name: example
    source: {local: {config-projects: [config]}}
    admin-rules: [operators]
    access-rules: [operators]
"""
HERE = "http://gate.example"
STATUS = "/api/tenant/example/status"
STATE = "/api/tenant/example/state"


class AheadClock:
    """The clock of this machine, which a test advances."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return int(time.time() * 1000) + self.ahead_ms


class Visitor:
    """Open the pages in a browser, with a pretender as provider."""

    def __init__(self, site: Site, provider: Pretender, clock: AheadClock) -> None:
        self.site, self.provider, self.clock = site, provider, clock
        self.app = CheckedApplication(create_app(site), shared=True)
        self.browser = self.another()

    def another(self, host: str = "127.0.0.1") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, client=(host, 123))
        return httpx.AsyncClient(transport=transport, base_url=HERE, timeout=DEADLINE_S)

    async def begins(self, next: str = "/t/example/status", browser: httpx.AsyncClient | None = None) -> str:
        """Return the state with which a person goes to the provider."""
        answer = await (browser or self.browser).get("/login", params={"next": next})
        assert answer.status_code == 303, answer.text
        query = {name: value[0] for name, value in parse_qs(urlsplit(answer.headers["location"]).query).items()}
        assert query["code_challenge_method"] == "S256" and query["redirect_uri"] == f"{HERE}/login/callback"
        self.provider.nonce = query["nonce"]
        return query["state"]

    async def comes_back(self, state: str, **more: str) -> httpx.Response:
        return await self.browser.get("/login/callback", params={"code": "code", "state": state, **more})

    async def logs_in(self, next: str = "/t/example/status", **more: str) -> httpx.Response:
        return await self.comes_back(await self.begins(next), **more)

    async def is_somebody(self) -> bool:
        assert (await self.browser.get("/health")).status_code == 200, "the pages go on"
        status = (await self.browser.get(STATUS)).status_code
        assert status in (200, 401)
        return status == 200

    def leaves(self) -> None:
        self.browser.cookies.clear()

    @property
    def cookie(self) -> str:
        return self.browser.cookies.get("headgate") or ""

    async def csrf(self) -> str:
        return str((await self.browser.get("/api/login")).json()["csrf"])

    async def writes(self, **headers: str) -> int:
        body, sent = (
            {"trigger_queue_paused": False, "reason": "of a test"},
            {k.replace("_", "-"): v for k, v in headers.items()},
        )
        return (await self.browser.post(STATE, json=body, headers=sent)).status_code


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    file = parse_tenant_file(TENANT_FILE, "tenants.yaml", {"local": Connection("local", "git.example")})
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": ""})
    history = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")
    clock = AheadClock()
    ran = gate(tmp_path, repositories.hub, MemoryBackend(), TENANT_FILE, recording=history, now_ms=clock.now_ms)
    with pretending() as provider:
        async with ran as running, running.context.store.session("web") as session:
            section = {"driver": "OpenIDConnect", "issuer_id": provider.issuer, "client_id": GATE}
            realm = Realm(authenticator("people", section, Path("headgate.conf")), "us")
            assert realm.authenticator.provider is not None
            realm.authenticator.provider.patience_s = DEADLINE_S
            rules = Rules(file.rules, file.roles, file.api_root)
            access = Access("", [realm], lambda: rules, sessions=LoginSessions(running.context))
            tenants = running.scheduler.tenants
            site = site_of(running.context, tenants, history, tmp_path, access, session)
            found = Visitor(site, provider, clock)
            async with asyncio.timeout(DEADLINE_S):
                await tenants["example"].loaded.wait()
            yield found
            await found.browser.aclose()
    history.close()


def unsigned(claims: dict[str, Any]) -> str:
    """Return a token that claims to be unsigned."""
    parts = (json.dumps(one).encode() for one in ({"alg": "none", "kid": "k1"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), ""])


def by_secret(claims: dict[str, Any], secret: bytes) -> str:
    """Return a token signed with public data used as a secret."""
    import hashlib
    import hmac

    parts = (json.dumps(one).encode() for one in ({"alg": "HS256", "kid": "k1", "typ": "JWT"}, claims))
    signed = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    proof = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(proof).decode().rstrip('=')}"


@pytest.mark.long
async def test_a_login_is_accepted_only_in_the_browser_that_began_it(visitor: Visitor) -> None:
    begun = await visitor.begins()
    other = visitor.another()
    theirs = await visitor.begins(browser=other)
    await other.aclose()
    for state in (theirs, "", "x", f"{begun}x"):
        answer = await visitor.comes_back(state)
        assert answer.status_code == 400 and "another login" in answer.text and not visitor.cookie
    assert "access_denied" in (await visitor.comes_back(begun, error="access_denied")).text
    assert (await visitor.comes_back(begun, iss="http://127.0.0.1:1")).status_code == 400, "of another provider"
    assert "/token" not in visitor.provider.requested
    assert "belongs to another login" in (await visitor.comes_back(begun)).text, (
        "the nonce is that of the other browser"
    )
    visitor.leaves()
    page = await visitor.browser.get("/login/callback", params={"state": begun}, headers={"Accept": "text/html"})
    assert (
        page.status_code == 400 and "this browser did not begin this login" in page.text and '<a href="/">' in page.text
    )
    assert not visitor.cookie
    for planted in ("a" * 43, "x"):
        visitor.browser.cookies.set("headgate", planted, domain="gate.example", path="/")
        assert not await visitor.is_somebody()
        assert (await visitor.logs_in()).status_code == 303
        assert visitor.cookie not in ("", planted) and await visitor.is_somebody()
        visitor.leaves()
    for elsewhere in (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/login",
        "javascript:x",
    ):
        assert (await visitor.logs_in(elsewhere)).headers["location"] == "/", elsewhere
    assert (await visitor.browser.get("/login", params={"next": "/\r\nX: y"})).status_code == 400
    for link in ("/t/example/status?q=a%20b", "/t/example/build/x"):
        assert (await visitor.logs_in(link)).headers["location"] == link
    for asking in (httpx.QueryParams({"realm": "another"}), httpx.QueryParams({"realm": "x" * 9_000})):
        assert (await visitor.browser.get("/login", params=asking)).status_code == 404


@pytest.mark.long
async def test_no_token_logs_in_that_the_provider_did_not_make_for_this_login(visitor: Visitor) -> None:
    provider = visitor.provider
    now = int(time.time())
    wrong: list[dict[str, Any]] = [
        {"aud": "another"}, {"aud": [GATE, "another"]}, {"azp": "another"}, {"iss": "http://127.0.0.1:1"},
        {"exp": now - 60}, {"iat": now + 600}, {"exp": str(now + 600)}, {"nonce": "another"},
        {"nonce": None}, {"sub": 7}, {"sub": "bob"}, {"zuul": {"admin": ["example"]}}, {"sub": "x" * 300},
    ]  # fmt: skip
    for claims in wrong:
        state = await visitor.begins()
        provider.claims = claims
        answer = await visitor.comes_back(state)
        assert answer.status_code in (400, 401) and not visitor.cookie, claims
        if "iat" in claims:
            assert "do the clocks agree" in answer.text
        if "aud" not in claims and "sub" not in claims:
            bearer = {"Authorization": f"Bearer {provider.token(**{**claims, 'exp': str(now + 600)})}"}
            assert (await visitor.browser.get(STATUS, headers=bearer)).status_code == 401
    provider.claims = {}
    for made in (
        lambda: unsigned(provider.valid_claims()),
        lambda: by_secret(provider.valid_claims(), PEM),
        lambda: by_secret(provider.valid_claims(), PEM.strip()),
        lambda: by_secret(provider.valid_claims(), GATE.encode()),
        lambda: by_secret(provider.valid_claims(), b""),
        lambda: provider.token(OTHER_KEY),
        lambda: provider.token(OTHER_KEY, kid="nobody's"),
        lambda: provider.token(KEY, "RS512"),
        lambda: "x.y.z",
        lambda: "",
    ):
        state = await visitor.begins()
        provider.answers["/token"] = json.dumps({"id_token": made(), "access_token": "x"}).encode()
        answer = await visitor.comes_back(state)
        assert answer.status_code == 400 and not visitor.cookie, answer.text
        bearer = {"Authorization": f"Bearer {made()}"}
        assert (await visitor.browser.get(STATUS, headers=bearer)).status_code == 401
    provider.answers.clear()
    assert (await visitor.logs_in()).status_code == 303 and await visitor.is_somebody(), "a good one does"
    good = {"Authorization": f"Bearer {provider.token()}"}
    assert (await visitor.another().get(STATUS, headers=good)).status_code == 200, "programs bring theirs"


@pytest.mark.long
async def test_a_provider_that_is_down_slow_or_verbose_delays_nobody(visitor: Visitor) -> None:
    provider = visitor.provider
    large, deep = b'{"id_token": "' + b"x" * 1_000_000 + b'"}', b"[" * 100_000
    for path, reply in (("/token", large), ("/token", deep), ("/me", large), ("/me", deep), ("/token", b"no JSON")):
        state = await visitor.begins()
        provider.answers = {path: reply}
        answer = await visitor.comes_back(state)
        assert (answer.status_code == 503 and "cannot be" in answer.text) or "more than" in answer.text, answer.text
        assert not visitor.cookie and not await visitor.is_somebody()
    provider.answers = {}
    provider.userinfo = {"groups": ["ops"], "motto": "x" * 100_000}
    answer = await visitor.logs_in()
    assert answer.status_code == 400 and "8,192" in answer.text and not visitor.cookie
    provider.claims = {"acr": "gold", "amr": ["otp"], "jti": "x"}
    provider.userinfo = {"name": "<b>ann\r\nSet-Cookie: x=y\u202e\x1b[31m", "preferred_username": "a" * 1_000}
    answer = await visitor.logs_in()
    assert answer.status_code == 303 and len(answer.headers.get_list("set-cookie")) == 2
    (entry,) = visitor.site.context.mirror.under(visitor.site.context.map.logins.path)
    claims = visitor.site.context.map.logins.decode(entry.value).claims
    assert (claims["acr"], claims["amr"]) == ("gold", ["otp"]) and "jti" not in claims, (
        "rules may ask how somebody logged in"
    )
    name = (await visitor.browser.get("/api/login")).json()["name"]
    assert name.startswith("<b>ann") and name.isprintable() and len(name) < 120
    provider.going.clear()
    stranger = visitor.another()
    begun = asyncio.ensure_future(visitor.comes_back(await visitor.begins()))
    headers = {"Authorization": f"Bearer {provider.token(kid='new')}"}
    waits = asyncio.ensure_future(stranger.get(STATUS, headers=headers))
    assert await visitor.is_somebody() and not begun.done(), "others are answered meanwhile"
    provider.keys.append(jwk(KEY, "new"))
    provider.going.set()
    assert (await begun).status_code == 303
    await waits
    before, known = provider.requested.count("/jwks"), visitor.site.access.realms[0].authenticator.provider
    assert known is not None
    moment = known.now_s()
    known.now_s = lambda: moment
    for n in range(20):
        headers = {"Authorization": f"Bearer {provider.token(kid=f'unknown-{n}')}"}
        assert (await stranger.get(STATUS, headers=headers)).status_code == 401
    assert provider.requested.count("/jwks") - before <= 1, "it is not asked for each"
    await stranger.aclose()


@pytest.mark.long
async def test_the_number_of_simultaneous_returns_from_a_provider_is_limited(visitor: Visitor) -> None:
    provider, login = visitor.provider, visitor.site.access.sessions
    assert login is not None
    state = await visitor.begins()
    provider.going.clear()
    coming = [asyncio.ensure_future(visitor.comes_back(state)) for _ in range(RETURNING_MAX + 20)]
    other = visitor.another()
    for number, one in enumerate(asyncio.as_completed(coming, timeout=DEADLINE_S), 1):
        answer = await one
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        if number == 20 + OF_PEER_MAX:
            break
    refused = await other.get("/login/callback", params={"state": state, "code": "code"})
    assert refused.status_code == 503 and len(login.returning) == OF_PEER_MAX, "nobody frees the place of another"
    await other.aclose()
    elsewhere = visitor.another("10.1.1.1")
    comes = {"state": await visitor.begins(browser=elsewhere), "code": "code"}
    waiting = asyncio.ensure_future(elsewhere.get("/login/callback", params=comes))
    async with asyncio.timeout(DEADLINE_S):
        while "10.1.1.1" not in login.returning.values():
            assert not waiting.done(), "one address has half of the places, and others have theirs"
            await asyncio.sleep(0)
    provider.going.set()
    await asyncio.gather(*coming, waiting)
    await elsewhere.aclose()
    assert not login.returning and (await visitor.logs_in()).status_code == 303


@pytest.mark.long
async def test_logging_out_ends_open_event_streams(visitor: Visitor) -> None:
    assert (await visitor.logs_in()).status_code == 303
    csrf, porter = await visitor.csrf(), visitor.site.audience.porter
    looking = asyncio.ensure_future(visitor.browser.get("/api/tenant/example/events"))
    async with asyncio.timeout(DEADLINE_S):
        await until("the stream is open", lambda: porter.pid, every_s=0.01)
        assert not looking.done(), "it goes on"
        headers = {"Origin": HERE, "X-Headgate-CSRF": csrf}
        assert (await visitor.browser.post("/logout", json={}, headers=headers)).status_code == 200
        assert (await looking).status_code == 200
    assert (await visitor.browser.get("/api/tenant/example/events")).status_code == 401


@pytest.mark.long
async def test_logging_out_is_final_and_logins_of_one_person_are_limited(visitor: Visitor) -> None:
    assert (await visitor.logs_in()).status_code == 303
    cookie, csrf, context = visitor.cookie, await visitor.csrf(), visitor.site.context
    assert all(cookie not in f"{entry.path}{entry.value!r}" for entry in context.mirror.under(context.map.logins.path))
    assert (await visitor.browser.post("/logout", json={}, headers={"Origin": HERE})).status_code == 403
    assert await visitor.is_somebody()
    login = visitor.site.access.sessions
    assert login is not None
    (entry,) = context.mirror.under(context.map.logins.path)
    answer = await visitor.browser.post("/logout", json={}, headers={"Origin": HERE, "X-Headgate-CSRF": csrf})
    assert answer.status_code == 200 and not visitor.cookie
    visitor.browser.cookies.set("headgate", cookie, domain="gate.example", path="/")
    assert not await visitor.is_somebody() and login.of(entry.path.rpartition("/")[2]) is None
    assert await visitor.writes(Origin=HERE, X_Headgate_CSRF=csrf) == 401
    visitor.leaves()
    ended = context.map.logins.decode(entry.value)
    for _ in range(OF_ONE_MAX + 5):
        await login.begin(ended)
    assert (await visitor.logs_in()).status_code == 303
    assert len(context.mirror.under(context.map.logins.path)) == OF_ONE_MAX and await visitor.is_somebody()
    visitor.clock.ahead_ms = 28_800_001
    assert not await visitor.is_somebody(), "it ends by itself"


async def socket_of(visitor: Visitor, origin: str, csrf: str, token: str | None = None) -> list[dict[str, Any]]:
    """Return what a socket that follows a log receives."""
    text = json.dumps({"uuid": "a" * 32, "logfile": "console.log", "csrf": csrf, "token": token})
    received = iter([{"type": "websocket.connect"}, {"type": "websocket.receive", "text": text}])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(received, {"type": "websocket.disconnect", "code": 1000})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    path = "/api/tenant/example/console-stream"
    headers = {"host": "gate.example", "origin": origin, "cookie": f"headgate={visitor.cookie}"}
    scope = {
        "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "ws", "state": {},
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "subprotocols": [],
        "client": ("10.0.0.1", 1), "server": ("gate.example", 80), "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    await visitor.app(scope, receive, send)
    return sent


@pytest.mark.long
async def test_pages_of_other_origins_neither_act_nor_read_for_people_who_are_logged_in(visitor: Visitor) -> None:
    assert (await visitor.logs_in()).status_code == 303
    csrf = await visitor.csrf()
    elsewhere = (
        "https://evil.example",
        "http://gate.example:8000",
        "https://gate.example",
        "http://a.gate.example",
        "null",
    )
    for origin in elsewhere:
        assert await visitor.writes(Origin=origin, X_Headgate_CSRF=csrf) == 403, origin
        for site in ("cross-site", "same-site"):
            fetched = {"Origin": origin, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors"}
            answer = await visitor.browser.get(STATUS, headers=fetched)
            assert answer.status_code == 401 and "access-control-allow-credentials" not in answer.headers
            assert (await visitor.browser.get("/api/login", headers=fetched)).json()["csrf"] == ""
        assert [one.get("code") for one in await socket_of(visitor, origin, csrf)][-1] in (1008, 4000), origin
    for mode, dest in (("no-cors", "script"), ("no-cors", "image"), ("navigate", "iframe"), ("cors", "empty")):
        for site in ("cross-site", "same-site"):
            fetched = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
            for path in (STATUS, "/api/tenant/example/events", "/api/tenants"):
                async with visitor.browser.stream("GET", path, headers=fetched) as answer:
                    empty = answer.status_code == 200 and await answer.aread() == b"[]"
                    assert answer.status_code == 401 or empty, (path, fetched)
    for headers in ({}, {"Origin": HERE}, {"X-Headgate-CSRF": csrf}, {"Origin": HERE, "X-Headgate-CSRF": f"{csrf}x"}):
        assert await visitor.writes(**headers) == 403, headers
    assert [one.get("code") for one in await socket_of(visitor, HERE, "")][-1] == 4000
    deep = base64.urlsafe_b64encode(b"[" * 30_000).decode().rstrip("=")
    for token in (f"{deep}.e30.x", f"e30.{deep}.x", f"eyJhbGciOiJSUzI1NiJ9.{deep}.x", "\u00e9.\u20ac.x", "x", "." * 40):
        assert [one.get("code") for one in await socket_of(visitor, HERE, csrf, token)][-1] == 4000, token[:20]
    assert await visitor.writes(Origin=HERE, X_Headgate_CSRF=csrf, Content_Type="text/plain") == 415
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert (await visitor.browser.options(STATE, headers=preflight)).status_code == 403
    assert await visitor.writes(Origin=HERE, X_Headgate_CSRF=csrf) == 200, "its own page does"
    assert [one.get("code") for one in await socket_of(visitor, HERE, csrf)][-1] == 4011, "and follows logs"
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await visitor.browser.get(STATUS, headers=followed)).status_code == 200, "and people follow links"
    (done,) = (await visitor.browser.get("/api/tenant/example/actions")).json()
    assert done["who"] == "ann" and done["authenticator"] == "people" and done["reason"] == "of a test"
