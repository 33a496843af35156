"""Connect to a Pagure, and verify the deliveries of its webhooks; see `ports.forge.Forge`."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial

import msgspec

from headgate.adapters.forges.driver import BranchReader, RestDriver
from headgate.adapters.forges.pagure.client import PagureAccount, PagureClient, PagureSecrets, account
from headgate.adapters.forges.pagure.poll import PagureSource, PagureStands
from headgate.adapters.forges.pagure.pull import look
from headgate.adapters.forges.pagure.reporter import PagureLander, PagureTeller
from headgate.adapters.forges.registry import Connected, DriverOptions
from headgate.adapters.forges.rest import forge_http
from headgate.adapters.forges.watch import EVERY_S, Watching
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.base.ids import derived
from headgate.gate.state.change import ChangeState
from headgate.ports.forge import Abilities, Hint, Ignored, Misdelivered, Unsure

BODY_MAX_BYTES = 25 * 2**20
"""Largest delivery that is read."""
_NAME = r"(?!\.{1,2}/)[\w.+-]{1,100}"
"""Name of a namespace or a project in the URL of a page."""
_FULL_NAME = re.compile(r"(?!\.{1,2}/)[\w.+-]{1,100}(?:/(?!\.{1,2}(?:/|$))[\w.+-]{1,100}){0,3}", re.ASCII)
_ID = re.compile(r"[0-9A-Za-z-]{1,100}")
_REPORTS = re.compile(r"pull-request\.(comment|flag|tag|assigned|initial_comment)\..*")
"""Events about comments, flags, tags and assignees of a change."""
_ENDS = ("pull-request.closed", "pull-request.reopened")
# One message for both reasons, so that strangers cannot find out which projects are tested here.
_WRONG = "the signature is wrong, or the project is not tested here"


class PagureForge(RestDriver):
    """Connect to one Pagure; see `ports.forge.Forge`."""

    page = re.compile(rf"/((?:fork/{_NAME}/)?(?:{_NAME}/)?{_NAME})/pull-request/([0-9]{{1,9}})(?:$|[/?#].*)", re.ASCII)
    can = Abilities(lands="merge", votes=True, labels=True, statuses=True, webhooks=True)

    def __init__(self, client: PagureClient, engine: Callable[[], GitEngine], every_s: float = EVERY_S) -> None:
        self._client, self._stands, self._secrets = client, PagureStands(client, engine), PagureSecrets(client)
        watching = Watching(PagureSource(client, engine, self._stands), every_s)
        lander = PagureLander(client, BranchReader(engine, client.account.name))
        super().__init__(client.account, client, watching, PagureTeller(client), lander)

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Hint | Ignored | Unsure:
        """Verify a delivery and return its hint; see `ports.forge.Forge`."""
        us = frozenset(filter(None, (self._client.login,)))
        return hint(self._client.account, self._secrets, us, self._watching.looks_at, headers, body)

    async def now(self, project: str, number: int) -> ChangeState:
        """Return the current state of a change; see `RestDriver`."""
        pull = await look(self._client, self._client.account.short(project), number)
        us, none = await self._client.us(), dict[str, str]()
        change_state, _ = await self._stands.of(self._client.key, project, pull, None, us, none, first=True)
        return change_state


class _Request(msgspec.Struct, frozen=True):
    id: int = 0
    status: str = ""
    commit_stop: str | None = None


class _Message(msgspec.Struct, frozen=True):
    agent: str | None = ""
    pullrequest: _Request | None = None
    pull_request: _Request | None = None
    request: _Request | None = None
    branch: str | None = ""
    tag: str | None = ""
    merged: bool = False

    @property
    def change(self) -> _Request | None:
        return self.pullrequest or self.pull_request or self.request


class _Delivery(msgspec.Struct, frozen=True):
    """Hold the relevant parts of a delivery."""

    topic: str
    msg: _Message
    msg_id: str = ""


_DECODER = msgspec.json.Decoder(_Delivery)


def hint(
    account: PagureAccount,
    secrets: PagureSecrets,
    us: Collection[str],
    known: Callable[[str], bool],
    headers: Mapping[str, str],
    body: bytes,
) -> Hint | Ignored | Unsure:
    """Return where the event of a delivery happened; Unsure if the project's token is not known yet. `us`: logins that
    Headgate writes as; `known`: whether a project, by canonical name, is watched. Raise Misdelivered.

    Each project signs with a token of its own, which Pagure creates and shows to the project's administrators. So a
    delivery counts for the project whose token signs it, whatever it contains. Headgate believes nothing else in a
    delivery, and queries Pagure instead.
    """
    if len(body) > BODY_MAX_BYTES:
        raise Misdelivered(f"the delivery has more than {BODY_MAX_BYTES} bytes", 413)
    short, signed = headers.get("x-pagure-project", ""), _signature(headers)
    if not _FULL_NAME.fullmatch(short):
        raise Misdelivered("X-Pagure-Project names no project", 400)
    project = account.canonical(short)
    if not known(project):  # do not request its token
        raise Misdelivered(_WRONG)
    tokens = secrets.of(short)
    if not any(_is_signed(token, body, *signed) for token in tokens):
        # A wrong signature may mean that the token was replaced, so request it again; the pauses bound the calls that
        # strangers can cause.
        if secrets.may_ask(short):
            return Unsure(lambda: secrets.ask(short))
        raise Misdelivered(secrets.why(short) or _WRONG)
    try:
        delivery = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misdelivered(f"the delivery is not in Pagure's format: {error}", 400) from error
    id = delivery.msg_id if _ID.fullmatch(delivery.msg_id) else derived("pagure", hashlib.sha256(body).hexdigest())
    return _place(id, project, delivery, us)


def _signature(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the digest and the signature, the stronger ones if there are two. Raise Misdelivered."""
    for digest, name in (("sha256", "x-pagure-signature-256"), ("sha1", "x-pagure-signature")):
        if headers.get(name):
            return digest, headers[name]
    raise Misdelivered("the delivery is not signed (X-Pagure-Signature)")


