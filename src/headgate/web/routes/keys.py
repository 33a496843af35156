"""Serve the public keys of projects, for encrypting secrets, and replace keys."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.config.files.check import deep_plain
from headgate.config.tenants import TenantProject
from headgate.map.keys import KeyPair
from headgate.ports.secrets import SecretError
from headgate.rest import HTTPException, HttpRequest, JSONBody, NotFoundException, get, post
from headgate.store.types import Op
from headgate.web.routes.actions import Hand
from headgate.web.routes.control import OF_ALL
from headgate.web.site import Site


@get("/api/tenant/{tenant:str}/key/{rest:path}", media_type="text/plain", opt={"rest": ("{project}.pub",)})
async def public_key(site: Site, tenant: str, rest: str) -> str:
    """Return the public key as PEM; create the pair if there is none. `rest` is `<project>.pub`; a project's name
    may contain slashes."""
    if not rest.endswith(".pub"):
        raise NotFoundException("ask for <project>.pub")
    source = _project(site, tenant, rest.strip("/").removesuffix(".pub"))
    try:
        return await site.keys.public(source.connection, source.name)
    except SecretError as error:
        raise HTTPException(str(error), status_code=503) from error


class ForKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request a change of keys."""

    retire: int | None = None
    """Version of an older key to retire, so that it decrypts nothing any more; null to make a new key."""
    lossy: bool = False
    """Whether to retire the key even if secrets of the configuration need it."""
    reason: str = ""


class KeyShape(msgspec.Struct, frozen=True):
    """Describe one key pair; lists have the newest first."""

    version: int
    created_ms: int
    public: str


@post("/api/tenant/{tenant:str}/key/{rest:path}", status_code=200, opt={"rest": ("{project}",), "permission": OF_ALL})
async def change_keys(
    site: Site, request: HttpRequest, tenant: str, rest: str, data: JSONBody[ForKey]
) -> list[KeyShape]:
    """Make a new key of a project, or retire an older one. Return the keys that the project then has."""
    site.allow_all(request)
    project = _project(site, tenant, rest.strip("/"))
    verb = "rotate-key" if data.retire is None else "retire-key"
    hand = Hand(site, request, verb, tenant, project.project, data.reason, {"version": data.retire})
    left: list[KeyPair] = []

    async def work(besides: Sequence[Op]) -> None:
        try:
            if data.retire is None:
                left.extend(await site.keys.rotate(project.connection, project.name, besides))
                return
            # Secrets that only the retired key opens are of no use to builds any more.
            needed = [] if data.lossy else await _needing(site, project, data.retire)
            if needed:
                raise HTTPException(_still(data.retire, project, needed), status_code=409)
            left.extend(await site.keys.retire(project.connection, project.name, data.retire, besides))
        except SecretError as error:
            raise HTTPException(str(error), status_code=503) from error

    await hand.does(work)
    return [KeyShape(pair.version, pair.created_ms, pair.public) for pair in left]


def _project(site: Site, tenant: str, name: str) -> TenantProject:
    """Find a project of the tenant by its name. Raise 404."""
    known = site.tenant(tenant).tenant
    found = known.find(name)
    if found is None:
        raise NotFoundException(known.why_not(name))
    return found


async def _needing(site: Site, project: TenantProject, version: int) -> list[str]:
    """List the secrets, in any tenant, that the key opens: what they are called, and where they stand."""
    found: dict[str, None] = {}
    # Other tenants may have the same project, and their secrets need the same key.
    for configured in site.tenants.values():
        for stanza in configured.layouts.landed.singles["secret"].values():
            if stanza.source.project == project.project and "data" in stanza.body:
                data = deep_plain(stanza.body["data"])
                if version in await site.keys.openers(project.connection, project.name, data):
                    found[f"{stanza.name} ({stanza.place})"] = None
    return list(found)


SHOWN_MAX = 10


def _still(version: int, project: TenantProject, needed: Sequence[str]) -> str:
    more = f" and {len(needed) - SHOWN_MAX} more" if len(needed) > SHOWN_MAX else ""
    listed = f"{', '.join(needed[:SHOWN_MAX])}{more}"
    return (
        f"key {version} of {project.name} is the one that opens {listed}: encrypt them anew with the newest key, "
        "or retire it all the same with `lossy` (--lossy)"
    )


ROUTES = (public_key, change_keys)
