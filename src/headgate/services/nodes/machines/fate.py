"""Decide which machines are deleted: after their build, on request, because unneeded, or to make room. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from headgate.map.inventory.nodes import ARRIVING, ENDING, FREE, MadeNode, NodeOrder, NodeRequest
from headgate.services.nodes.machines.demand import NodeSurvey, add
from headgate.services.nodes.machines.limits import Key, NodeLimits, Uses
from headgate.services.nodes.machines.records import SLOT_HOST, MachineSlots, SeenMachines, with_machine
from headgate.services.nodes.status import NodeState

GONE = "it makes room for other users of the account"


@dataclass(frozen=True)
class Fate:
    """Decide the next state of machines, in one pass."""

    seen: SeenMachines
    now: NodeState
    now_ms: int

    @cached_property
    def listed(self) -> dict[str, set[str]]:
        """Return the static machines."""
        return self.seen.listed

    @cached_property
    def slots(self) -> MachineSlots:
        """Return the slots of machines that several builds use."""
        return MachineSlots(self.seen.nodes)

    def of(self, node: MadeNode) -> MadeNode:  # noqa: C901 - one rule after the other
        """Return the machine's next record."""
        if node.slots:
            over = node.opened >= node.slots and not self.slots.of(node.id)
            # A machine with slots goes only once all of its slots were opened and used up.
            return replace(node, state="used") if over and node.state not in ENDING else node
        if node.main and node.state == "requested":
            machine = self.seen.nodes.get(node.main)
            if machine is not None and machine.state == SLOT_HOST:
                return with_machine(node, machine)
        # If the request no longer exists, its build has ended or its executor has died.
        gone = bool(node.request) and node.request not in self.now.requests
        order = self.order_of(node)
        # Somebody wants to examine the failed build, so its machine stays unchanged.
        if gone and node.request in self.now.held and not (order is not None and order.state in ENDING):
            return replace(node, state="hold") if node.state == "in-use" else node
        if gone and node.state in ("in-use", "hold"):
            if order is not None and order.state == "hold":
                return self._ordered(replace(given_back(node), served=node.served + 1), order)
            return self._used(node)
        # A machine that was never handed over has run nothing, so other requests may use it.
        if gone:
            return given_back(node)
        if node.main and node.state in FREE and self.slots.lost(node):
            return replace(given_back(node), state="failed", why="its machine is gone")
        if order is not None and not node.request and node.state not in ENDING:
            return self._ordered(node, order)
        if node.state == "hold" and not node.request and 0 < node.until_ms <= self.now_ms:
            return replace(node, state="rebuilding" if node.fixed else "used")
        if not node.request and node.state in (*FREE, *ARRIVING) and (why := self._unwanted(node)):
            return replace(node, state="outdated", why=why)
        return node

    def order_of(self, node: MadeNode) -> NodeOrder | None:
        """Return a person's order for the machine; an order for a machine with slots applies to each slot."""
        own = self.seen.orders.get(node.id)
        if own is None and node.main:
            of_machine = self.seen.orders.get(node.main)
            return of_machine if of_machine is not None and of_machine.state != node.state else None
        return own

    def done(self, node: MadeNode, order: NodeOrder) -> bool:
        """Return whether the order has been carried out."""
        several = self.slots.of(node.id) if node.slots else [node]
        return all(not one.request and one.state in (order.state, *ENDING) for one in several)

    def expired(self, node: MadeNode) -> bool:
        """Return whether the machine is too old to be given away."""
        label = node.settings["label"]
        # The minimum retention time takes precedence over all age limits.
        if self.now_ms - node.requested_ms < 1000 * label.get("min-retention-time", 0):
            return False
        ready_max_s, age_max_s = label.get("max-ready-age", 0), label.get("max-age", 0)
        aged = bool(age_max_s) and self.now_ms - node.requested_ms >= 1000 * age_max_s
        return aged or (
            bool(ready_max_s) and node.state == "ready" and self.now_ms - node.since_ms >= 1000 * ready_max_s
        )

    def _ordered(self, node: MadeNode, order: NodeOrder) -> MadeNode:
        """Return the machine with the order applied; a hold of limited length starts now, once it can be applied."""
        until_ms = self.now_ms + 1000 * order.hold_s if order.hold_s else order.until_ms
        return replace(node, state=order.state, comment=order.comment, until_ms=until_ms)

    def _used(self, node: MadeNode) -> MadeNode:
        """Return the machine after its build: on its way to the next build, or to deletion."""
        after = replace(given_back(node), served=node.served + 1)
        unwanted = self.slots.lost(node) if node.main else bool(self._unwanted(node))
        # Only machines that ran just a build are reused: a person may have changed a held one.
        if node.settings["label"].get("reuse") and node.state == "in-use" and not unwanted:
            return replace(after, state="rebuilding" if node.fixed else "building", why="it is prepared for reuse")
        return replace(after, state="used")

    def _unwanted(self, node: MadeNode) -> str:
        """Return why a free machine is deleted."""
        if node.fixed:
            known = self.listed.get(node.id)
            # Several tenants may list the machine with different settings; it stays as long as one of them still lists
            # it with these.
            if known is None:
                return "no tenant lists it any longer"
            return "" if node.digest in known else "it is now listed with other settings"
        if node.main and self.slots.lost(node):
            return "its machine is being deleted"
        # Slots of one machine share their age and go together, so none goes while another is in use.
        if node.main and self.slots.busy(node):
            return ""
        labels = self.seen.labels(node.provider, node.label)
        if not labels:
            return "no tenant has its provider and label any longer"
        if node.digest not in {label.digest for label in labels}:
            return "the definition of its label has changed"
        return "it is too old" if self.expired(node) else ""


