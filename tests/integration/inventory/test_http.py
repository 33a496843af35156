"""Test the JSON interface: the same answers, under the statuses of HTTP."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from headgate.base.errors import UserError
from headgate.base.tasks import run_until
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.inventory import Inventory
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import DEADLINE_S
from headgate.web.inventory.http import ROUTES, create_app
from headgate.web.inventory.identity import CallerSessions, Identity, Trusting, Verifying
from headgate.web.inventory.server import REQUEST_SIZE_MAX_BYTES, V1, v1_parts
from headgate.web.peers.connections import Tls
from headgate.web.server import serve
from tests.integration.inventory.authority import Authority

HEADERS = {"headgate-user": "alice", "headgate-project": "blue", "headgate-partition": "site"}


class Web:
    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.root, self._tls = f"{'https' if tls else 'http'}://127.0.0.1:{port}", tls

    def with_tls(self, tls: ssl.SSLContext) -> Web:
        return Web(int(self.root.rpartition(":")[2]), tls)

    async def __call__(self, verb: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        return await asyncio.to_thread(self._ask, verb, path, body, {**HEADERS, **headers})

    def _ask(self, verb: str, path: str, body: object, headers: dict[str, str]) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        try:
            with urlopen(
                Request(self.root + path, data, headers, method=verb), timeout=DEADLINE_S, context=self._tls
            ) as answer:
                return answer.status, json.load(answer)
        except HTTPError as refused:
            return refused.code, json.load(refused)

    def lines(self, path: str, body: object) -> Iterator[Any]:
        request = Request(self.root + path, json.dumps(body).encode(), HEADERS, method="POST")
        with urlopen(request, timeout=DEADLINE_S, context=self._tls) as answer:
            for line in answer:
                yield json.loads(line)


@asynccontextmanager
async def served(
    identity: Identity | None = None, tls: Tls | None = None, clock: Callable[[], int] = lambda: 1_000
) -> AsyncIterator[Web]:
    inventory = Inventory(Store(MemoryBackend()), InventoryMap(), clock)
    await inventory.begin()
    sessions = CallerSessions(identity or Trusting(), inventory)
    app = create_app(v1_parts(sessions, inventory), sessions)
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    web = serve(app, "127.0.0.1", 0, stop, port.set_result, tls=tls)
    running = asyncio.ensure_future(run_until(stop, inventory.journal.run(), web))
    try:
        yield Web(await port)
    finally:
        stop.set()
        await running


def machine(name: str) -> dict[str, Any]:
    return {"create": {"type": "runm.machine", "name": name, "properties": {"zone": "a/b"}, "tags": ["fast"]}}


async def test_objects_can_be_created_read_and_changed_over_http() -> None:
    async with served() as web:
        assert (await web("PUT", "/v1/partitions", {"partition": {"name": "site"}}))[0] == 200
        status, made = await web("POST", "/v1/objects/apply", {"steps": [machine("m1"), machine("m2")]})
        assert status == 200 and [o["name"] for o in made["objects"]] == ["m1", "m2"]
        uuid = made["objects"][0]["uuid"]
        assert (await web("GET", f"/v1/objects/{uuid}"))[1] == made["objects"][0]
        wanted = {"any": [{"require_items": [{"key": "zone", "value": "a/b"}], "require_tags": ["fast"]}]}
        status, found = await web("POST", "/v1/objects/search", {**wanted, "limit": 1, "with_count": True})
        assert found["count"] == "2" and [o["name"] for o in found["objects"]] in (["m1"], ["m2"])
        assert (await web("GET", f"/v1/objects/{uuid}/history"))[1]["changes"][0]["kind"] == "CREATED"

        def watched_name() -> str:
            for line in web.lines("/v1/objects/watch", {"revision": "1"}):
                for change in line.get("changes", ()):
                    return str(change["new"]["name"])
            return ""

        assert await asyncio.to_thread(watched_name) == "m1"
        status, types = await web("GET", "/v1/types")
        assert "runm.machine" in [one["code"] for one in types["types"]]
        assert (await web("GET", "/v1/definitions?place.type=runm.provider&exact=true"))[0] == 200


async def test_refusals_over_http_have_the_right_status() -> None:
    async with served() as web:
        await web("PUT", "/v1/partitions", {"partition": {"name": "site"}})
        await web("POST", "/v1/objects/apply", {"steps": [machine("m1")]})
        for expected, verb, path, body in (
            (400, "POST", "/v1/objects/apply", b"{"),
            (400, "POST", "/v1/objects/apply", b"[]"),
            (400, "POST", "/v1/objects/apply", {"steps": 7}),
            (400, "POST", "/v1/objects/apply", {"colour": "red"}),
            (400, "POST", "/v1/objects/search", b'{"any":' * 5_000),
            (400, "GET", "/v1/objects/none", None),
            (400, "GET", "/v1/definitions?place=x&place.type=y", None),
            (404, "GET", f"/v1/objects/{'f' * 32}", None),
            (404, "GET", "/v1/nowhere", None),
            (409, "POST", "/v1/objects/apply", {"steps": [machine("m1")]}),
            (412, "DELETE", "/v1/partitions/nowhere", None),
            (412, "DELETE", "/v1/partitions/site", None),
            (405, "DELETE", "/v1/objects/apply", None),
        ):
            status, answer = await web(verb, path, body)
            assert (status, bool(answer["detail"])) == (expected, True), (verb, path, answer)
        assert (await web("POST", "/v1/objects/watch", {"revision": "1"}, **{"headgate-partition": ""}))[0] == 412
        large = {"Content-Length": str(REQUEST_SIZE_MAX_BYTES + 1)}
        assert (await web("POST", "/v1/objects/apply", b"{}", **large))[0] == 413


async def test_the_openapi_description_has_every_method() -> None:
    async with served() as web:
        status, found = await web("GET", "/openapi.json")
        assert status == 200
        operations = [one["operationId"] for path in found["paths"].values() for one in path.values()]
        assert sorted(operations) == sorted(V1.methods_by_name) == sorted(route.method for route in ROUTES)
        text = json.dumps(found)
        for name in found["components"]["schemas"]:
            assert f"#/components/schemas/{name}" in text
        references = {one.split('"')[0] for one in text.split("#/components/schemas/")[1:]}
        assert references == set(found["components"]["schemas"])


async def test_a_client_certificate_says_who_calls_over_https(tmp_path: Path) -> None:
    authority = Authority()
    certificates = {
        "server": authority.issue("localhost"),
        "alice": authority.issue("alice", project="blue", partition="site"),
    }
    certificates["root"] = authority.issue("root", project="blue", role="operator")
    for name, (certificate, key) in certificates.items():
        (tmp_path / f"{name}.pem").write_bytes(certificate + key)
    (tmp_path / "ca.pem").write_bytes(authority.pem)

    def shown(name: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        context.check_hostname = False
        if name:
            context.load_cert_chain(tmp_path / f"{name}.pem")
        return context

    tls = Tls(tmp_path / "server.pem", tmp_path / "server.pem", tmp_path / "ca.pem")
    async with served(Verifying(), tls) as web:
        alice, root = web.with_tls(shown("alice")), web.with_tls(shown("root"))
        site = {"partition": {"name": "site"}}
        assert (await root("PUT", "/v1/partitions", site, **{"headgate-user": "root"}))[0] == 200
        assert (await alice("PUT", "/v1/partitions", site))[0] == 403
        assert (await alice("POST", "/v1/objects/apply", {"steps": [machine("m")]}))[0] == 200
        assert (await alice("POST", "/v1/objects/search", {}, **{"headgate-user": "bob"}))[0] == 403
        with pytest.raises((URLError, OSError)):
            await web.with_tls(shown(""))("GET", "/v1/partitions")
        with pytest.raises((URLError, OSError)):
            await web("GET", "/v1/partitions")


async def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_bytes(b"")
    tls = Tls(tmp_path / "empty.pem", tmp_path / "empty.pem")
    with pytest.raises(UserError, match="cannot be used"):
        await serve(None, "127.0.0.1", 0, asyncio.Event(), lambda port: None, tls=tls)


LATE = b"POST /v1/nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


async def test_an_answer_is_not_lost_because_the_body_comes_after_it() -> None:
    async with served() as web, asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(web.root.rpartition(":")[2]))
        for _ in range(3):
            writer.write(LATE % 8)
            assert (await reader.readuntil(b"\r\n")).split()[1] == b"404"
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
            writer.write(b"too late")
        writer.close()


async def test_a_body_without_end_is_cut_off_once_it_is_answered() -> None:
    async with served() as web, asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(web.root.rpartition(":")[2]))
        writer.write(LATE % 10**9)
        assert (await reader.readuntil(b"\r\n")).split()[1] == b"404"
        with pytest.raises(ConnectionError):
            for _ in range(10**9 // 2**16):
                writer.write(bytes(2**16))
                await writer.drain()
        writer.close()
