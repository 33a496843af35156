"""Machines: what may be asked for, what is asked for, what is taken; and what describes where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from litestar import delete, get, post, put
from litestar.datastructures import State
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath
from msgspec import UNSET, UnsetType

from headgate.config.assembly.providers import PARTS, attached
from headgate.config.layout import Layout
from headgate.config.parse import Stanza
from headgate.config.reading.check import as_list
from headgate.config.reading.document import Table
from headgate.map.inventory.nodes import NodeClaim, NodeRequest
from headgate.map.tree import Address, Undecodable
from headgate.ports.history import time_text
from headgate.recipes.mirror import Mirror
from headgate.web.site import NEEDED, HttpRequest, Site, must_be_json, site_of

R = TypeVar("R")
SECTIONS_MAX = 100
"""That a provider inherits from, one from the other."""
IMAGE_TYPES = ("zuul", "cloud")
NO_IMAGES = "Headgate builds no images, and has no such one"
NO_NODES = "machines of builds are taken and given back by Headgate alone: hold a build (autohold), or cancel it"


class LabelShape(msgspec.Struct, frozen=True):
    """What machines can be asked for by."""

    name: str
    canonical_name: str | UnsetType = UNSET
    """Of one that the configuration defines."""
    description: str | UnsetType | None = UNSET


class FlavorShape(msgspec.Struct, frozen=True):
    """A size of machines."""

    name: str
    canonical_name: str
    description: str | None


class ImageShape(msgspec.Struct, frozen=True):
    """What machines are started from."""

    name: str
    canonical_name: str
    project_canonical_name: str
    branch: str
    type: str
    """zuul | cloud"""


class ProviderShape(msgspec.Struct, frozen=True):
    """Where machines come from."""

    name: str
    canonical_name: str
    images: tuple[dict[str, Any], ...]
    """name, canonical_name, type."""
    labels: tuple[dict[str, Any], ...]
    """name, canonical_name."""
    flavors: tuple[dict[str, Any], ...]
    """name, canonical_name."""


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that is taken for a build of the tenant."""

    id: str
    uuid: str
    type: tuple[str, ...]
    """Its labels."""
    label: str
    state: str
    """requested | in-use | used"""
    state_time: str
    """When the machine was asked for; now, when nobody knows."""
    next_state: str | None = None
    comment: str | None = None
    """Which build has it."""
    connection_type: str | None = None
    external_id: str | None = None
    provider: str | None = None
    cloud: str | None = None
    region: str | None = None
    az: str | None = None
    username: str | None = None
    interface_ip: str | None = None
    public_ipv4: str | None = None
    private_ipv4: str | None = None
    public_ipv6: str | None = None
    private_ipv6: str | None = None
    slot: int | None = None
    quota: dict[str, Any] = {}
    max_age: int | None = None
    max_ready_age: int | None = None
    hold_expiration: int | None = None
    is_locked: bool = True
    lock_holder: str | None = None
    """Host of the executor."""
    request_id: str | None = None
    request_time: str | None = None
    main_node_id: str | None = None


class RequestShape(msgspec.Struct, frozen=True, kw_only=True):
    """A build that waits for machines, or has them."""

    uuid: str
    state: str
    """requested | fulfilled"""
    pipeline_name: str
    buildset_uuid: str
    job_name: str
    labels: tuple[str, ...]
    priority: int
    """Lower goes first."""
    relative_priority: int = 0
    request_time: str
    zuul_event_id: str
    image_names: tuple[str, ...] = ()
    image_upload_uuid: str | None = None
    provider_node_data: tuple[dict[str, Any], ...]
    """uuid, executor_zone, failed_providers, of each machine."""
    is_locked: bool = False
    lock_holder: str | None = None


def _layout(state: State, tenant: str) -> Layout:
    return site_of(state).tenant(tenant).layouts.landed


def _canonical(stanza: Stanza) -> str:
    return f"{quote(stanza.source.project, safe='')}/{stanza.name}"


@get("/api/tenant/{tenant:str}/labels")
async def labels(state: State, tenant: FromPath[str]) -> list[LabelShape]:
    """Labels that the tenant has, and those that its nodesets ask for, by name."""
    layout = _layout(state, tenant)
    found = {name: LabelShape(name) for name in (*_asked(layout), *layout.tenant.labels)}
    for name, stanza in layout.singles["label"].items():
        found[name] = LabelShape(name, _canonical(stanza), stanza.body.get("description"))
    return [found[name] for name in sorted(found)]


def _asked(layout: Layout) -> Iterator[str]:
    stanzas = [one.body for one in layout.singles["nodeset"].values()]
    inline = [v.body.get("nodeset") for several in layout.jobs.values() for v in several]
    for form in (*stanzas, *(one for one in inline if isinstance(one, Table))):
        alternatives = [one for one in as_list(form.get("alternatives")) if isinstance(one, Table)]
        for nodes in (form, *alternatives):
            yield from (str(node["label"]) for node in as_list(nodes.get("nodes")))


