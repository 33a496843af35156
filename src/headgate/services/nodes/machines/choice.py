"""Choose which request gets which machines, existing or new ones, in one pass. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headgate.base.ids import derived
from headgate.config.machines import FlatLabel, FlatProvider
from headgate.inventory.choice import choose
from headgate.map.inventory.nodes import FREE, MadeNode, NodeRequest, NodeWait
from headgate.ports.clouds import Amounts
from headgate.services.nodes.machines.demand import NodeDemand, NodeSurvey, short
from headgate.services.nodes.machines.fate import YieldingMachines, is_free
from headgate.services.nodes.machines.limits import SHARED, NodeLimits
from headgate.services.nodes.machines.records import order, serving


@dataclass(frozen=True, slots=True)
class Make:
    """Plan a machine to create."""

    provider: FlatProvider
    label: FlatLabel
    uses: Amounts
    nodes: tuple[str, ...] = ()
    """Names that the request gives to the machine; a machine with slots may serve several nodes of the request."""


def packed(several: Sequence[Make]) -> tuple[Make, ...]:
    """Return as few machines as these nodes need, with several nodes on machines with slots."""
    found = list[Make]()
    for one in several:
        # A nodeset with four nodes of a label with four slots thus needs one machine.
        same = (place for place, other in enumerate(found)
                if other.provider.name == one.provider.name and other.label == one.label
                and len(other.nodes) + len(one.nodes) <= one.label.slots)  # fmt: skip
        place = next(same, None)
        if place is None:
            found.append(one)
        else:
            found[place] = replace(found[place], nodes=(*found[place].nodes, *one.nodes))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Plan all machines that a request still lacks."""

    take: tuple[tuple[MadeNode, str], ...]
    """Free machines, each with the request's name for it."""
    make: tuple[Make, ...]
    leave: tuple[MadeNode, ...] = ()
    """Machines that the request has but no longer wants."""


@dataclass(frozen=True, slots=True)
class Never:
    """Report that the request will never have machines."""

    why: str


@dataclass(frozen=True, slots=True)
class Later:
    """Report that the request cannot be served now."""

    why: str
    idle: tuple[MadeNode, ...] = ()
    """Machines that take the room for which the request waits, and that belong to nobody or to a later waiting
    request."""
    at: str = ""
    """The provider whose room the request waits for."""
    held: int | None = None
    """Number of machines that the request has, or could have had, while users outside this installation take the room
    of the account; None in other cases."""


@dataclass(frozen=True, slots=True)
class Lack:
    """Report why a plan has to wait."""

    why: str
    plan: NodePlan | None = None
    """The plan that would be carried out if there were more room."""
    provider: FlatProvider | None = None
    hosts: tuple[tuple[str, ...], ...] = ()
    """For requests of listed machines: for each node, the machines that can serve it, free or not."""
    shared: bool = False
    """Whether others use the account that lacks room."""


