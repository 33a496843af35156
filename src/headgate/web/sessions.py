"""Store who is logged in, and accept a browser's cookies only from our own pages."""

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

from headgate.map.records import Login
from headgate.map.tree import Undecodable
from headgate.rest import Cookie
from headgate.services.context import Context
from headgate.store.types import Delete, Op, Put
from headgate.web.peers.requests import READING

SESSION, BEGUN = "headgate", "headgate-login"
"""Names of the cookie of a login session, and of the cookie of a login that is under way at the provider."""
PREFIX = "__Host-"
"""Prefix of cookie names that browsers accept only over TLS and only from the host itself."""
CSRF = "x-headgate-csrf"
"""Header with the CSRF token, which only our own pages can read."""
VALUE_MAX_CHARS = 4_096

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


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """Set cookies of the pages, and accept them only from the pages."""

    origin: str
    """Scheme and host of the pages, as `https://gate.example`."""

    @property
    def safe(self) -> bool:
        return self.origin.startswith("https://")

    def name(self, of: str) -> str:
        """Return the full name of the cookie there."""
        return f"{PREFIX}{of}" if self.safe else of

    def given(self, of: str, headers: Mapping[str, str]) -> str:
        """Return the cookie's value in the request; empty: there is none."""
        wanted = f"{self.name(of)}="
        pieces = (piece.strip() for piece in headers.get("cookie", "").split(";"))
        found = [piece.removeprefix(wanted) for piece in pieces if piece.startswith(wanted)]
        # Of two cookies of one name, a neighbouring host may have planted one: it is unknown which, so neither counts.
        return found[0] if len(found) == 1 and len(found[0]) <= VALUE_MAX_CHARS else ""

    def stored(self, of: str, value: str, age_s: int) -> Cookie:
        """Return a cookie for the browser to keep for `age_s` seconds; with 0, the browser deletes it. Scripts cannot
        read it, and requests from other sites do not carry it, except when a person follows a link.
        """
        return Cookie(self.name(of), value, age_s, secure=self.safe)


def place_of(root: str, scheme: str, host: str) -> PageOrigin:
    """Return where people reach the pages: as the settings say, else as the request does."""
    if root:
        parts = urlsplit(root)
        return PageOrigin(f"{parts.scheme}://{parts.netloc}".lower())
    return PageOrigin(f"{'https' if scheme in ('https', 'wss') else 'http'}://{host}".lower())


def ours(place: PageOrigin, headers: Mapping[str, str]) -> bool:
    """Return whether the request comes from one of our own pages, or from a person who followed a link. Browsers
    send our cookies for pages of other origins, too, for example of the same site: those requests do not count."""
    origin = headers.get("origin")
    if origin is not None:
        return _same(origin, place, headers.get("host", ""))
    site = headers.get("sec-fetch-site", "same-origin")
    # A person who follows a link from elsewhere sees the page as themselves; the page elsewhere reads none of it.
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return site in ("same-origin", "none") or followed


def _same(origin: str, place: PageOrigin, host: str) -> bool:
    """Return whether the origin is where people reach us, or is the very name and port of this request."""
    origin = origin.lower()
    return origin == place.origin or (bool(host) and origin == f"{place.origin.partition('://')[0]}://{host.lower()}")


def may_write(place: PageOrigin, headers: Mapping[str, str], value: str, token: str) -> str:
    """Return why a cookie is not enough to change something; empty: the request comes from one of our own pages and
    has the CSRF token. Browsers always send the Origin header with requests that write."""
    if headers.get("origin") is None or not ours(place, headers):
        return "only pages of this server may change anything for who is logged in; see [web] root"
    if not hmac.compare_digest(token.encode(), token_of(value).encode()):
        return f"the header {CSRF} is not that of who is logged in: load the page anew"
    return ""


def token_of(value: str) -> str:
    """Return the token that belongs to a session: it cannot be derived without the cookie."""
    return hmac.new(value.encode(), b"headgate csrf", hashlib.sha256).hexdigest()


def reads(method: str) -> bool:
    return method in READING


def local(wanted: str) -> str:
    """Return a place of ours, to go on to: what could lead elsewhere, or log in again, is the first page."""
    # Browsers read `\` as `/`, and `//host` as another server: either
    # would lead a person who has just logged in elsewhere.
    plain = wanted.isascii() and wanted.isprintable() and "\\" not in wanted and len(wanted) <= 1_000
    away = not wanted.startswith("/") or wanted.startswith("//") or wanted.partition("?")[0].startswith("/log")
    return wanted if plain and not away else "/"


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

    def place(self, scheme: str, host: str) -> PageOrigin:
        return place_of(self.root, scheme, host)

    def of(self, name: str) -> Login | None:
        """Return a login that has not ended."""
        entry = self.context.mirror.get(self.context.map.logins.inside(name))
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
        path = self.context.map.logins.inside(named(value))
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
        entries = list(self.context.mirror.under(self.context.map.logins.path))
        known = [(entry.path, self._login(entry.value)) for entry in entries]
        now_ms = self.context.now_ms()
        dead = [path for path, one in known if one is None or one.until_ms <= now_ms]
        alive = [(path, one) for path, one in known if one is not None and one.until_ms > now_ms]
        # By person: whoever logs in without end ends only their own sessions.
        theirs = [path for path, one in alive if (one.who, one.authenticator) == (login.who, login.authenticator)]
        most = [path for path, _ in alive[: max(0, len(alive) + 1 - LOGINS_MAX)]]
        own = self.context.map.logins.inside(named(before)) if before else ""
        replaced = [path for path, _ in alive if path == own]
        return list(dict.fromkeys([*replaced, *theirs[: max(0, len(theirs) + 1 - OF_ONE_MAX)], *most, *dead]))[
            :ENDED_MAX
        ]

    async def end(self, value: str) -> None:
        """Have nobody be logged in by this any more.  Raise StoreError."""
        path = self.context.map.logins.inside(named(value))
        if self.context.mirror.get(path) is not None:
            await self.context.store.commit([], [Delete(path)])
            # Logging out is answered only once this process, too, refuses the cookie.
            await self.context.mirror.gone(path)


def named(value: str) -> str:
    """Return the name of a session in the store, which does not reveal the browser's cookie."""
    return hashlib.sha256(value.encode()).hexdigest()


def profile(claims: Mapping[str, Any]) -> dict[str, Any]:  # JSON
    """Return the claims of a person that are stored."""
    return {name: value for name, value in claims.items() if name not in LEFT_OUT}
