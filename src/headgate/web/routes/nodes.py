"""Show machines, and hold or remove machines that launchers made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from headgate.base.ids import derived
from headgate.config.operator.model import Tenant
from headgate.gate.state.autohold import HoldRequest
from headgate.map.inventory.nodes import MadeNode, NodeClaim, NodeOrder, NodeRequest
from headgate.map.records import ComponentRecord, OwnMachine
from headgate.ports.history import time_text
from headgate.recipes.codec import readable
from headgate.recipes.requestforms import Open
from headgate.rest import HTTPException, HttpRequest, JSONBody, NotFoundException, put
from headgate.services.autohold import hold_requests
from headgate.services.nodes.machines.records import names_of, seen
from headgate.services.nodes.requester import executors
from headgate.services.nodes.status import PooledMachine
from headgate.store.types import Op
from headgate.web.routes.actions import Hand, plain
from headgate.web.site import Site

MODIFY = "modify-node"
"""Permission to change the state of a machine."""
STATES = ("hold", "used", "outdated")
LOCAL = "local"
"""Connection type of a build that runs on the executor's own machine."""
HOW_TO_LEASE = "`headgate inventory lease ask` leases it to you"
HOW_TO_REMOVE = "`headgate inventory machine delete` removes it from the inventory"
_ADDRESSES = ("interface_ip", "public_ipv4", "private_ipv4", "public_ipv6", "private_ipv6")


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a machine that a build of the tenant uses, or that was made for the tenant."""

    id: str
    uuid: str
    type: tuple[str, ...]
    """Its labels."""
    label: str
    state: str
    """requested | building | slot-host | ready | in-use | used | failed | outdated | hold"""
    state_time: str
    """When it entered this state; for a machine of the inventory, when it was requested, or the present time if that is
    unknown.
    """
    next_state: str | None = None
    comment: str | None = None
    """The build that uses the machine."""
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
    """For a slot, the machine that it belongs to."""
    why: str | None = None
    """What the machine waits for, or what failed. Headgate only."""


class RequestShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a build's request for machines."""

    uuid: str
    state: str
    """requested | fulfilled"""
    pipeline_name: str
    buildset_uuid: str
    job_name: str
    labels: tuple[str, ...]
    priority: int
    """Requests with a lower number are fulfilled first."""
    relative_priority: int = 0
    request_time: str
    zuul_event_id: str
    image_names: tuple[str, ...] = ()
    image_upload_uuid: str | None = None
    provider_node_data: tuple[dict[str, Any], ...]
    """Objects with uuid, executor_zone and failed_providers, one for each machine."""
    is_locked: bool = False
    lock_holder: str | None = None
    position: int | None = None
    """Position among the waiting requests, from 1. Headgate only."""
    why: str | None = None
    """Why it waits. Headgate only."""
    why_since: str | None = None
    """When it began to wait for that reason. Headgate only."""
    tried: tuple[str, ...] = ()
    """What was tried so far, and how it failed. Headgate only."""


def executor_nodes(site: Site, tenant: str) -> list[NodeShape]:
    """Return the machines that executors list, if they are free or in use by builds of the tenant; for an executor that
    lists none, return the executor's own machine."""
    # Builds of other tenants must not be visible here.
    own = {build.id: f"{build.job} of build {build.id}" for _, _, build in site.status.builds(tenant)}
    found, members = list[NodeShape](), site.context.members(site.context.map.components.executor.path)
    running = Counter(open.request.owner.component for open in _running(site)) if members else Counter[str]()
    for path, record in sorted(members.items()):
        if record.data.machines:
            found += _listed(site, record, own)
        else:
            found.append(_place(site, record, running[path]))
    return found


def _listed(site: Site, record: ComponentRecord, own: dict[str, str]) -> Iterator[NodeShape]:
    for one in record.data.machines:
        # A machine that a build of another tenant uses is not shown.
        if not one.build or one.build in own:
            yield _executor_node(site, record, one, own.get(one.build))


def _executor_node(site: Site, record: ComponentRecord, one: OwnMachine, doing: str | None) -> NodeShape:
    state = "in-use" if one.build else "hold" if one.held else "ready"
    return NodeShape(
        id=one.name,
        uuid=_id(record, one.name),
        type=one.labels,
        label=one.labels[0] if one.labels else "",
        state=state,
        # Executors do not announce when that began, so this is the present time.
        state_time=time_text(site.context.now_ms()) or "",
        comment=doing,
        connection_type="ssh",
        provider=f"[executor] nodes of {record.hostname}",
        username=one.user or None,
        interface_ip=one.address or None,
        is_locked=bool(one.build),
        lock_holder=record.hostname if one.build else None,
    )


