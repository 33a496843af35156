"""Test deliveries: which are ignored, and where the others announce an event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.adapters.forges.gitlab.client import GitLabAccount
from headgate.adapters.forges.gitlab.forge import hint
from headgate.ports.forge import Hint, Ignored

ACCOUNT = GitLabAccount("lab", webhook_token="open sesame")
PROJECT = {"path_with_namespace": "acme/space/rocket"}
SHA = "a" * 40
HERE = "gitlab.com/acme/space/rocket"


def delivered(kind: str, who: str = "ada", **fields: Any) -> Hint | Ignored:
    body = json.dumps({"object_kind": kind, "project": PROJECT, "user": {"username": who}, **fields}).encode()
    headers = {"x-gitlab-token": "open sesame", "idempotency-key": "id-1"}
    return hint(ACCOUNT, "gate", lambda project: project == HERE, headers, body, 0.0)


def request(action: str, who: str = "ada", state: str = "opened", **more: Any) -> Hint | Ignored:
    return delivered("merge_request", who, object_attributes={"iid": 7, "action": action, "state": state, **more})


def note(who: str = "ada", kind: str = "MergeRequest", state: str = "opened", **more: Any) -> Hint | Ignored:
    return delivered(
        "note", who, object_attributes={"noteable_type": kind, **more}, merge_request={"iid": 7, "state": state}
    )


def pipeline(status: str, who: str = "ada", sha: str = SHA) -> Hint | Ignored:
    return delivered("pipeline", who, object_attributes={"status": status, "sha": sha, "source": "external"})


ELSEWHERE = {"name": "Rocket", "path_with_namespace": "bob/rocket", "namespace": "Bob", "visibility_level": 20}
"""A project, as GitLab's documentation shows it within a merge request."""
SEVEN = Hint("id-1", HERE, "7")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        *((request(action), SEVEN) for action in ("open", "update", "reopen", "approved", "unapproval")),
        (request("close", state="closed"), SEVEN),
        (request("open", source=ELSEWHERE, target=ELSEWHERE, last_commit={"id": SHA}, merge_commit_sha=None), SEVEN),
        (request("open", source=None, target=ELSEWHERE), SEVEN),
        (request("merge", state="merged"), SEVEN),
        (request("merge", "gate", "merged", merge_commit_sha=SHA), Hint("id-1", HERE, "7", commit=SHA)),
        (request("merge", "gate", "merged"), Hint("id-1", HERE, "7", commit="0" * 40)),
        (request("close", "gate", "closed"), SEVEN),
        (note(), SEVEN),
        (delivered("push", ref="refs/heads/main"), Hint("id-1", HERE, ref="refs/heads/main")),
        (delivered("tag_push", ref="refs/tags/v1"), Hint("id-1", HERE, ref="refs/tags/v1")),
        (pipeline("failed"), Hint("id-1", HERE, commit=SHA)),
    ],
)
def test_a_delivery_becomes_a_hint(found: Hint | Ignored, wanted: Hint) -> None:
    assert found == wanted


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (request("update", "gate"), "caused it itself"),
        (request("approved", "gate"), "caused it itself"),
        (request("update", state="merged"), "is closed"),
        (request("assign"), "is not relevant"),
        (delivered("merge_request", object_attributes={"action": "open"}), "names no merge request"),
        (note("gate"), "wrote it itself"),
        (note(system=True), "no person wrote it"),
        (note(kind="Issue"), "something other"),
        (note(state="closed"), "is closed"),
        (pipeline("running"), "has not ended"),
        (pipeline("success", "gate"), "own status"),
        (pipeline("success", sha="main"), "names no commit"),
        (delivered("push"), "names no ref"),
        (delivered("wiki_page"), "is not relevant"),
        (delivered("emoji", object_attributes={"action": "award", "status": None}), "is not relevant"),
        (delivered("work_item", project=None, object_attributes={"state": 1}), "is not relevant"),
        (delivered(None, event_name="user_add_to_group"), "is not relevant"),  # type: ignore[arg-type]
        (request(None), "is not relevant"),  # type: ignore[arg-type]
        (delivered("push", project={}), "names no project"),
        (delivered("push", project={"path_with_namespace": "acme/other"}), "is in no tenant"),
    ],
)
def test_deliveries_without_news_are_ignored(found: Hint | Ignored, why: str) -> None:
    assert isinstance(found, Ignored) and why in found.why


def test_a_delivery_without_an_id_is_identified_by_its_content() -> None:
    body = json.dumps({"object_kind": "push", "project": PROJECT, "ref": "refs/heads/main"}).encode()
    headers = {"x-gitlab-token": "open sesame"}
    ids = {
        getattr(hint(ACCOUNT, "", lambda _: True, headers, text, 0.0), "id", "") for text in (body, body, body + b" ")
    }
    assert len(ids) == 2 and "" not in ids
