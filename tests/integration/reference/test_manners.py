"""Test what holds for all calls: errors, tokens, methods, caching."""

from __future__ import annotations

import gzip
import json
import re
import time
from typing import Any

import httpx
import pytest
import yaml

from headgate.store.types import StoreError

from .conftest import AXIOS, TENANT, World, token

TENANT_PATH = "/api/tenant/{tenant}"
DEQUEUE = f"{TENANT}/project/code/api/dequeue"
BODY = {"pipeline": "gate", "change": "none"}


async def test_an_error_is_json_for_programs_and_html_for_clients_that_accept_it(world: World) -> None:
    cases: tuple[tuple[str, str, int], ...] = (
        ("GET", "/api/nothing", 404),
        ("GET", "/api/tenant/nobody/status", 404),
        ("DELETE", "/api/tenants", 405),
        ("GET", f"{TENANT}/builds?limit=x", 400),
        ("POST", DEQUEUE, 401),
    )
    for method, path, status in cases:
        body = BODY if method == "POST" else None
        plain = await world.client.request(method, path, json=body)
        assert plain.status_code == status, plain.text
        answer = plain.json()
        assert (
            answer["error"] and answer["description"] and plain.headers["content-type"].startswith("application/json")
        )
        for accept in (AXIOS, "text/html"):
            page = await world.client.request(method, path, json=body, headers={"Accept": accept})
            assert page.status_code == status and page.headers["content-type"].startswith("text/html")
            assert re.search("<p>(.+?)</p>", page.text, re.DOTALL), page.text
        only = await world.client.request(method, path, json=body, headers={"Accept": "application/json"})
        assert only.json() == answer


async def test_html_in_answers_is_escaped(world: World) -> None:
    page = await world.client.get("/api/tenant/<script>x/status", headers={"Accept": "text/html"})
    assert page.status_code == 404 and "<script>" not in page.text and "&lt;script&gt;" in page.text


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ({}, "MissingAuthError"),
        ({"Authorization": "Basic YTpi"}, "InvalidAuthFormat"),
        ({"Authorization": "Bearer nothing"}, "AuthTokenUndecodedException"),
        ({"iss": "another"}, "IssuerUnknownError"),
        ({"aud": "another"}, "IncorrectAudienceError"),
        ({"exp": 1}, "TokenExpiredError"),
        ({"exp": None}, "MissingClaimError"),
        ({"sub": None}, "MissingUIDClaimError"),
        ({"zuul": {"admin": "example"}}, "IncorrectZuulAdminClaimError"),
    ],
)
async def test_a_refusal_is_named_as_the_reference_names_it(world: World, header: dict[str, Any], error: str) -> None:
    given = header if "Authorization" in header or not header else token(**header)
    answer = await world.client.post(DEQUEUE, json=BODY, headers=given)
    assert answer.status_code == 401
    body = answer.json()
    assert (body["error"], body["realm"]) == (error, "our-realm") and body["description"]
    assert answer.headers["www-authenticate"].startswith('Bearer realm="our-realm"')


async def test_a_signature_of_another_is_named(world: World) -> None:
    other = token()["Authorization"].rpartition(".")[0] + "." + "A" * 43
    answer = await world.client.post(DEQUEUE, json=BODY, headers={"Authorization": other})
    assert (answer.status_code, answer.json()["error"]) == (401, "AuthTokenInvalidSignatureException")


async def test_a_token_needs_no_time_of_issue(world: World) -> None:
    for more in ({}, {"iat": time.time()}):
        answer = await world.client.post(DEQUEUE, json=BODY, headers=token(**more))
        assert answer.status_code == 404 and answer.json()["error"] == "Not Found"


async def test_an_invalid_token_does_not_block_public_addresses(world: World) -> None:
    for path in ("/api/tenants", f"{TENANT}/builds", f"{TENANT}/autohold", f"{TENANT}/actions"):
        answer = await world.client.get(path, headers=token(exp=1))
        assert answer.status_code == 200, path


