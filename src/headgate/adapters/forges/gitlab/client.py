"""Read a connection to GitLab from the settings, call its API, and look up people's permissions there."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from headgate.adapters.forges import rest
from headgate.adapters.forges.accounts import LOOPBACK, TRUE, CallBudget, OnTheWeb, host_of, over_ssh
from headgate.base.errors import UserError
from headgate.ports.limits import ForgeLimits

PUBLIC = "gitlab.com"
SIGNING = "whsec_"
"""Prefix of signing tokens."""

_LIMITS = {
    "ratelimit-limit": "x-ratelimit-limit",
    "ratelimit-remaining": "x-ratelimit-remaining",
    "ratelimit-reset": "x-ratelimit-reset",
}
"""GitLab's names of headers that other forges begin with `x-`."""
_MOVED = "moved project"
"""Part of GitLab's response to a write to a project that was renamed."""

DEVELOPER, MAINTAINER, GUEST = 30, 40, 10
"""Access levels."""
FRESH_S = 600.0
"""How long a permission is cached."""
KNOWN_MAX = 4_096
"""Maximum number of permissions that are cached."""


@dataclass(frozen=True, slots=True)
class GitLabAccount(OnTheWeb):
    """Describe where a GitLab is, and which account Headgate uses there."""

    name: str
    web: str = f"https://{PUBLIC}"
    """URL of the web pages, without a slash at the end; it may have a path."""
    canonical_hostname: str = PUBLIC
    api_token: str = field(default="", repr=False)
    api_token_name: str = "headgate"
    """Name with which git logs in; GitLab accepts any name with a token."""
    webhook_token: str = field(default="", repr=False)
    signing_key: bytes = field(default=b"", repr=False)
    """Key that deliveries are signed with; empty: deliveries need no signature."""
    clone: str = f"https://{PUBLIC}"
    """URL prefix of repositories, followed by the name of the project."""
    sshkey: str = ""
    """Path of an ssh key; if set, git uses ssh."""
    verify_ssl: bool = True

    @property
    def api(self) -> str:
        """Return the URL of the REST API."""
        return f"{self.web}/api/v4"

    def path(self, project: str) -> str:
        """Return the API's path of a project, from its canonical name."""
        return f"/projects/{quote(self.short(project), safe='')}"


def account(name: str, options: Mapping[str, str]) -> GitLabAccount:
    """Return the account that a section of the settings describes. Raise UserError."""
    server = options.get("server") or PUBLIC
    web = _web(options, server)
    clone = options.get("cloneurl") or web
    if not options.get("api_token"):
        raise UserError("api_token is missing: set it to a token, with the scope api, of an account of Headgate's own")
    return GitLabAccount(
        name,
        web,
        options.get("canonical_hostname") or host_of(options.get("server") or web),
        options["api_token"],
        options.get("api_token_name") or "headgate",
        options.get("webhook_token", ""),
        _signing_key(options.get("webhook_signing_token", "")),
        clone.rstrip("/"),
        options.get("sshkey", ""),
        options.get("verify_ssl", "true").lower() in TRUE,
    )


def _web(options: Mapping[str, str], server: str) -> str:
    option = "baseurl" if options.get("baseurl") else "server"
    web = options.get("baseurl") or (server if "://" in server else f"https://{server}")
    parts = urlsplit(web)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UserError(f"{option}: {web!r} is not an address of a GitLab; write it as https://gitlab.example.com")
    if option == "server" and parts.path.strip("/"):
        raise UserError(f"server: {server!r} is not a host name; give an address with a path as baseurl")
    if parts.username or parts.password:
        raise UserError(f"{option}: leave name and password out; the token is api_token")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        why = "http:// is allowed only for this machine, as it sends tokens unencrypted"
        raise UserError(f"{option}: {why}; use https://")
    return web.rstrip("/")


def _signing_key(token: str) -> bytes:
    if not token:
        return b""
    try:
        if not token.startswith(SIGNING):
            raise ValueError(token)
        return base64.b64decode(token.removeprefix(SIGNING), validate=True)
    except (ValueError, binascii.Error):
        raise UserError(f"webhook_signing_token: this is not a signing token; GitLab's begin with {SIGNING}") from None


class GitLabUnauthorized(rest.ForgeDenied):
    """Report that the token is rejected; for merges and approvals, the account may lack permission instead."""