def _running(site: Site) -> Iterator[Open]:
    """Yield the builds that executors run."""
    for zone in ("", *site.context.zone_names()):
        yield from (open for open in site.context.zone(zone).open(site.context.mirror) if open.locked)


def _place(site: Site, record: ComponentRecord, running: int) -> NodeShape:
    """Describe an executor's own machine, on which it runs builds."""
    data = record.data
    accepts = record.state == "running" and data.accepting
    return NodeShape(
        id=record.hostname,
        uuid=_id(record, ""),
        type=data.labels,
        label=", ".join(data.labels) or LOCAL,
        state="in-use" if running else "ready",
        state_time=time_text(site.context.now_ms()) or "",
        comment=f"{running} of {data.places} builds",
        connection_type=LOCAL,
        provider=f"[executor] of {record.hostname}",
        is_locked=False,
        why=None if accepts else data.why or f"it is {record.state}",
    )


def _id(record: ComponentRecord, name: str) -> str:
    return derived("executor", record.hostname, name)


def not_steered(site: Site, uuid: str) -> HTTPException | None:
    """Return why a machine of an executor cannot be held or removed, and what to do instead; None: it is not one."""
    for record in executors(site.context):
        for name in ("", *(one.name for one in record.data.machines)):
            if _id(record, name) == uuid:
                own = f"the own machine of the executor {record.hostname}"
                text = f"{name}, which is listed in [executor] nodes of {record.hostname}" if name else own
                do = "`headgate autohold` holds the machines of a job's next failing build"
                return HTTPException(f"only the executor manages {text}; {do}", status_code=409)
    return None


async def free_nodes(site: Site, tenant: Tenant, claimed: Collection[str]) -> list[NodeShape]:
    """Return the machines of the inventory that match labels of the tenant, without those that builds use."""
    if site.pooled is None:
        return []
    return [_free_node(site, one) for one in await site.pooled(tenant) if one.uuid not in claimed]


def _free_node(site: Site, one: PooledMachine) -> NodeShape:
    return NodeShape(
        id=one.name,
        uuid=one.uuid,
        type=one.labels,
        label=one.labels[0],
        state=one.state,
        state_time=time_text(site.context.now_ms()) or "",
        connection_type=LOCAL if one.local else "ssh",
        provider=one.provider or None,
        is_locked=False,
        why=one.why or None,
    )


async def not_ours(site: Site, tenant: Tenant, uuid: str, state: str) -> HTTPException:
    """Return why a machine that no launcher made cannot be held or removed, and what to do instead."""
    entry = site.context.mirror.get(site.context.map.nodes.claims(uuid).record.path)
    claim = readable(entry, NodeClaim) if entry is not None else None
    # Only the tenant's own builds may be named in the response.
    if claim is not None and claim.tenant == tenant.name:
        return HTTPException(_claimed(site, claim, state), status_code=409)
    # A claim that is left here belongs to another tenant, which gets no confirmation that the machine exists.
    free = [] if site.pooled is None or claim is not None else await site.pooled(tenant)
    for one in free:
        if one.uuid == uuid:
            do = HOW_TO_LEASE if state == "hold" else HOW_TO_REMOVE
            return HTTPException(f"{one.name} is a free machine of the inventory: {do}", status_code=409)
    if (of_executor := not_steered(site, uuid)) is not None:
        return of_executor
    return NotFoundException(f"Node not found: tenant {tenant.name} has no machine {uuid}")


def _claimed(site: Site, claim: NodeClaim, state: str) -> str:
    """Return advice about a machine of the inventory that a build uses, or that an autohold holds."""
    held = _holding(site, claim)
    if held is not None:
        do = f"autohold {held.id} holds it" + (
            "" if state == "hold" else f"; `headgate autohold delete {held.id}` releases it"
        )
    elif state == "hold":
        do = "`headgate autohold` holds the machines of its job's next failing build"
    else:
        do = "it returns to the inventory when its build ends (`headgate cancel` cancels the build); " + HOW_TO_REMOVE
    return f"{claim.name} is a machine of the inventory: {do}"


def _holding(site: Site, claim: NodeClaim) -> HoldRequest | None:
    requests = hold_requests(site.context.map, site.context.mirror)
    return next((r for r in requests if any(b.request == claim.request and not b.over for b in r.builds)), None)


class ForNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request the next state of a machine."""

    state: str
    """hold | used | outdated"""
    comment: str | None = None
    hold_expiration: int | None = None
    """How long to hold it, in seconds. Null means the default of autoholds; 0, or a value above the maximum, means the
    maximum. Headgate only.
    """


def made_nodes(site: Site, tenant: str, requests: Mapping[str, NodeRequest]) -> list[NodeShape]:
    """Return the launcher-made machines that the tenant's builds use or hold, and free ones of its providers."""
    now = seen(site.context.map, site.context.mirror)
    own = {one.name for one in now.providers.get(tenant, ())}
    found = [node for node in now.nodes.values() if _shows(node, tenant, own)]
    orders = now.orders
    now_ms = site.context.now_ms()
    return [_made_node(node, requests.get(node.request), orders.get(node.id), now_ms) for node in found]


def _shows(node: MadeNode, tenant: str, providers: set[str]) -> bool:
    """Return whether the tenant may see a machine: its builds use or hold it, or it is free and of its providers."""
    # A held machine may contain data of its tenant's build.
    return node.tenant == tenant if node.request or node.state == "hold" else node.provider in providers


def _made_node(node: MadeNode, node_request: NodeRequest | None, order: NodeOrder | None, now_ms: int) -> NodeShape:
    host, label = node.host or {}, node.settings["label"]
    about = {name: _text(node.about.get(name)) for name in ("cloud", "region", "az", *_ADDRESSES)}
    doing = (
        f"{node_request.job} of {node_request.project}, build {node_request.build}"
        if node_request is not None
        else None
    )
    return NodeShape(
        id=node.id,
        uuid=node.id,
        type=names_of(node),
        label=node.label,
        state=node.state,
        state_time=time_text(node.since_ms) or "",
        next_state=order.state if order is not None else None,
        comment=node.comment or doing,
        connection_type=_text(host.get("ansible_connection")),
        external_id=node.external_id or None,
        provider=node.provider,
        cloud=about["cloud"] or node.connection,
        region=about["region"],
        az=about["az"],
        username=_text(host.get("ansible_user")),
        # Not every cloud reports this address.
        interface_ip=about["interface_ip"] or _text(host.get("ansible_host")),
        public_ipv4=about["public_ipv4"],
        private_ipv4=about["private_ipv4"],
        public_ipv6=about["public_ipv6"],
        private_ipv6=about["private_ipv6"],
        quota=dict(node.uses),
        max_age=label.get("max-age") or None,
        max_ready_age=label.get("max-ready-age") or None,
        hold_expiration=node.until_ms // 1000 or None,
        is_locked=bool(node.request),
        lock_holder=node_request.executor if node_request is not None else None,
        request_id=node.request or None,
        request_time=time_text(node.requested_ms),
        slot=node.slot,
        main_node_id=node.main or None,
        why=node.why or (_endless(node, now_ms) if node.state == "hold" else "") or None,
    )


def _endless(node: MadeNode, now_ms: int) -> str:
    """Return a warning about a machine that is held without an end; empty: the hold or its autohold ends."""
    if node.until_ms or node.request:
        return ""
    return f"held for {max(now_ms - node.since_ms, 0) // 3_600_000} h without an end: delete it once nobody needs it"


def _text(value: Any) -> str | None:
    return str(value) if value else None


@put("/api/tenant/{tenant:str}/nodes/{uuid:str}", status_code=201, opt={"permission": MODIFY})
async def change_node(site: Site, request: HttpRequest, tenant: str, uuid: str, data: JSONBody[ForNode]) -> None:
    """Hold a machine that a launcher made, or have it removed once no build uses it."""
    site.allow(request, tenant, MODIFY)
    # The other states result from work on the machine, and cannot be requested.
    if data.state not in STATES:
        raise HTTPException(f"state must be one of {', '.join(STATES)}, not {data.state!r}", status_code=400)
    if data.hold_expiration is not None and data.hold_expiration < 0:
        raise HTTPException("hold_expiration must be a number of seconds of at least 0, or null", status_code=400)
    held_s = site.settings.held_s(data.hold_expiration)
    now = seen(site.context.map, site.context.mirror)
    node, own = now.nodes.get(uuid), {one.name for one in now.providers.get(tenant, ())}
    # A machine that the tenant may not see gets the same response as one that does not exist.
    if node is None or not _shows(node, tenant, own):
        raise await not_ours(site, site.tenant(tenant).tenant, uuid, data.state)
    until_ms = site.context.now_ms() + 1000 * held_s if data.state == "hold" else 0
    bearer = site.access.bearer(request)
    by = plain(bearer.name) if bearer is not None else ""
    order = NodeOrder(data.state, plain(data.comment or ""), until_ms, by, held_s if until_ms else 0)
    place = site.context.map.nodes.orders(uuid).record

    async def work(besides: Sequence[Op]) -> None:
        await site.context.store.commit([], [place.put(order), *besides])

    await Hand(site, request, MODIFY, tenant, f"{data.state} {uuid}", data.comment or "").does(work)
