"""Determine what counts towards which limit, and which limits are reached. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.config.machines import FlatLabel, FlatProvider
from headgate.inventory.choice import choose
from headgate.map.inventory.nodes import FREE, MadeNode, NodeRequest
from headgate.ports.clouds import Amounts
from headgate.services.nodes.machines.demand import PARTS, NodeSurvey, ReservedHosts, ReservedRoom, add, is_open, short
from headgate.services.nodes.machines.records import held_machines

Key = tuple[str, ...]
"""Subject of a limit: ("provider", name), ("account", connection, region), ("tenant", name), ("project", tenant, name),
("label", tenant, name)."""
SHARED = ("provider", "account")
"""Kinds of limits that tenants may share. Nothing is reserved there for a request that could not be served even if the
others took nothing."""


@dataclass(frozen=True, slots=True)
class NodeLimit:
    """Limit how much may exist at a time."""

    key: Key
    name: str
    """Display name of the limit, such as `resource-limits of provider main`."""
    room: Mapping[str, float]
    """Kind -> amount; a missing kind is not limited."""

    def lacks(self, used: Amounts, more: Amounts) -> str:
        """Return a message with the kinds of which there is too little; empty if there is enough."""
        short = [
            f"{used.get(kind, 0.0):g} of {max(self.room[kind], 0.0):g} {kind} are in use"
            for kind, much in more.items()
            # Shares of a machine, such as a third, do not add up exactly.
            if much > 0 and kind in self.room and used.get(kind, 0.0) + much > self.room[kind] + PARTS
        ]
        return f"limited by {self.name}: {', '.join(short)}" if short else ""


ONE: Amounts = {"instances": 1.0}
"""Amounts that a static machine takes."""
COUNTED: Amounts = {"machines": 1.0}
Uses = dict[Key, dict[str, float]]
NOTHING: Uses = {}


class ToMake(Protocol):
    """Describe a machine to create."""

    @property
    def provider(self) -> FlatProvider: ...
    @property
    def label(self) -> FlatLabel: ...
    @property
    def uses(self) -> Amounts: ...
    @property
    def nodes(self) -> Sequence[str]: ...


class NodeLimits:
    """Count the use of limits. Machines count as soon as a request gets them; requests must be passed in order."""

    def __init__(self, site: NodeSurvey) -> None:
        self._site = site
        self._every = {one.name: one for several in site.providers.values() for one in several}
        self._place = {name: ("account", *site.place_of(one)) for name, one in self._every.items()}
        self._used: Uses = {}
        self._reserved: dict[Key, list[ReservedRoom]] = {}
        self._hosts: dict[str, list[ReservedHosts]] = {}
        self._mains = {node.id: node for node in site.nodes if node.slots}
        for (tenant, project), many in site.claimed.items():
            self._add(self._used, ("project", tenant, project), {"machines": float(many)})
        for node in site.nodes:
            for key, uses in self._of(node):
                self._add(self._used, key, uses)

    def lack(
        self,
        request: NodeRequest,
        take: Sequence[tuple[MadeNode, str]],
        make: Iterable[ToMake],
        leave: Sequence[MadeNode],
        idle: Mapping[Key, Amounts] = NOTHING,
    ) -> str:
        """Return a message about the limits that lack room for these machines, once `idle` machines are gone; empty if
        none does."""
        total, more = self._counted(request, take, make), self._more(request, take, make)
        # Idle machines give way only for room that tenants share.
        for key in (key for key in more if key in idle and key[0] in SHARED):
            self._add(more, key, _less(idle[key]))
        for node in leave:
            for key, uses in self._owned(node):
                self._add(more, key, _less(uses))
        found = [self._limit(key).lacks(self._used.get(key, {}), uses) for key, uses in more.items()]
        for key, uses in total.items():
            # Machines whose slots are taken count once for each of these limits, whatever the number of slots.
            joined = self._joined(key, (node for node, _ in take))
            if not all(reserved.leaves(uses, joined) for reserved in self._reserved.get(key, ())):
                found.append(f"limited by {self._limit(key).name}: its room is reserved for requests that wait longer")
        return "; ".join(dict.fromkeys(filter(None, found)))

    def counted(self, several: Iterable[MadeNode]) -> Uses:
        """Return the amounts of machines at present."""
        found: Uses = {}
        for node in several:
            for key, uses in self._of(node):
                self._add(found, key, uses)
        return found

    def is_shared(self, request: NodeRequest, take: Sequence[tuple[MadeNode, str]], make: Iterable[ToMake]) -> bool:
        """Return whether the account lacks room for these machines only because others also use it."""
        for key, uses in self._more(request, take, make).items():
            if key[0] == "account" and self._limit(key).lacks(used := self._used.get(key, {}), uses):
                alone = dict(used)
                # Without the amounts that others use, there would be room.
                add(alone, _less(self._others(key)))
                if not self._limit(key).lacks(alone, uses):
                    return True
        return False

    def returned(self, node: MadeNode, free: MadeNode) -> None:
        """Count a returned machine as free."""
        for key, uses in self._of(node):
            self._add(self._used, key, _less(uses))
        for key, uses in self._of(free):
            self._add(self._used, key, uses)

    def lack_of_pool(self, provider: FlatProvider, label: FlatLabel, tenant: str, uses: Amounts) -> str:
        """Return why no further free machine may be made; empty if it may."""
        found = [self._limit(key).lacks(self._used.get(key, {}), more)
                 for key, more in self._pooled(provider, label, tenant, uses)]  # fmt: skip
        return "; ".join(filter(None, found))

    def made(self, provider: FlatProvider, label: FlatLabel, tenant: str, uses: Amounts) -> None:
        """Count a new free machine."""
        for key, more in self._pooled(provider, label, tenant, uses):
            self._add(self._used, key, more)

    def given(
        self,
        request: NodeRequest,
        take: Sequence[tuple[MadeNode, str]],
        make: Iterable[ToMake],
        leave: Sequence[MadeNode],
    ) -> None:
        """Count the machines that a request gets."""
        make = list(make)
        for key, uses in self._more(request, take, make).items():
            self._add(self._used, key, uses)
        for key, uses in self._counted(request, take, make).items():
            for reserved in self._reserved.get(key, ()):
                reserved.take(uses, self._joined(key, (node for node, _ in take)))
        for node in leave:
            for key, owned in self._owned(node):
                self._add(self._used, key, _less(owned))
        for node, _ in take:
            for one in self._hosts.get(node.provider, ()) if node.fixed else ():
                one.behind.add(node.id)

    def leaves_hosts(self, provider: str, ids: Collection[str]) -> bool:
        """Return whether taking these listed machines leaves enough for requests that wait longer."""
        return all(reserved.leaves(ids) for reserved in self._hosts.get(provider, ()))

    def keep(
        self,
        request: NodeRequest,
        take: Sequence[tuple[MadeNode, str]],
        make: Iterable[ToMake],
        hosts: Sequence[Sequence[str]],
        provider: FlatProvider | None,
        since_ms: int,
    ) -> list[Key]:
        """Reserve room for a request; return the limits that lack room for it.

        Shared room is reserved only for a request that no other limit stops, so that a request's own limit does not
        keep the room from others. Each limit reserves room for one request at a time, the first that waits for it.
        """
        make = list(make)
        total, more = self._counted(request, take, make), self._more(request, take, make)
        lacking = {key for key, uses in more.items() if self._limit(key).lacks(self._used.get(key, {}), uses)}
        own = any(key[0] not in SHARED for key in lacking)
        # Held machines do not return until their hold ends. If they leave too little, reserved room would only idle.
        never = any(self._limit(key).lacks(self._held(key), uses) for key, uses in total.items())
        if never or is_open((self._site.now_ms - since_ms) / 1000):
            return []
        late = self._behind(request)
        for key, uses in total.items():
            room = {} if key in self._reserved else self._limit(key).room
            if room and not (own and key[0] in SHARED):
                reserved = ReservedRoom(room, uses)
                # Later requests that got machines while this one waited have used part of the room that is left to
                # them.
                reserved.take({}, self._joined(key, late))
                for node in late:
                    add(reserved.behind, dict(self._of(node)).get(key, {}))
                self._reserved.setdefault(key, []).append(reserved)
        if hosts and provider is not None and provider.name not in self._hosts and not own and choose(hosts):
            taken = {node.id for node in late if node.fixed}
            self._hosts.setdefault(provider.name, []).append(ReservedHosts(hosts, taken))
        return [] if own else [key for key in lacking if key[0] in SHARED]

    def room_of(self, provider: FlatProvider) -> dict[str, float]:
        """Return the provider's room of each kind, within its own limits and its account's, without the amounts of
        others."""
        # All existing machines count towards the account's limit, including those of other providers in the account.
        used, at = self.used_by(provider), self._used.get(self._place[provider.name], {})
        account = self._limit(self._place[provider.name]).room
        room = {kind: much - (at.get(kind, 0.0) - used.get(kind, 0.0)) for kind, much in account.items()}
        for kind, much in provider.limits.items():
            room[kind] = min(room.get(kind, math.inf), much)
        return room

    def used_by(self, provider: FlatProvider) -> Mapping[str, float]:
        """Return the amounts of the provider's machines."""
        return self._used.get(("provider", provider.name), {})

    # --- counting

    def _limit(self, key: Key) -> NodeLimit:
        kind, *names = key
        if kind == "provider":
            provider = self._every.get(names[0])
            limit = f"resource-limits of provider {names[0].rpartition('/')[2]}"
            return NodeLimit(key, limit, provider.limits if provider is not None else {})
        if kind == "account":
            providers = [one for one in self._every.values() if self._place[one.name] == key]
            most, others = self._site.account(providers[0]) if providers else ({}, {})
            room = {kind: much - others.get(kind, 0.0) for kind, much in most.items()}
            return NodeLimit(key, f"the account of {', '.join(sorted(short(one) for one in providers))}", room)
        if kind == "tenant":
            return NodeLimit(key, f"resource-limits of tenant {names[0]}", self._site.limits_of_tenant(names[0]))
        if kind == "project":
            most_of = self._site.most_of_project(names[0], names[1])
            room = {"machines": most_of} if most_of >= 0 else {}
            return NodeLimit(key, f"max-nodes-per-project, of {names[1]}", room)
        named = (label for one in self._site.providers.get(names[0], ()) for label in one.labels)
        # Several providers may limit the same label of a tenant; the smallest number applies.
        limits = [label.max_nodes for label in named if label.name == names[1] and label.max_nodes >= 0]
        return NodeLimit(key, f"max-nodes of label {names[1]}", {"machines": float(min(limits))} if limits else {})

    def _others(self, key: Key) -> Amounts:
        """Return the amounts that others use of an account."""
        provider = next((one for one in self._every.values() if self._place[one.name] == key), None)
        return self._site.account(provider)[1] if provider is not None else {}

    def _of(self, node: MadeNode) -> Iterator[tuple[Key, Amounts]]:
        """Yield the amounts that a machine counts now."""
        if node.fixed:
            # A free listed machine costs nothing; only one in use counts.
            if node.request or node.state == "hold":
                yield ("provider", node.provider), ONE
        else:
            yield ("provider", node.provider), node.uses
            yield ("account", *self._site.place(node)), node.uses
        if node.request:
            yield from self._owned(node)
        # A ready machine counts for each tenant that could get it, because it is unknown which one will.
        elif node.state in FREE and not (node.fixed or node.main or node.slots):
            for tenant, several in self._site.providers.items():
                if any(one.name == node.provider for one in several):
                    yield ("label", tenant, node.label), COUNTED

    def _owned(self, node: MadeNode) -> Iterator[tuple[Key, Amounts]]:
        """Yield the amounts that a machine counts because it has an owner."""
        yield ("project", node.tenant, node.project), COUNTED
        yield ("tenant", node.tenant), ONE if node.fixed else node.share or node.uses
        yield ("label", node.tenant, node.label), COUNTED

    def _joined(self, key: Key, nodes: Iterable[MadeNode]) -> dict[str, Amounts]:
        """Return the machines of which these are slots, each with its amounts, if the limit is one of machines."""
        mains = {node.main: self._mains[node.main] for node in nodes if node.main in self._mains}
        return {
            id: one.uses
            for id, one in mains.items()
            if key in (("provider", one.provider), ("account", *self._site.place(one)))
        }

    @staticmethod
    def _own(request: NodeRequest, label: str, uses: Amounts) -> Iterator[tuple[Key, Amounts]]:
        """Yield the amounts that a machine would count if the request had it."""
        yield ("project", request.tenant, request.project), COUNTED
        yield ("tenant", request.tenant), uses
        yield ("label", request.tenant, label), COUNTED

    def _counted(self, request: NodeRequest, take: Sequence[tuple[MadeNode, str]], make: Iterable[ToMake]) -> Uses:
        """Return the amounts that these machines count once the request has them."""
        found: Uses = {}
        for node, _ in take:
            uses = ONE if node.fixed else node.uses
            self._add(found, ("provider", node.provider), uses)
            if not node.fixed:
                self._add(found, ("account", *self._site.place(node)), uses)
            for key, counted in self._own(request, node.label, node.share or uses):
                self._add(found, key, counted)
        for one in make:
            self._add(found, ("provider", one.provider.name), one.uses)
            self._add(found, self._place[one.provider.name], one.uses)
            share = {kind: much / one.label.slots for kind, much in one.uses.items()}
            for key, counted in (pair for _ in one.nodes for pair in self._own(request, one.label.name, share)):
                self._add(found, key, counted)
        return found

    def _more(self, request: NodeRequest, take: Sequence[tuple[MadeNode, str]], make: Iterable[ToMake]) -> Uses:
        """Return the amounts that are not counted yet: free machines already occupy their room."""
        found = self._counted(request, take, make)
        for node, _ in take:
            counted = dict(self._of(node)) if not node.fixed else {}
            for key, uses in counted.items():
                if key in found:
                    self._add(found, key, _less(uses))
        return found

    def _pooled(
        self, provider: FlatProvider, label: FlatLabel, tenant: str, uses: Amounts
    ) -> Iterator[tuple[Key, Amounts]]:
        yield ("provider", provider.name), uses
        yield self._place[provider.name], uses
        # Free slots do not count for `max-nodes`, since they cost nothing.
        if label.slots == 1:
            yield ("label", tenant, label.name), COUNTED

    def _held(self, key: Key) -> dict[str, float]:
        """Return the amounts of machines that people hold, or that failed builds hold, for an unknown time."""
        found: dict[str, float] = {}
        mains = held_machines(self._site.nodes)
        for node in self._site.nodes:
            if node.state == "hold" or node.id in mains:
                add(found, dict(self._of(node)).get(key, {}))
        return found

    def _behind(self, request: NodeRequest) -> list[MadeNode]:
        """Return the machines that later requests got while this one has been waiting."""
        line = list(self._site.order or self._site.line)
        after = set(line[line.index(request.id) + 1 :]) if request.id in line else set()
        return [
            node
            for node in self._site.nodes
            if node.request in after and (node.state in FREE or node.since_ms >= request.requested_ms)
        ]

    @staticmethod
    def _add(to: Uses, key: Key, uses: Amounts) -> None:
        add(to.setdefault(key, {}), uses)


def _less(uses: Amounts) -> Amounts:
    return {kind: -much for kind, much in uses.items()}
