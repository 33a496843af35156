"""Say who Headgate is at a project: an installation of its app, or a personal token."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import jwt

from headgate.adapters.forges.github.client import GitHubClient
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, NotLetIn, NotThere
from headgate.base.errors import UserError

JWT_LIFE_S, SKEW_S = 300, 60
EARLY_S = 300.0
"""Tokens are replaced this long before they expire, since a clone takes a while."""
ABSENT_S = 600.0
"""How long the absence of the app at a project is cached."""
PROJECTS_MAX = 10_000


class GitHubAppNotInstalled(NotLetIn):
    """Report that the app is not installed at the project."""


@dataclass(slots=True)
class _Token:
    key: ForgeKey
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
        """Installation -> permissions of the app there, from GitHub's last answer."""
        self._asking: dict[str, asyncio.Lock] = {}
        client.renew = self.anew
        self.slug = ""
        self.login = ""
        """Login of the account that owns the personal token."""

    def app_key(self) -> ForgeKey:
        """Return the key of the app itself."""
        account, now_s = self._client.account, int(self._now_s())
        # GitHub rejects a token from the future, so a clock that is slightly
        # fast is allowed for. The whole life of such a token may be ten minutes.
        claims = {"iat": now_s - SKEW_S, "exp": now_s + JWT_LIFE_S, "iss": account.app_id}
        try:
            token = jwt.encode(claims, account.app_key, algorithm="RS256")
        except (ValueError, TypeError, jwt.PyJWTError) as error:
            raise UserError(f"[connection {account.name}] app_key cannot be used: {error}") from error
        return ForgeKey(f"app {account.app_id}", token)

    async def of(self, project: str) -> ForgeKey:
        """Return the key for a project (owner/name). Raise GitHubAppNotInstalled, ReporterAway."""
        account = self._client.account
        if not account.app_id:
            return ForgeKey(f"token of {account.name}", account.api_token)
        # One lock for each owner: an installation covers all projects of an owner, and one token serves them all.
        lock = self._asking.setdefault(project.partition("/")[0], asyncio.Lock())
        async with lock:
            installation = await self._installation(project)
            if installation is None:
                if account.api_token:
                    return ForgeKey(f"token of {account.name}", account.api_token)
                slug = self.slug or f"with the id {account.app_id}"
                raise GitHubAppNotInstalled(
                    f"the app {slug} is not installed at {project}: its owner installs it there"
                )
            return await self._token(project, installation)

    async def _installation(self, project: str) -> int | None:
        known = self._installed.get(project)
        if known is not None or self._absent.get(project, 0.0) > self._now_s():
            return known
        try:
            answer = await self._client.get(self.app_key(), f"/repos/{project}/installation")
        except NotThere:
            self._absent[project] = self._now_s() + ABSENT_S
            if len(self._absent) > PROJECTS_MAX:
                self._absent.pop(next(iter(self._absent)))
            return None
        except ForgeDenied as error:
            raise GitHubAppNotInstalled(f"the app is not let in: {error}; look at app_id and app_key") from error
        self.slug = str(answer.content.get("app_slug") or self.slug)
        found = int(answer.content["id"])
        self._installed[project] = found
        self._granted[found] = answer.content.get("permissions") or {}
        return found

    async def _token(self, project: str, installation: int) -> ForgeKey:
        known = self._tokens.get(installation)
        if known is not None and known.ends_s - EARLY_S > self._now_s():
            return known.key
        try:
            path = f"/app/installations/{installation}/access_tokens"
            answer = await self._client.write("POST", self.app_key(), path)
        except (NotThere, ForgeDenied) as error:
            # The app was removed, or removed and installed again under another id.
            self._installed.pop(project, None)
            self._tokens.pop(installation, None)
            raise GitHubAppNotInstalled(f"the app has no token for {project}: {error}") from error
        key = ForgeKey(f"installation {installation}", str(answer.content["token"]))
        self._granted[installation] = answer.content.get("permissions") or self._granted.get(installation, {})
        ends_s = datetime.fromisoformat(str(answer.content["expires_at"])).timestamp()
        self._tokens[installation] = _Token(key, ends_s)
        return key

    def reads_rules(self, project: str) -> bool:
        """Tell whether classic branch protection may be read; GitHub hides it from accounts without the permission. An
        unknown permission counts as granted."""
        granted = self._granted.get(self._installed.get(project, 0), {})
        return not granted or "administration" in granted

    def forget(self, project: str) -> None:
        """Discard the cached identity at a project, which GitHub refused."""
        installation = self._installed.pop(project, None)
        if installation is not None:
            self._tokens.pop(installation, None)

    async def anew(self, key: ForgeKey) -> ForgeKey | None:
        """Return a replacement for an installation's refused key; None if there is none."""
        project = next((one for one, id in self._installed.items() if key.who == f"installation {id}"), None)
        if project is None:
            return None
        known = self._tokens.get(self._installed[project])
        if known is not None and known.key == key:
            self._tokens.pop(self._installed[project])
        fresh = await self.of(project)
        return fresh if fresh != key else None

    async def us(self) -> tuple[str, ...]:
        """Return the accounts that Headgate writes as.  Raise ReporterAway."""
        account = self._client.account
        if account.app_id:
            if not self.slug:
                self.slug = str((await self._client.get(self.app_key(), "/app")).content["slug"])
            return (self.slug, f"{self.slug}[bot]")
        if account.api_token and not self.login:
            key = ForgeKey(f"token of {account.name}", account.api_token)
            self.login = str((await self._client.get(key, "/user")).content["login"])
        return (self.login,) if self.login else ()

    async def git(self, project: str) -> Mapping[str, str]:
        """Return git's settings for access to a project (owner/name)."""
        account = self._client.account
        if account.sshkey:
            return {"core.sshCommand": f"ssh -i {_quoted(account.sshkey)} -o IdentitiesOnly=yes -o BatchMode=yes"}
        key = await self.of(project)
        if not key.token:
            return {}
        basic = base64.b64encode(f"x-access-token:{key.token}".encode()).decode()
        config = {f"http.{account.web}/.extraHeader": f"Authorization: Basic {basic}"}
        return config if account.verify_ssl else {**config, f"http.{account.web}/.sslVerify": "false"}


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