@get("/api/tenant/{tenant:str}/flavors")
async def flavors(state: State, tenant: FromPath[str]) -> list[FlavorShape]:
    """Flavors that the configuration defines, by name."""
    known = sorted(_layout(state, tenant).singles["flavor"].items())
    return [FlavorShape(name, _canonical(s), s.body.get("description")) for name, s in known]


@get("/api/tenant/{tenant:str}/images")
async def images(state: State, tenant: FromPath[str]) -> list[ImageShape]:
    """Images that the configuration defines, by name; no artifacts, as Headgate builds none."""
    known = sorted(_layout(state, tenant).singles["image"].items())
    return [
        ImageShape(name, _canonical(s), s.source.project, s.source.branch, s.body.get("type", IMAGE_TYPES[0]))
        for name, s in known
    ]


@get("/api/tenant/{tenant:str}/providers")
async def providers(state: State, tenant: FromPath[str]) -> list[ProviderShape]:
    """Providers that the configuration defines, by name, with what they and their sections attach."""
    layout = _layout(state, tenant)
    return [_provider(layout, stanza) for _, stanza in sorted(layout.singles["provider"].items())]


def _provider(layout: Layout, stanza: Stanza) -> ProviderShape:
    path = [stanza]
    while len(path) <= SECTIONS_MAX:
        above = path[-1].body.get("section" if path[-1].kind == "provider" else "parent")
        found = layout.singles["section"].get(above) if isinstance(above, str) else None
        if found is None or found in path:
            break
        path.append(found)
    told: dict[str, tuple[dict[str, Any], ...]] = {}
    for key, kind in PARTS.items():
        names = sorted({part.name for one in path for part in attached(one, key)})
        known = [one for name in names if (one := layout.singles[kind].get(name)) is not None]
        told[key] = tuple(_part(one, kind) for one in known)
    return ProviderShape(stanza.name, _canonical(stanza), told["images"], told["labels"], told["flavors"])


def _part(stanza: Stanza, kind: str) -> dict[str, Any]:
    more = {"type": stanza.body.get("type", IMAGE_TYPES[0])} if kind == "image" else {}
    return {"name": stanza.name, "canonical_name": _canonical(stanza), **more}


@get("/api/tenant/{tenant:str}/nodes")
async def nodes(state: State, tenant: FromPath[str]) -> list[NodeShape]:
    """Machines of the inventory that are taken for builds of the tenant, by name."""
    site = site_of(state)
    site.tenant(tenant)
    requests, places = {one.id: one for one in _requests(site, tenant)}, site.context.map.nodes.claims
    claims = [one for one in _read(site.context.mirror, places.path, NodeClaim) if one.tenant == tenant]
    found = [_node(site, claim, requests.get(claim.request)) for claim in claims]
    return sorted(found, key=lambda node: node.id)


def _node(site: Site, claim: NodeClaim, asked: NodeRequest | None) -> NodeShape:
    since_ms = asked.asked_ms if asked is not None and asked.asked_ms else site.context.now_ms()
    return NodeShape(
        id=claim.name or claim.machine,
        uuid=claim.machine,
        type=(claim.label,),
        label=claim.label,
        state={"claimed": "requested", "ready": "in-use"}.get(claim.state, "used"),
        state_time=time_text(since_ms) or "",
        comment=f"{asked.job} of {asked.project}, build {asked.build}" if asked is not None else None,
        connection_type="ssh",
        provider=claim.partition or None,
        lock_holder=asked.executor if asked is not None else None,
        is_locked=asked is not None,
        request_id=claim.request,
        request_time=time_text(asked.asked_ms) if asked is not None else None,
    )


@get("/api/tenant/{tenant:str}/nodeset-requests")
async def nodeset_requests(state: State, tenant: FromPath[str]) -> list[RequestShape]:
    """Builds of the tenant that wait for machines of the inventory, or have them, the longest first."""
    site = site_of(state)
    site.tenant(tenant)
    builds = {build.id: (pipeline, item) for pipeline, item, build in site.status.builds(tenant)}
    claims: dict[str, list[NodeClaim]] = {}
    for claim in _read(site.context.mirror, site.context.map.nodes.claims.path, NodeClaim):
        claims.setdefault(claim.request, []).append(claim)
    found = []
    for one in sorted(_requests(site, tenant), key=lambda one: one.asked_ms):
        pipeline, item = builds.get(one.build, ("", None))
        own = claims.get(one.id, [])
        found.append(
            RequestShape(
                uuid=one.id,
                state="fulfilled" if len(own) >= len(one.nodes) else "requested",
                pipeline_name=pipeline,
                buildset_uuid=item.buildset.id if item is not None and item.buildset is not None else "",
                job_name=one.job,
                labels=tuple(label for _, label in one.nodes),
                priority=one.precedence,
                request_time=time_text(one.asked_ms) or "",
                zuul_event_id=item.event if item is not None else "",
                provider_node_data=tuple(
                    {"uuid": claim.machine, "executor_zone": one.zone or None, "failed_providers": []} for claim in own
                ),
                is_locked=bool(own),
                lock_holder=one.executor or None,
            )
        )
    return found


