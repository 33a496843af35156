"""Test deliveries of Gitea and Forgejo: which are refused, which are ignored, and where the others announce an
event."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any
from urllib.parse import quote_plus

import pytest

from headgate.adapters.forges.gitea.client import GiteaAccount
from headgate.adapters.forges.gitea.forge import BODY_MAX_BYTES, hint
from headgate.ports.forge import Hint, Ignored, Misdelivered

ACCOUNT = GiteaAccount("hub", "https://git.example/code", "git.example", "https://git.example/code", "t", "open sesame")
PROJECT = "git.example/acme/rocket"
REPOSITORY = {"full_name": "acme/rocket"}
SHA = "a" * 40
OURS, THEIRS = {"login": "headgate"}, {"login": "ada"}
OPEN, CLOSED = {"number": 7, "state": "open"}, {"number": 7, "state": "closed"}


def signed(body: bytes, event: str = "push", **more: str) -> dict[str, str]:
    mac = hmac.new(b"open sesame", body, hashlib.sha256).hexdigest()
    named = {"x-gitea-event": event, "x-gitea-event-type": event, "x-gitea-delivery": "g-1"}
    return {"x-gitea-signature": mac, **named, "x-github-event": "ping", **more}


def delivered(event: str, **fields: Any) -> Hint | Ignored:
    body = json.dumps({"repository": REPOSITORY, "sender": THEIRS, **fields}).encode()
    return hint(ACCOUNT, {"headgate"}, lambda project: project == PROJECT, signed(body, event), body)


@pytest.mark.parametrize(
    ("headers", "status", "why"),
    [
        ({"x-gitea-signature": ""}, 401, "not signed"),
        ({"x-gitea-signature": "", "x-hub-signature-256": "sha256=x"}, 401, "not signed"),
        ({"x-gitea-signature": "0" * 64}, 401, "the signature is wrong"),
        ({"x-gitea-signature": "é\udcff"}, 401, "the signature is wrong"),
        ({"x-gitea-event": "", "x-gitea-event-type": ""}, 400, "X-Gitea-Event"),
        ({"x-gitea-delivery": "x" * 200}, 400, "X-Gitea-Delivery"),
    ],
)
def test_a_delivery_with_an_invalid_signature_is_refused(headers: dict[str, str], status: int, why: str) -> None:
    with pytest.raises(Misdelivered, match=why) as refused:
        hint(ACCOUNT, (), lambda _: True, signed(b"{}") | headers, b"{}")
    assert refused.value.status == status
    assert "open sesame" not in str(refused.value)


def test_without_a_secret_nobody_is_believed() -> None:
    nobody = GiteaAccount("hub", "https://git.example", "git.example", "https://git.example", "t")
    mac = hmac.new(b"", b"{}", hashlib.sha256).hexdigest()
    with pytest.raises(Misdelivered, match="webhook_token") as refused:
        hint(nobody, (), lambda _: True, signed(b"{}") | {"x-gitea-signature": mac}, b"{}")
    assert refused.value.status == 403


def test_a_huge_delivery_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(Misdelivered, match="bytes") as refused:
        hint(ACCOUNT, (), lambda _: True, signed(b""), b" " * (BODY_MAX_BYTES + 1))
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"repository": 3}', b"\xff\xfe", b"[" * 100_000, b"payload=%7B%7D", b'{"action": {}}']
)
def test_a_delivery_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(Misdelivered, match="not a push event") as refused:
        hint(ACCOUNT, (), lambda _: True, signed(body), body)
    assert refused.value.status == 400


def test_forgejo_has_headers_of_its_own() -> None:
    body = json.dumps({"repository": REPOSITORY, "sender": THEIRS, "ref": "refs/heads/main"}).encode()
    headers = {name.replace("gitea", "forgejo"): value for name, value in signed(body).items()}
    assert hint(ACCOUNT, (), lambda _: True, headers, body) == Hint("g-1", PROJECT, ref="refs/heads/main")


@pytest.mark.parametrize(
    ("event", "fields", "found"),
    [
        ("pull_request", {"action": "opened", "pull_request": OPEN}, Hint("g-1", PROJECT, "7")),
        ("pull_request_sync", {"action": "synchronized", "pull_request": OPEN}, Hint("g-1", PROJECT, "7")),
        ("pull_request_label", {"action": "label_updated", "pull_request": OPEN}, Hint("g-1", PROJECT, "7")),
        ("pull_request_review_approved", {"action": "reviewed", "pull_request": OPEN}, Hint("g-1", PROJECT, "7")),
        ("pull_request_rejected", {"action": "reviewed", "pull_request": OPEN}, Hint("g-1", PROJECT, "7")),
        ("pull_request_comment", {"action": "created", "issue": OPEN, "is_pull": True}, Hint("g-1", PROJECT, "7")),
        ("issue_comment", {"action": "created", "issue": OPEN, "is_pull": True}, Hint("g-1", PROJECT, "7")),
        ("pull_request", {"action": "closed", "pull_request": CLOSED}, Hint("g-1", PROJECT, "7")),
        (
            "pull_request",
            {"action": "closed", "sender": OURS, "pull_request": {**CLOSED, "merged": True, "merge_commit_sha": SHA}},
            Hint("g-1", PROJECT, "7", commit=SHA),
        ),
        ("status", {"sha": SHA, "state": "success"}, Hint("g-1", PROJECT, commit=SHA)),
        ("create", {"ref": "v1", "ref_type": "tag"}, Hint("g-1", PROJECT, ref="refs/tags/v1")),
        ("delete", {"ref": "old", "ref_type": "branch"}, Hint("g-1", PROJECT, ref="refs/heads/old")),
        ("repository", {"action": "created"}, Hint("g-1", PROJECT)),
    ],
)
def test_a_delivery_becomes_a_hint(event: str, fields: dict[str, Any], found: Hint) -> None:
    assert delivered(event, **fields) == found


@pytest.mark.parametrize(
    ("event", "fields", "why"),
    [
        ("fork", {}, "is not relevant"),
        ("push", {"repository": {"full_name": "eve/other"}, "ref": "refs/heads/main"}, "in no tenant"),
        ("push", {"repository": None}, "names no repository"),
        ("push", {"repository": {"full_name": "a/b/../c"}}, "names no repository"),
        ("issue_comment", {"action": "created", "issue": OPEN}, "a comment on an issue"),
        ("issue_comment", {"action": "edited", "issue": OPEN, "is_pull": True}, "is not relevant"),
        ("issue_comment", {"action": "created", "issue": CLOSED, "is_pull": True}, "is closed"),
        ("status", {"sha": "../x"}, "names no commit"),
        ("status", {"sha": SHA, "sender": OURS}, "Headgate caused it"),
        ("pull_request_label", {"action": "label_updated", "pull_request": OPEN, "sender": OURS}, "Headgate caused it"),
        (
            "pull_request_comment",
            {"action": "created", "issue": OPEN, "is_pull": True, "sender": OURS},
            "caused it itself",
        ),
    ],
)
def test_irrelevant_deliveries_are_ignored(event: str, fields: dict[str, Any], why: str) -> None:
    found = delivered(event, **fields)
    assert isinstance(found, Ignored) and why in found.why


@pytest.mark.parametrize("inner", [True, False])
def test_a_signed_form_is_read(*, inner: bool) -> None:
    """Gitea signs the JSON inside the form; a signature of the complete form is just as valid."""
    data = json.dumps({"repository": REPOSITORY, "sender": THEIRS, "action": "opened", "pull_request": OPEN}).encode()
    body = b"payload=" + quote_plus(data).encode()
    headers = signed(data if inner else body, "pull_request") | {"content-type": "application/x-www-form-urlencoded"}
    found = hint(ACCOUNT, (), lambda _: True, headers, body)
    assert isinstance(found, Hint) and found.number == "7"
    with pytest.raises(Misdelivered, match="signature is wrong"):
        hint(ACCOUNT, (), lambda _: True, headers, body.replace(b"opened", b"closed"))
