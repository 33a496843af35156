"""Deliveries that did not arrive: GitHub logs them, and never sends them again by itself."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from headgate.adapters.forges.github.client import GitHubClient
from headgate.adapters.forges.github.hook import place
from headgate.adapters.forges.github.tokens import Tokens
from headgate.adapters.forges.pulls import ms
from headgate.adapters.forges.rest import ForgeDenied, NotThere, Query, Rejected
from headgate.adapters.forges.watch import Watching
from headgate.ports.forge import Hint, Misdelivered
from headgate.ports.reporter import ReporterAway

log = logging.getLogger("headgate.github")

FAILED_MAX = 100
"""That are looked into."""


class Deliveries:
    """Turn deliveries that GitHub could not make into hints."""

    def __init__(self, client: GitHubClient, tokens: Tokens, every_s: float) -> None:
        self._client, self._tokens, self._every_s = client, tokens, every_s
        self._failed: set[str] = set()
        """Those that were looked into."""

    async def look_into(self, watching: Watching) -> None:
        """Look into the log now and then."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._failed_deliveries(watching)
            except (ReporterAway, NotThere, ForgeDenied, Rejected, LookupError, TypeError, ValueError) as error:
                log.info("%s: the log of its deliveries cannot be read: %s", self._client.account.name, error)

    async def _failed_deliveries(self, watching: Watching) -> None:
        key, path = self._tokens.app_key(), "/app/hook/deliveries"
        query: Query = {"per_page": FAILED_MAX, "status": "failure"}
        failed = (await self._client.get(key, path, query, urgent=False)).said
        fresh = [one for one in failed if str(one["guid"]) not in self._failed]
        self._failed = {str(one["guid"]) for one in failed}
        us = frozenset(await self._tokens.us())
        for one in sorted(fresh, key=lambda one: ms(one["delivered_at"])):
            said = (await self._client.get(key, f"{path}/{one['id']}", urgent=False)).said
            body = msgspec.json.encode(said["request"]["payload"])
            known, account = watching.looks_at, self._client.account
            try:
                found = place(account, us, known, str(one["event"]), str(one["guid"]), body)
            except Misdelivered:
                continue
            if isinstance(found, Hint):
                watching.stir(found)
