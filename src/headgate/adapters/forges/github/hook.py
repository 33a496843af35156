"""Verify deliveries of webhooks, and read where something happened.

Headgate believes nothing else in a delivery, and queries GitHub instead. A delivery about Headgate's own action, or
about an irrelevant event, is ignored, so that it costs no call.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headgate.adapters.forges.driver import unfolded
from headgate.adapters.forges.github.client import GitHubAccount
from headgate.ports.forge import ButtonOrder, Hint, Ignored, Misdelivered

BODY_MAX_BYTES = 25 * 2**20
"""Size limit of GitHub's own deliveries."""
_ACTIONS: Mapping[str, frozenset[str] | None] = {
    "pull_request": frozenset(
        {
            *("opened", "synchronize", "closed", "reopened", "edited", "labeled", "unlabeled", "ready_for_review"),
            *("converted_to_draft", "auto_merge_enabled", "dequeued"),
        }
    ),
    "pull_request_review": frozenset({"submitted", "dismissed", "edited"}),
    "pull_request_review_thread": frozenset({"resolved", "unresolved"}),
    "issue_comment": frozenset({"created"}),
    "status": None,
    "check_run": frozenset({"rerequested", "completed", "requested_action"}),
    "check_suite": frozenset({"rerequested"}),
    "push": None,
    "create": None,
    "delete": None,
    "branch_protection_rule": None,
    "repository_ruleset": None,
    "repository": frozenset({"edited", "renamed", "transferred", "unarchived"}),
}
"""Event -> the actions that may have changed something; None means all actions."""
_SHA = re.compile("[0-9a-f]{40}")
_NAME = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}", re.ASCII)
_GUID = re.compile(r"[0-9A-Za-z-]{1,100}")
ABORT = "abort"
"""Identifier of the button that removes a change from the pipeline of its check run."""


class _Login(msgspec.Struct, frozen=True):
    login: str = ""


class _Repository(msgspec.Struct, frozen=True):
    full_name: str


class _PullRequest(msgspec.Struct, frozen=True):
    number: int
    pull_request: Any = None
    state: str = ""
    merged: bool = False
    merge_commit_sha: str | None = None


class _App(msgspec.Struct, frozen=True):
    id: int = 0
    slug: str | None = None


class _Run(msgspec.Struct, frozen=True):
    head_sha: str
    app: _App | None = None
    external_id: str | None = None


class _Button(msgspec.Struct, frozen=True):
    identifier: str = ""


class Meant(msgspec.Struct, frozen=True):
    """Identify the check run, as in its `external_id`."""

    tenant: str
    pipeline: str
    change: str
    """Number of the change."""
    event: str = ""
    """Id of the event that enqueued the item."""


class _Comment(msgspec.Struct, frozen=True):
    performed_via_github_app: _App | None = None


class _Delivery(msgspec.Struct, frozen=True):
    """Hold the relevant parts of a delivery."""

    repository: _Repository | None = None
    action: str = ""
    sender: _Login = _Login()
    pull_request: _PullRequest | None = None
    issue: _PullRequest | None = None
    check_run: _Run | None = None
    check_suite: _Run | None = None
    requested_action: _Button | None = None
    comment: _Comment | None = None
    ref: str | None = None
    sha: str = ""


_DECODER = msgspec.json.Decoder(_Delivery)


def verified(account: GitHubAccount, headers: Mapping[str, str], body: bytes) -> tuple[str, str]:
    """Return the event and the delivery's id of a genuine delivery.  Raise Misdelivered."""
    # An empty secret would make a valid signature computable by anybody.
    if not account.webhook_token:
        raise Misdelivered(f"[connection {account.name}] has no webhook_token, so it refuses all deliveries", 403)
    if len(body) > BODY_MAX_BYTES:
        raise Misdelivered(f"the delivery has more than {BODY_MAX_BYTES} bytes", 413)
    signature = headers.get("x-hub-signature-256", "")
    if not signature:
        raise Misdelivered(
            "the delivery is not signed with SHA-256 (X-Hub-Signature-256): set the secret of the webhook"
        )
    wanted = "sha256=" + hmac.new(account.webhook_token.encode(), body, hashlib.sha256).hexdigest()
    # Compare in constant time, and as bytes: for non-ASCII strings compare_digest raises TypeError.
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), wanted.encode()):
        raise Misdelivered("the signature is wrong: the secret of the webhook is not the webhook_token of the settings")
    event, guid = headers.get("x-github-event", ""), headers.get("x-github-delivery", "")
    if not event or not _GUID.fullmatch(guid):
        raise Misdelivered("X-GitHub-Event or X-GitHub-Delivery is missing", 400)
    return event, guid


def hint(
    account: GitHubAccount, us: frozenset[str], known: Callable[[str], bool], headers: Mapping[str, str], body: bytes
) -> Hint | Ignored:
    """Return where the event of a delivery happened. `us`: logins and slugs that Headgate writes as; `known`: whether a
    project, by canonical name, is watched. Raise Misdelivered."""
    event, guid = verified(account, headers, body)
    return place(account, us, known, event, guid, unfolded(headers, body))


