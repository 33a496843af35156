"""Calls of GitLab's API."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from headgate.adapters.forges.budget import CallBudget
from headgate.adapters.forges.gitlab.account import GitLabAccount
from headgate.adapters.forges.rest import ForgeDenied, ForgeKey, ForgeResponse, Heard, Rejected, Rest, in_one_form

_LIMITS = {
    "ratelimit-limit": "x-ratelimit-limit",
    "ratelimit-remaining": "x-ratelimit-remaining",
    "ratelimit-reset": "x-ratelimit-reset",
}
"""GitLab's names of headers that other forges begin with `x-`."""
_MOVED = "moved project"


class GitLabUnauthorized(ForgeDenied):
    """Report that the token is rejected; for merges and approvals, the account may lack permission instead."""


class GitLabClient(Rest):
    """Call one GitLab."""

    def __init__(
        self, account: GitLabAccount, http: Callable[[], httpx.AsyncClient], now_s: Callable[[], float] = time.time
    ) -> None:
        super().__init__(account.host, account.api, http, now_s)
        self.account = account
        self.key = ForgeKey(f"token of {account.name}", account.api_token)
        """One account serves all projects."""

    def headers(self, key: ForgeKey) -> Mapping[str, str]:
        """See `Rest`."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        return {**headers, "Authorization": f"Bearer {key.token}"}

    def taken(self, answer: Heard, budget: CallBudget) -> Any:
        """See `Rest`."""
        headers = {
            **answer.headers,
            **{new: answer.headers[old] for old, new in _LIMITS.items() if old in answer.headers},
        }
        body = answer.body if answer.status < 400 else in_one_form(answer.body)
        try:
            return super().taken(Heard(answer.status, headers, body), budget)
        except ForgeDenied as error:
            if answer.status != 401:
                raise
            raise GitLabUnauthorized(
                f"{error} (is the api_token of [connection {self.account.name}] a good one?)"
            ) from error

    async def change(self, method: str, project: str, path: str, content: Mapping[str, Any]) -> ForgeResponse:
        """Write to a project (canonical name), even if it was renamed: GitLab redirects reads, but not writes. Raise as
        `get`."""
        place = self.account.path(project)
        try:
            return await self.write(method, self.key, place + path, content)
        except Rejected as error:
            if error.status != 405 or _MOVED not in str(error):
                raise
        id = (await self.get(self.key, place)).content["id"]
        return await self.write(method, self.key, f"/projects/{int(id)}{path}", content)
