"""Decide what a browser keeps for us, and when it counts: only for our own pages."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from headgate.rest import Cookie
from headgate.web.peers.requests import READING

SESSION, BEGUN = "headgate", "headgate-login"
"""Names of the cookie of a login session, and of the cookie of a login that is under way at the provider."""
PREFIX = "__Host-"
"""Prefix of cookie names that browsers accept only over TLS and only from the host itself."""
CSRF = "x-headgate-csrf"
"""Header with the CSRF token, which only our own pages can read."""
VALUE_MAX_CHARS = 4_096


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
