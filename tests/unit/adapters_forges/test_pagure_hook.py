"""Test deliveries of Pagure: which are refused, which are ignored, and where the others announce an event."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import httpx
import pytest

from headgate.adapters.forges.pagure.client import (
    REQUESTS_MAX,
    TOKEN_AGAIN_S,
    PagureAccount,
    PagureClient,
    PagureSecrets,
    account,
)
from headgate.adapters.forges.pagure.forge import BODY_MAX_BYTES, hint
from headgate.adapters.forges.pagure.reporter import voteless
from headgate.base.errors import UserError
from headgate.ports.forge import Hint, Ignored, Misdelivered, Unsure

WEB = "https://git.example/code"
PROJECT = "git.example/acme/rocket"
OPEN, CLOSED = {"id": 7, "status": "Open"}, {"id": 7, "status": "Closed"}
MERGED = {"id": 7, "status": "Merged", "commit_stop": "a" * 40}


def an_account(**more: Any) -> PagureAccount:
    return PagureAccount("hub", WEB, "git.example", WEB, "t", **more)


def signed(body: bytes, token: str = "open sesame", **more: str) -> dict[str, str]:
    mac = hmac.new(token.encode(), body, hashlib.sha1).hexdigest()
    return {"x-pagure-signature": mac, "x-pagure-project": "acme/rocket", **more}


def outcome(body: bytes, headers: dict[str, str], **more: Any) -> Hint | Ignored | Unsure:
    one = an_account(**({"webhook_token": "open sesame"} | more))
    secrets = PagureSecrets(PagureClient(one, httpx.AsyncClient))
    return hint(one, secrets, {"headgate"}, lambda project: project == PROJECT, headers, body)


def delivered(topic: str, **fields: Any) -> Hint | Ignored | Unsure:
    body = json.dumps({"topic": topic, "msg": {"agent": "ada", **fields}, "msg_id": "2026-x", "i": 3}).encode()
    return outcome(body, signed(body))


@pytest.mark.parametrize(
    ("headers", "status", "why"),
    [
        ({"x-pagure-signature": ""}, 401, "not signed"),
        ({"x-pagure-signature": "0" * 40}, 401, "the signature is wrong"),
        ({"x-pagure-signature": "é\udcff"}, 401, "the signature is wrong"),
        ({"x-pagure-signature-256": "0" * 64}, 401, "the signature is wrong"),
        ({"x-pagure-project": ""}, 400, "names no project"),
        ({"x-pagure-project": "acme/../secret"}, 400, "names no project"),
        ({"x-pagure-project": "acme/rocket?x"}, 400, "names no project"),
        ({"x-pagure-project": "acme/other"}, 401, "the signature is wrong"),
    ],
)
def test_a_delivery_with_an_invalid_signature_is_refused(headers: dict[str, str], status: int, why: str) -> None:
    with pytest.raises(Misdelivered, match=why) as refused:
        outcome(b"{}", signed(b"{}") | headers)
    assert refused.value.status == status
    assert "open sesame" not in str(refused.value)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"topic": 3, "msg": {}}', b"[" * 100_000, b"\xff"])
def test_a_signed_delivery_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(Misdelivered, match="not in Pagure's format") as refused:
        outcome(body, signed(body))
    assert refused.value.status == 400


def test_the_better_signature_and_the_token_of_the_very_project_count() -> None:
    body = json.dumps({"topic": "git.receive", "msg": {"branch": "main"}}).encode()
    good = {"x-pagure-signature-256": hmac.new(b"own", body, hashlib.sha256).hexdigest()}
    own = {"webhook_tokens": {"acme/rocket": "own"}}
    assert isinstance(outcome(body, signed(body, "x") | good, **own), Hint)
    with pytest.raises(Misdelivered, match="wrong"):
        outcome(body, signed(body), **own)
    with pytest.raises(Misdelivered) as huge:
        outcome(b"x" * (BODY_MAX_BYTES + 1), {})
    assert huge.value.status == 413


@pytest.mark.parametrize(
    ("topic", "fields", "found"),
    [
        ("pull-request.new", {"pullrequest": OPEN}, Hint("2026-x", PROJECT, "7")),
        ("pull-request.comment.added", {"pullrequest": OPEN}, Hint("2026-x", PROJECT, "7")),
        ("pull-request.tag.added", {"pull_request": OPEN}, Hint("2026-x", PROJECT, "7")),
        ("pull-request.assigned.added", {"request": OPEN}, Hint("2026-x", PROJECT, "7")),
        ("pull-request.closed", {"pullrequest": MERGED, "merged": True}, Hint("2026-x", PROJECT, "7")),
        (
            "pull-request.closed",
            {"pullrequest": MERGED, "merged": True, "agent": "headgate"},
            Hint("2026-x", PROJECT, "7", commit="a" * 40),
        ),
        ("pull-request.flag.updated", {"pullrequest": OPEN}, Hint("2026-x", PROJECT, "7")),
        ("git.receive", {"branch": "rel/50%#é"}, Hint("2026-x", PROJECT, ref="refs/heads/rel/50%#é")),
        ("git.branch.deletion", {"branch": "old"}, Hint("2026-x", PROJECT, ref="refs/heads/old")),
        ("git.tag.creation", {"tag": "1.0"}, Hint("2026-x", PROJECT, ref="refs/tags/1.0")),
        ("project.edit", {}, Hint("2026-x", PROJECT)),
    ],
)
def test_each_topic_becomes_a_hint(topic: str, fields: dict[str, Any], found: Hint) -> None:
    assert delivered(topic, **fields) == found


@pytest.mark.parametrize(
    ("topic", "fields", "why"),
    [
        ("pull-request.comment.added", {"pullrequest": OPEN, "agent": "headgate"}, "caused it itself"),
        ("pull-request.flag.added", {"pullrequest": OPEN, "agent": "headgate"}, "caused it itself"),
        ("pull-request.comment.added", {"pullrequest": CLOSED}, "the change is closed"),
        ("pull-request.new", {}, "names no pull request"),
        ("pull-request.new", {"pullrequest": {"id": -1}}, "names no pull request"),
        ("git.receive", {}, "names no ref"),
        ("issue.new", {"issue": {"id": 3}}, "issue.new is not relevant"),
        ("commit.flag.added", {}, "is not relevant"),
    ],
)
def test_irrelevant_deliveries_are_ignored(topic: str, fields: dict[str, Any], why: str) -> None:
    found = delivered(topic, **fields)
    assert isinstance(found, Ignored) and why in found.why


class Now:
    s = 1_000.0


async def test_invented_projects_cause_few_requests_for_tokens_and_new_tokens_are_found() -> None:
    """Invented project names cause few requests to Pagure; a new token is found."""
    tokens, requests, now = {"acme/rocket": "one"}, list[str](), Now()

    def answer(request: httpx.Request) -> httpx.Response:
        name = request.url.path.removeprefix("/code/api/0/").removesuffix("/webhook/token")
        if request.method == "POST":
            return httpx.Response(200, stream=httpx.ByteStream(b'{"username": "headgate"}'))
        requests.append(name)
        body = {"webhook": {"token": tokens[name]}} if name in tokens else {"error": "Project not found"}
        return httpx.Response(200 if name in tokens else 404, stream=httpx.ByteStream(json.dumps(body).encode()))

    client = PagureClient(an_account(), lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)), lambda: now.s)
    secrets = PagureSecrets(client)
    assert secrets.of("acme/rocket") == () and secrets.may_ask("acme/rocket")
    await secrets.ask("acme/rocket")
    assert client.login == "headgate"
    assert secrets.of("acme/rocket") == ("one",) and not secrets.may_ask("acme/rocket")
    tokens["acme/rocket"] = "two"
    for n in range(REQUESTS_MAX):
        if secrets.may_ask(f"who/{n}"):
            await secrets.ask(f"who/{n}")
    assert len(requests) == REQUESTS_MAX and not secrets.may_ask("who/else")
    assert "Project not found" in secrets.why("who/1")
    now.s += TOKEN_AGAIN_S
    assert secrets.may_ask("acme/rocket")
    await secrets.ask("acme/rocket")
    assert secrets.of("acme/rocket") == ("two",)
    await client.close()


def test_a_section_says_where_everything_is() -> None:
    one = account("hub", {"api_token": "t"})
    assert (one.web, one.api, one.clone, one.canonical_hostname) == (
        "https://pagure.io",
        "https://pagure.io/api/0",
        "https://pagure.io",
        "pagure.io",
    )
    section = {"server": "src.example", "baseurl": "https://example.org/code/", "api_token": "t", "sshkey": "/k"}
    two = account("hub", section | {"webhook_token": "acme/rocket=abc, any"})
    assert (two.api, two.clone, two.canonical_hostname) == (
        "https://example.org/code/api/0",
        "ssh://git@example.org",
        "src.example",
    )
    assert (two.webhook_token, two.webhook_tokens) == ("any", {"acme/rocket": "abc"})
    assert two.path("forks/eve/acme/rocket") == "/fork/eve/acme/rocket"
    about = PagureClient(two, httpx.AsyncClient).about
    assert about("/acme/rocket/pull-request/3/flag") == "acme/rocket" == about(f"{two.api}/acme/rocket/options")
    assert about("/fork/eve/rocket/pull-requests?status=Open") == "fork/eve/rocket" and about("/group/pilots") == ""
    for wrong, why in (
        ({"server": "x"}, "api_token"),
        ({"baseurl": "http://example.org", "api_token": "t"}, "https://"),
        ({"api_token": "t", "webhook_token": "=x"}, "PROJECT=TOKEN"),
    ):
        with pytest.raises(UserError, match=why):
            account("hub", wrong)


def test_a_comment_votes_for_nobody() -> None:
    text = "2026-11-23 +1 -1 :thumbsup: :thumbsdown: https://x.example/a-1/b?c=+1#-12 (-1) 1-10"
    found = voteless(text)
    assert not [word for word in ("+1", "-1", ":thumbsup:", ":thumbsdown:") if word in found]
    assert "https://x.example/a%2D1/b?c=%2B1#%2D12" in found
    assert voteless("nothing to hide: 2 + 1") == "nothing to hide: 2 + 1"