class GitLabClient(rest.Rest):
    """Call one GitLab."""

    def __init__(
        self,
        account: GitLabAccount,
        http: Callable[[], httpx.AsyncClient],
        now_s: Callable[[], float] = time.time,
        limits: ForgeLimits | None = None,
    ) -> None:
        super().__init__(account.host, account.api, http, now_s, limits)
        self.account = account
        self.key = rest.ForgeKey(f"token of {account.name}", account.api_token)
        """One account serves all projects."""

    def headers(self, key: rest.ForgeKey) -> Mapping[str, str]:
        """Return the headers that authenticate a call; see `Rest`."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        return {**headers, "Authorization": f"Bearer {key.token}"}

    def taken(self, answer: rest.Heard, budget: CallBudget) -> Any:
        """Return the content of a response, or raise what its status means; see `Rest`."""
        headers = {
            **answer.headers,
            **{new: answer.headers[old] for old, new in _LIMITS.items() if old in answer.headers},
        }
        body = answer.body if answer.status < 400 else rest.in_one_form(answer.body)
        try:
            return super().taken(rest.Heard(answer.status, headers, body), budget)
        except rest.ForgeDenied as error:
            # Only this status blames the token.
            if answer.status != 401:
                raise
            raise GitLabUnauthorized(
                f"{error} (is the api_token of [connection {self.account.name}] valid?)"
            ) from error

    async def change(self, method: str, project: str, path: str, content: Mapping[str, Any]) -> rest.ForgeResponse:
        """Write to a project (canonical name), even if it was renamed, and return the response: GitLab redirects reads,
        but not writes. Raise the errors of `get`."""
        place = self.account.path(project)
        try:
            return await self.write(method, self.key, place + path, content)
        except rest.Rejected as error:
            if error.status != 405 or _MOVED not in str(error):
                raise
        # Ids survive renaming.
        id = (await self.get(self.key, place)).content["id"]
        return await self.write(method, self.key, f"/projects/{int(id)}{path}", content)


class People:
    """Look up the people of one GitLab, and their permissions."""

    def __init__(self, client: GitLabClient, now_s: Callable[[], float] = time.time) -> None:
        self._client, self._now_s = client, now_s
        self.name = ""
        """Name of our account; empty until it is known."""
        self._permissions: dict[tuple[str, int], tuple[float, str]] = {}
        """(project, account) -> when the entry expires, and the permission."""

    def forget(self) -> None:
        """Forget our account, so that the next caller asks for it."""
        self.name = ""

    async def us(self) -> tuple[str, ...]:
        """Return the account that Headgate writes as.  Raise ReporterAway, ForgeDenied."""
        if not self.name:
            self.name = str((await self._client.get(self._client.key, "/user")).content["username"])
        return (self.name,)

    async def permission(self, project: str, id: int) -> str:
        """Return the permission of an account in a project (canonical name): admin for maintainers and above, write for
        developers, read for other members, or none; empty if unknown."""
        now_s = self._now_s()
        until_s, known = self._permissions.get((project, id), (0.0, ""))
        if until_s > now_s:
            return known
        path = f"{self._client.account.path(project)}/members/all/{id}"
        try:
            known = word((await self._client.get(self._client.key, path)).content)
        except rest.NotThere:
            # GitLab returns this for accounts that are not members.
            known = "none"
        except (rest.ForgeDenied, rest.Rejected):
            # Our account may lack permission to ask.
            known = ""
        self._permissions[project, id] = (now_s + FRESH_S, known)
        while len(self._permissions) > KNOWN_MAX:
            self._permissions.pop(next(iter(self._permissions)))
        return known

    def git(self) -> Mapping[str, str]:
        """Return git's settings for access to the server."""
        account = self._client.account
        if urlsplit(account.clone).scheme not in ("http", "https"):
            return over_ssh(account.sshkey) if account.sshkey else {}
        # Git's requests contain the token, so git must not follow redirects.
        config = {f"http.{account.clone}/.followRedirects": "false"}
        if not account.verify_ssl:
            config[f"http.{account.clone}/.sslVerify"] = "false"
        # The address contains the operator's own credentials; git would send our header in addition to them.
        if urlsplit(account.clone).username:
            return config
        basic = base64.b64encode(f"{account.api_token_name}:{account.api_token}".encode()).decode()
        return {**config, f"http.{account.clone}/.extraHeader": f"Authorization: Basic {basic}"}


def word(membership: Mapping[str, object]) -> str:
    """Return the permission that a membership gives; an inactive one gives none."""
    level = membership.get("access_level")
    if not isinstance(level, int) or level < GUEST or membership.get("state", "active") != "active":
        return "none"
    return "admin" if level >= MAINTAINER else "write" if level >= DEVELOPER else "read"
