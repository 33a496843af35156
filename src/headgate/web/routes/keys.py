"""Public keys of projects, for whoever encrypts a secret."""

from __future__ import annotations

from litestar import MediaType, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath

from headgate.ports.secrets import SecretError
from headgate.web.site import site_of


@get("/api/tenant/{tenant:str}/key/{rest:path}", media_type=MediaType.TEXT)
async def public_key(state: State, tenant: FromPath[str], rest: FromPath[str]) -> str:
    """`rest` is `<project>.pub`; a project's name may hold slashes.  PEM; the pair is made when there is none."""
    site = site_of(state)
    project = rest.strip("/").removesuffix(".pub")
    known = site.tenant(tenant).tenant
    source = known.find(project)
    if source is None or not rest.endswith(".pub"):
        raise NotFoundException(known.why_not(project) if source is None else "ask for <project>.pub")
    try:
        return await site.keys.public(source.connection, source.name)
    except SecretError as error:
        raise HTTPException(str(error), status_code=503) from error


ROUTES = (public_key,)