class Choosing:
    """Choose machines for requests, which must be given in order, because waiting requests reserve room (`limits`)."""

    def __init__(self, site: NodeSurvey) -> None:
        self._site = site
        self._free = {node.id: node for node in site.nodes if is_free(node)}
        self._limits = NodeLimits(site)
        self._making = set[str]()
        """Providers at which this pass creates machines."""
        self._waited: set[str] = set()
        """Providers and accounts for whose room a request waits."""
        self._yielding = YieldingMachines(site, self._free, self._limits)

    def serve(self, request: NodeRequest, wait: NodeWait | None) -> NodePlan | Never | Later:
        """Return the decision on a request that lacks some of its machines."""
        demand = NodeDemand(self._site, request, wait)
        most = self._site.most_of_project(request.tenant, request.project)
        if 0 <= most < len(request.nodes):
            return Never(
                f"{len(request.nodes)} nodes are requested, but project {request.project} may have only {most}"
            )
        if demand.never:
            return Never(demand.never)
        own = {node.node: node for node in self._site.nodes if node.request == request.id}
        # During the pause after it returned its machines, these may complete another request's nodeset (`ledger`).
        if wait is not None and wait.again_ms > self._site.now_ms:
            return self._pause(demand, own, wait)
        lacks = list[Lack]()
        for provider, names in demand.ways(own, self._rank):
            fit = self._fit(provider, demand, names, own)
            if isinstance(fit, NodePlan):
                return self._taken(fit, request)
            lacks.append(fit)
        if demand.spread:
            spread = self._spread(demand, own)
            if isinstance(spread, NodePlan):
                return self._taken(spread, request)
            lacks.append(spread)
        return self._wait(request, lacks, wait, len(own))

    def returned(self) -> Iterator[tuple[MadeNode, MadeNode]]:
        """Yield machines that were returned and not taken again, each with its old and its new record."""
        return self._yielding.left()

    def more(self, provider: FlatProvider, label: FlatLabel, tenant: str) -> Make | None:
        """Return a machine to create and keep ready, if there is room for which no request waits."""
        uses = self._site.uses(provider, label)
        if provider.is_static or self._site.closed(provider, label.name) or not isinstance(uses, Mapping):
            return None
        place = "/".join(self._site.place_of(provider))
        make = Make(provider, label, uses)
        if self._waited & {provider.name, place} or self._limits.lack_of_pool(make.provider, label, tenant, uses):
            return None
        self._limits.made(provider, label, tenant, uses)
        return make

    def _pause(self, demand: NodeDemand, own: Mapping[str, MadeNode], wait: NodeWait) -> Later:
        """Return a request's machines; create none for it during the pause."""
        for node in own.values():
            self._yielding.give_back(node)
        for name, label in demand.labels.items():
            for provider in filter(self._is_shared, demand.able[name]):
                self._waited.add("/".join(self._site.place_of(provider)))
                for node in self._matching(provider, label, demand.request):
                    self._yielding.give_back(node)
        return Later(wait.why)

    def _is_tried(self, provider: FlatProvider) -> bool:
        """Return whether machines were requested there and the cloud has not yet answered whether it has room."""
        return provider.name in self._making or any(
            node.provider == provider.name
            # It was requested, but nothing of it is known to exist, so the cloud has not answered yet.
            and node.state in ("requested", "building")
            and not (node.driver or node.external_id or node.main)
            for node in self._site.nodes
        )

    def _is_shared(self, provider: FlatProvider) -> bool:
        """Return whether others are known to use the account."""
        return self._site.full(provider) or any(self._site.account(provider)[1].values())

    # --- one provider

    def _rank(self, provider: FlatProvider, request: NodeRequest) -> tuple[float, float, str]:
        """Return the rank of a provider: those with the most ready machines come first, then the least used."""
        wanted = Counter(label for _, label in request.nodes)
        free = {name: self._matching(provider, name, request) for name in wanted}
        found = {name: sum(node.state == "ready" for node in several) for name, several in free.items()}
        ready = sum(min(found[name], wanted[name]) for name in wanted)
        # The digest spreads requests among equally full providers, and is the same in each pass.
        return -ready, self._usage(provider), derived(provider.name, request.id)

    def _usage(self, provider: FlatProvider) -> float:
        """Return how full the provider is; one with unknown limits counts as full."""
        if self._site.unread(provider):
            return 1.0
        room, used = self._limits.room_of(provider), self._limits.used_by(provider)
        most = max((used.get(kind, 0.0) / room[kind] if room[kind] > 0 else math.inf for kind in room), default=0.0)
        # Because of the rounding, nearly equally full providers share the requests.
        return round(most, 1) if most < 1 else most

    def _matching(self, provider: FlatProvider, name: str, request: NodeRequest) -> list[MadeNode]:
        """Return the provider's free machines that serve the label, directly or by an alias, the best first; tests of
        an image get no machines of other labels."""
        if provider.is_static:
            return order(serving(self._free.values(), provider.name, name))
        # A build that tests an image needs machines of exactly that label, because others with its name may have
        # another image.
        labels = provider.serving(name)[: 1 if request.upload else None]
        digests = {label.name: label.digest for label in labels}
        found = [
            node
            for node in self._free.values()
            if node.provider == provider.name
            # The configuration may have changed since the machine was created.
            and digests.get(node.label) == node.digest
            and not self._site.expired(node)
        ]
        return sorted(found, key=lambda node: (FREE.index(node.state), node.label != name, node.requested_ms, node.id))

    def _fit(
        self, provider: FlatProvider, demand: NodeDemand, names: Sequence[str], own: Mapping[str, MadeNode]
    ) -> NodePlan | Lack:
        """Return how this provider can supply all of `names`, or why it cannot now."""
        have = {name for name, node in own.items() if node.provider == provider.name}
        leave = tuple(node for name, node in own.items() if node.provider != provider.name and name in names)
        lacking = [name for name in names if name not in have]
        if provider.is_static:
            return self._listed(provider, demand, lacking, leave)
        take, make, taken = list[tuple[MadeNode, str]](), list[Make](), set[str]()
        for name in lacking:
            label = provider.label(demand.labels[name])
            assert label is not None, "it is among those that have it"
            free = self._matching(provider, demand.labels[name], demand.request)
            ready = next((one for one in free if one.id not in taken), None)
            if ready is not None:
                taken.add(ready.id)
                take.append((ready, name))
                continue
            uses = self._site.uses(provider, label)
            if why := self._site.closed(provider, label.name):
                return Lack(why, shared=self._site.full(provider))
            if not isinstance(uses, Mapping):
                return Lack(f"provider {short(provider)}: {uses or 'the size of its machines is being read'}")
            # When a cloud has no room, only one request at a time finds out whether it has room again.
            if self._site.tight(provider) and self._is_tried(provider):
                return Lack(f"provider {short(provider)}: its cloud had no room, and another request is trying first")
            make.append(Make(provider, label, uses, (name,)))
        plan = NodePlan(tuple(take), packed(make), leave)
        why = self._limits.lack(demand.request, plan.take, plan.make, plan.leave)
        if not why:
            return plan
        return Lack(why, plan, provider, shared=self._limits.is_shared(demand.request, plan.take, plan.make))

    def _listed(
        self, provider: FlatProvider, demand: NodeDemand, names: Sequence[str], leave: tuple[MadeNode, ...]
    ) -> NodePlan | Lack:
        """Return a plan with listed machines, or why there is none."""
        if why := self._site.closed(provider, ""):
            return Lack(why)
        free = [[one.id for one in self._matching(provider, demand.labels[name], demand.request)] for name in names]
        # Machines in use also count, because they can serve waiting requests when their builds end.
        usable = [node for node in self._site.nodes if node.state in ("ready", "in-use", "rebuilding")]
        hosts = tuple(tuple(one.id for one in serving(usable, provider.name, demand.labels[name])) for name in names)
        chosen = choose(free)
        if chosen is None:
            return Lack(self._why_none(provider, [demand.labels[name] for name in names]), None, provider, hosts)
        if not self._limits.leaves_hosts(provider.name, chosen):
            reserved = f"limited by the machines of provider {short(provider)}: reserved for requests that wait longer"
            return Lack(reserved, None, provider, hosts)
        plan = NodePlan(tuple((self._free[id], name) for id, name in zip(chosen, names, strict=True)), (), leave)
        why = self._limits.lack(demand.request, plan.take, (), leave)
        return Lack(why, plan, provider, hosts) if why else plan

    def _why_none(self, provider: FlatProvider, labels: Sequence[str]) -> str:
        """Return a message about the state of the listed machines that serve these labels."""
        every = {one.id: one for label in labels for one in serving(self._site.nodes, provider.name, label)}
        several = sorted(every.values(), key=lambda one: one.id)
        # Held machines are listed separately, because it is unknown when they become free.
        taken = sum(bool(one.request) or one.state == "rebuilding" for one in several)
        reasons = [f"limited by the machines of provider {short(provider)}: {taken} of {len(several)} are taken"]
        reasons += [f"{one.external_id or one.settings['provider']['node'].get('name', one.id)}: {one.why}"
                 for one in several if one.state == "registering" and one.why]  # fmt: skip
        if held := sum(one.state == "hold" for one in several):
            reasons.append(f"{held} are held")
        return ", ".join(reasons[:5])

    # --- waiting requests

    def _wait(self, request: NodeRequest, lacks: Sequence[Lack], wait: NodeWait | None, own: int) -> Later:
        """Reserve room for the request, and return why it waits. The room is at one of the providers that could serve
        it: the same one in each pass, if that is still possible. `own` is the number of machines that it has."""
        why = "; ".join(dict.fromkeys(one.why for one in lacks if one.why))
        shared = any(one.shared for one in lacks)
        able = [one for one in lacks if one.plan is not None or one.hosts]
        if not able:
            return Later(why, held=own if shared else None)
        best = self._place_to_wait(request, able, wait)
        # The time since which it waits for room is in its record, so that a new launcher continues the periods of
        # `is_open`.
        room_ms = wait.room_ms if wait is not None and wait.room_ms else self._site.now_ms
        plan = best.plan or NodePlan((), ())
        keys = self._limits.keep(request, plan.take, plan.make, best.hosts, best.provider, room_ms)
        at = best.provider.name if best.provider is not None else ""
        waited = [key for key in keys if key[0] in SHARED]
        self._waited |= {"/".join(key[1:]) for key in waited}
        if best.provider is not None:
            self._waited.add(best.provider.name)
        taken = {node.id for node, _ in plan.take}
        idle = [one for key in waited for one in self._yielding.in_the_way(key, request, taken, len(plan.make))]
        held = own or max((len(one.plan.take) for one in able if one.plan is not None), default=0) if shared else None
        return Later(why, tuple({node.id: node for node in idle}.values()), at, held)

    def _place_to_wait(self, request: NodeRequest, able: Sequence[Lack], wait: NodeWait | None) -> Lack:
        """Return the provider to wait for: one that has room once idle machines are gone, otherwise the previous one,
        until the request gives up there."""
        name, tries = (wait.at, wait.gave) if wait is not None else ("", 0)
        same = [one for one in able if one.provider is not None and one.provider.name == name]
        for one in (*same, *able):
            plan = one.plan or NodePlan((), ())
            # The previous provider comes first; otherwise the request would switch between providers and keep room at
            # neither.
            idle = self._yielding.idle([node for node, _ in plan.take]) if one.plan is not None else {}
            if idle and not self._limits.lack(request, plan.take, plan.make, plan.leave, idle):
                return one
        # After it has returned its machines, it waits for another provider.
        return same[0] if same else able[tries % len(able)]

    # --- several providers

    def _spread(self, demand: NodeDemand, own: Mapping[str, MadeNode]) -> NodePlan | Lack:
        """Take each node from a provider that can supply it, because no provider has all of the labels."""
        plan, free, lacks = NodePlan((), ()), self._free, list[Lack]()
        # The nodes of one request must not take the same machine; the original mapping is restored afterwards.
        self._free = dict(free)
        try:
            for name in (name for name in demand.labels if name not in own):
                fits = list(self._anywhere(demand, name, plan))
                fit = next((one for one in fits if isinstance(one, NodePlan)), None)
                if fit is None:
                    several = [one for one in fits if isinstance(one, Lack)]
                    lacks.append(next((one for one in several if one.plan is not None), several[0]))
                    why = "; ".join(dict.fromkeys(one.why for one in several))
                    shared = any(one.shared for one in several)
                    lacks[-1] = Lack(why, lacks[-1].plan, lacks[-1].provider, lacks[-1].hosts, shared)
                found = fit or lacks[-1].plan or NodePlan((), ())
                plan = NodePlan((*plan.take, *found.take), packed((*plan.make, *found.make)))
                for node, _ in found.take:
                    self._free.pop(node.id, None)
        finally:
            self._free = free
        if not lacks:
            return plan
        why = "; ".join(dict.fromkeys(one.why for one in lacks))
        hosts = tuple(ids for one in lacks for ids in one.hosts)
        listed = next((one.provider for one in lacks if one.hosts), None)
        able = listed is not None or all(one.plan is not None for one in lacks)
        return Lack(why, plan if able else None, listed, hosts, any(one.shared for one in lacks))

    def _anywhere(self, demand: NodeDemand, name: str, so_far: NodePlan) -> Iterator[NodePlan | Lack]:
        """Yield the possible plans for one node, in addition to the plan so far."""
        for provider in sorted(demand.able[name], key=lambda one: self._rank(one, demand.request)):
            fit = self._fit(provider, demand, [name], {})
            if isinstance(fit, NodePlan):
                take, make = (*so_far.take, *fit.take), packed((*so_far.make, *fit.make))
                if why := self._limits.lack(demand.request, take, make, ()):
                    fit = Lack(why, fit, provider, shared=self._limits.is_shared(demand.request, take, make))
            yield fit

    def _taken(self, plan: NodePlan, request: NodeRequest) -> NodePlan:
        for node, _ in plan.take:
            self._free.pop(node.id)
        self._limits.given(request, plan.take, plan.make, plan.leave)
        self._making.update(one.provider.name for one in plan.make)
        return plan
