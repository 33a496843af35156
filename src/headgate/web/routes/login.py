"""Log people in to the pages with OpenID Connect, and log them out."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
import msgspec

from headgate.adapters.identity.provider import NotBelieved, ProviderAway, ProviderMetadata
from headgate.adapters.identity.tokens import Authenticator, BadToken
from headgate.base.texts import line
from headgate.map.records import Login
from headgate.rest import HTTPException, HttpRequest, NotFoundException, Redirect, Response, get, post
from headgate.web.access import Access, Bearer, Realm, must_be_json
from headgate.web.peers.connections import peer_of
from headgate.web.routes.pages import page
from headgate.web.sessions import BEGUN, SESSION, LoginSessions, PageOrigin, ProfileTooLarge, local, profile, token_of
from headgate.web.site import Site

log = logging.getLogger("headgate.hand")

BACK = "/login/callback"
BEGUN_MAX_S = 900
"""Limit on the time between the redirect to the provider and the return from it."""
CODE_MAX_CHARS = 4_096
WHO_MAX_CHARS = 255

RETURNING_MAX = 16
"""Limit on simultaneous returns from a provider, as each needs a request to it."""
OF_PEER_MAX = RETURNING_MAX // 2
"""Limit per address, so that one client cannot keep others from logging in. It is high, as all clients behind a proxy
share its address."""
NAMES = ("name", "preferred_username", "email")
"""Claims with a display name, the preferred one first."""
NAME_MAX_CHARS = 100
_FRESH = {"Cache-Control": "no-store"}


class Way(msgspec.Struct, frozen=True):
    """Hold the state of a login at a provider, which the browser stores: a return is accepted only from the browser
    that began the login."""

    realm: str
    state: str
    nonce: str
    verifier: str
    next: str
    begun_ms: int


def new_way(realm: str, next: str, now_ms: int) -> Way:
    """Return the state of a new login, with unpredictable values."""
    # `state` binds the return to this browser, `nonce` the token to this login, and `verifier` (PKCE) the code to us.
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return Way(realm, state, nonce, verifier, next, now_ms)


def encode_way(way: Way) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(way)).decode().rstrip("=")


def decode_way(text: str, now_ms: int) -> Way | None:
    """Return the state that a browser stored; None: it is invalid, or the login took too long."""
    try:
        way = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Way)
    except (ValueError, msgspec.MsgspecError):
        return None
    return way if 0 <= now_ms - way.begun_ms <= BEGUN_MAX_S * 1_000 else None


def provider_parameters(way: Way, known: Authenticator, origin: str) -> dict[str, str]:
    """Return the parameters of the redirect to the provider, except those that identify the client."""
    digest = hashlib.sha256(way.verifier.encode()).digest()
    return {
        "redirect_uri": origin + BACK,
        "scope": known.scope,
        "state": way.state,
        "nonce": way.nonce,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
    }


@dataclass(frozen=True, slots=True)
class Return:
    """Represent the return of a person from the provider."""

    access: Access
    sessions: LoginSessions
    origin: str
    query: Mapping[str, str]

    def way(self, cookie: str) -> Way:
        """Return the state that this browser stored, if it belongs to this return.  Raise NotBelieved."""
        way = decode_way(cookie, self.sessions.context.now_ms()) if cookie else None
        if way is None:
            raise NotBelieved("this browser did not begin this login, or the login took too long")
        if not hmac.compare_digest(way.state.encode(), self.query.get("state", "").encode()):
            raise NotBelieved("this browser began another login in the meantime")
        if error := self.query.get("error"):
            why = self.query.get("error_description", "")
            raise NotBelieved(f"the provider reports {error[:100]!r}{f': {why[:200]}' if why else ''}")
        return way

    async def login(self, way: Way) -> Login:
        """Verify the person's identity, and return the login to store.  Raise NotBelieved, ProviderAway."""
        realm = self.access.realm_of(way.realm)
        provider = realm.authenticator.provider if realm else None
        if realm is None or provider is None:
            raise NotBelieved("logging in with this provider is no longer configured")
        code, issuer = self.query.get("code", ""), self.query.get("iss", provider.issuer)
        if not code or len(code) > CODE_MAX_CHARS or issuer != provider.issuer:
            raise NotBelieved("the response is not from the provider at which the login began")
        published = await provider.published()
        token, access = await provider.exchanged(published, code, way.verifier, self.origin + BACK)
        claims = await self._claims(realm.authenticator, token, way.nonce)
        if realm.authenticator.load_user_info and published.userinfo and access:
            more = await provider.userinfo(published, access)
            # OpenID Connect requires this check: the access token may have been replaced by another person's.
            if more.get("sub") != claims["sub"]:
                raise NotBelieved("the provider's user info is about another person than the token")
            # Claims of the signed token win over those of the user info endpoint.
            claims = {**more, **claims}
        return self._login(realm, claims)

    async def _claims(self, known: Authenticator, token: str, nonce: str) -> dict[str, Any]:  # JSON
        """Verify the token of a login, and return its claims. Raise NotBelieved, ProviderAway."""
        try:
            await known_keys(known, token)
            claims = known.verified(token, known.client)
        except (BadToken, jwt.PyJWTError) as error:
            raise NotBelieved(f"the token of the login is invalid: {error}") from error
        several = isinstance(claims.get("aud"), list) and len(claims["aud"]) > 1
        # A token for several audiences names the one it was issued to; one for us alone may leave that out.
        if claims.get("azp", None if several else known.client) != known.client:
            raise NotBelieved("the token of the login is for another client")
        if not hmac.compare_digest(nonce.encode(), str(claims.get("nonce", "")).encode()):
            raise NotBelieved("the token belongs to another login than the one that this browser began")
        if not isinstance(claims.get("sub"), str):
            raise NotBelieved("the token of the login has no claim 'sub'")
        return claims

    def _login(self, realm: Realm, claims: dict[str, Any]) -> Login:  # JSON
        known = realm.authenticator
        who, now_ms = claims.get(known.uid_claim), self.sessions.context.now_ms()
        if not isinstance(who, str) or not 0 < len(who) <= WHO_MAX_CHARS:
            raise NotBelieved(f"the claims lack a valid {known.uid_claim!r}, the user name ([auth] uid_claim)")
        until_ms = now_ms + self.sessions.lasts_s * 1_000
        return Login(known.name, known.issuer, known.client, who, profile(claims), now_ms, until_ms)