def _requests(site: Site, tenant: str) -> list[NodeRequest]:
    known = _read(site.context.mirror, site.context.map.nodes.requests.path, NodeRequest)
    return [one for one in known if one.tenant == tenant]


def _read(mirror: Mirror, path: str, type: type[R]) -> Iterator[R]:
    """Yield what can be read; the map's check tells of the rest."""
    for entry in mirror.under(path):
        try:
            yield Address(entry.path, type).decode(entry.value)
        except Undecodable:
            continue


def _somebody(site: Site, request: HttpRequest) -> None:
    """Return for anybody with a token: nothing is done for them.  Raise 401, 415."""
    must_be_json(request)
    if site.access.bearer(request) is None:
        raise site.access.refused(401, NEEDED)


@put("/api/tenant/{tenant:str}/nodes/{uuid:str}", status_code=201)
async def change_node(state: State, request: HttpRequest, tenant: FromPath[str], uuid: FromPath[str]) -> None:
    """Refused: machines of builds are taken and given back by Headgate alone."""
    site = site_of(state)
    _somebody(site, request)
    if uuid not in {node.uuid for node in await nodes.fn(state, tenant)}:
        raise NotFoundException(f"Node not found: no machine {uuid} is taken for tenant {tenant}")
    raise HTTPException(NO_NODES, status_code=409)


@delete("/api/tenant/{tenant:str}/nodeset-requests/{uuid:str}")
async def end_request(state: State, request: HttpRequest, tenant: FromPath[str], uuid: FromPath[str]) -> None:
    """Refused: who wants a build to wait no more cancels it."""
    site = site_of(state)
    _somebody(site, request)
    if uuid not in {one.uuid for one in await nodeset_requests.fn(state, tenant)}:
        raise NotFoundException(f"Request not found: tenant {tenant} has no request {uuid}")
    raise HTTPException(NO_NODES, status_code=409)


@post("/api/tenant/{tenant:str}/image/{name:str}/build", status_code=200)
async def build_image(state: State, request: HttpRequest, tenant: FromPath[str], name: FromPath[str]) -> None:
    """Refused: Headgate builds no images."""
    _somebody(site_of(state), request)
    if name not in _layout(state, tenant).singles["image"]:
        raise NotFoundException(f"Image not found in tenant: {name}")
    raise HTTPException("Headgate builds no images", status_code=409)


@delete("/api/tenant/{tenant:str}/image-build-artifact/{id:str}")
async def end_artifact(state: State, request: HttpRequest, tenant: FromPath[str], id: FromPath[str]) -> None:
    """Find nothing: Headgate builds no images."""
    _somebody(site_of(state), request)
    raise NotFoundException(NO_IMAGES)


@delete("/api/tenant/{tenant:str}/image-upload/{id:str}")
async def end_upload(state: State, request: HttpRequest, tenant: FromPath[str], id: FromPath[str]) -> None:
    """Find nothing: Headgate builds no images."""
    _somebody(site_of(state), request)
    raise NotFoundException(NO_IMAGES)


@post("/api/tenant/{tenant:str}/image-upload/{id:str}/{verb:str}", status_code=200)
async def upload(
    state: State, request: HttpRequest, tenant: FromPath[str], id: FromPath[str], verb: FromPath[str]
) -> None:
    """Find nothing to validate or upload: Headgate builds no images."""
    _somebody(site_of(state), request)
    if verb not in ("validate", "upload"):
        raise NotFoundException(f"{verb!r} is not known; there are validate and upload")
    raise NotFoundException(NO_IMAGES)


@get("/api/tenant/{tenant:str}/project-ssh-key/{rest:path}", opt={"rest": ("{project}.pub",)})
async def project_ssh_key(state: State, tenant: FromPath[str], rest: FromPath[str]) -> None:
    """Find nothing: projects have no SSH keys of their own here; jobs get what they need as secrets."""
    site = site_of(state)
    site.project(tenant, rest.strip("/").removesuffix(".pub"))
    raise NotFoundException("projects have no SSH keys here: give a job what it needs as a secret")


@get("/api/tenant/{tenant:str}/tenant-ssh-key/ssh.pub")
async def tenant_ssh_key(state: State, tenant: FromPath[str]) -> None:
    """Find nothing, as for a project."""
    site_of(state).tenant(tenant)
    raise NotFoundException("tenants have no SSH keys here: give a job what it needs as a secret")


ROUTES = (
    labels, flavors, images, providers, nodes, nodeset_requests, change_node, end_request, build_image, end_artifact,
    end_upload, upload, project_ssh_key, tenant_ssh_key,
)  # fmt: skip
