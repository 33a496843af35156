"""Read a connection to Gitea or Forgejo from the settings, and call its REST API."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import httpx

from headgate.adapters.forges import rest
from headgate.adapters.forges.accounts import TRUE, CallBudget, OnTheWeb, address, host_of, over_ssh
from headgate.base.errors import UserError
from headgate.ports.limits import ForgeLimits
from headgate.ports.reporter import ReporterAway

REFUSED_S = 60.0
"""Pause after the forge refuses the token; until somebody provides another one, calls cannot succeed."""


@dataclass(frozen=True, slots=True)
class GiteaAccount(OnTheWeb):
    """Describe where a Gitea is, and which account Headgate uses there."""

    name: str
    web: str
    """URL of the web pages, without a slash at the end; it may have a path."""
    canonical_hostname: str
    clone: str
    """URL prefix of repositories, followed by the name of the project."""
    api_token: str = field(default="", repr=False)
    webhook_token: str = field(default="", repr=False)
    user: str = ""
    """Name of the account; empty: Headgate requests it from the forge."""
    sshkey: str = ""
    verify_ssl: bool = True

    @property
    def api(self) -> str:
        """Return the URL of the REST API."""
        return f"{self.web}/api/v1"


def account(name: str, options: Mapping[str, str]) -> GiteaAccount:
    """Return the account that a section of the settings describes. Raise UserError."""
    server = options.get("server", "")
    web = address("baseurl", options.get("baseurl") or (server if "://" in server else f"https://{server}"))
    host = urlsplit(web).hostname or ""
    if not options.get("api_token"):
        raise UserError("api_token is missing: set it to a token of Headgate's account there, with write permission")
    clone = options.get("cloneurl") or (f"ssh://git@{host}" if options.get("sshkey") else web)
    if clone.startswith(("http://", "https://")):
        clone = address("cloneurl", clone)
    canonical = options.get("canonical_hostname") or host_of(server) or host
    return GiteaAccount(
        name,
        web,
        canonical,
        clone.rstrip("/"),
        options["api_token"],
        options.get("webhook_token", ""),
        options.get("user", ""),
        options.get("sshkey", ""),
        options.get("verify_ssl", "true").lower() in TRUE,
    )


class GiteaClient(rest.Rest):
    """Call one Gitea."""

    page_size: rest.Query = MappingProxyType({"limit": 50})

    def __init__(
        self,
        account: GiteaAccount,
        http: Callable[[], httpx.AsyncClient],
        now_s: Callable[[], float] = time.time,
        limits: ForgeLimits | None = None,
    ) -> None:
        super().__init__(account.host, account.api, http, now_s, limits)
        self.account, self.now_s = account, now_s
        self.key = rest.ForgeKey(f"the token of {account.name}", account.api_token)
        self._login = account.user

    def headers(self, key: rest.ForgeKey) -> Mapping[str, str]:
        """Return the headers that authenticate a call; see `Rest`."""
        return {"Accept": "application/json", "Authorization": f"token {key.token}"}

    def taken(self, answer: rest.Heard, budget: CallBudget) -> Any:
        """Return the content of a response; see `Rest`. A refused token makes every call fail, so all calls wait for a
        new one."""
        if answer.status == 401:
            raise ReporterAway(f"{self.account.host} refuses the api_token: create another one", REFUSED_S)
        # Gitea returns 500 if a single repository is broken, for example, while others work.
        if answer.status == 500:
            raise rest.ForgeServerError(f"{self.account.host} has an internal error (500); see its log", rest.AGAIN_S)
        return super().taken(answer, budget)

    async def pages(
        self,
        key: rest.ForgeKey,
        path: str,
        query: rest.Query = rest.NO_QUERY,
        *,
        urgent: bool = True,
        complete: bool = False,
    ) -> AsyncIterator[Any]:
        """Yield the pages of a list; see `Rest`. The client numbers the pages, since the links to the next page have
        the address that the server believes it has, which may be wrong."""
        seen, before = 0, None
        for page in range(1, rest.PAGES_MAX + 1):
            answer = await self.get(key, path, {**query, **self.page_size, "page": page}, urgent=urgent)
            # A page like the one before comes from a server that ignores `page`; reading on would never end.
            if not answer.content or answer.content == before:
                return
            yield answer.content
            seen, before = seen + len(answer.content), answer.content
            total = answer.headers.get("x-total-count", "")
            if total.isdecimal() and seen >= int(total[:12]):
                return
        if complete:
            raise rest.ListTooLong

    # --- credentials

    @property
    def login(self) -> str:
        """Return the login of the account; empty while unknown."""
        return self._login

    async def of(self, _project: str) -> rest.ForgeKey:
        """Return the key for calls; see `reporter.ForgeIdentity`. One account serves all projects."""
        return self.key

    async def us(self) -> tuple[str, ...]:
        """Return the accounts that Headgate writes as; see `reporter.ForgeIdentity`."""
        if not self._login:
            self._login = str((await self.get(self.key, "/user")).content["login"])
        return (self._login,)

    async def git(self, _project: str) -> Mapping[str, str]:
        """Return git's settings for access to the server."""
        account = self.account
        if account.sshkey:
            return over_ssh(account.sshkey)
        if not account.clone.startswith(("http://", "https://")):
            return {}
        basic = base64.b64encode(f"{account.user or 'headgate'}:{account.api_token}".encode()).decode()
        config = {
            f"http.{account.clone}/.extraHeader": f"Authorization: Basic {basic}",
            f"http.{account.clone}/.followRedirects": "false",  # git's requests contain the token, too
        }
        return config if account.verify_ssl else {**config, f"http.{account.clone}/.sslVerify": "false"}
