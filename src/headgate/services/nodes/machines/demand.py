"""Determine what a request wants, which providers could serve it, and the room reserved for it. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.config.machines import FlatLabel, FlatProvider
from headgate.inventory.choice import choose
from headgate.map.inventory.nodes import MadeNode, NodeRequest, NodeWait
from headgate.ports.clouds import Amounts
from headgate.services.nodes.machines.records import host_nodes, names_of

PARTS = 1e-6
"""Amounts below this count as zero, because shares of a machine do not add up exactly."""
RESERVED_FIRST_S, RESERVED_MAX_S = 300.0, 14_400.0
"""First and longest time for which room is reserved; it doubles each time."""
OPEN_S = 60.0
"""Time between two such periods during which others may take the room."""


@dataclass(frozen=True, slots=True)
class NodeSurvey:
    """Hold the machines, requests and limits of one pass."""

    providers: Mapping[str, Sequence[FlatProvider]]
    """Tenant -> its providers."""
    nodes: Sequence[MadeNode]
    uses: Callable[[FlatProvider, FlatLabel], Amounts | str | None]
    """Returns the amounts that a machine takes, why it cannot be created, or None if that is still unknown."""
    account: Callable[[FlatProvider], tuple[Amounts, Amounts]]
    """Returns the limits of a provider's account, and the amounts of them that others use."""
    closed: Callable[[FlatProvider, str], str]
    """Returns why a provider currently creates no machines of a label; empty if it does."""
    place: Callable[[MadeNode], tuple[str, str]]
    """Returns the account that a machine is in: connection and region."""
    place_of: Callable[[FlatProvider], tuple[str, str]]
    most_of_project: Callable[[str, str], int]
    """(tenant, project) -> greatest number of machines that it may have; -1: any number."""
    limits_of_tenant: Callable[[str], Amounts] = lambda _: {}
    unread: Callable[[FlatProvider], bool] = lambda _: False
    """Returns whether the limits of a provider's account are still unknown."""
    tight: Callable[[FlatProvider], bool] = lambda _: False
    """Returns whether a provider's cloud reported a lack of room a while ago."""
    full: Callable[[FlatProvider], bool] = lambda _: False
    """Returns whether a provider's cloud reported a lack of room that the known limits do not explain."""
    line: Sequence[str] = ()
    """Requests that do not have all of their machines, in order."""
    order: Sequence[str] = ()
    """All requests, in order, including those that have their machines."""
    now_ms: int = 0
    expired: Callable[[MadeNode], bool] = lambda _: False
    claimed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(tenant, project) -> number of machines of the inventory that it has."""
    fitted: Callable[[NodeRequest, Sequence[FlatProvider]], Sequence[FlatProvider]] = lambda _, several: several
    """Returns the tenant's providers as they apply to a request."""


