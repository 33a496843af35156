"""Show machines, requests for machines, labels, flavors, providers and accounts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from headgate.config.assembly.providers import PARTS, attached
from headgate.config.files.checks import as_list
from headgate.config.files.document import Table
from headgate.config.layout import Layout
from headgate.config.parse import Stanza
from headgate.gate.state.management import CancelBuild
from headgate.map.inventory.nodes import NodeClaim, NodeRequest, NodeWait
from headgate.map.tree import Address, Undecodable
from headgate.ports.history import time_text
from headgate.recipes.mirror import Mirror
from headgate.rest import HTTPException, HttpRequest, JSONBody, NotFoundException, delete, get, post
from headgate.services.nodes.machines.demand import zone_of_label
from headgate.services.nodes.machines.records import SeenMachines, seen
from headgate.services.nodes.status import node_state
from headgate.store.types import At, Op
from headgate.web.problems import AccountShape, node_accounts
from headgate.web.routes.actions import Hand, plain
from headgate.web.routes.control import OF_ALL
from headgate.web.routes.nodes import NodeShape, RequestShape, change_node, executor_nodes, free_nodes, made_nodes
from headgate.web.site import Site

R = TypeVar("R")
SECTIONS_MAX = 100
"""Limit on the length of the chain of sections that a provider inherits from."""
IMAGE_TYPES = ("zuul", "cloud")
MODIFY_REQUEST = "modify-nodeset-request"
"""Permission to change a request for machines."""


class LabelShape(msgspec.Struct, frozen=True):
    """Describe a label that jobs may request."""

    name: str
    canonical_name: str | msgspec.UnsetType = msgspec.UNSET
    """The canonical name of a label that the configuration defines."""
    description: str | msgspec.UnsetType | None = msgspec.UNSET


class FlavorShape(msgspec.Struct, frozen=True):
    """Describe a size of machines."""

    name: str
    canonical_name: str
    description: str | None


class ProviderShape(msgspec.Struct, frozen=True):
    """Describe a provider of machines."""

    name: str
    canonical_name: str
    images: tuple[dict[str, Any], ...]
    """Objects with name, canonical_name and type."""
    labels: tuple[dict[str, Any], ...]
    """Objects with name and canonical_name."""
    flavors: tuple[dict[str, Any], ...]
    """Objects with name and canonical_name."""


def _layout(site: Site, tenant: str) -> Layout:
    return site.tenant(tenant).layouts.landed


def _canonical(stanza: Stanza) -> str:
    return f"{quote(stanza.source.project, safe='')}/{stanza.name}"


@get("/api/tenant/{tenant:str}/labels")
async def labels(site: Site, tenant: str) -> list[LabelShape]:
    """Return the labels that the tenant defines or may use, and those that its nodesets request, ordered by name."""
    layout = _layout(site, tenant)
    found = {name: LabelShape(name) for name in (*_labels_requested(layout), *layout.tenant.labels)}
    for name, stanza in layout.singles["label"].items():
        found[name] = LabelShape(name, _canonical(stanza), stanza.body.get("description"))
    return [found[name] for name in sorted(found)]


def _labels_requested(layout: Layout) -> Iterator[str]:
    stanzas = [one.body for one in layout.singles["nodeset"].values()]
    # Jobs may define a nodeset in place, which has no name.
    inline = [v.body.get("nodeset") for several in layout.jobs.values() for v in several]
    for form in (*stanzas, *(one for one in inline if isinstance(one, Table))):
        alternatives = [one for one in as_list(form.get("alternatives")) if isinstance(one, Table)]
        for nodes in (form, *alternatives):
            yield from (str(node["label"]) for node in as_list(nodes.get("nodes")))


@get("/api/tenant/{tenant:str}/flavors")
async def flavors(site: Site, tenant: str) -> list[FlavorShape]:
    """Return the flavors that the configuration defines, ordered by name."""
    known = sorted(_layout(site, tenant).singles["flavor"].items())
    return [FlavorShape(name, _canonical(s), s.body.get("description")) for name, s in known]


@get("/api/tenant/{tenant:str}/providers")
async def providers(site: Site, tenant: str) -> list[ProviderShape]:
    """Return the providers that the configuration defines, ordered by name, with the images, labels and flavors that
    they have themselves or inherit from their sections.
    """
    layout = _layout(site, tenant)
    return [_provider(layout, stanza) for _, stanza in sorted(layout.singles["provider"].items())]


def _provider(layout: Layout, stanza: Stanza) -> ProviderShape:
    path = [stanza]
    while len(path) <= SECTIONS_MAX:
        above = path[-1].body.get("section" if path[-1].kind == "provider" else "parent")
        found = layout.singles["section"].get(above) if isinstance(above, str) else None
        # Sections may name each other in a circle: that is a configuration error, but this loop must still end.
        if found is None or found in path:
            break
        path.append(found)
    parts: dict[str, tuple[dict[str, Any], ...]] = {}
    for key, kind in PARTS.items():
        names = sorted({part.name for one in path for part in attached(one, key)})
        known = [one for name in names if (one := layout.singles[kind].get(name)) is not None]
        parts[key] = tuple(_part(one, kind) for one in known)
    return ProviderShape(stanza.name, _canonical(stanza), parts["images"], parts["labels"], parts["flavors"])


def _part(stanza: Stanza, kind: str) -> dict[str, Any]:
    more = {"type": stanza.body.get("type", IMAGE_TYPES[0])} if kind == "image" else {}
    return {"name": stanza.name, "canonical_name": _canonical(stanza), **more}


@get("/api/tenant/{tenant:str}/nodes")
async def nodes(site: Site, tenant: str) -> list[NodeShape]:
    """Return the machines of the tenant, ordered by name: those that builds use, those that were made for the tenant,
    and free ones that builds may get.
    """
    configured = site.tenant(tenant)
    requests, places = {one.id: one for one in _requests(site, tenant)}, site.context.map.nodes.claims
    # Claims of all tenants are read, because the free machines must not include those that others use.
    claims = list(_read(site.context.mirror, places.path, NodeClaim))
    found = [_node(site, claim, requests.get(claim.request)) for claim in claims if claim.tenant == tenant]
    found += made_nodes(site, tenant, requests)
    found += await free_nodes(site, configured.tenant, {claim.machine for claim in claims})
    found += executor_nodes(site, tenant)
    return sorted(found, key=lambda node: node.id)


def _node(site: Site, claim: NodeClaim, node_request: NodeRequest | None) -> NodeShape:
    since_ms = (
        node_request.requested_ms if node_request is not None and node_request.requested_ms else site.context.now_ms()
    )
    return NodeShape(
        id=claim.name or claim.machine,
        uuid=claim.machine,
        type=(claim.label,),
        label=claim.label,
        # These are the words of Zuul's API.
        state={"claimed": "requested", "ready": "in-use"}.get(claim.state, "used"),
        state_time=time_text(since_ms) or "",
        comment=f"{node_request.job} of {node_request.project}, build {node_request.build}"
        if node_request is not None
        else None,
        connection_type="ssh",
        provider=claim.partition or None,
        lock_holder=node_request.executor if node_request is not None else None,
        is_locked=node_request is not None,
        request_id=claim.request,
        request_time=time_text(node_request.requested_ms) if node_request is not None else None,
    )


@get("/api/tenant/{tenant:str}/nodeset-requests")
async def nodeset_requests(site: Site, tenant: str) -> list[RequestShape]:
    """Return the tenant's requests for machines, fulfilled or not, the oldest first."""
    site.tenant(tenant)
    builds = {build.id: (pipeline, item) for pipeline, item, build in site.status.builds(tenant)}
    map, mirror = site.context.map, site.context.mirror
    claims: dict[str, list[str]] = {}
    for claim in _read(mirror, map.nodes.claims.path, NodeClaim):
        claims.setdefault(claim.request, []).append(claim.machine)
    made, now = seen(map, mirror), node_state(map, mirror, site.context.now_ms())
    for node in made.nodes.values():
        claims.setdefault(node.request, []).append(node.id)
    places = {one.request.id: place for place, one in enumerate(now.waiting, 1)}
    found = []
    for one in sorted(_requests(site, tenant), key=lambda one: one.requested_ms):
        pipeline, item = builds.get(one.build, ("", None))
        own = claims.get(one.id, [])
        shape = RequestShape(
            uuid=one.id,
            # Machines may be assigned one by one.
            state="requested" if one.id in places and len(own) < len(one.nodes) else "fulfilled",
            pipeline_name=pipeline,
            buildset_uuid=item.buildset.id if item is not None and item.buildset is not None else "",
            job_name=one.job,
            labels=tuple(label for _, label in one.nodes),
            priority=one.precedence,
            request_time=time_text(one.requested_ms) or "",
            zuul_event_id=item.event if item is not None else "",
            provider_node_data=_data(one, own, made),
            is_locked=bool(own),
            lock_holder=one.executor or None,
        )
        found.append(_explained(shape, places.get(one.id), made.waits.get(one.id)))
    return found


