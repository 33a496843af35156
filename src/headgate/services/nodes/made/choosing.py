"""Which request gets which machines, made or to be made, at one look.  Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.base.ids import derived
from headgate.config.machines import FlatLabel, FlatProvider
from headgate.map.inventory.made import ENDING, FREE, MadeNode, NodeWait
from headgate.map.inventory.nodes import NodeRequest
from headgate.ports.cloud import Amounts
from headgate.services.nodes.made.asked import Asked, Site, add, short


@dataclass(frozen=True, slots=True)
class Make:
    """A machine to be made."""

    provider: FlatProvider
    label: FlatLabel
    node: str
    uses: Amounts


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a request still lacks."""

    take: tuple[tuple[MadeNode, str], ...]
    """Machines that are nobody's, and what the request calls each."""
    make: tuple[Make, ...]
    leave: tuple[MadeNode, ...] = ()
    """Machines that it has and does not want any more."""


@dataclass(frozen=True, slots=True)
class Never:
    """It will have no machines."""

    why: str


@dataclass(frozen=True, slots=True)
class Later:
    """Not now."""

    why: str
    idle: tuple[MadeNode, ...] = ()
    """Machines that take the room it waits for, and that nobody has, or somebody behind it who waits, too."""


class Choosing:
    """Requests must be given in order: who waits for room in a provider is not overtaken there."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._free = {node.id: node for node in site.nodes if not node.request and node.state in FREE}
        self._used: dict[str, dict[str, float]] = {}
        self._at: dict[tuple[str, str], dict[str, float]] = {}
        self._waited: set[str] = set()
        """Providers whose room somebody waits for."""
        self._waited_at: set[tuple[str, str]] = set()
        """Accounts, by connection and region."""
        self._projects = Counter(site.claimed)
        for node in site.nodes:
            add(self._used.setdefault(node.provider, {}), node.uses)
            add(self._at.setdefault(site.place(node), {}), node.uses)
            if node.request:
                self._projects[node.tenant, node.project] += 1

    def serve(self, request: NodeRequest, wait: NodeWait | None) -> Plan | Never | Later:
        """Return what is to be done for a request that has not all of its machines."""
        asked = Asked(self._site, request, wait)
        if asked.never:
            return Never(asked.never)
        if late := self._over(request):
            return late
        own = {node.node: node for node in self._site.nodes if node.request == request.id}
        reasons, idle = list[str](), list[MadeNode]()
        for provider, names in asked.ways(own, self._rank):
            fit = self._fit(provider, asked, names, own)
            if isinstance(fit, Plan):
                self._take(fit, request)
                return fit
            reasons.append(fit.why)
            idle += fit.idle
        if asked.spread:
            spread = self._spread(asked, own)
            if isinstance(spread, Plan):
                self._take(spread, request)
                return spread
            reasons.append(spread.why)
            idle += spread.idle
        return Later("; ".join(dict.fromkeys(filter(None, reasons))), tuple(idle))

    def more(self, provider: FlatProvider, label: FlatLabel) -> Make | None:
        """Return one to be kept ready, if there is room that nobody waits for."""
        uses = self._site.uses(provider, label)
        if self._is_waited(provider) or self._site.closed(provider, label.name) or not isinstance(uses, Mapping):
            return None
        if self._short(provider, [uses]):
            return None
        self._count(provider, uses)
        return Make(provider, label, "", uses)

    # --- one provider

    def _rank(self, provider: FlatProvider, request: NodeRequest) -> tuple[float, float, str]:
        """Return where a provider stands: who has most that is ready goes first, then who is used least."""
        wanted = Counter(label for _, label in request.nodes)
        found = Counter(name for name in wanted for node in self._matching(provider, name) if node.state == "ready")
        ready = sum(min(found[name], wanted[name]) for name in wanted)
        return -ready, self._usage(provider), derived(provider.name, request.id)

    def _usage(self, provider: FlatProvider) -> float:
        room, used = self._room(provider), self._used.get(provider.name, {})
        most = max((used.get(kind, 0.0) / room[kind] if room[kind] > 0 else math.inf for kind in room), default=0.0)
        return round(most, 1) if most < 1 else most

    def _matching(self, provider: FlatProvider, name: str) -> list[MadeNode]:
        """Return machines there that are nobody's and serve the label, the best first."""
        label = provider.label(name)
        if label is None:
            return []
        found = [
            node
            for node in self._free.values()
            if node.provider == provider.name
            and node.label == label.name
            and node.digest == label.digest
            and not self._site.expired(node)
        ]
        return sorted(found, key=lambda node: (FREE.index(node.state), node.asked_ms, node.id))

    def _fit(
        self, provider: FlatProvider, asked: Asked, names: Sequence[str], own: Mapping[str, MadeNode]
    ) -> Plan | Later:
        """Return how all of `names` come from this provider, or why they do not now."""
        have = {name for name, node in own.items() if node.provider == provider.name}
        leave = tuple(node for name, node in own.items() if node.provider != provider.name and name in names)
        take, make, taken = list[tuple[MadeNode, str]](), list[Make](), set[str]()
        for name in names:
            if name in have:
                continue
            label = provider.label(asked.labels[name])
            assert label is not None, "it is among those that have it"
            ready = next((one for one in self._matching(provider, label.name) if one.id not in taken), None)
            if ready is not None:
                taken.add(ready.id)
                take.append((ready, name))
                continue
            uses = self._site.uses(provider, label)
            if why := self._site.closed(provider, label.name):
                return Later(why)
            if not isinstance(uses, Mapping):
                return Later(f"provider {short(provider)}: {uses or 'what a machine takes there is being asked'}")
            make.append(Make(provider, label, name, uses))
        if not make:
            return Plan(tuple(take), (), leave)
        if why := self._many(asked, provider, make):
            return Later(why)
        if self._is_waited(provider):
            return Later(f"provider {short(provider)}: others wait there before it")
        if why := self._short(provider, [one.uses for one in make]):
            return Later(why, self._in_the_way(provider, asked.request, make, taken))
        return Plan(tuple(take), tuple(make), leave)

    def _is_waited(self, provider: FlatProvider) -> bool:
        return provider.name in self._waited or self._site.place_of(provider) in self._waited_at

    def _in_the_way(
        self, provider: FlatProvider, request: NodeRequest, make: Sequence[Make], taken: set[str]
    ) -> tuple[MadeNode, ...]:
        """Return what may go so that there is room, if nothing is on its way out; others wait behind this one now."""
        place, limits, used = self._site.place_of(provider), provider.limits, self._used.get(provider.name, {})
        wanted: dict[str, float] = {}
        for one in make:
            add(wanted, one.uses)
        own = any(used.get(kind, 0.0) + much > limits.get(kind, math.inf) for kind, much in wanted.items())
        self._waited.add(provider.name)
        if not own:
            self._waited_at.add(place)
        near = [
            node
            for node in self._site.nodes
            if (node.provider == provider.name if own else self._site.place(node) == place)
        ]
        if any(node.state in ENDING for node in near):
            return ()
        line = self._site.line
        behind = set(line[line.index(request.id) + 1 :]) if request.id in line else set()
        idle = [node for node in near if node.id in self._free and node.id not in taken]
        idle.sort(key=lambda node: (FREE.index(node.state), node.asked_ms, node.id))
        held = [node for node in near if node.request in behind and node.state in FREE]
        held.sort(key=lambda node: (-line.index(node.request), node.id))
        return tuple([*idle, *held][: len(make)])

    def _spread(self, asked: Asked, own: Mapping[str, MadeNode]) -> Plan | Later:
        """Take each node from where it can come: no provider has all of its labels."""
        whole, counted, free = Plan((), ()), list[Make](), dict(self._free)
        try:
            for name in (name for name in asked.labels if name not in own):
                fit = self._anywhere(asked, name)
                if isinstance(fit, Later):
                    return fit
                whole = Plan((*whole.take, *fit.take), (*whole.make, *fit.make))
                for node, _ in fit.take:
                    self._free.pop(node.id)
                for one in fit.make:
                    self._count(one.provider, one.uses)
                    counted.append(one)
            return whole
        finally:
            self._free = free
            for one in counted:
                self._count(one.provider, {kind: -much for kind, much in one.uses.items()})

    def _anywhere(self, asked: Asked, name: str) -> Plan | Later:
        """Return where one node comes from."""
        reasons = list[Later]()
        for provider in sorted(asked.able[name], key=lambda one: self._rank(one, asked.request)):
            fit = self._fit(provider, asked, [name], {})
            if isinstance(fit, Plan):
                return fit
            reasons.append(fit)
        why = "; ".join(dict.fromkeys(one.why for one in reasons))
        return Later(why, tuple(node for one in reasons for node in one.idle))

    # --- limits

    def _over(self, request: NodeRequest) -> Later | Never | None:
        """Return what its tenant says to so many machines of one project."""
        most, wanted = self._site.most_of_project(request.tenant), len(request.nodes)
        if most < 0:
            return None
        if wanted > most:
            return Never(f"{wanted} nodes are wanted; project {request.project} may have {most} at a time")
        own = sum(node.request == request.id for node in self._site.nodes)
        used = self._projects[request.tenant, request.project] - own
        if used + wanted > most:
            return Later(f"project {request.project} has {used} machines, and may have {most} at a time")
        return None

    def _many(self, asked: Asked, provider: FlatProvider, make: Sequence[Make]) -> str:
        """Return which label there would be too many of."""
        tenant = asked.request.tenant
        names = {one.name for one in self._site.providers.get(tenant, ())}
        for label in {one.label.name: one.label for one in make}.values():
            if label.max_nodes < 0:
                continue
            own = sum(
                node.label == label.name
                and (node.tenant == tenant if node.request else node.provider in names and node.state in FREE)
                for node in self._site.nodes
            )
            if own + sum(one.label.name == label.name for one in make) > label.max_nodes:
                return f"label {label.name}: {own} machines are there, and the tenant may have {label.max_nodes}"
        return ""

    def _room(self, provider: FlatProvider) -> dict[str, float]:
        """Return what the provider may have of each kind: what its own limits, its account and others leave."""
        most, others = self._site.account(provider)
        used, at = self._used.get(provider.name, {}), self._at.get(self._site.place_of(provider), {})
        room = {
            kind: much - others.get(kind, 0.0) - (at.get(kind, 0.0) - used.get(kind, 0.0))
            for kind, much in most.items()
        }
        for kind, much in provider.limits.items():
            room[kind] = min(room.get(kind, math.inf), much)
        return room

    def _short(self, provider: FlatProvider, several: Sequence[Amounts]) -> str:
        """Return of what there is not enough for all of these now."""
        room, used, wanted = self._room(provider), self._used.get(provider.name, {}), dict[str, float]()
        for uses in several:
            add(wanted, uses)
        lacking = [
            f"{used.get(kind, 0.0):g} of {max(room[kind], 0.0):g} {kind} are in use"
            for kind, much in wanted.items()
            if much > 0 and kind in room and used.get(kind, 0.0) + much > room[kind]
        ]
        return f"provider {short(provider)}: {', '.join(lacking)}" if lacking else ""

    def _take(self, plan: Plan, request: NodeRequest) -> None:
        for node, _ in plan.take:
            self._free.pop(node.id)
        for one in plan.make:
            self._count(one.provider, one.uses)
        more = len(plan.take) + len(plan.make) - len(plan.leave)
        self._projects[request.tenant, request.project] += more

    def _count(self, provider: FlatProvider, uses: Amounts) -> None:
        add(self._used.setdefault(provider.name, {}), uses)
        add(self._at.setdefault(self._site.place_of(provider), {}), uses)