class NodeDemand:
    """Determine what a request wants, and which providers could possibly serve it."""

    def __init__(self, site: NodeSurvey, request: NodeRequest, wait: NodeWait | None) -> None:
        self._site, self.request = site, request
        self.labels = dict(request.nodes)
        self._failed = wait.failed if wait is not None else {}
        providers = site.fitted(request, site.providers.get(request.tenant, ()))
        having = {name: [one for one in providers if one.label(label) is not None] for name, label in request.nodes}
        every = {name: [one for one in having[name] if self._reached(one, label)] for name, label in request.nodes}
        # Impossible providers are excluded first, so that a request fails immediately instead of waiting forever.
        could = {name: [one for one in every[name] if not self._too_large(one, name)] for name in every}
        labelled = [one for one in providers if all(one in several for several in could.values())]
        able = [one for one in labelled if self._placed({name: [one] for name in every})]
        # A provider that failed too often for one of the nodes is excluded for the entire request.
        self.complete = [one for one in able if all(self._left(one, name) for name in every)]
        """Providers that can serve the entire request."""
        self.spread = not able
        self.able = {name: [one for one in could[name] if self._left(one, name)] for name in every}
        self.never = self._unreached(having, every) or self._never(every, could, wait)
        """Why the request can never be served; empty if it may be."""

    def ways(
        self, own: Mapping[str, MadeNode], rank: Callable[[FlatProvider, NodeRequest], tuple[float, float, str]]
    ) -> Iterator[tuple[FlatProvider, list[str]]]:
        """Yield the providers that can serve the entire request; the one that already serves most of it comes first."""
        has = Counter(node.provider for node in own.values())
        for provider in sorted(self.complete, key=lambda one: (-has[one.name], rank(one, self.request))):
            yield provider, list(self.labels)

    def _reached(self, provider: FlatProvider, label: str) -> bool:
        """Return whether the executor of the build can reach such machines."""
        return zone_of_label(provider, label) in ("", self.request.zone)

    def _unreached(
        self, having: Mapping[str, Sequence[FlatProvider]], every: Mapping[str, Sequence[FlatProvider]]
    ) -> str:
        """Return the machines that only executors of another zone reach; empty if there are none."""
        for name, label in self.request.nodes:
            if having[name] and not every[name]:
                zones = ", ".join(sorted({zone_of_label(one, label) for one in having[name]}))
                own = f"one of zone {self.request.zone}" if self.request.zone else "one without a zone"
                return f"only executors of zone {zones} can reach machines of label {label}, but this build is on {own}"
        return ""

    def _left(self, provider: FlatProvider, name: str) -> bool:
        """Return whether the request may be tried at the provider again."""
        return self._failed.get(name, {}).get(provider.name, 0) < provider.launch_attempts

    def _too_large(self, provider: FlatProvider, name: str) -> str:
        """Return the amounts of one such machine that exceed the provider's limits."""
        label = provider.label(self.labels[name])
        uses = self._site.uses(provider, label) if label is not None else None
        if isinstance(uses, str):
            return f"provider {short(provider)}: {uses}"
        if provider.is_static and not self._listed(provider, name):
            return f"provider {short(provider)} lists no machine with this label"
        most, _ = self._site.account(provider)
        for kind, much in (uses or {}).items():
            limit = min(most.get(kind, math.inf), provider.limits.get(kind, math.inf))
            if much > limit:
                return f"provider {short(provider)} may have {limit:g} {kind}, but one machine takes {much:g}"
        return ""

    def _placed(self, could: Mapping[str, Sequence[FlatProvider]]) -> bool:
        """Return whether the entire request would fit if no other machines existed."""
        used: dict[str, dict[str, float]] = {}
        listed: dict[str, list[list[str]]] = {}
        slots = Counter[tuple[str, str]]()
        """Slots left on machines that other nodes of the request need."""
        # Nodes with few providers are placed first, or others could take their place.
        for name in sorted(could, key=lambda name: len(could[name])):
            for provider in could[name]:
                if provider.is_static:
                    hosts = [*listed.get(provider.name, []), self._listed(provider, name)]
                    limit = provider.limits.get("instances", math.inf)
                    if len(hosts) <= limit and choose(hosts) is not None:
                        # Listed machines are matched together: one that serves two labels counts for one node only.
                        listed[provider.name] = hosts
                        break
                    continue
                label, own = provider.label(self.labels[name]), dict(used.get(provider.name, {}))
                same = (provider.name, label.name if label is not None else "")
                # A free slot on a machine for another node of the request costs nothing more.
                if slots[same]:
                    slots[same] -= 1
                    break
                uses = self._site.uses(provider, label) if label is not None else None
                add(own, uses if isinstance(uses, Mapping) else {})
                most, _ = self._site.account(provider)
                limits = [*most.items(), *provider.limits.items()]
                # Only the kinds that this machine takes matter, even if others are exceeded.
                if all(own.get(kind, 0.0) <= limit for kind, limit in limits if kind in (uses or {})):
                    used[provider.name] = own
                    slots[same] = label.slots - 1 if label is not None else 0
                    break
            else:
                return False
        return True

    def _listed(self, provider: FlatProvider, name: str) -> list[str]:
        """Return the listed machines of a provider that serve a node, usable or not."""
        label = self.labels[name]
        return [id for id, one in host_nodes(provider).items() if label in names_of(one)]

    def _never(
        self,
        every: Mapping[str, Sequence[FlatProvider]],
        could: Mapping[str, Sequence[FlatProvider]],
        wait: NodeWait | None,
    ) -> str:
        """Return why the request can never be served; empty if it may be."""
        for name, label in self.request.nodes:
            if not every[name]:
                return f"no provider of tenant {self.request.tenant} has the label {label}"
            if not could[name]:
                return f"label {label}: " + "; ".join(self._too_large(one, name) for one in every[name])
            for one in every[name]:
                found = one.label(label)
                wanted = self._wanted(label)
                if found is not None and 0 <= found.max_nodes < wanted:
                    return f"{wanted} machines of label {label} are requested, but only {found.max_nodes} are allowed"
        if not self._placed(could):
            return f"{len(self.labels)} such machines are more than the providers may ever have at a time"
        # Every provider has used up its launch attempts.
        if not (all(self.able.values()) if self.spread else self.complete):
            return "; ".join(wait.tried) if wait is not None and wait.tried else "it failed at every provider"
        return ""

    def _wanted(self, label: str) -> int:
        return sum(one == label for one in self.labels.values())