def _is_signed(token: str, body: bytes, digest: str, signature: str) -> bool:
    wanted = hmac.new(token.encode(), body, digest).hexdigest()
    # Compare in constant time, and as bytes: for non-ASCII strings compare_digest raises TypeError.
    return hmac.compare_digest(signature.encode("utf-8", "replace"), wanted.encode())


def _place(id: str, project: str, delivery: _Delivery, us: Collection[str]) -> Hint | Ignored:
    topic, message = delivery.topic, delivery.msg
    if topic.startswith("pull-request."):
        return _of_change(id, project, delivery, message.agent in us)
    if topic.startswith("git."):
        ref = f"refs/tags/{message.tag}" if message.tag else f"refs/heads/{message.branch}" if message.branch else ""
        return Hint(id, project, ref=ref[:1000]) if ref else Ignored(f"{topic[:100]} names no ref")
    if topic.startswith("project."):  # its options or permissions
        return Hint(id, project)
    return Ignored(f"{topic[:100]} is not relevant")


def _of_change(id: str, project: str, delivery: _Delivery, ours: bool) -> Hint | Ignored:
    """Return a hint. A number with a commit means that Headgate merged the change, and that the gate will soon record
    it."""
    topic, change = delivery.topic, delivery.msg.change
    if change is None or not 0 < change.id < 10**9:
        return Ignored(f"{topic[:100]} names no pull request")
    if ours and _REPORTS.fullmatch(topic):
        return Ignored("Headgate caused it itself")
    if topic not in _ENDS and change.status not in ("", "Open"):
        return Ignored("the change is closed")
    merged = topic == "pull-request.closed" and (delivery.msg.merged or change.status == "Merged")
    commit = change.commit_stop or "0" * 40 if ours and merged else ""
    return Hint(id, project, str(change.id), commit=commit[:64])


def connect(given: DriverOptions) -> Connected:
    """Return the connection to the forge, without calling it yet. Raise UserError."""
    options = dict(given.options)
    if "sshkey" in options:
        options["sshkey"] = str((given.directory / options["sshkey"]).expanduser())
    one = account(given.name, options)
    client = PagureClient(one, partial(forge_http, one.verify_ssl), lambda: given.now_ms() / 1000, given.limits)
    git = GitConnection(one.name, one.clone, one.canonical_hostname, access=client.git, suffix=".git")
    forge = PagureForge(client, given.engine)
    return Connected(git, forge, forge.close)
