"""Describe this server and what the caller may do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from itertools import count
from typing import Any

from headgate import __version__
from headgate.adapters.identity.tokens import OPENID
from headgate.config.operator.model import Tenant
from headgate.rest import Handler, HttpRequest, Response, get
from headgate.web.access import APPROVE, COMMENT, NAMED_ALONE, UNAPPROVED, Realm
from headgate.web.answers import wants_html
from headgate.web.description import as_json, as_yaml, paths_of
from headgate.web.routes.autohold import AUTOHOLD
from headgate.web.routes.machines import MODIFY_REQUEST
from headgate.web.routes.orders import STATE
from headgate.web.routes.pages import page
from headgate.web.site import NEEDED, OPEN, Site

OF_CHANGES = ("read", "enqueue", "dequeue", "promote", AUTOHOLD, STATE, UNAPPROVED, APPROVE, COMMENT)
OF_MACHINES = (
    "modify-node", "build-image", "upload-image", "validate-image-upload", "delete-image-build-artifact",
    "delete-image-upload", MODIFY_REQUEST,
)  # fmt: skip
PERMISSIONS = (*OF_CHANGES, *OF_MACHINES)
"""All permissions that the API checks."""


@get("/api")
async def everything(request: HttpRequest) -> Response[Any]:
    """Return every path of the API by name, in Zuul's notation; browsers get the page about the API."""
    if "text/html" in request.headers.get("accept", "") and wants_html(request.headers["accept"]):
        return page("api", "API")
    return Response(paths(request.app.handlers), headers={"Vary": "Accept"})


def paths(handlers: Iterable[Handler]) -> dict[str, str]:
    """Map names to paths; a parameter that matches the rest of an address appears as `{rest:.*}`."""
    found: dict[str, str] = {}
    several = ((one.name, path) for one in handlers for path in paths_of(one) if path.startswith("/api/"))
    for named, path in dict.fromkeys(several):
        # The values of these parameters may contain slashes: the pattern tells clients so.
        pattern = re.sub("{(project|branch|job|rest)}", r"{\1:.*}", path)
        if pattern not in found.values():
            number = next(n for n in count() if f"{named}{n or ''}" not in found)
            found[f"{named}{number or ''}"] = pattern
    return found


@get("/api/info")
async def info(site: Site) -> dict[str, Any]:  # JSON
    """Return the capabilities of this server. `beside` is Headgate only: it lists the other services on the same port
    (inventory, queues).
    """
    tenants = [found.tenant for found in site.tenants.values()]
    return {"info": _info(site, "", protected=not site.access.may_read_root(None, tenants))}


@get("/api/tenant/{tenant:str}/info", opt={OPEN: True})
async def tenant_info(site: Site, tenant: str) -> dict[str, Any]:  # JSON
    """Return the capabilities of this server for one tenant. `niz` tells whether the tenant has providers of
    machines."""
    found = site.tenant(tenant)
    protected = not site.access.may_read(None, found.tenant)
    info = _info(site, found.tenant.authentication_realm, protected=protected)
    info["capabilities"]["niz"] = bool(found.layouts.landed.singles["provider"])
    return {"info": {**info, "tenant": tenant}}


def _info(site: Site, realm: str, *, protected: bool) -> dict[str, Any]:  # JSON
    access = site.access
    auth = {
        "realms": {one.name: _realm(one) for one in access.realms},
        "default_realm": realm or (access.realm if access.realms else None),
        "read_protected": protected,
        "auth_log_file_requests": protected,
    }
    return {
        "capabilities": {"job_history": True, "auth": auth},
        "version": __version__,
        # Clients of Zuul's API expect this member and `stats`, although Headgate has neither.
        "websocket_url": None,
        "stats": {"type": "graphite", "prefix": None, "url": None},
        "beside": site.settings.beside,
    }


def _realm(realm: Realm) -> dict[str, Any]:  # JSON
    known = realm.authenticator
    shape: dict[str, Any] = {"type": "JWT", "driver": known.driver, "client_id": known.client}
    shape["authority"] = known.issuer
    if known.driver == OPENID:
        shape |= {"scope": known.scope, "load_user_info": known.load_user_info}
    return shape


@get("/api/tenant/{tenant:str}/authorizations", opt={OPEN: True})
async def authorizations(site: Site, request: HttpRequest, tenant: str) -> dict[str, Any]:  # JSON
    """Return the permissions of the token's bearer in the tenant."""
    found, bearer = site.tenant(tenant).tenant, site.access.bearer(request)
    if bearer is None:
        raise site.access.refused(401, NEEDED)
    may = [p for p in PERMISSIONS if p != "read" and site.access.permits(bearer, found, p, {})]
    return _authorized(site, tenant, may, reads=site.access.may_read(bearer, found))


@get("/api/authorizations")
async def all_authorizations(site: Site, request: HttpRequest) -> dict[str, Any]:  # JSON
    """Return the permissions of the token's bearer on the entire system."""
    bearer = site.access.bearer(request)
    if bearer is None:
        raise site.access.refused(401, NEEDED)
    may = [p for p in PERMISSIONS if p != "read"] if site.access.permits_all(bearer) else []
    tenants: Iterable[Tenant] = [one.tenant for one in site.tenants.values()]
    return _authorized(site, "*", may, reads=site.access.may_read_root(bearer, tenants))


def _authorized(site: Site, scope: str, may: list[str], *, reads: bool) -> dict[str, Any]:  # JSON
    """Return the body of a response about permissions. Raise 403 for a bearer without any."""
    if not (may or reads):
        raise site.access.refused(403, "the bearer of this token has no permissions here")
    # Administration does not include the permissions that only a role can grant.
    admin = {p for p in OF_CHANGES if p not in ("read", *NAMED_ALONE)} <= set(may)
    names = [*(["read"] if reads else []), *may]
    return {"zuul": {"admin": admin, "permissions": dict.fromkeys(names, True), "scope": [scope]}}


@get(["/openapi", "/openapi/openapi.json"], include_in_schema=False)
async def description(request: HttpRequest) -> Response[bytes]:
    """Return the description of the API."""
    return Response(as_json(request.app.handlers), media_type="application/vnd.oai.openapi+json")


@get(["/openapi/openapi.yaml", "/openapi/openapi.yml"], include_in_schema=False)
async def described(request: HttpRequest) -> Response[bytes]:
    """Return the description of the API as YAML."""
    return Response(await asyncio.to_thread(as_yaml, request.app.handlers), media_type="application/vnd.oai.openapi")


@get("/openapi.yaml", include_in_schema=False)
async def described_there(request: HttpRequest) -> Response[bytes]:
    """Return the description of the API at the path that Zuul uses."""
    return Response(await asyncio.to_thread(as_yaml, request.app.handlers), media_type="application/yaml")


ROUTES = (everything, description, described, described_there, info, tenant_info, authorizations, all_authorizations)
