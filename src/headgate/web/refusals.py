"""Writes that were refused to people who are known: a few of them are kept beside what was done by hand."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from headgate.rest import HTTPException, HttpRequest
from headgate.web.access import Bearer
from headgate.web.peers.requests import READING, Message
from headgate.web.routes.actions import KEPT, Hand
from headgate.web.site import Site

PERIOD_MS = 3_600_000
OF_ONE_MAX = 5
"""Refusals of one person that are recorded in a period, each for another tenant or verb; the log has the rest."""
OF_ALL_MAX = 100
"""Refusals of all people that each process records in a period."""


class RefusedWrites:
    """Record refused writes of identified people. A caller without a token is not identified, and nothing is
    recorded: strangers could fill a disk."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._period, self._seen, self._of = 0, set[tuple[str, ...]](), Counter[tuple[str, ...]]()

    async def note(self, error: Exception, scope: Any) -> None:  # ASGI
        """Keep that a request was refused to somebody, if it would have changed something and few were kept lately."""
        if not isinstance(error, HTTPException) or error.status_code != 403 or scope["method"] in READING:
            return
        tenant = str(scope.get("path_params", {}).get("tenant", ""))
        bearer = self._bearer(scope)
        # Names of tenants come from the address: unknown ones would let one person fill the list with inventions.
        if scope.get(KEPT) or bearer is None or (tenant and tenant not in self._site.tenants):
            return
        verb = _verb(scope)
        if self._room((bearer.authenticator, bearer.name), tenant, verb):
            subject = str(scope["path"]).removeprefix(f"/api/tenant/{tenant}/").removeprefix("/api/")
            await Hand(self._site, HttpRequest(scope), verb, tenant, subject).refused(str(error.detail))

    def _bearer(self, scope: Any) -> Bearer | None:
        """Return the caller; None for strangers, and for foreign pages that use somebody's login."""
        with suppress(HTTPException):
            return self._site.access.bearer(HttpRequest(scope))
        return None

    def _room(self, who: tuple[str, str], tenant: str, verb: str) -> bool:
        """Return whether one more is kept, and count it."""
        period = self._site.context.now_ms() // PERIOD_MS
        if period != self._period:
            self._period, self._seen, self._of = period, set(), Counter()
        key = (*who, tenant, verb)
        if key in self._seen or self._of[who] >= OF_ONE_MAX or len(self._seen) >= OF_ALL_MAX:
            return False
        self._seen.add(key)
        self._of[who] += 1
        return True


def _verb(scope: Message) -> str:
    """Return the last word of the address, or the permission that is needed where that is a name of something."""
    last = str(scope["template"]).rpartition("/")[2]
    if "{" in last and last != "{rest:path}":
        return str(scope["handler"].opt.get("permission", "write"))
    return str(scope["path"]).rpartition("/")[2]