def _data(request: NodeRequest, own: list[str], made: SeenMachines) -> tuple[dict[str, Any], ...]:
    """Describe each machine that the request has or waits for."""
    wait, zones = made.waits.get(request.id), _zones(request, made)
    failed = wait.failed if wait is not None else {}
    names = {node.node: node.id for node in made.nodes.values() if node.request == request.id}
    # Claims of machines of the inventory do not name nodes.
    if not names and not failed:
        return tuple({"uuid": uuid, "executor_zone": request.zone or None, "failed_providers": []} for uuid in own)
    return tuple(
        {"uuid": names.get(name), "executor_zone": zones.get(name), "failed_providers": sorted(failed.get(name, {}))}
        for name, _ in request.nodes
    )


def _zones(request: NodeRequest, made: SeenMachines) -> dict[str, str]:
    """Map the names of nodes that are only reachable from one zone to that zone."""
    known = made.providers.get(request.tenant, [])
    found = {
        name: min((zone_of_label(one, label) for one in known if one.label(label) is not None), default="")
        for name, label in request.nodes
    }
    return {name: zone for name, zone in found.items() if zone}


def _explained(shape: RequestShape, position: int | None, wait: NodeWait | None) -> RequestShape:
    """Add the position and the reason to a request that waits."""
    if position is None:
        return shape
    if wait is None:
        return replace(shape, position=position, state="requested")
    since = time_text(wait.since_ms)
    return replace(shape, position=position, state="requested", why=wait.why, why_since=since, tried=wait.tried)


