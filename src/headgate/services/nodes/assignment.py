"""Which request gets which machines, at one look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headgate.config.tenants import Tenant
from headgate.inventory.choice import choose
from headgate.inventory.names import Invalid
from headgate.map.inventory.nodes import NodeClaim, NodeRequest
from headgate.services.inventory.errors import InventoryError
from headgate.services.nodes.search import MachineCandidate, MachineFinder
from headgate.services.nodes.status import NodeState, WaitingRequest
from headgate.store.types import At


@dataclass(frozen=True, slots=True)
class Assigned:
    claims: list[NodeClaim]
    checks: list[At]
    """The machines, as they were read."""


@dataclass(frozen=True, slots=True)
class NodesRefused:
    """It will never have its nodes; why."""

    why: str


class Assigning:
    """Requests must be given in order."""

    def __init__(
        self,
        tenants: Mapping[str, Tenant],
        finding: MachineFinder,
        now: NodeState,
        avoided: Collection[str],
        aside: Mapping[str, str],
    ) -> None:
        """Take `avoided`, machines that cannot be had now, and `aside`, those that failed too often, and why."""
        self._tenants, self._finding, self._aside = tenants, finding, aside
        self.taken = {*now.claims, *avoided, *aside}
        """Also what those ahead wait for."""
        used = [held.claim for held in now.claims.values() if held.claim.state != "cleaning"]
        self._used = Counter((claim.tenant, claim.project) for claim in used)

    async def assign(self, waiting: WaitingRequest) -> Assigned | NodesRefused | None:
        """Return the machines that a request gets, a refusal if it will never get any, or None if it gets none now."""
        request = waiting.request
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            return NodesRefused(f"there is no tenant {request.tenant}")
        try:
            found = await self._candidates(request, tenant)
        except (Invalid, InventoryError) as error:
            return NodesRefused(str(error))
        if isinstance(found, NodesRefused):
            return found
        most, whose = tenant.most_nodes(request.project), (request.tenant, request.project)
        if 0 <= most < len(request.nodes):
            return NodesRefused(
                f"{len(request.nodes)} nodes are wanted; project {request.project} may have {most} at a time"
            )
        wanted = [[one.object.uuid for one in several] for several in found]
        if refusal := self._too_few(request, found):
            return refusal
        if 0 <= most < self._used[whose] + len(request.nodes):
            return None
        chosen = choose(wanted, self.taken)
        if chosen is None:
            self.taken.update(uuid for several in wanted for uuid in several)
            return None
        self.taken.update(chosen)
        self._used[whose] += len(chosen)
        known = {one.object.uuid: one for several in found for one in several}
        pairs = list(zip(request.nodes, (known[uuid] for uuid in chosen), strict=True))
        return Assigned(
            [_claim(request, node, label, one) for (node, label), one in pairs],
            [self._finding.check(one) for _, one in pairs],
        )

    def _too_few(self, request: NodeRequest, found: list[list[MachineCandidate]]) -> NodesRefused | None:
        """Say so where there are not enough machines, or where those that work are not enough."""
        labels = ", ".join(sorted({label for _, label in request.nodes}))
        few = f"the inventory has too few machines for {len(request.nodes)} nodes of {labels}"
        if choose([[one.object.uuid for one in several] for several in found]) is None:
            return NodesRefused(few)
        if choose([[one.object.uuid for one in several] for several in found], self._aside) is None:
            named = {one.object.name: self._aside.get(one.object.uuid) for several in found for one in several}
            why = "; ".join(f"{name}: {why}" for name, why in sorted(named.items()) if why)
            return NodesRefused(f"{few}, as some failed again and again and are set aside ({why})")
        return None

    async def _candidates(self, request: NodeRequest, tenant: Tenant) -> list[list[MachineCandidate]] | NodesRefused:
        """Return, for each node, the machines that it could have, or a refusal.  Raise Invalid, InventoryError."""
        found = []
        for _, label in request.nodes:
            said = tenant.labels.get(label)
            if said is None:
                known = f"; it has {', '.join(tenant.labels)}" if tenant.labels else ""
                return NodesRefused(f"tenant {tenant.name} has no label {label!r}{known}")
            machines = await self._finding.machines(said, request.zone, request.executor)
            if said.triggering:
                machines = [one for one in machines if one.object.uuid == request.machine]
            if said.triggering and not machines:
                return NodesRefused(f"no machine of label {label} started this item")
            found.append(machines)
        return found


def _claim(request: NodeRequest, node: str, label: str, one: MachineCandidate) -> NodeClaim:
    return NodeClaim(
        machine=one.object.uuid,
        partition=one.object.partition,
        request=request.id,
        tenant=request.tenant,
        project=request.project,
        node=node,
        label=label,
        name=one.object.name,
        reach=dict(one.object.properties),
        provider=dict(one.provider),
    )
