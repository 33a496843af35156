"""Connect to a GitLab, and verify the deliveries of its webhooks; see `ports.forge.Forge`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.adapters.forges.driver import RestDriver
from headgate.adapters.forges.gitlab.client import GitLabAccount, GitLabClient, People, account
from headgate.adapters.forges.gitlab.poll import GitLabChangeStateReader, GitLabSource
from headgate.adapters.forges.gitlab.reporter import GitLabLander, GitLabReporter
from headgate.adapters.forges.gitlab.request import look
from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.forges.watch import EVERY_S, Watching
from headgate.adapters.git.connection import Access, GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.base.ids import derived
from headgate.gate.state.change import Change, ChangeState
from headgate.ports.forge import Abilities, Hint, Ignored, Misdelivered

BODY_MAX_BYTES = 25 * 2**20
"""Largest delivery that is read."""
_NAME = r"(?!\.{1,2}/)[\w.][\w.-]{0,254}"
"""Name of a group or a project in the URL of a page."""
SKEW_S = 300.0
"""A signed delivery whose time differs by more than this is treated as a replay."""
_ACTIONS = frozenset({"open", "close", "reopen", "update", "merge", "approved", "unapproved", "approval", "unapproval"})
_KINDS = frozenset({"merge_request", "note", "push", "tag_push", "pipeline"})
_ENDED = frozenset({"success", "failed", "canceled", "skipped"})
_SHA = re.compile("[0-9a-f]{40}")
_PATH = re.compile(r"[^\x00-\x20\x7f?#]{1,1000}")
_ID = re.compile(r"[0-9A-Za-z-]{1,100}")
_AT = re.compile(r"[0-9]{1,12}")


class GitLabForge(RestDriver):
    """Connect to one GitLab; see `ports.forge.Forge`."""

    page = re.compile(rf"/((?:{_NAME}/){{1,20}}?{_NAME})(?:/-)?/merge_requests/([0-9]{{1,9}})(?:$|[/?#].*)", re.ASCII)

    can = Abilities(
        lands="merge",
        votes=True,
        labels=True,
        statuses=True,
        drafts=True,
        threads=True,
        webhooks=True,
        any_case=True,
        edits=True,
        protection=True,
    )

    def __init__(
        self,
        client: GitLabClient,
        people: People,
        engine: Callable[[], GitEngine],
        every_s: float = EVERY_S,
        now_s: Callable[[], float] = time.time,
        lands: str = "merge",
    ) -> None:
        """Make a driver. For `lands`, see `ports.forge.Abilities`."""
        self.can = replace(self.can, lands=lands)
        self._own = GitLabReporter(client, people)
        self._client, self._people, self._now_s = client, people, now_s
        self._stands = GitLabChangeStateReader(client, people, engine)
        watching = Watching(GitLabSource(client, people, engine, self._stands), every_s)
        super().__init__(client.account, client, watching, self._own, GitLabLander(client, engine))

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored:
        """Verify a delivery and return its hint; see `ports.forge.Forge`."""
        return hint(self._client.account, self._people.name, self._watching.looks_at, headers, body, self._now_s())

    async def conclude(self, change: Change, commit: str) -> None:
        """End a change that a push has landed; see `ports.forge.Shows`."""
        await self._own.conclude(change, commit)

    async def now(self, project: str, number: int) -> ChangeState:
        """Return the current state of a change; see `RestDriver`."""
        request = await look(self._client, project, number)
        change_state, _ = await self._stands.of(request, None, await self._people.us(), {}, first=True)
        return change_state


class _Project(msgspec.Struct, frozen=True):
    path_with_namespace: str = ""


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Attributes(msgspec.Struct, frozen=True):
    iid: int = 0
    action: str | None = ""
    state: str | None = ""
    noteable_type: str | None = ""
    system: bool = False
    sha: str | None = ""
    status: str | None = ""
    source: Any = None
    """For a pipeline, what caused it; for a merge request, the project that it comes from."""
    merge_commit_sha: str | None = None
    squash_commit_sha: str | None = None


class _MergeRequest(msgspec.Struct, frozen=True):
    iid: int = 0
    state: str = ""


class _Kind(msgspec.Struct, frozen=True):
    """Hold the kind of a delivery; deliveries of groups have none."""

    object_kind: str | None = ""


class _Delivery(_Kind, frozen=True):
    """Hold the fields that Headgate reads of a relevant delivery; other kinds have other fields."""

    project: _Project = _Project()
    user: _User | None = None
    object_attributes: _Attributes = _Attributes()
    merge_request: _MergeRequest | None = None
    ref: str = ""


_KIND, _DECODER = msgspec.json.Decoder(_Kind), msgspec.json.Decoder(_Delivery)


def verified(account: GitLabAccount, headers: Mapping[str, str], body: bytes, now_s: float) -> str:
    """Return the id of a genuine delivery: it has the token, and is signed if there is a signing key.  Raise
    Misdelivered."""
    # Without a secret, anybody could send deliveries.
    if not account.webhook_token and not account.signing_key:
        raise Misdelivered(f"[connection {account.name}] has no webhook_token, so it refuses all deliveries", 403)
    if len(body) > BODY_MAX_BYTES:
        raise Misdelivered(f"the delivery has more than {BODY_MAX_BYTES} bytes", 413)
    if account.webhook_token:
        token = headers.get("x-gitlab-token", "")
        if not token:
            raise Misdelivered("the delivery has no X-Gitlab-Token: set the secret token of the webhook")
        # Compare in constant time, and as bytes: for non-ASCII strings compare_digest raises TypeError.
        if not hmac.compare_digest(token.encode("utf-8", "replace"), account.webhook_token.encode()):
            raise Misdelivered(
                "the token is wrong: the secret token of the webhook is not the webhook_token of the settings"
            )
    id = headers.get("webhook-id") or headers.get("idempotency-key") or headers.get("x-gitlab-event-uuid", "")
    if account.signing_key:
        _signed(account.signing_key, headers, body, now_s)
    if id and not _ID.fullmatch(id):
        raise Misdelivered("the id of the delivery is invalid", 400)
    # Older GitLabs send no id; a repeated delivery has the same body and thus becomes the same hint.
    return id or derived("gitlab", hashlib.sha256(body).hexdigest())


def _signed(key: bytes, headers: Mapping[str, str], body: bytes, now_s: float) -> None:
    id, at, signatures = (headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not signatures:
        raise Misdelivered("the delivery is not signed (webhook-signature): set the signing token of the webhook")
    mac = hmac.new(key, f"{id}.{at}.".encode("utf-8", "replace") + body, hashlib.sha256).digest()
    wanted = f"v1,{base64.b64encode(mac).decode()}".encode()
    # There may be several signatures while a key is being replaced.
    if not any(hmac.compare_digest(one.encode("utf-8", "replace"), wanted) for one in signatures.split()):
        raise Misdelivered(
            "the signature is wrong: the signing token of the webhook is not the webhook_signing_token of the settings"
        )
    # Check the time after the signature, so that strangers learn nothing about our clock.
    if not _AT.fullmatch(at) or abs(now_s - int(at)) > SKEW_S:
        raise Misdelivered("the delivery was signed too long ago, or the clocks differ by more than five minutes")


def hint(
    account: GitLabAccount,
    us: str,
    known: Callable[[str], bool],
    headers: Mapping[str, str],
    body: bytes,
    now_s: float,
) -> Hint | Ignored:
    """Return where the event of a delivery happened. `us`: our account, empty while unknown; `known`: whether a
    project, by canonical name, is watched. Raise Misdelivered.

    Headgate believes nothing else in a delivery, and queries GitLab instead. A delivery about Headgate's own action, or
    about an irrelevant event, is ignored, so that it costs no call.
    """
    id = verified(account, headers, body, now_s)
    try:
        kind = _KIND.decode(body).object_kind or "an event of another kind"
        if kind not in _KINDS:
            return Ignored(f"{kind[:100]} is not relevant")
        delivery = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misdelivered(f"the delivery is not in GitLab's format: {error}", 400) from error
    path = delivery.project.path_with_namespace
    if not _PATH.fullmatch(path):
        return Ignored(f"{kind} names no project")
    project = account.canonical(path)
    if not known(project):
        return Ignored(f"{project} is in no tenant")
    return _place(id, project, delivery, bool(us) and delivery.user is not None and delivery.user.username == us)


def _place(id: str, project: str, delivery: _Delivery, ours: bool) -> Hint | Ignored:
    attributes = delivery.object_attributes
    match delivery.object_kind:
        case "merge_request":
            return _of_request(id, project, attributes, ours)
        case "note":
            if attributes.noteable_type != "MergeRequest" or delivery.merge_request is None:
                return Ignored("it is a comment on something other than a merge request")
            if ours or attributes.system:
                return Ignored("Headgate wrote it itself" if ours else "no person wrote it")
            if delivery.merge_request.state not in ("opened", "locked"):
                return Ignored("the change is closed")
            return _numbered(id, project, delivery.merge_request.iid)
        case "pipeline":
            # Only results matter, and a pipeline reports every state.
            if attributes.status not in _ENDED:
                return Ignored("the pipeline has not ended")
            # Statuses that Headgate sets become an external pipeline.
            if ours and attributes.source == "external":
                return Ignored("it is Headgate's own status")
            sha = attributes.sha or ""
            return Hint(id, project, commit=sha) if _SHA.fullmatch(sha) else Ignored("it names no commit")
    return Hint(id, project, ref=delivery.ref[:1_000]) if delivery.ref else Ignored("it names no ref")


def _of_request(id: str, project: str, what: _Attributes, ours: bool) -> Hint | Ignored:
    """Return a hint. A number with a commit means that Headgate merged the request, and that the gate will soon record
    it."""
    action = what.action or ""
    if action not in _ACTIONS:
        return Ignored(f"merge_request {action[:100]} is not relevant")
    if ours and action == "merge":
        merged = what.merge_commit_sha or what.squash_commit_sha or ""
        # The zeros stand for an unknown merge commit: a number with any commit means that we merged it.
        return _numbered(id, project, what.iid, merged if _SHA.fullmatch(merged) else "0" * 40)
    if ours and action not in ("close", "reopen"):
        return Ignored("Headgate caused it itself")
    if what.state not in ("opened", "locked") and action == "update":
        return Ignored("the change is closed")
    return _numbered(id, project, what.iid)


def _numbered(id: str, project: str, iid: int, commit: str = "") -> Hint | Ignored:
    return Hint(id, project, str(iid), commit=commit) if 0 < iid < 10**9 else Ignored("it names no merge request")


def connect(given: DriverOptions) -> Connected:
    """Return the connection to the forge, without calling it yet. Raise UserError."""
    options = dict(given.options)
    if "sshkey" in options:
        options["sshkey"] = str((given.directory / options["sshkey"]).expanduser())
    one = account(given.name, options)

    def now_s() -> float:
        return given.now_ms() / 1000

    client = GitLabClient(one, partial(forge_http, one.verify_ssl), now_s, given.limits)
    people = People(client, now_s)
    forge = GitLabForge(client, people, given.engine, now_s=now_s, lands=options.get("land", "merge"))
    return Connected(
        GitConnection(one.name, one.clone, one.canonical_hostname, access=_access(people)), forge, forge.close
    )


def _access(people: People) -> Access:
    async def access(project: str) -> Mapping[str, str]:
        return people.git()

    return access