async def known_keys(known: Authenticator, token: str) -> ProviderMetadata | None:
    """Fetch the key that a token names from its provider, unless it is cached.  Raise PyJWTError, ProviderAway."""
    named = jwt.get_unverified_header(token).get("kid")
    return await known.provider.published(str(named) if named else None) if known.provider is not None else None


async def expected(access: Access, token: str) -> None:
    """Fetch the key of a program's token, in case its provider has published a new one."""
    if not any(realm.authenticator.provider for realm in access.realms) or token.count(".") != 2:
        return
    try:
        # Unverified, as the key is still missing: the issuer only selects the provider to fetch the key from.
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
        for realm in access.realms:
            if realm.authenticator.provider is not None and realm.authenticator.issuer == issuer:
                await known_keys(realm.authenticator, token)
    except (jwt.PyJWTError, ProviderAway, RecursionError):
        return  # the code that verifies the token will report the error


class RealmShape(msgspec.Struct, frozen=True):
    """Name a realm where people can log in."""

    name: str
    title: str


class WhoShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe who is logged in. Headgate only."""

    realms: tuple[RealmShape, ...]
    """Where people can log in."""
    name: str = ""
    """Display name of the person who is logged in; empty if nobody is."""
    who: str = ""
    """The name under which the person's actions are recorded."""
    csrf: str = ""
    """Value that pages must send in the header X-Headgate-CSRF with requests that write."""


@get("/api/login")
async def login_state(site: Site, request: HttpRequest) -> Response[WhoShape]:
    """Return who is logged in, and where people can log in. Headgate only."""
    access = site.access
    realms = tuple(RealmShape(one.authenticator.name, one.name) for one in access.realms if one.authenticator.provider)
    bearer, place = access.reader(request), access.place(request)
    if bearer is None or not bearer.session or place is None:
        return Response(WhoShape(realms=realms), headers=_FRESH)
    token = token_of(place.given(SESSION, request.headers))
    return Response(WhoShape(realms=realms, name=_called(bearer), who=bearer.name, csrf=token), headers=_FRESH)


def _called(bearer: Bearer) -> str:
    names = (bearer.claims.get(name) for name in NAMES)
    return line(next((one for one in names if isinstance(one, str) and one), bearer.name), NAME_MAX_CHARS)


