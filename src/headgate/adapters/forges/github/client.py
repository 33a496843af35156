"""Read a connection to GitHub from the settings, call its API, and find the token for each project."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
import msgspec

from headgate.adapters.forges import rest
from headgate.adapters.forges.accounts import LOOPBACK, TRUE, CallBudget, OnTheWeb, over_ssh
from headgate.base.errors import UserError
from headgate.ports.limits import ForgeLimits
from headgate.ports.reporter import ReporterAway

log = logging.getLogger("headgate.github")

PUBLIC = "github.com"

VERSION = "2022-11-28"
"""Version of the REST API."""

REFUSED_S = 300.0
"""Pause after GitHub refuses every token."""
_OURS = ("installation ", "token of ")
"""Prefixes of the names of keys that represent Headgate itself at projects."""

JWT_LIFE_S, SKEW_S = 300, 60
"""Lifetime of the app's own token, and how much GitHub's clock may be behind ours."""
EARLY_S = 300.0
"""Tokens are replaced this long before they expire, since a clone takes a while."""
ABSENT_S = 600.0
"""How long the absence of the app at a project is cached."""
PROJECTS_MAX = 10_000
"""Maximum number of projects whose lack of the app is cached."""


@dataclass(frozen=True, slots=True)
class GitHubAccount(OnTheWeb):
    """Describe where GitHub is, and which account Headgate uses there."""

    name: str
    web: str = f"https://{PUBLIC}"
    """URL of the web pages, without a slash at the end."""
    canonical_hostname: str = PUBLIC
    app_id: str = ""
    app_key: str = field(default="", repr=False)
    """Private key of the app, in PEM."""
    api_token: str = field(default="", repr=False)
    webhook_token: str = field(default="", repr=False)
    sshkey: str = ""
    """Path of an ssh key; if set, git uses ssh."""
    verify_ssl: bool = True

    @property
    def api(self) -> str:
        """Return the URL of the REST API."""
        # A GitHub Enterprise Server has its API below the address of the pages.
        return "https://api.github.com" if self.web == f"https://{PUBLIC}" else f"{self.web}/api/v3"

    @property
    def graphql(self) -> str:
        """Return the URL of the GraphQL API."""
        return "https://api.github.com/graphql" if self.web == f"https://{PUBLIC}" else f"{self.web}/api/graphql"

    @property
    def git(self) -> str:
        """Return the URL prefix of repositories, followed by the name of the project."""
        return f"ssh://git@{self.host}" if self.sshkey else self.web


def account(name: str, options: Mapping[str, str], key: str = "") -> GitHubAccount:
    """Return the account that a section of the settings describes; `key`: content of the file `app_key`. Raise
    UserError."""
    server = options.get("server") or PUBLIC
    web = server if "://" in server else f"https://{server}"
    parts = urlsplit(web)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise UserError(f"server: {server!r} is not a host name; write it as github.example.com")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise UserError("server: http:// is allowed only for this machine, as it sends tokens unencrypted; omit it")
    app_id = options.get("app_id", "")
    if bool(app_id) != bool(options.get("app_key")):
        raise UserError("app_id and app_key belong together: set both, or neither")
    if app_id and not app_id.isdecimal():
        raise UserError(f"app_id: {app_id!r} is not a number; it is on the page of the app's settings")
    if app_id and not re.search("-----BEGIN (RSA )?PRIVATE KEY-----", key):
        why = "is not a private key in PEM format; create one in the app's settings"
        raise UserError(f"app_key: {options['app_key']} {why}")
    return GitHubAccount(
        name,
        f"{parts.scheme}://{parts.netloc}",
        options.get("canonical_hostname") or parts.hostname,
        app_id,
        key,
        options.get("api_token", ""),
        options.get("webhook_token", ""),
        options.get("sshkey", ""),
        options.get("verify_ssl", "true").lower() in TRUE,
    )


class GitHubUnauthorized(rest.ForgeDenied):
    """Report that GitHub rejects the token."""


class GitHubClient(rest.Rest):
    """Call one GitHub. `calls` also counts `graphql`."""

    def __init__(
        self,
        account: GitHubAccount,
        http: Callable[[], httpx.AsyncClient],
        now_s: Callable[[], float] = time.time,
        limits: ForgeLimits | None = None,
    ) -> None:
        super().__init__(account.host, account.api, http, now_s, limits)
        self.account, self.now_s = account, now_s
        self.renew: Callable[[rest.ForgeKey], Awaitable[rest.ForgeKey | None]] | None = None
        """Returns a replacement for a key that GitHub refused, or None if there is none."""

    def headers(self, key: rest.ForgeKey) -> Mapping[str, str]:
        """Return the headers that authenticate a call; see `Rest`."""
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": VERSION}
        return {**headers, "Authorization": f"Bearer {key.token}"} if key.token else headers

    def taken(self, answer: rest.Heard, budget: CallBudget) -> Any:
        """Return the content of a response, or raise what its status means; see `Rest`."""
        try:
            return super().taken(answer, budget)
        except rest.ForgeDenied as error:
            if answer.status != 401:
                raise
            raise GitHubUnauthorized(str(error)) from error

    async def _rest(
        self, method: str, key: rest.ForgeKey, url: str, content: Any, headers: Mapping[str, str], *, urgent: bool
    ) -> rest.ForgeResponse:
        try:
            return await super()._rest(method, key, url, content, headers, urgent=urgent)
        except GitHubUnauthorized as error:
            key = await self._renewed(key, error)
        # Only the first attempt has been counted so far.
        self.calls["rest"] += 1
        try:
            return await super()._rest(method, key, url, content, headers, urgent=urgent)
        except GitHubUnauthorized as error:
            raise self._away(key, error) from error

    async def _renewed(self, key: rest.ForgeKey, error: GitHubUnauthorized) -> rest.ForgeKey:
        """Return a replacement for a key that GitHub refused before it expired. Raise ReporterAway if there is none;
        for other keys, such as the app's own, raise GitHubUnauthorized."""
        if self.renew is None or not key.who.startswith(_OURS):
            raise error
        fresh = await self.renew(key)
        if fresh is None:
            raise self._away(key, error) from error
        return fresh

    def _away(self, key: rest.ForgeKey, error: GitHubUnauthorized) -> ReporterAway:
        return ReporterAway(f"{self.account.host} refuses the {key.who}: {error}", REFUSED_S, alone=True)

    async def query(self, key: rest.ForgeKey, text: str, *, urgent: bool = True, **variables: Any) -> dict[str, Any]:
        """Return the data of a GraphQL query; parts that our account may not see are None. Raise the errors of
        `get`."""
        budget, project = self.budget(key, "graphql"), f"{variables.get('owner', '')}/{variables.get('name', '')}"
        self.may(budget, key, urgent, project, "graphql")
        self.calls["graphql"] += 1
        body = msgspec.json.encode({"query": text, "variables": variables})
        as_json = {"Content-Type": "application/json"}
        answer = await self.sent("POST", self.account.graphql, key, as_json, body)
        try:
            response = self.learned(answer, budget, key, project, "graphql")
        except GitHubUnauthorized as refused:
            key = await self._renewed(key, refused)
            self.calls["graphql"] += 1
            answer = await self.sent("POST", self.account.graphql, key, as_json, body)
            response = self.learned(answer, budget, key, project, "graphql")
        errors = response.get("errors") or [] if isinstance(response, dict) else []
        for error in errors:
            message = str(error.get("message", ""))
            # GraphQL reports its limit in a response with status 200, which `taken` has accepted.
            if error.get("type") == "RATE_LIMITED":
                wait_s = budget.refused(200, answer.headers, message, self._now_s())
                self.heed(budget, key, "graphql")
                raise ReporterAway(message, wait_s or rest.AGAIN_S, alone=True)
            if error.get("type") == "NOT_FOUND":
                raise rest.NotThere(message)
        data = response.get("data") if isinstance(response, dict) else None
        if not isinstance(data, dict):
            raise rest.Rejected(
                answer.status, "; ".join(str(e.get("message", "")) for e in errors) or "the response has no data"
            )
        # Partial data is used: an account that may not see one part still sees the rest.
        for error in errors[:3]:
            log.info("GraphQL of %s: %s", self.account.name, str(error.get("message", ""))[:300])
        return data


