"""Calls of GitHub's API, REST and GraphQL."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import msgspec

from headgate.adapters.forges.budget import CallBudget
from headgate.adapters.forges.github.account import GitHubAccount
from headgate.adapters.forges.rest import AGAIN_S, ForgeDenied, ForgeKey, ForgeResponse, Heard, NotThere, Rejected, Rest
from headgate.ports.reporter import ReporterAway

log = logging.getLogger("headgate.github")

VERSION = "2022-11-28"


REFUSED_S = 300.0
"""Pause after GitHub refused every token."""


_OURS = ("installation ", "token of ")
"""Prefixes of the names of keys that represent Headgate itself at projects."""


class GitHubUnauthorized(ForgeDenied):
    """Report that GitHub rejects the token."""


class GitHubClient(Rest):
    """Call one GitHub. `calls` also counts `graphql`."""

    def __init__(
        self, account: GitHubAccount, http: Callable[[], httpx.AsyncClient], now_s: Callable[[], float] = time.time
    ) -> None:
        super().__init__(account.host, account.api, http, now_s)
        self.account, self.now_s = account, now_s
        self.renew: Callable[[ForgeKey], Awaitable[ForgeKey | None]] | None = None
        """Returns a replacement for a key that GitHub refused, or None if there is none."""

    def headers(self, key: ForgeKey) -> Mapping[str, str]:
        """See `Rest`."""
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": VERSION}
        return {**headers, "Authorization": f"Bearer {key.token}"} if key.token else headers

    def taken(self, answer: Heard, budget: CallBudget) -> Any:
        """See `Rest`."""
        try:
            return super().taken(answer, budget)
        except ForgeDenied as error:
            if answer.status != 401:
                raise
            raise GitHubUnauthorized(str(error)) from error

    async def _rest(
        self, method: str, key: ForgeKey, url: str, content: Any, headers: Mapping[str, str], *, urgent: bool
    ) -> ForgeResponse:
        try:
            return await super()._rest(method, key, url, content, headers, urgent=urgent)
        except GitHubUnauthorized as error:
            key = await self._renewed(key, error)
        self.calls["rest"] += 1
        try:
            return await super()._rest(method, key, url, content, headers, urgent=urgent)
        except GitHubUnauthorized as error:
            raise self._away(key, error) from error

    async def _renewed(self, key: ForgeKey, error: GitHubUnauthorized) -> ForgeKey:
        """Return a replacement for a key that was refused early. Raise ReporterAway; for other keys, such as the app's
        own, GitHubUnauthorized."""
        if self.renew is None or not key.who.startswith(_OURS):
            raise error
        fresh = await self.renew(key)
        if fresh is None:
            raise self._away(key, error) from error
        return fresh

    def _away(self, key: ForgeKey, error: GitHubUnauthorized) -> ReporterAway:
        return ReporterAway(f"{self.account.host} refuses the {key.who}: {error}", REFUSED_S, alone=True)

    async def query(self, key: ForgeKey, text: str, *, urgent: bool = True, **variables: Any) -> dict[str, Any]:
        """Return the data of a GraphQL query; parts that we may not see are None. Raise as `get`."""
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
            # GraphQL reports its limit in an answer with status 200, which `taken` has accepted.
            if error.get("type") == "RATE_LIMITED":
                wait_s = budget.refused(200, answer.headers, message, self._now_s())
                self.heed(budget, key, "graphql")
                raise ReporterAway(message, wait_s or AGAIN_S, alone=True)
            if error.get("type") == "NOT_FOUND":
                raise NotThere(message)
        data = response.get("data") if isinstance(response, dict) else None
        if not isinstance(data, dict):
            raise Rejected(answer.status, "; ".join(str(e.get("message", "")) for e in errors) or "it said no data")
        # Partial data is used: an account that may not see one part still sees the rest.
        for error in errors[:3]:
            log.info("GraphQL of %s: %s", self.account.name, str(error.get("message", ""))[:300])
        return data
