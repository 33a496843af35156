"""Show the machines of the inventory that builds could get, and explain why they cannot be controlled here."""

from __future__ import annotations

from collections.abc import Collection

from headgate.config.operator.model import Tenant
from headgate.gate.autohold import HoldRequest
from headgate.map.inventory.nodes import NodeClaim
from headgate.ports.history import time_text
from headgate.recipes.codec import readable
from headgate.rest import HTTPException, NotFoundException
from headgate.services.autohold import hold_requests
from headgate.services.nodes.pooled import PooledMachine
from headgate.web.routes.executormachines import not_steered
from headgate.web.routes.machineshapes import NodeShape
from headgate.web.site import Site

LEASE = "`headgate inventory lease ask` gives it to you for a while"
REMOVE = "`headgate inventory machine delete` takes it out of the inventory"


async def free_nodes(site: Site, tenant: Tenant, claimed: Collection[str]) -> list[NodeShape]:
    """Return the machines of the inventory that labels of the tenant find, without those that builds have."""
    if site.pooled is None:
        return []
    return [_shape(site, one) for one in await site.pooled(tenant) if one.uuid not in claimed]


def _shape(site: Site, one: PooledMachine) -> NodeShape:
    return NodeShape(
        id=one.name,
        uuid=one.uuid,
        type=one.labels,
        label=one.labels[0],
        state=one.state,
        state_time=time_text(site.context.now_ms()) or "",
        connection_type="local" if one.local else "ssh",
        provider=one.provider or None,
        is_locked=False,
        why=one.why or None,
    )


async def not_ours(site: Site, tenant: Tenant, uuid: str, state: str) -> HTTPException:
    """Return why a machine that was not made is not held or taken away, and what to do instead."""
    entry = site.context.mirror.get(site.context.map.nodes.claims(uuid).record.path)
    claim = readable(entry, NodeClaim) if entry is not None else None
    if claim is not None and claim.tenant == tenant.name:
        return HTTPException(_claimed(site, claim, state), status_code=409)
    free = [] if site.pooled is None or claim is not None else await site.pooled(tenant)
    for one in free:
        if one.uuid == uuid:
            do = LEASE if state == "hold" else REMOVE
            return HTTPException(f"{one.name} is a machine of the inventory that no build has: {do}", status_code=409)
    if (of_executor := not_steered(site, uuid)) is not None:
        return of_executor
    return NotFoundException(f"Node not found: tenant {tenant.name} has no machine {uuid}")


def _claimed(site: Site, claim: NodeClaim, state: str) -> str:
    """Return what to do about a machine of the inventory that a build has, or had and holds."""
    held = _holding(site, claim)
    if held is not None:
        do = f"it is held by autohold {held.id}" + (
            "" if state == "hold" else f": `headgate autohold delete {held.id}` gives it back"
        )
    elif state == "hold":
        do = "`headgate autohold` keeps the machines of the next build of its job that fails"
    else:
        do = "it goes back to the inventory after its build, which `headgate cancel` ends; " + REMOVE
    return f"{claim.name} is a machine of the inventory: {do}"


def _holding(site: Site, claim: NodeClaim) -> HoldRequest | None:
    requests = hold_requests(site.context.map, site.context.mirror)
    return next((r for r in requests if any(b.request == claim.request and not b.over for b in r.builds)), None)