def given_back(node: MadeNode) -> MadeNode:
    """Return the machine without an owner."""
    return replace(node, request="", node="", build="", project="")


def is_free(node: MadeNode) -> bool:
    """Return whether the machine can be given to a request."""
    return not node.request and node.state in FREE and not node.slots


class YieldingMachines:
    """Determine which machines make room, in one pass."""

    def __init__(self, site: NodeSurvey, free: dict[str, MadeNode], limits: NodeLimits) -> None:
        """Share `free`, the machines without an owner, with the code that gives them away."""
        self._site, self._free, self._limits = site, free, limits
        self._nodes = {node.id: node for node in site.nodes}
        self._slots = MachineSlots(self._nodes)
        self._mains = sorted((node for node in site.nodes if node.slots), key=lambda node: (node.requested_ms, node.id))
        self._back = set[str]()
        self._idle: tuple[tuple[int, int], Uses] = ((-1, -1), {})
        """Amounts that idle machines take, with the numbers of free and returned machines at which they were added
        up."""

    def idle(self, taken: Sequence[MadeNode]) -> Uses:
        """Return the amounts of free machines that take room, without those in `taken`; slots count as their
        machine."""
        now = len(self._free), len(self._back)
        if self._idle[0] != now:
            plain = (one for one in self._free.values() if not (one.fixed or one.main))
            mains = (one for one in self._mains if self._unused(one, ()))
            # Adding up thousands of machines is slow, and most requests of one pass find the same ones idle.
            self._idle = now, self._limits.counted([*plain, *mains])
        several = (self._nodes.get(one.main) if one.main else one for one in taken if not one.fixed)
        mine = {one.id: one for one in several if one is not None}  # a machine may have gone before its slots
        less = self._limits.counted(one for one in mine.values() if not one.slots or self._unused(one, ()))
        found = {key: dict(uses) for key, uses in self._idle[1].items()} if less else self._idle[1]
        for key, uses in less.items():
            add(found[key], {kind: -much for kind, much in uses.items()})
        return found

    def in_the_way(self, key: Key, request: NodeRequest, taken: Collection[str], many: int) -> tuple[MadeNode, ...]:
        """Return idle machines that may be deleted to make room for `many`, if no machine is already being deleted."""
        near = [
            node
            for node in self._site.nodes
            if not node.fixed
            and (node.provider == key[1] if key[0] == "provider" else self._site.place(node) == key[1:])
        ]
        # Room is already being made, so deleting more machines would be unnecessary.
        if any(node.state in ENDING for node in near):
            return ()
        line = self._site.line
        behind = set(line[line.index(request.id) + 1 :]) if request.id in line else set()
        # Slots are never deleted alone, only with their machine.
        idle = [node for node in near if node.id in self._free and node.id not in taken and not node.main]
        idle.sort(key=lambda node: (FREE.index(node.state), node.requested_ms, node.id))
        held = [node for node in near if node.request in behind and node.state in FREE and not node.main]
        # Of the requests behind this one, the last in the line loses its machine first.
        held.sort(key=lambda node: (-line.index(node.request), node.id))
        machines = [[node] for node in idle], [[node] for node in held]
        ids = {node.id for node in near}
        for main in (one for one in self._mains if one.id in ids):
            if self._unused(main, behind) and not self._has(main, taken):
                slots = self._slots.of(main.id)
                machines[any(node.request for node in slots)].append(slots)
        return tuple(node for several in [*machines[0], *machines[1]][:many] for node in several)

    def _unused(self, machine: MadeNode, behind: Collection[str]) -> bool:
        """Return whether no request has one of its slots, except later ones that also wait."""
        several = self._slots.of(machine.id)
        return bool(several) and all(
            one.id in self._free or (one.request in behind and one.state in FREE) for one in several
        )

    def _has(self, machine: MadeNode, taken: Collection[str]) -> bool:
        """Return whether one of the machine's slots is taken."""
        return any(one.id in taken for one in self._slots.of(machine.id))

    # --- requests whose machines never all arrive

    def give_back(self, node: MadeNode) -> None:
        """Return a machine, so that others may take it during the rest of the pass; if none does, it is deleted."""
        self._back.add(node.id)
        free = given_back(node)
        # Other requests of this pass see the room immediately.
        if node.request and is_free(free):
            self._limits.returned(node, free)
            self._free[node.id] = free

    def left(self) -> Iterator[tuple[MadeNode, MadeNode]]:
        """Yield each machine that was returned and not taken since, with its next record. Listed machines stay, and so
        do machines with a slot in use.
        """
        for id in sorted(self._back & self._free.keys()):
            node = self._nodes[id]
            slots: Sequence[MadeNode] = self._slots.of(node.main) if node.main else [node]
            # A machine with a slot in use stays, so only this slot becomes free.
            if node.fixed or not all(one.id in self._free for one in slots):
                yield node, given_back(node)
                continue
            for one in slots:
                yield one, replace(given_back(one), state="outdated", why=GONE)
