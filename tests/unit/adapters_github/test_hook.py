"""Test deliveries: which are refused, which are ignored, and where the others announce an event."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any
from urllib.parse import quote_plus

import pytest

from headgate.adapters.forges.driver import FORM_MAX_BYTES
from headgate.adapters.forges.github.client import GitHubAccount
from headgate.adapters.forges.github.hook import hint
from headgate.ports.forge import Hint, Ignored, Misdelivered

ACCOUNT = GitHubAccount("hub", webhook_token="open sesame")
US = frozenset({"headgate", "headgate[bot]"})
REPOSITORY = {"full_name": "acme/rocket"}
SHA = "a" * 40


def signed(body: bytes, event: str = "push", **more: str) -> dict[str, str]:
    mac = hmac.new(b"open sesame", body, hashlib.sha256).hexdigest()
    return {"x-hub-signature-256": f"sha256={mac}", "x-github-event": event, "x-github-delivery": "g-1", **more}


def known(project: str) -> bool:
    return project == "github.com/acme/rocket"


def delivered(event: str, payload: Any) -> Hint | Ignored:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return hint(ACCOUNT, US, known, signed(body, event), body)


@pytest.mark.parametrize(
    ("headers", "status", "why"),
    [
        ({"x-hub-signature-256": ""}, 401, "not signed"),
        ({"x-hub-signature-256": "sha256=" + "0" * 64}, 401, "the signature is wrong"),
        ({"x-hub-signature-256": "sha256=é\udcff"}, 401, "the signature is wrong"),
        ({"x-hub-signature": "sha1=" + "0" * 40, "x-hub-signature-256": ""}, 401, "not signed with SHA-256"),
        ({"x-github-event": ""}, 400, "X-GitHub-Event"),
        ({"x-github-delivery": "x" * 200}, 400, "X-GitHub-Delivery"),
    ],
)
def test_a_delivery_with_an_invalid_signature_is_refused(headers: dict[str, str], status: int, why: str) -> None:
    with pytest.raises(Misdelivered, match=why) as refused:
        hint(ACCOUNT, US, known, signed(b"{}", **headers) | headers, b"{}")
    assert refused.value.status == status
    assert "open sesame" not in str(refused.value)


def test_without_a_secret_nobody_is_believed() -> None:
    mac = hmac.new(b"", b"{}", hashlib.sha256).hexdigest()
    headers = signed(b"{}") | {"x-hub-signature-256": f"sha256={mac}"}
    with pytest.raises(Misdelivered, match="webhook_token") as refused:
        hint(GitHubAccount("hub"), US, known, headers, b"{}")
    assert refused.value.status == 403


def test_a_huge_delivery_is_refused_before_it_is_parsed() -> None:
    body = b" " * (25 * 2**20 + 1)
    with pytest.raises(Misdelivered, match="bytes") as refused:
        hint(ACCOUNT, US, known, signed(b"{}"), body)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b'{"repository": 3}', b"\xff\xfe", b"[" * 100_000, b'{"action": {}}']
)
def test_a_delivery_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(Misdelivered, match="not a valid push event") as refused:
        delivered("push", body)
    assert refused.value.status == 400


HUMAN = {"login": "ada"}
MERGED = {"number": 7, "state": "closed", "merged": True, "merge_commit_sha": SHA}
OURS = {"login": "headgate[bot]"}


@pytest.mark.parametrize(
    ("event", "fields", "where"),
    [
        ("pull_request", {"action": "opened", "pull_request": {"number": 7}}, Hint("g-1", "", "7")),
        ("pull_request", {"action": "closed", "pull_request": {"number": 7}, "sender": OURS}, Hint("g-1", "", "7")),
        ("pull_request", {"action": "closed", "pull_request": MERGED}, Hint("g-1", "", "7")),
        (
            "pull_request",
            {"action": "closed", "pull_request": MERGED, "sender": OURS},
            Hint("g-1", "", "7", commit=SHA),
        ),
        ("pull_request_review", {"action": "submitted", "pull_request": {"number": 7}}, Hint("g-1", "", "7")),
        ("issue_comment", {"action": "created", "issue": {"number": 7, "pull_request": {}}}, Hint("g-1", "", "7")),
        ("status", {"sha": SHA, "sender": HUMAN}, Hint("g-1", "", commit=SHA)),
        ("check_run", {"action": "completed", "check_run": {"head_sha": SHA}}, Hint("g-1", "", commit=SHA)),
        (
            "check_run",
            {"action": "rerequested", "check_run": {"head_sha": SHA, "app": {"slug": "headgate"}}},
            Hint("g-1", "", commit=SHA),
        ),
        ("push", {"ref": "refs/heads/main", "sender": OURS}, Hint("g-1", "", ref="refs/heads/main")),
        ("branch_protection_rule", {"action": "edited"}, Hint("g-1", "")),
    ],
)
def test_a_delivery_becomes_a_hint(event: str, fields: dict[str, Any], where: Hint) -> None:
    found = delivered(event, {"repository": REPOSITORY, "sender": HUMAN, **fields})
    assert isinstance(found, Hint)
    assert found == Hint(where.id, "github.com/acme/rocket", where.number, where.ref, where.commit)


@pytest.mark.parametrize(
    ("event", "fields", "why"),
    [
        ("ping", {}, "works"),
        ("star", {"action": "created"}, "is not relevant"),
        ("pull_request", {"action": "assigned", "pull_request": {"number": 7}}, "is not relevant"),
        ("push", {"ref": "refs/heads/main", "repository": {"full_name": "acme/other"}}, "in no tenant"),
        ("push", {"ref": "refs/heads/main", "repository": {"full_name": "../../etc"}}, "names no repository"),
        ("push", {"ref": "refs/heads/main", "repository": None}, "names no repository"),
        ("status", {"sha": SHA, "sender": OURS}, "itself"),
        ("issue_comment", {"action": "created", "issue": {"number": 7, "pull_request": {}}, "sender": OURS}, "itself"),
        ("issue_comment", {"action": "created", "issue": {"number": 7}}, "issue"),
        ("check_run", {"action": "completed", "check_run": {"head_sha": SHA, "app": {"slug": "headgate"}}}, "itself"),
        ("check_run", {"action": "completed", "check_run": {"head_sha": "main"}}, "no commit"),
    ],
)
def test_deliveries_without_news_are_ignored(event: str, fields: dict[str, Any], why: str) -> None:
    found = delivered(event, {"repository": REPOSITORY, "sender": HUMAN, **fields})
    assert isinstance(found, Ignored)
    assert why in found.why


FORM = "application/x-www-form-urlencoded"
OPENED = {
    "action": "opened",
    "number": 7,
    "pull_request": {"number": 7, "title": "50 % & more ✓"},
    "repository": REPOSITORY,
}


def test_a_signed_form_is_read() -> None:
    """GitHub sends forms unless another content type is chosen, and signs the complete form."""
    body = f"payload={quote_plus(json.dumps(OPENED))}".encode()
    headers = signed(body, "pull_request", **{"content-type": f"{FORM}; charset=utf-8"})
    found = hint(ACCOUNT, frozenset(), known, headers, body)
    assert isinstance(found, Hint) and found.number == "7"


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"paylod=%7B%7D", 400, "without the field payload"),
        (b"payload=" + b"x" * FORM_MAX_BYTES, 413, "application/json"),
        (b"&".join(b"%d=1" % number for number in range(100)), 400, "is not a form"),
        (b"payload=%ff", 400, "is not a form"),
        (b"\xff", 400, "is not a form"),
        (b"payload=%7B", 400, "not a valid push event"),
    ],
)
def test_a_form_that_says_nothing_is_refused(body: bytes, status: int, why: str) -> None:
    with pytest.raises(Misdelivered, match=why) as refused:
        hint(ACCOUNT, frozenset(), known, signed(body, **{"content-type": FORM}), body)
    assert refused.value.status == status