def _login_parts(site: Site, request: HttpRequest) -> tuple[Access, LoginSessions, PageOrigin]:
    """Return the access rules, the stored logins and the pages' origin. Raise 404 if logging in is not configured."""
    access = site.access
    place = access.place(request)
    if access.sessions is None or place is None or not any(one.authenticator.provider for one in access.realms):
        raise NotFoundException("logging in is not configured: no [auth NAME] has driver = OpenIDConnect")
    return access, access.sessions, place


@get("/login", include_in_schema=False)
async def login(site: Site, request: HttpRequest) -> Response[Any]:
    """Redirect to the provider, or let the person choose one; `next` is the page to show afterwards."""
    access, sessions, place = _login_parts(site, request)
    # With one provider there is no choice, so redirect to it immediately.
    if not request.query.get("realm") and sum(1 for one in access.realms if one.authenticator.provider) > 1:
        return page("login", "Log in")
    chosen = request.query.get("realm") or next(
        one.authenticator.name for one in access.realms if one.authenticator.provider
    )
    realm = access.realm_of(chosen)
    if realm is None or realm.authenticator.provider is None:
        raise NotFoundException(f"there is no [auth] section {chosen[:100]!r} to log in with")
    known, provider = realm.authenticator, realm.authenticator.provider
    try:
        published = await provider.published()
    except ProviderAway as away:
        raise HTTPException(f"{away}; try again later", status_code=503) from away
    way = new_way(chosen, local(request.query.get("next", "/")), sessions.context.now_ms())
    location = provider.login(published, provider_parameters(way, known, place.origin))
    cookies = [place.stored(BEGUN, encode_way(way), BEGUN_MAX_S)]
    return Redirect(location, status_code=303, headers=_FRESH, cookies=cookies)


@get(BACK, include_in_schema=False)
async def callback(site: Site, request: HttpRequest) -> Response[Any]:
    """Log in a person who returns from the provider, once their identity is verified."""
    access, sessions, place = _login_parts(site, request)
    peer = peer_of(request.client.host if request.client else "")
    of_peer = sum(1 for one in sessions.returning.values() if one == peer)
    if len(sessions.returning) >= RETURNING_MAX or of_peer >= OF_PEER_MAX:
        raise HTTPException("too many logins at the moment; try again", status_code=503, headers={"Retry-After": "1"})
    returning = Return(access, sessions, place.origin, dict(request.query))
    own = object()
    try:
        way = returning.way(place.given(BEGUN, request.headers))
        # Counted only now: a return without the cookie of a login is refused above, and must not use up the limit.
        sessions.returning[own] = peer
        found = await returning.login(way)
        realm = access.realm_of(found.authenticator)
        # A login must not grant more than a token of the same provider.
        access.check_claim(found.claims, override=realm is not None and realm.override)
        value = await sessions.begin(found, place.given(SESSION, request.headers))
    except (NotBelieved, ProfileTooLarge) as error:
        log.warning("a login was refused: %s", line(str(error), 500))
        why = f"You are not logged in: {line(str(error), 500)}; begin again at the start page"
        raise HTTPException(why, status_code=400) from error
    except ProviderAway as away:
        raise HTTPException(
            f"You are not logged in: {line(str(away), 500)}; try again later", status_code=503
        ) from away
    finally:
        sessions.returning.pop(own, None)
    log.info("%s (%s) logged in", line(found.who), found.authenticator)
    # The state is deleted, so that going back in the browser cannot complete the same login again.
    cookies = [place.stored(SESSION, value, sessions.lasts_s), place.stored(BEGUN, "", 0)]
    # Checked again: the cookie comes from the browser and is not signed.
    return Redirect(local(way.next), status_code=303, headers=_FRESH, cookies=cookies)


@post("/logout", status_code=200, include_in_schema=False)
async def logout(site: Site, request: HttpRequest) -> Response[bool]:
    """End this browser's login, immediately and in all web processes."""
    must_be_json(request)
    access, sessions, place = _login_parts(site, request)
    bearer = access.bearer(request)
    if bearer is not None and bearer.session:
        await sessions.end(place.given(SESSION, request.headers))
        log.info("%s (%s) logged out", line(bearer.name), bearer.authenticator)
    return Response(True, headers=_FRESH, cookies=[place.stored(SESSION, "", 0)])


ROUTES = (login_state, login, callback, logout)
