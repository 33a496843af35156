"""Connect to a Gitea, and verify the deliveries of its webhooks; see `ports.forge.Forge`."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.adapters.forges.driver import BranchReader, RestDriver, is_form, unfolded
from headgate.adapters.forges.gitea.client import GiteaAccount, GiteaClient, account
from headgate.adapters.forges.gitea.poll import GiteaSource, GiteaStands
from headgate.adapters.forges.gitea.pull import look
from headgate.adapters.forges.gitea.reporter import GiteaLander, GiteaTeller
from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.forges.rest import ForgeServerError, forge_http
from headgate.adapters.forges.watch import EVERY_S, Watching
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.change import Change, ChangeState
from headgate.ports.forge import Abilities, Hint, Ignored, Misdelivered
from headgate.ports.reporter import ReportPutOff

BODY_MAX_BYTES = 25 * 2**20
"""Largest delivery that is read."""
_NAME = r"(?!\.{1,2}/)[\w.-]{1,100}"
"""Name of an owner or a repository in the URL of a page."""
_REFS = ("push", "create", "delete")
_REF_TYPES = {"branch": "refs/heads/", "tag": "refs/tags/"}
_COMMENTS = frozenset({"issue_comment", "pull_request_comment"})
_REPORTS = re.compile(
    "pull_request_(label|comment|review_(approved|rejected|comment)|(approved|rejected))|issue_comment"
)
"""Events about comments, reviews and labels of a change."""
_SHA = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")
_FULL_NAME = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}", re.ASCII)
"""Name of a repository in a delivery, with its owner."""
_ID = re.compile(r"[0-9A-Za-z-]{1,100}")


class GiteaForge(RestDriver):
    """Connect to one Gitea or Forgejo; see `ports.forge.Forge`."""

    page = re.compile(rf"/({_NAME}/{_NAME})/(?:pulls?|issues)/([0-9]{{1,9}})(?:$|[/?#].*)", re.ASCII)

    can = Abilities(
        lands="merge",
        votes=True,
        labels=True,
        statuses=True,
        drafts=True,
        file_comments=True,
        webhooks=True,
        any_case=True,
        edits=True,
        protection=True,
    )

    def __init__(
        self, client: GiteaClient, engine: Callable[[], GitEngine], every_s: float = EVERY_S, lands: str = "merge"
    ) -> None:
        """Make a driver. For `lands`, see `ports.forge.Abilities`."""
        self.can = replace(self.can, lands=lands)
        self._own = GiteaTeller(client)
        self._client, self._stands = client, GiteaStands(client, engine)
        watching = Watching(GiteaSource(client, engine, self._stands), every_s)
        lander = GiteaLander(client, BranchReader(engine, client.account.name))
        super().__init__(client.account, client, watching, self._own, lander)

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored:
        """Verify a delivery and return its hint; see `ports.forge.Forge`."""
        us = frozenset(filter(None, (self._client.login,)))
        return hint(self._client.account, us, self._watching.looks_at, headers, body)

    async def conclude(self, change: Change, commit: str) -> None:
        """End a change that a push has landed; see `ports.forge.Shows`."""
        try:
            await self._own.conclude(change, commit)
        except ForgeServerError as error:
            raise ReportPutOff(str(error)) from error

    async def now(self, project: str, number: int) -> ChangeState:
        """Return the current state of a change; see `RestDriver`."""
        pull = await look(self._client, self._client.account.short(project), number, "")
        us, none = await self._client.us(), dict[str, str]()
        change_state, _ = await self._stands.of(self._client.key, project, pull, None, us, none, first=True)
        return change_state


class _Login(msgspec.Struct, frozen=True):
    login: str = ""


class _Repository(msgspec.Struct, frozen=True):
    full_name: str


class _PullRequest(msgspec.Struct, frozen=True):
    number: int
    state: str = ""
    merged: bool = False
    merge_commit_sha: str | None = None
    pull_request: Any = None


class _Delivery(msgspec.Struct, frozen=True):
    """Hold the relevant parts of a delivery."""

    repository: _Repository | None = None
    action: str = ""
    sender: _Login | None = None
    pull_request: _PullRequest | None = None
    issue: _PullRequest | None = None
    is_pull: bool = False
    ref: str | None = None
    ref_type: str = ""
    sha: str = ""


_DECODER = msgspec.json.Decoder(_Delivery)


def verified(account: GiteaAccount, headers: Mapping[str, str], body: bytes) -> tuple[str, str]:
    """Return the event and the delivery's id of a genuine delivery.  Raise Misdelivered."""
    if not account.webhook_token:
        raise Misdelivered(f"[connection {account.name}] has no webhook_token, so it refuses all deliveries", 403)
    if len(body) > BODY_MAX_BYTES:
        raise Misdelivered(f"the delivery has more than {BODY_MAX_BYTES} bytes", 413)
    signature = headers.get("x-gitea-signature") or headers.get("x-forgejo-signature") or ""
    if not signature:
        raise Misdelivered("the delivery is not signed (X-Gitea-Signature): set the secret of the webhook")
    if not _is_signed(account, headers, signature, body):
        raise Misdelivered("the signature is wrong: the secret of the webhook is not the webhook_token of the settings")
    # `event` groups several kinds under one name; `event-type` tells them apart.
    event, id = _header(headers, "event-type") or _header(headers, "event"), _header(headers, "delivery")
    if not event or not _ID.fullmatch(id):
        raise Misdelivered("X-Gitea-Event or X-Gitea-Delivery is missing", 400)
    return event, id


