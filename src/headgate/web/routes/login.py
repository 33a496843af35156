"""Log people in to the pages, and out."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from headgate.base.texts import line
from headgate.rest import HTTPException, HttpRequest, NotFoundException, Redirect, Response, get, post
from headgate.web import loginflow as flow
from headgate.web.access import Access, Bearer, must_be_json
from headgate.web.login.cookies import BEGUN, SESSION, PageOrigin, local, token_of
from headgate.web.login.sessions import LoginSessions
from headgate.web.peers.admission import peer_of
from headgate.web.routes.pages import page
from headgate.web.site import Site

log = logging.getLogger("headgate.hand")

RETURNING_MAX = 16
"""Limit on simultaneous returns from a provider: each needs a request to it."""
OF_PEER_MAX = RETURNING_MAX // 2
"""Limit per address, so that one client cannot keep others from logging in; behind a proxy all share its address."""
NAMES = ("name", "preferred_username", "email")
"""Claims that hold a name which people recognize, best first."""
NAME_MAX_CHARS = 100
_FRESH = {"Cache-Control": "no-store"}


class RealmShape(msgspec.Struct, frozen=True):
    """Name a realm where people can log in."""

    name: str
    title: str


class WhoShape(msgspec.Struct, frozen=True, kw_only=True):
    """State who is logged in. Headgate only."""

    realms: tuple[RealmShape, ...]
    """Where people can log in."""
    name: str = ""
    """Display name of the person who is logged in; empty if nobody is."""
    who: str = ""
    """The name under which the person's actions are recorded."""
    csrf: str = ""
    """Value that pages send in the header X-Headgate-CSRF with requests that write."""


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
    """Raise 404 where nobody can log in."""
    access = site.access
    place = access.place(request)
    if access.sessions is None or place is None or not any(one.authenticator.provider for one in access.realms):
        raise NotFoundException("nobody can log in here: no [auth NAME] of the settings has driver = OpenIDConnect")
    return access, access.sessions, place


@get("/login", include_in_schema=False)
async def login(site: Site, request: HttpRequest) -> Response[Any]:
    """Redirect to the provider, or let the person choose one; `next` is the page to show afterwards."""
    access, sessions, place = _login_parts(site, request)
    # With one provider there is nothing to choose, so the person is sent there at once.
    if not request.query.get("realm") and sum(1 for one in access.realms if one.authenticator.provider) > 1:
        return page("login", "Log in")
    chosen = request.query.get("realm") or next(
        one.authenticator.name for one in access.realms if one.authenticator.provider
    )
    realm = access.realm_of(chosen)
    if realm is None or realm.authenticator.provider is None:
        raise NotFoundException(f"nobody can log in with {chosen[:100]!r}")
    known, provider = realm.authenticator, realm.authenticator.provider
    try:
        published = await provider.published()
    except flow.ProviderAway as away:
        raise HTTPException(f"{away}; try again later", status_code=503) from away
    way = flow.begun(chosen, local(request.query.get("next", "/")), sessions.context.now_ms())
    location = provider.login(published, flow.provider_parameters(way, known, place.origin))
    cookies = [place.stored(BEGUN, flow.written(way), flow.BEGUN_MAX_S)]
    return Redirect(location, status_code=303, headers=_FRESH, cookies=cookies)


@get(flow.BACK, include_in_schema=False)
async def callback(site: Site, request: HttpRequest) -> Response[Any]:
    """Accept a person who returns from the provider, once their identity is verified."""
    access, sessions, place = _login_parts(site, request)
    peer = peer_of(request.client.host if request.client else "")
    of_peer = sum(1 for one in sessions.returning.values() if one == peer)
    if len(sessions.returning) >= RETURNING_MAX or of_peer >= OF_PEER_MAX:
        raise HTTPException("many log in just now; try again", status_code=503, headers={"Retry-After": "1"})
    returning = flow.Return(access, sessions, place.origin, dict(request.query))
    own = object()
    try:
        way = returning.way(place.given(BEGUN, request.headers))
        # Only now: a return without the cookie of a login is refused above and takes no place from others.
        sessions.returning[own] = peer
        found = await returning.login(way)
        realm = access.realm_of(found.authenticator)
        # A login grants no more than a token of the same provider would.
        access.check_claim(found.claims, override=realm is not None and realm.override)
        value = await sessions.begin(found, place.given(SESSION, request.headers))
    except (flow.NotBelieved, flow.ProfileTooLarge) as error:
        log.warning("a login was refused: %s", line(str(error), 500))
        why = f"You are not logged in: {line(str(error), 500)}; begin again from the first page"
        raise HTTPException(why, status_code=400) from error
    except flow.ProviderAway as away:
        raise HTTPException(
            f"You are not logged in: {line(str(away), 500)}; try again later", status_code=503
        ) from away
    finally:
        sessions.returning.pop(own, None)
    log.info("%s (%s) logged in", line(found.who), found.authenticator)
    # The way is used up: going back in the browser cannot end the same login again.
    cookies = [place.stored(SESSION, value, sessions.lasts_s), place.stored(BEGUN, "", 0)]
    # Checked again: the cookie comes from the browser and is not signed.
    return Redirect(local(way.next), status_code=303, headers=_FRESH, cookies=cookies)


@post("/logout", status_code=200, include_in_schema=False)
async def logout(site: Site, request: HttpRequest) -> Response[bool]:
    """Log this browser out, everywhere and at once."""
    must_be_json(request)
    access, sessions, place = _login_parts(site, request)
    bearer = access.bearer(request)
    if bearer is not None and bearer.session:
        await sessions.end(place.given(SESSION, request.headers))
        log.info("%s (%s) logged out", line(bearer.name), bearer.authenticator)
    return Response(True, headers=_FRESH, cookies=[place.stored(SESSION, "", 0)])


ROUTES = (login_state, login, callback, logout)
