"""Store who is logged in: as records, so that every web knows them, and each can end any."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headgate.map.records import Login
from headgate.map.tree import Undecodable
from headgate.services.context import Context
from headgate.store.types import Delete, Op, Put
from headgate.web.login.cookies import PageOrigin, place_of

CLAIMS_MAX_BYTES = 8_192
"""Limit on the size of one person's claims."""
OF_ONE_MAX = 20
"""Limit on the sessions of one person; another login ends the oldest."""
LOGINS_MAX = 5_000
"""Limit on all sessions; beyond it the oldest end."""
ENDED_MAX = 50
"""Limit on the ended sessions that one login deletes."""
SEEN_MAX_S = 5.0
"""Longest wait until this process's mirror shows a session that was written."""
LEFT_OUT = frozenset(("at_hash", "c_hash", "s_hash", "nonce", "sid", "jti", "azp"))
"""Claims that concern the token itself and are not kept."""


class ProfileTooLarge(Exception):
    """Report that a provider says more about a person than is stored."""


@dataclass(frozen=True, slots=True)
class LoginSessions:
    """Store logins. `root` is where people reach the pages, if the settings say so; `lasts_s` is how long a login
    lasts."""

    context: Context
    root: str = ""
    lasts_s: int = 28_800
    returning: dict[object, str] = field(default_factory=dict)
    """Requests that return from a provider and are being verified -> their peers."""
    _path: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "_path", self.context.map.logins.path)

    def place(self, scheme: str, host: str) -> PageOrigin:
        return place_of(self.root, scheme, host)

    def of(self, name: str) -> Login | None:
        """Return a login that has not ended."""
        entry = self.context.mirror.get(f"{self._path}/{name}")
        login = self._login(entry.value) if entry is not None else None
        return login if login is not None and login.until_ms > self.context.now_ms() else None

    def _login(self, value: bytes) -> Login | None:
        try:
            return self.context.map.logins.decode(value)
        except Undecodable:
            return None

    async def begin(self, login: Login, before: str = "") -> str:
        """Keep that somebody logged in; return what their browser is to keep, which is new each time.  `before`: what
        it kept, which ends.  Raise ProfileTooLarge, StoreError."""
        if len(json.dumps(login.claims)) > CLAIMS_MAX_BYTES:
            raise ProfileTooLarge(
                f"the provider says more than {CLAIMS_MAX_BYTES:,} bytes of you: ask for less (scope)"
            )
        # Never the value from before the login: an attacker may have planted that one in the browser.
        value = secrets.token_urlsafe(32)
        path = f"{self._path}/{named(value)}"
        ended: list[Op] = [Delete(one) for one in self._over(login, before)]
        await self.context.store.commit([], [Put(path, self.context.map.logins.encode(login)), *ended])
        with suppress(TimeoutError):
            async with asyncio.timeout(SEEN_MAX_S):
                # The redirect after the login is answered from the mirror:
                # without the wait, the person may seem not logged in.
                await self.context.mirror.reached(path)
        return value

    def _over(self, login: Login, before: str) -> list[str]:
        """Return the sessions that end as somebody logs in."""
        entries = list(self.context.mirror.under(self._path))
        known = [(entry.path, self._login(entry.value)) for entry in entries]
        now_ms = self.context.now_ms()
        dead = [path for path, one in known if one is None or one.until_ms <= now_ms]
        alive = [(path, one) for path, one in known if one is not None and one.until_ms > now_ms]
        # By person: whoever logs in without end ends only their own sessions.
        theirs = [path for path, one in alive if (one.who, one.authenticator) == (login.who, login.authenticator)]
        most = [path for path, _ in alive[: max(0, len(alive) + 1 - LOGINS_MAX)]]
        own = f"{self._path}/{named(before)}" if before else ""
        replaced = [path for path, _ in alive if path == own]
        return list(dict.fromkeys([*replaced, *theirs[: max(0, len(theirs) + 1 - OF_ONE_MAX)], *most, *dead]))[
            :ENDED_MAX
        ]

    async def end(self, value: str) -> None:
        """Have nobody be logged in by this any more.  Raise StoreError."""
        path = f"{self._path}/{named(value)}"
        if self.context.mirror.get(path) is not None:
            await self.context.store.commit([], [Delete(path)])
            # Logging out is answered only once this process, too, refuses the cookie.
            await self.context.mirror.gone(path)


def named(value: str) -> str:
    """Return the name of a session in the store, which does not reveal the browser's cookie."""
    return hashlib.sha256(value.encode()).hexdigest()


def said_of(claims: Mapping[str, Any]) -> dict[str, Any]:  # JSON
    """Return the claims of a person that are stored."""
    return {name: value for name, value in claims.items() if name not in LEFT_OUT}