def _is_signed(account: GiteaAccount, headers: Mapping[str, str], signature: str, body: bytes) -> bool:
    """Return whether the body is signed or, for a form, the JSON in it, which is what Gitea signs."""

    def fits(text: bytes) -> bool:
        wanted = hmac.new(account.webhook_token.encode(), text, hashlib.sha256).hexdigest()
        # Compare in constant time, and as bytes: for non-ASCII strings compare_digest raises TypeError.
        return hmac.compare_digest(signature.encode("utf-8", "replace"), wanted.encode())

    return fits(body) or (is_form(headers) and fits(unfolded(headers, body)))


def _header(headers: Mapping[str, str], name: str) -> str:
    return headers.get(f"x-gitea-{name}") or headers.get(f"x-forgejo-{name}") or ""


def hint(
    account: GiteaAccount,
    us: Collection[str],
    known: Callable[[str], bool],
    headers: Mapping[str, str],
    body: bytes,
) -> Hint | Ignored:
    """Return where the event of a delivery happened. `us`: logins that Headgate writes as; `known`: whether a
    project, by canonical name, is watched. Raise Misdelivered.

    Headgate believes nothing else in a delivery, and queries Gitea instead. A delivery about Headgate's own action, or
    about an irrelevant event, is ignored, so that it costs no call.
    """
    event, id = verified(account, headers, body)
    if not (event.startswith("pull_request") or event in ("issue_comment", "status", "repository", *_REFS)):
        return Ignored(f"{event[:100]} is not relevant")
    delivery = _read(event, unfolded(headers, body))
    if delivery.repository is None or not _FULL_NAME.fullmatch(delivery.repository.full_name):
        return Ignored(f"{event[:100]} names no repository")
    project = account.canonical(delivery.repository.full_name)
    if not known(project):
        return Ignored(f"{project} is in no tenant")
    # Headgate's own statuses, comments, reviews and labels need no query; its merges and pushes do.
    only_reports = event == "status" or _REPORTS.fullmatch(event) is not None
    if only_reports and delivery.sender is not None and delivery.sender.login in us:
        return Ignored("Headgate caused it itself")
    return _named(event, id, project, delivery, us)


def _read(event: str, body: bytes) -> _Delivery:
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = f"the delivery is not a {event[:100]} event as application/json: {error}"
        raise Misdelivered(why, 400) from error


def _named(event: str, id: str, project: str, delivery: _Delivery, us: Collection[str]) -> Hint | Ignored:
    """Return a hint. A number with a commit means that Headgate merged the change, and that the gate will soon record
    it."""
    change = delivery.pull_request or delivery.issue
    if event in _COMMENTS:
        if not (delivery.is_pull or delivery.pull_request or (delivery.issue and delivery.issue.pull_request)):
            return Ignored("it is a comment on an issue")
        if delivery.action not in ("created", "reviewed"):
            return Ignored(f"{event} {delivery.action[:100]} is not relevant")
    if change is not None:
        # Events on a closed change start nothing, except for its end.
        if change.state == "closed" and delivery.action != "closed":
            return Ignored("the change is closed")
        ours = change.merged and delivery.sender is not None and delivery.sender.login in us
        return Hint(id, project, str(change.number), commit=change.merge_commit_sha or "" if ours else "")
    if event == "status":
        return Hint(id, project, commit=delivery.sha) if _SHA.fullmatch(delivery.sha) else Ignored("it names no commit")
    if event in _REFS:
        ref = delivery.ref or ""
        return Hint(
            id, project, ref=(ref if ref.startswith("refs/") else _REF_TYPES.get(delivery.ref_type, "") + ref)[:1000]
        )
    return Hint(id, project)


def connect(given: DriverOptions) -> Connected:
    """Return the connection to the forge, without calling it yet. Raise UserError."""
    options = dict(given.options)
    if "sshkey" in options:
        options["sshkey"] = str((given.directory / options["sshkey"]).expanduser())
    one = account(given.name, options)
    client = GiteaClient(one, partial(forge_http, one.verify_ssl), lambda: given.now_ms() / 1000, given.limits)
    git = GitConnection(one.name, one.clone, one.canonical_hostname, access=client.git)
    forge = GiteaForge(client, given.engine, lands=options.get("land", "merge"))
    return Connected(git, forge, forge.close)