def add(to: dict[str, float], uses: Amounts) -> None:
    """Add amounts, kind by kind."""
    for kind, much in uses.items():
        to[kind] = to.get(kind, 0.0) + much


def zone_of_label(provider: FlatProvider, name: str) -> str:
    """Return the zone whose executors reach the provider's machines of a label; empty if all do."""
    label = provider.label(name)
    return str(label.label.get("executor-zone") or "") if label is not None else ""


def short(provider: FlatProvider) -> str:
    return provider.name.rpartition("/")[2]


def is_open(waited_s: float) -> bool:
    """Return whether others may overtake a request that has waited for this time.

    If it waits for long, others may repeatedly use all of the room for a short time, at growing intervals. Thus, room
    does not stay empty for hours, but is eventually reserved for longer than builds last.
    """
    reserved_s = RESERVED_FIRST_S
    while waited_s >= reserved_s:
        waited_s -= reserved_s
        if waited_s < OPEN_S:
            return True
        waited_s -= OPEN_S
        reserved_s = min(2 * reserved_s, RESERVED_MAX_S)
    return False


@dataclass(slots=True)
class ReservedRoom:
    """Reserve room of one limit for one request.

    Later requests may overtake a waiting request only if they leave it the room that it wants: with a limit of 5, and a
    request that waits for 3, those behind it may have 2. Thus, it waits only for machines that existed before it.
    Nothing is reserved for a request if held machines, or other users of an account, leave too little in any case; the
    same applies to its project's room.
    """

    room: Mapping[str, float]
    wanted: Mapping[str, float]
    behind: dict[str, float] = field(default_factory=dict)
    """Amounts of the requests behind this one."""
    mains: set[str] = field(default_factory=set)
    """Machines of which these requests have slots: each counts once, for as long as one of the requests has a slot of
    it."""

    def leaves(self, more: Amounts, joined: Mapping[str, Amounts]) -> bool:
        """Return whether giving this much more to later requests leaves enough room; `joined` maps machines of which
        they then have slots to the amounts of these machines."""
        total = dict(more)
        for main, uses in joined.items():
            # Another slot costs nothing more if later requests already have a slot of that machine.
            add(total, {kind: 0.0 if main in self.mains else much for kind, much in uses.items()})
        kinds = {kind for uses in (more, *joined.values()) for kind, much in uses.items() if much > 0}
        return all(
            self.behind.get(kind, 0.0) + total[kind] + self.wanted.get(kind, 0.0) <= self.room[kind] + PARTS
            for kind in kinds
            # Only kinds that this request wants are kept: in others, later requests do it no harm.
            if kind in self.room and self.wanted.get(kind)
        )

    def take(self, more: Amounts, joined: Mapping[str, Amounts]) -> None:
        """Count the amounts that later requests have now."""
        add(self.behind, more)
        for main, uses in joined.items():
            if main not in self.mains:
                add(self.behind, uses)
        self.mains.update(joined)


@dataclass(slots=True)
class ReservedHosts:
    """Reserve listed machines for one request."""

    wanted: Sequence[Sequence[str]]
    """For each node, the machines that can serve it, free or not."""
    behind: set[str] = field(default_factory=set)

    def leaves(self, more: Collection[str]) -> bool:
        """Return whether giving these machines to later requests leaves enough others."""
        # This check comes first, because the matching is slow and most requests want other machines.
        touched = any(id in several for several in self.wanted for id in more)
        return not touched or choose(self.wanted, self.behind.union(more)) is not None