async def test_a_head_is_a_get_without_its_body(world: World) -> None:
    for path in ("/api/tenants", f"{TENANT}/status", f"{TENANT}/jobs", "/api/nothing", f"{TENANT}/events"):
        head = await world.client.head(path)
        assert head.content == b"", path
        if path.endswith("events"):
            assert head.status_code == 200
            continue
        answer = await world.client.get(path, headers={"Accept-Encoding": "identity"})
        assert head.status_code == answer.status_code
        assert head.headers["content-type"] == answer.headers["content-type"]
    assert (await world.client.head(DEQUEUE)).status_code == 404


async def test_slashes_that_repeat_count_as_one(world: World) -> None:
    for path in ("/api//tenant/example//jobs", "//api/tenant/example/jobs"):
        answer = await world.client.get(f"http://headgate.example{path}")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache"), path
    missing = await world.client.delete(f"{TENANT}//autohold/0000000001", headers=token())
    assert (missing.status_code, missing.json()["description"]) == (404, "Hold request 0000000001 not found.")


async def test_an_unchanged_answer_is_not_sent_again(world: World) -> None:
    for path in (f"{TENANT}/jobs", f"{TENANT}/builds", "/api/tenants", f"{TENANT}/status"):
        first = await world.client.get(path)
        assert first.headers["cache-control"] == "no-cache" and "Authorization" in first.headers["vary"], path
        for known in (first.headers["etag"], f'"x", {first.headers["etag"]}', "*"):
            again = await world.client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b""), path
        assert (await world.client.get(path, headers={"If-None-Match": 'W/"x"'})).status_code == 200


async def test_answers_are_compressed_for_clients_that_accept_it(world: World) -> None:
    async def raw(accept: str) -> httpx.Response:
        request = world.client.build_request("GET", "/api", headers={"Accept-Encoding": accept})
        return await world.client.send(request, stream=True)

    plain = await raw("identity")
    content = b"".join([piece async for piece in plain.aiter_raw()])
    assert "content-encoding" not in plain.headers and "Accept-Encoding" in plain.headers["vary"]
    small = await raw("br, gzip;q=0.8")
    packed = b"".join([piece async for piece in small.aiter_raw()])
    assert small.headers["content-encoding"] == "gzip" and int(small.headers["content-length"]) == len(packed)
    assert json.loads(gzip.decompress(packed)) == json.loads(content)
    assert len(packed) < len(content)
    refused = await raw("gzip;q=0")
    assert "content-encoding" not in refused.headers
    await refused.aclose()


async def test_without_the_store_whatever_needs_it_is_503(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreError("nobody answers")

    monkeypatch.setattr(type(world.running.context.store), "list", away)
    monkeypatch.setattr(type(world.running.context.store), "commit", away)
    for method, path, body in (
        ("GET", "/api/queues", None),
        ("POST", f"{TENANT}/state", {"reason": "x"}),
        ("POST", f"{TENANT}/approval", {"project": "code/api", "change": "x"}),
    ):
        answer = await world.client.request(method, path, json=body, headers=token())
        assert answer.status_code == 503, f"{path}: {answer.text}"
        assert "nobody answers" in answer.json()["description"]


@pytest.mark.long
async def test_the_paths_are_listed_and_described(world: World) -> None:
    listed = await world.get("/api")
    assert {"/api/tenants", "/api/tenant/{tenant}/builds", "/api/tenant/{tenant}/project/{project:.*}"} <= {
        *listed.values()
    }
    assert all(path.startswith("/api/") and "{rest" not in path for path in listed.values())
    page = await world.client.get("/api", headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    described = await world.client.get("/openapi.yaml")
    assert described.status_code == 200 and "/api/tenant/{tenant}/status:" in described.text
    paths = {path: of for path, of in yaml.safe_load(described.text)["paths"].items() if path.startswith("/api/")}
    former = {path for path, of in paths.items() if all(one.get("deprecated") for one in of.values())}
    assert former == {"/api/troubles"}, "a former name still works, and is not listed"
    every = paths.keys() - former
    assert {path.replace(":.*", "") for path in listed.values()} == every | {f"{TENANT_PATH}/console-stream"}
