"""Calls of Pagure's API, and their credentials."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import httpx

from headgate.adapters.forges.accounts import over_ssh
from headgate.adapters.forges.budget import CallBudget
from headgate.adapters.forges.pagure.account import PagureAccount
from headgate.adapters.forges.rest import (
    AGAIN_S,
    PAGES_MAX,
    ForgeDenied,
    ForgeKey,
    ForgeServerError,
    Heard,
    Query,
    ResponseTooLarge,
    Rest,
    in_one_form,
)
from headgate.ports.reporter import ReporterAway

PAGE = 20
"""Pull requests on a page; the number is small because each comes with all of its comments."""
_ABOUT = re.compile(r"/((?:fork/[^/?]+/)?(?:[^/?]+/)?[^/?]+?)/(?:pull-requests?|c|options|webhook)(?:[/?]|$)")
REFUSED_S = 60.0
"""Pause after the forge refused the token, until somebody provides another one."""


class PagureUnauthorized(ForgeDenied):
    """Report that the token is rejected altogether, or that its ACLs do not include this action."""


class PagureClient(Rest):
    """Call one Pagure."""

    page_size: Query = MappingProxyType({"per_page": PAGE})

    def __init__(
        self, account: PagureAccount, http: Callable[[], httpx.AsyncClient], now_s: Callable[[], float] = time.time
    ) -> None:
        super().__init__(account.host, account.api, http, now_s)
        self.account, self.now_s = account, now_s
        self.key = ForgeKey(f"the token of {account.name}", account.api_token)
        self.login = ""
        """Login of the account; empty while unknown."""

    def headers(self, key: ForgeKey) -> Mapping[str, str]:
        """See `Rest`."""
        form = "application/x-www-form-urlencoded"
        return {"Accept": "application/json", "Content-Type": form, "Authorization": f"token {key.token}"}

    def encoded(self, content: Any) -> bytes:
        """See `Rest`: Pagure reads forms."""
        return urlencode(content).encode()

    def taken(self, answer: Heard, budget: CallBudget) -> Any:
        """See `Rest`."""
        body = answer.body if answer.status < 400 else in_one_form(answer.body)
        if answer.status == 500:
            raise ForgeServerError(f"{self.account.host} fails inside (500); its log says why", AGAIN_S)
        try:
            return super().taken(Heard(answer.status, answer.headers, body), budget)
        except ForgeDenied as error:
            if answer.status != 401:
                raise
            raise PagureUnauthorized(str(error)) from error

    def about(self, url: str) -> str:
        """See `Rest`."""
        found = _ABOUT.match(url.removeprefix(self.account.api))
        return found[1] if found is not None else ""

    def project(self, short: str) -> str:
        """Return the API's path of a project."""
        return self.account.path(short)

    async def requests(self, path: str, query: Query) -> AsyncIterator[Any]:
        """Yield a list of pull requests, page by page; one that is too long to be read is left out. Raise as `get`."""
        for page in range(1, PAGES_MAX + 1):
            try:
                content = (
                    await self.get(self.key, path, {**query, "per_page": PAGE, "page": page}, urgent=False)
                ).content
            except ResponseTooLarge:
                pages = await self._one_by_one(path, query, page)
                yield pages[0]
                if page >= pages[1]:
                    return
                continue
            yield content["requests"]
            if page >= int((content.get("pagination") or {}).get("pages") or 1):
                return

    async def _one_by_one(self, path: str, query: Query, page: int) -> tuple[list[Any], int]:
        """Return the pull requests of a page that is too long as a whole, and the number of pages."""
        found, pages = list[Any](), page
        for one in range((page - 1) * PAGE + 1, page * PAGE + 1):
            try:
                content = (await self.get(self.key, path, {**query, "per_page": 1, "page": one}, urgent=False)).content
            except ResponseTooLarge:
                # Nothing is known of the pages behind an entry that is too
                # long even alone; one more is assumed, so reading goes on.
                pages = max(pages, one // PAGE + 1)
                continue
            found += content["requests"]
            all_ = int((content.get("pagination") or {}).get("pages") or 1)
            pages = -(-all_ // PAGE)
            if one >= all_:
                break
        return found, pages

    # --- credentials

    async def of(self, _project: str) -> ForgeKey:
        """See `explain.Who`: one account serves all projects."""
        return self.key

    async def us(self) -> tuple[str, ...]:
        """See `explain.Who`."""
        if not self.login:
            self.login = str((await self.write("POST", self.key, "/-/whoami", {})).content["username"])
        return (self.login,)

    async def let_in(self) -> None:
        """Find out whether the token is refused for every call. Raise ReporterAway if so: then all calls wait for a new
        one."""
        try:
            await self.write("POST", self.key, "/-/whoami", {})
        except ForgeDenied as error:
            raise ReporterAway(f"{self.account.host} refuses the api_token: make another one", REFUSED_S) from error

    async def git(self, _project: str) -> Mapping[str, str]:
        """Return git's settings for access to the server; public repositories are read without a token."""
        account = self.account
        if account.sshkey:
            return over_ssh(account.sshkey)
        return {} if account.verify_ssl else {f"http.{account.clone}/.sslVerify": "false"}
