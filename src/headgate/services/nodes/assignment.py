"""Assign machines to requests, in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headgate.config.operator.model import Tenant
from headgate.inventory.choice import choose
from headgate.inventory.names import Invalid
from headgate.map.inventory.nodes import NodeClaim, NodeRequest
from headgate.services.inventory.errors import InventoryError
from headgate.services.nodes.machines.demand import ReservedHosts, ReservedRoom
from headgate.services.nodes.search import MachineCandidate, MachineFinder
from headgate.services.nodes.status import NodeState, WaitingRequest
from headgate.store.types import At


@dataclass(frozen=True, slots=True)
class Assigned:
    claims: list[NodeClaim]
    checks: list[At]
    """Checks that the machines are unchanged."""


@dataclass(frozen=True, slots=True)
class NodesRefused:
    """Report that a request will never get its nodes, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class NodesLater:
    """Report that a request gets no nodes now, and why; the message stays the same while the reason does."""

    why: str


class Assigning:
    """Assign machines to requests, which must be given in order.

    Requests behind a waiting one get machines only if enough remain for it: enough of the machines that serve it,
    and enough of its project's limit. Nothing is reserved for a request if held, leased or broken machines leave too
    few in any case.
    """

    def __init__(
        self,
        tenants: Mapping[str, Tenant],
        finding: MachineFinder,
        now: NodeState,
        avoided: Collection[str],
        aside: Mapping[str, str],
    ) -> None:
        """Create an assignment. `avoided` are machines that are unavailable now; `aside` are machines that failed too
        often, with the reasons."""
        self._tenants, self._finding, self._now, self._aside = tenants, finding, now, aside
        self.taken = {*now.claims, *avoided, *aside}
        """Machines that cannot be chosen, including those for which leases ahead in the queue wait."""
        # A machine that is being cleaned no longer counts for the project that had it.
        self._claims = [one.claim for one in now.claims.values() if one.claim.state != "cleaning"]
        self._used = Counter((claim.tenant, claim.project) for claim in self._claims)
        self._away = {*avoided, *aside, *(one.machine for one in self._claims if one.request in now.held)}
        """Machines for which it is unknown when they become available again."""
        self._reserved_hosts, self._rooms = list[ReservedHosts](), dict[tuple[str, str], ReservedRoom]()
        self.reserved = set[str]()
        """Machines that waiting requests may need; later requests avoid them if possible."""

    async def assign(self, waiting: WaitingRequest) -> Assigned | NodesRefused | NodesLater:  # noqa: C901 - one rule after the other
        """Return the machines that a request gets, a refusal if it will never get any, or why it gets none now."""
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
                f"{len(request.nodes)} nodes are requested, but project {request.project} may have only {most}"
            )
        wanted = [[one.object.uuid for one in several] for several in found]
        if refusal := self._too_few(request, found):
            return refusal
        if self._no_room(request, most):
            self._keep_room(request, most)
            return NodesLater(f"limited by max-nodes-per-project: {request.project} may have {most} machines at a time")
        # First try without machines that others wait for, then with them, provided that enough are left (`leaves`).
        chosen = choose(wanted, self.taken | self.reserved) or choose(wanted, self.taken)
        if chosen is None or not all(reserved.leaves(chosen) for reserved in self._reserved_hosts):
            if self._keep_room(request, most):
                self._keep_machines(request, wanted)
            return NodesLater(_lacking(request, found))
        self.taken.update(chosen)
        self._used[whose] += len(chosen)
        for reserved in self._reserved_hosts:
            reserved.behind.update(chosen)
        if whose in self._rooms:
            self._rooms[whose].take({"machines": float(len(chosen))}, {})
        known = {one.object.uuid: one for several in found for one in several}
        pairs = list(zip(request.nodes, (known[uuid] for uuid in chosen), strict=True))
        return Assigned(
            [_claim(request, node, label, one) for (node, label), one in pairs],
            [self._finding.check(one) for _, one in pairs],
        )

    def _no_room(self, request: NodeRequest, most: int) -> bool:
        """Return whether the project's limit currently forbids as many additional machines."""
        whose, many = (request.tenant, request.project), len(request.nodes)
        room = self._rooms.get(whose)
        return 0 <= most < self._used[whose] + many or (
            room is not None and not room.leaves({"machines": float(many)}, {})
        )

    def _keep_room(self, request: NodeRequest, most: int) -> bool:
        """Reserve the project's room for its first waiting request; return False if held machines leave too little."""
        whose, many = (request.tenant, request.project), float(len(request.nodes))
        if most < 0:
            return True
        own = [one for one in self._claims if (one.tenant, one.project) == whose]
        if sum(one.request in self._now.held for one in own) + many > most:
            return False
        if whose not in self._rooms:
            late = sum(one in own for one in self._behind(request))
            self._rooms[whose] = ReservedRoom({"machines": most}, {"machines": many}, {"machines": float(late)})
        return True

    def _keep_machines(self, request: NodeRequest, wanted: Sequence[Sequence[str]]) -> None:
        """Reserve enough machines that serve the request, unless they are reserved for an earlier one, or unavailable
        machines leave too few."""
        every = {uuid for several in wanted for uuid in several}
        if not every & self.reserved and choose(wanted, self._away) is not None:
            self._reserved_hosts.append(ReservedHosts(wanted, {one.machine for one in self._behind(request)}))
            self.reserved |= every

    def _behind(self, request: NodeRequest) -> list[NodeClaim]:
        """Return the claims of later requests that were made while this one has been waiting."""
        order, requested_ms = self._now.order, self._now.requested_ms
        after = set(order[order.index(request.id) + 1 :]) if request.id in order else set()
        return [
            one for one in self._claims if one.request in after and requested_ms[one.request] >= request.requested_ms
        ]

    def _too_few(self, request: NodeRequest, found: list[list[MachineCandidate]]) -> NodesRefused | None:
        """Return a refusal if there are not enough machines, or not enough that work."""
        labels = ", ".join(sorted({label for _, label in request.nodes}))
        few = f"the inventory has too few machines for {len(request.nodes)} nodes of {labels}"
        if choose([[one.object.uuid for one in several] for several in found]) is None:
            return NodesRefused(few)
        if choose([[one.object.uuid for one in several] for several in found], self._aside) is None:
            named = {one.object.name: self._aside.get(one.object.uuid) for several in found for one in several}
            why = "; ".join(f"{name}: {why}" for name, why in sorted(named.items()) if why)
            return NodesRefused(f"{few}, because some failed repeatedly and are out of use ({why})")
        return None

    async def _candidates(self, request: NodeRequest, tenant: Tenant) -> list[list[MachineCandidate]] | NodesRefused:
        """Return, for each node, the machines that it could have, or a refusal.  Raise Invalid, InventoryError."""
        found = []
        for _, label in request.nodes:
            definition = tenant.labels.get(label)
            if definition is None:
                known = f"; it has {', '.join(tenant.labels)}" if tenant.labels else ""
                return NodesRefused(f"tenant {tenant.name} has no label {label!r}{known}")
            machines = await self._finding.machines(definition, request.zone, request.executor)
            if definition.triggering:
                # Such a label requires exactly the machine whose change started the item, not a similar one.
                machines = [one for one in machines if one.object.uuid == request.machine]
            if definition.triggering and not machines:
                return NodesRefused(f"this item was not started by a machine with label {label}")
            found.append(machines)
        return found


def _lacking(request: NodeRequest, found: Sequence[Sequence[MachineCandidate]]) -> str:
    """Return a message about the machines that the request waits for."""
    labels = {label: len(several) for (_, label), several in zip(request.nodes, found, strict=True)}
    summary = ", ".join(f"{many} of label {label}" for label, many in sorted(labels.items()))
    return f"limited by the machines of the inventory: {summary}, taken or reserved for requests that wait longer"


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
        properties=dict(one.object.properties),
        provider=dict(one.provider),
    )
