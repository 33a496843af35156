"""Show machines that launchers make, hold them, and remove them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate.map.inventory.nodes import MadeNode, NodeOrder, NodeRequest
from headgate.ports.history import time_text
from headgate.rest import HTTPException, HttpRequest, JSONBody, put
from headgate.services.nodes.machines.records import names_of
from headgate.services.nodes.machines.survey import seen
from headgate.store.types import Op
from headgate.web.routes.actions import Hand, plain
from headgate.web.routes.machineshapes import NodeShape
from headgate.web.routes.pooled import not_ours
from headgate.web.site import Site

MODIFY = "modify-node"
"""Permission to change the state of a machine."""
STATES = ("hold", "used", "outdated")


class ForNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request the next state of a machine."""

    state: str
    """hold | used | outdated"""
    comment: str | None = None
    hold_expiration: int | None = None
    """How long it is held, in seconds. Null means the default of autoholds; 0, or more than the maximum, means the
    maximum. Headgate only.
    """


def made_nodes(site: Site, tenant: str, requests: Mapping[str, NodeRequest]) -> list[NodeShape]:
    """Return the machines that the tenant's builds have, and those of its providers that nobody has."""
    now = seen(site.context.map, site.context.mirror)
    own = {one.name for one in now.providers.get(tenant, ())}
    found = [node for node in now.nodes.values() if _shows(node, tenant, own)]
    orders = now.orders
    now_ms = site.context.now_ms()
    return [_shape(node, requests.get(node.request), orders.get(node.id), now_ms) for node in found]


def _shows(node: MadeNode, tenant: str, providers: set[str]) -> bool:
    """Return whether it is the tenant's, or could be: what others' builds have is theirs to see."""
    return node.tenant == tenant if node.request or node.state == "hold" else node.provider in providers


def _shape(node: MadeNode, node_request: NodeRequest | None, order: NodeOrder | None, now_ms: int) -> NodeShape:
    host, label = node.host or {}, node.said["label"]
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
        request_time=time_text(node.asked_ms),
        slot=node.slot,
        main_node_id=node.main or None,
        why=node.why or (_endless(node, now_ms) if node.state == "hold" else "") or None,
    )


def _endless(node: MadeNode, now_ms: int) -> str:
    """Return a warning of one that is held without an end; empty: it has one, or its autohold has."""
    if node.until_ms or node.request:
        return ""
    return (
        f"held for {max(now_ms - node.since_ms, 0) // 3_600_000} h, and without an end: delete it once nobody needs it"
    )


_ADDRESSES = ("interface_ip", "public_ipv4", "private_ipv4", "public_ipv6", "private_ipv6")


def _text(value: Any) -> str | None:
    return str(value) if value else None


@put("/api/tenant/{tenant:str}/nodes/{uuid:str}", status_code=201, opt={"permission": MODIFY})
async def change_node(site: Site, request: HttpRequest, tenant: str, uuid: str, data: JSONBody[ForNode]) -> None:
    """Hold a machine that was made, or have it removed once no build uses it."""
    site.allow(request, tenant, MODIFY)
    if data.state not in STATES:
        raise HTTPException(f"state: one of {', '.join(STATES)}, not {data.state!r}", status_code=400)
    asked_s = site.hold_default_s if data.hold_expiration is None else data.hold_expiration
    if asked_s < 0:
        raise HTTPException("hold_expiration: a number of seconds, or null", status_code=400)
    held_s = asked_s if 0 < asked_s <= site.hold_max_s else site.hold_max_s
    now = seen(site.context.map, site.context.mirror)
    node, own = now.nodes.get(uuid), {one.name for one in now.providers.get(tenant, ())}
    # A machine that the tenant may not see is answered as one that does not exist.
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
