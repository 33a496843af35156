"""Store login sessions, and accept a browser's cookies only from our own pages."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from headgate.base.errors import HeadgateError
from headgate.map.records import Login
from headgate.map.tree import Undecodable
from headgate.rest import Cookie
from headgate.services.context import Context
from headgate.store.types import Delete, Op, Put
from headgate.web.peers.requests import READING

SESSION, BEGUN = "headgate", "headgate-login"
"""Names of two cookies: of a login session, and of a login that is in progress at the provider."""
PREFIX = "__Host-"
"""Prefix of cookie names that browsers accept only over TLS and only from the host itself."""
CSRF = "x-headgate-csrf"
"""Header with the CSRF token, which only our own pages can read."""
VALUE_MAX_CHARS = 4_096

CLAIMS_MAX_BYTES = 8_192
"""Limit on the size of one person's claims."""
OF_ONE_MAX = 20
"""Limit on the sessions of one person; one more login ends the oldest."""
LOGINS_MAX = 5_000
"""Limit on all sessions; beyond it, the oldest end."""
ENDED_MAX = 50
"""Limit on the ended sessions that one login deletes."""
SEEN_MAX_S = 5.0
"""Longest wait until this process's mirror shows a session that was written."""
LEFT_OUT = frozenset(("at_hash", "c_hash", "s_hash", "nonce", "sid", "jti", "azp"))
"""Claims about the token itself, which are not stored."""


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """Set cookies of the pages, and accept them only from the pages."""

    origin: str
    """Scheme and host of the pages, such as `https://gate.example`."""

    @property
    def safe(self) -> bool:
        return self.origin.startswith("https://")

    def name(self, of: str) -> str:
        """Return the full name of a cookie at this origin."""
        return f"{PREFIX}{of}" if self.safe else of

    def given(self, of: str, headers: Mapping[str, str]) -> str:
        """Return the cookie's value in the request; empty: there is none."""
        wanted = f"{self.name(of)}="
        pieces = (piece.strip() for piece in headers.get("cookie", "").split(";"))
        found = [piece.removeprefix(wanted) for piece in pieces if piece.startswith(wanted)]
        # If there are two cookies of this name, a neighbouring host may have set one: neither can be trusted.
        return found[0] if len(found) == 1 and len(found[0]) <= VALUE_MAX_CHARS else ""

    def stored(self, of: str, value: str, age_s: int) -> Cookie:
        """Return a cookie that the browser stores for `age_s` seconds; with 0, the browser deletes it. Scripts cannot
        read it, and requests from other sites do not carry it, except when a person follows a link.
        """
        return Cookie(self.name(of), value, age_s, secure=self.safe)


def place_of(root: str, scheme: str, host: str) -> PageOrigin:
    """Return the origin of the pages: `root` of the settings, or else the host that the request names."""
    if root:
        parts = urlsplit(root)
        return PageOrigin(f"{parts.scheme}://{parts.netloc}".lower())
    return PageOrigin(f"{'https' if scheme in ('https', 'wss') else 'http'}://{host}".lower())


def ours(place: PageOrigin, headers: Mapping[str, str]) -> bool:
    """Return whether the request comes from one of our own pages, or from a person who followed a link. This must be
    checked, as browsers also send our cookies with requests of other origins, for example of the same site."""
    origin = headers.get("origin")
    if origin is not None:
        return _same(origin, place, headers.get("host", ""))
    site = headers.get("sec-fetch-site", "same-origin")
    # A person who follows a link from another page sees this page with their own login; the other page reads nothing.
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return site in ("same-origin", "none") or followed


def _same(origin: str, place: PageOrigin, host: str) -> bool:
    """Return whether the origin is that of our pages, or the host and port of this request."""
    origin = origin.lower()
    return origin == place.origin or (bool(host) and origin == f"{place.origin.partition('://')[0]}://{host.lower()}")


def may_write(place: PageOrigin, headers: Mapping[str, str], value: str, token: str) -> str:
    """Return why a cookie does not authorize a write; empty: the request comes from one of our own pages and has the
    CSRF token. Browsers always send the Origin header with requests that write."""
    if headers.get("origin") is None or not ours(place, headers):
        return "only pages of this server may write with a login session; see [web] root"
    if not hmac.compare_digest(token.encode(), token_of(value).encode()):
        return f"the header {CSRF} does not match the login session: load the page again"
    return ""


def token_of(value: str) -> str:
    """Return the CSRF token of a session; it cannot be computed without the cookie."""
    return hmac.new(value.encode(), b"headgate csrf", hashlib.sha256).hexdigest()