def place(
    account: GitHubAccount, us: frozenset[str], known: Callable[[str], bool], event: str, guid: str, body: bytes
) -> Hint | Ignored:
    """Return where the event of a verified delivery happened. Raise Misdelivered."""
    if event == "ping":
        return Ignored("it is a ping; the webhook works")
    if event not in _ACTIONS:
        return Ignored(f"{event[:100]} is not relevant")
    delivery = _read(event, body)
    wanted = _ACTIONS[event]
    if wanted is not None and delivery.action not in wanted:
        return Ignored(f"{event} {delivery.action[:100]} is not relevant")
    if delivery.repository is None or not _NAME.fullmatch(delivery.repository.full_name):
        return Ignored(f"{event} names no repository")
    project = account.canonical(delivery.repository.full_name)
    if not known(project):
        return Ignored(f"{project} is in no tenant")
    # This precedes `_ours`, which would drop it: the run that has the button is our own.
    if delivery.action == "requested_action":
        return _ordered(account, guid, project, delivery)
    if _ours(event, delivery, us):
        return Ignored("Headgate caused it itself")
    return _named(event, guid, project, delivery, us)


def _read(event: str, body: bytes) -> _Delivery:
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misdelivered(f"the delivery is not a valid {event} event: {error}", 400) from error


def our_slug(account: GitHubAccount, headers: Mapping[str, str], body: bytes) -> str:
    """Return our app's slug if a genuine delivery contains it, which saves a call; empty if not."""
    if headers.get("x-github-event") not in ("check_run", "check_suite", "issue_comment"):
        return ""
    delivery = _read("", unfolded(headers, body))
    run = delivery.check_run or delivery.check_suite
    app = run.app if run is not None else delivery.comment.performed_via_github_app if delivery.comment else None
    return app.slug or "" if app is not None and str(app.id) == account.app_id else ""


def _ours(event: str, delivery: _Delivery, us: frozenset[str]) -> bool:
    """Return whether the delivery only reports what Headgate wrote. Headgate's own merges and pushes do not count: they
    must lead to a query."""
    if event in ("check_run", "check_suite"):
        run = delivery.check_run or delivery.check_suite
        mine = run is not None and run.app is not None and (run.app.slug or "") in us
        # Other actions on our runs come from people.
        return mine and delivery.action == "completed"
    only_reports = event in ("status", "issue_comment", "pull_request_review") or delivery.action in (
        "labeled",
        "unlabeled",
    )
    return only_reports and delivery.sender.login in us


def _ordered(account: GitHubAccount, guid: str, project: str, delivery: _Delivery) -> Hint | Ignored:
    """Return the request of a person who used a button; the permission is checked later. GitHub notifies only the app
    of a run, and only that app knows the run's change."""
    run, wanted = delivery.check_run, delivery.requested_action
    if run is None or run.app is None or not account.app_id or str(run.app.id) != account.app_id:
        return Ignored("the button belongs to another app")
    if wanted is None or wanted.identifier != ABORT:
        return Ignored("the button is not one of Headgate's")
    try:
        target = msgspec.json.decode(run.external_id or "", type=Meant)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Ignored("the check run does not name its change")
    if not (target.event and target.change.isdecimal() and len(target.change) < 10 and delivery.sender.login):
        return Ignored("the check run does not name its item")
    order = ButtonOrder(delivery.sender.login, target.tenant, target.pipeline, target.event)
    return Hint(guid, project, target.change, order=order)


def _named(event: str, guid: str, project: str, delivery: _Delivery, us: frozenset[str]) -> Hint | Ignored:
    """Return a hint. A number with a commit means that Headgate merged the change, and that the gate will soon record
    it."""
    if event == "issue_comment" and (delivery.issue is None or delivery.issue.pull_request is None):
        return Ignored("it is a comment on an issue")
    change = delivery.pull_request or delivery.issue
    # A comment on a closed change starts nothing.
    if change is not None and change.state == "closed" and delivery.action != "closed":
        return Ignored("the change is closed")
    if change is not None:
        merged = change.merge_commit_sha or "" if change.merged and delivery.sender.login in us else ""
        return Hint(guid, project, str(change.number), commit=merged)
    run = delivery.check_run or delivery.check_suite
    commit = delivery.sha if run is None else run.head_sha
    if commit:
        return Hint(guid, project, commit=commit) if _SHA.fullmatch(commit) else Ignored("it names no commit")
    if event in ("push", "create", "delete"):
        ref = delivery.ref or ""
        # `create` and `delete` only give the short name of a ref, but GitHub also sends a push with the full name.
        if ref.startswith("refs/") or event == "push":
            return Hint(guid, project, ref=ref[:1_000])
        return Ignored("a push event covers it")
    return Hint(guid, project)