class GitHubAppNotInstalled(rest.NotLetIn):
    """Report that the app is not installed at the project."""


@dataclass(slots=True)
class _Token:
    key: rest.ForgeKey
    ends_s: float


class Tokens:
    """Find the token for each project. `slug` is the app's own name, once it is known."""

    def __init__(self, client: GitHubClient, now_s: Callable[[], float] = time.time) -> None:
        self._client, self._now_s = client, now_s
        self._installed: dict[str, int] = {}
        """Project (owner/name) -> id of the installation."""
        self._absent: dict[str, float] = {}
        """Project -> when its entry expires; until then the app counts as not installed."""
        self._tokens: dict[int, _Token] = {}
        self._granted: dict[int, Mapping[str, str]] = {}
        """Installation -> permissions of the app there, from GitHub's last response."""
        self._asking: dict[str, asyncio.Lock] = {}
        client.renew = self.replacement
        self.slug = ""
        self.login = ""
        """Login of the account that owns the personal token."""

    def learn(self, slug: str) -> None:
        """Learn the app's own name."""
        self.slug = slug

    def app_key(self) -> rest.ForgeKey:
        """Return the key of the app itself."""
        account, now_s = self._client.account, int(self._now_s())
        # GitHub rejects a token from the future, so backdate it in case our clock is fast. From `iat` to `exp`, such a
        # token may live for at most ten minutes.
        claims = {"iat": now_s - SKEW_S, "exp": now_s + JWT_LIFE_S, "iss": account.app_id}
        try:
            token = jwt.encode(claims, account.app_key, algorithm="RS256")
        except (ValueError, TypeError, jwt.PyJWTError) as error:
            raise UserError(f"[connection {account.name}] app_key cannot be used: {error}") from error
        return rest.ForgeKey(f"app {account.app_id}", token)

    async def of(self, project: str) -> rest.ForgeKey:
        """Return the key for a project (owner/name). Raise GitHubAppNotInstalled, ReporterAway."""
        account = self._client.account
        if not account.app_id:
            return rest.ForgeKey(f"token of {account.name}", account.api_token)
        # One lock for each owner: an installation covers all projects of an owner, and one token serves them all.
        lock = self._asking.setdefault(project.partition("/")[0], asyncio.Lock())
        async with lock:
            installation = await self._installation(project)
            if installation is None:
                # The personal token serves projects at which the app is not installed.
                if account.api_token:
                    return rest.ForgeKey(f"token of {account.name}", account.api_token)
                slug = self.slug or f"with the id {account.app_id}"
                raise GitHubAppNotInstalled(
                    f"the app {slug} is not installed at {project}: its owner must install it there"
                )
            return await self._token(project, installation)

    async def _installation(self, project: str) -> int | None:
        known = self._installed.get(project)
        if known is not None or self._absent.get(project, 0.0) > self._now_s():
            return known
        try:
            answer = await self._client.get(self.app_key(), f"/repos/{project}/installation")
        except rest.NotThere:
            # Otherwise every poll of a project without the app would cost a call.
            self._absent[project] = self._now_s() + ABSENT_S
            if len(self._absent) > PROJECTS_MAX:
                self._absent.pop(next(iter(self._absent)))
            return None
        except rest.ForgeDenied as error:
            raise GitHubAppNotInstalled(f"GitHub rejects the app: {error}; check app_id and app_key") from error
        self.slug = str(answer.content.get("app_slug") or self.slug)
        found = int(answer.content["id"])
        self._installed[project] = found
        self._granted[found] = answer.content.get("permissions") or {}
        return found

    async def _token(self, project: str, installation: int) -> rest.ForgeKey:
        known = self._tokens.get(installation)
        if known is not None and known.ends_s - EARLY_S > self._now_s():
            return known.key
        try:
            path = f"/app/installations/{installation}/access_tokens"
            answer = await self._client.write("POST", self.app_key(), path)
        except (rest.NotThere, rest.ForgeDenied) as error:
            # The app was removed, or removed and installed again under another id.
            self._installed.pop(project, None)
            self._tokens.pop(installation, None)
            raise GitHubAppNotInstalled(f"the app has no token for {project}: {error}") from error
        key = rest.ForgeKey(f"installation {installation}", str(answer.content["token"]))
        self._granted[installation] = answer.content.get("permissions") or self._granted.get(installation, {})
        ends_s = datetime.fromisoformat(str(answer.content["expires_at"])).timestamp()
        self._tokens[installation] = _Token(key, ends_s)
        return key

    def reads_rules(self, project: str) -> bool:
        """Return whether the app may read classic branch protection; GitHub hides it from accounts without the
        permission. An unknown permission counts as granted."""
        granted = self._granted.get(self._installed.get(project, 0), {})
        return not granted or "administration" in granted

    def forget(self, project: str) -> None:
        """Discard the cached identity at a project, which GitHub refused."""
        installation = self._installed.pop(project, None)
        if installation is not None:
            self._tokens.pop(installation, None)

    async def replacement(self, key: rest.ForgeKey) -> rest.ForgeKey | None:
        """Return a new key for an installation whose key GitHub refuses; None if there is none."""
        project = next((one for one, id in self._installed.items() if key.who == f"installation {id}"), None)
        # A personal token cannot be renewed.
        if project is None:
            return None
        known = self._tokens.get(self._installed[project])
        if known is not None and known.key == key:
            self._tokens.pop(self._installed[project])
        fresh = await self.of(project)
        # The same key would be refused again.
        return fresh if fresh != key else None

    async def us(self) -> tuple[str, ...]:
        """Return the accounts that Headgate writes as.  Raise ReporterAway."""
        account = self._client.account
        if account.app_id:
            if not self.slug:
                self.slug = str((await self._client.get(self.app_key(), "/app")).content["slug"])
            return (self.slug, f"{self.slug}[bot]")
        if account.api_token and not self.login:
            key = rest.ForgeKey(f"token of {account.name}", account.api_token)
            self.login = str((await self._client.get(key, "/user")).content["login"])
        return (self.login,) if self.login else ()

    async def git(self, project: str) -> Mapping[str, str]:
        """Return git's settings for access to a project (owner/name)."""
        account = self._client.account
        if account.sshkey:
            return over_ssh(account.sshkey)
        key = await self.of(project)
        # Public repositories can be read without a token.
        if not key.token:
            return {}
        basic = base64.b64encode(f"x-access-token:{key.token}".encode()).decode()
        config = {f"http.{account.web}/.extraHeader": f"Authorization: Basic {basic}"}
        return config if account.verify_ssl else {**config, f"http.{account.web}/.sslVerify": "false"}