def reads(method: str) -> bool:
    return method in READING


def local(wanted: str) -> str:
    """Return the local address to redirect to; the start page if `wanted` could lead to another server, or to the
    login again."""
    # Browsers read `\` as `/`, and `//host` as another server: either
    # would send a person who has just logged in to another server.
    plain = wanted.isascii() and wanted.isprintable() and "\\" not in wanted and len(wanted) <= 1_000
    away = not wanted.startswith("/") or wanted.startswith("//") or wanted.partition("?")[0].startswith("/log")
    return wanted if plain and not away else "/"


class ProfileTooLarge(HeadgateError):
    """Report that a provider's claims about a person are too large to store."""


@dataclass(frozen=True, slots=True)
class LoginSessions:
    """Store login sessions. `root` is the address of the pages, if it is configured; `lasts_s` is the duration of a
    session."""

    context: Context
    root: str = ""
    lasts_s: int = 28_800
    returning: dict[object, str] = field(default_factory=dict)
    """Returns from a provider that are being verified -> their peers."""

    def place(self, scheme: str, host: str) -> PageOrigin:
        return place_of(self.root, scheme, host)

    def of(self, name: str) -> Login | None:
        """Return a login session that has not ended; None: there is none of this name."""
        entry = self.context.mirror.get(self.context.map.logins.inside(name))
        login = self._login(entry.value) if entry is not None else None
        return login if login is not None and login.until_ms > self.context.now_ms() else None

    def _login(self, value: bytes) -> Login | None:
        try:
            return self.context.map.logins.decode(value)
        except Undecodable:
            return None

    async def begin(self, login: Login, before: str = "") -> str:
        """Begin a session, and return its cookie's value, which is new each time; end the browser's session `before`,
        if any.  Raise ProfileTooLarge, StoreError."""
        if len(json.dumps(login.claims)) > CLAIMS_MAX_BYTES:
            raise ProfileTooLarge(
                f"the provider's claims about you exceed {CLAIMS_MAX_BYTES:,} bytes: request fewer ([auth] scope)"
            )
        # Protects against session fixation: an attacker may have set the value from before the login in the browser.
        value = secrets.token_urlsafe(32)
        path = self.context.map.logins.inside(named(value))
        ended: list[Op] = [Delete(one) for one in self._over(login, before)]
        await self.context.store.commit([], [Put(path, self.context.map.logins.encode(login)), *ended])
        with suppress(TimeoutError):
            async with asyncio.timeout(SEEN_MAX_S):
                # The page after the redirect reads the mirror: without the
                # wait, the person might still appear as not logged in.
                await self.context.mirror.reached(path)
        return value

    def _over(self, login: Login, before: str) -> list[str]:
        """Return the paths of the sessions to delete when this login begins."""
        entries = list(self.context.mirror.under(self.context.map.logins.path))
        known = [(entry.path, self._login(entry.value)) for entry in entries]
        now_ms = self.context.now_ms()
        dead = [path for path, one in known if one is None or one.until_ms <= now_ms]
        alive = [(path, one) for path, one in known if one is not None and one.until_ms > now_ms]
        # Limited per person: somebody who logs in over and over ends only their own sessions.
        theirs = [path for path, one in alive if (one.who, one.authenticator) == (login.who, login.authenticator)]
        most = [path for path, _ in alive[: max(0, len(alive) + 1 - LOGINS_MAX)]]
        own = self.context.map.logins.inside(named(before)) if before else ""
        replaced = [path for path, _ in alive if path == own]
        return list(dict.fromkeys([*replaced, *theirs[: max(0, len(theirs) + 1 - OF_ONE_MAX)], *most, *dead]))[
            :ENDED_MAX
        ]

    async def end(self, value: str) -> None:
        """End the session with this cookie.  Raise StoreError."""
        path = self.context.map.logins.inside(named(value))
        if self.context.mirror.get(path) is not None:
            await self.context.store.commit([], [Delete(path)])
            # Return only once this process, which reads the mirror, refuses the cookie, too.
            await self.context.mirror.gone(path)


def named(value: str) -> str:
    """Return the name of a session in the store, which does not reveal the browser's cookie."""
    return hashlib.sha256(value.encode()).hexdigest()


def profile(claims: Mapping[str, Any]) -> dict[str, Any]:  # JSON
    """Return the claims about a person without those about the token."""
    return {name: value for name, value in claims.items() if name not in LEFT_OUT}