def _requests(site: Site, tenant: str) -> list[NodeRequest]:
    known = _read(site.context.mirror, site.context.map.nodes.requests.path, NodeRequest)
    return [one for one in known if one.tenant == tenant]


def _read(mirror: Mirror, path: str, type: type[R]) -> Iterator[R]:
    """Yield the records that can be decoded; the map's check reports the others."""
    for entry in mirror.under(path):
        try:
            yield Address(entry.path, type).decode(entry.value)
        except Undecodable:
            continue


@delete("/api/tenant/{tenant:str}/nodeset-requests/{uuid:str}", opt={"permission": MODIFY_REQUEST})
async def end_request(site: Site, request: HttpRequest, tenant: str, uuid: str) -> None:
    """Cancel a build that waits for machines; its job counts as failed."""
    site.allow(request, tenant, MODIFY_REQUEST)
    found = next((one for one in await nodeset_requests.fn(site, tenant) if one.uuid == uuid), None)
    if found is None:
        raise NotFoundException(f"Request not found: tenant {tenant} has no request {uuid}")
    if found.state != "requested":
        raise HTTPException("the build already has its machines; cancel the build instead", status_code=409)
    if not found.pipeline_name:
        raise HTTPException("the build has already left the queues", status_code=409)
    build = next(one.build for one in _requests(site, tenant) if one.id == uuid)
    subject = f"{found.job_name} in {found.pipeline_name}, build {build}"
    hand = Hand(site, request, MODIFY_REQUEST, tenant, subject)
    await hand.does(partial(site.ask, tenant, found.pipeline_name, CancelBuild(build, hand.explanation)))


@get("/api/tenant/{tenant:str}/project-ssh-key/{rest:path}", opt={"rest": ("{project}.pub",)})
async def project_ssh_key(site: Site, tenant: str, rest: str) -> None:
    """Return 404: Headgate's projects have no SSH keys of their own; jobs get keys as secrets."""
    site.project(tenant, rest.strip("/").removesuffix(".pub"))
    raise NotFoundException("projects have no SSH keys in Headgate: give a job the key that it needs as a secret")


@get("/api/tenant/{tenant:str}/tenant-ssh-key/ssh.pub")
async def tenant_ssh_key(site: Site, tenant: str) -> None:
    """Return 404: Headgate's tenants have no SSH keys of their own; jobs get keys as secrets."""
    site.tenant(tenant)
    raise NotFoundException("tenants have no SSH keys in Headgate: give a job the key that it needs as a secret")


class WhatOfAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request an action on an account of a provider."""

    do: Literal["forget"]
    reason: str = ""


@get("/api/node-accounts", opt={"permission": OF_ALL})
async def list_accounts(site: Site, request: HttpRequest) -> list[AccountShape]:
    """Return the accounts in which machines were made, while resources of this installation may exist there.
    Headgate only.
    """
    site.allow_all(request)
    return node_accounts(site.context)


@post("/api/node-accounts/{id:str}", status_code=200, opt={"permission": OF_ALL})
async def forget_account(site: Site, request: HttpRequest, id: str, data: JSONBody[WhatOfAccount]) -> bool:
    """Forget the machines and other resources in an account that was removed from the launcher's settings. Headgate
    only."""
    site.allow_all(request)
    context = site.context
    record = context.map.nodes.accounts(id).record
    entry = context.mirror.get(record.path)
    if entry is None:
        raise NotFoundException(f"there is no account {id!r}")
    one, bearer = record.decode(entry.value), site.access.bearer(request)
    if not one.lacking_ms:
        text = f"the launcher's settings have the connection {one.connection}: Headgate cleans it up without your help"
        raise HTTPException(text, status_code=409)
    given_up = plain(bearer.name) if bearer is not None else "somebody"

    async def work(besides: Sequence[Op]) -> None:
        put = record.put(replace(one, given_up=given_up or "somebody"))
        # The launcher writes this record, too: the check fails if it has found the connection again in the meantime.
        await context.store.commit([At(entry.path, entry.version)], [put, *besides])

    await Hand(site, request, "forget-account", "", f"{one.connection} {one.region}".strip(), data.reason).does(work)
    return True


ROUTES = (
    labels, flavors, providers, nodes, nodeset_requests, change_node, end_request, project_ssh_key, tenant_ssh_key,
    list_accounts, forget_account,
)  # fmt: skip
