"""Decide the future of machines whose build has ended, that people want held or removed, or that nobody wants. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from headgate.map.inventory.nodes import ARRIVING, ENDING, FREE, MadeNode, NodeOrder
from headgate.services.nodes.machines.shared import SLOT_HOST, MachineSlots, with_machine
from headgate.services.nodes.machines.survey import SeenMachines
from headgate.services.nodes.status import NodeState


@dataclass(frozen=True)
class Fate:
    """Decide at one look the future of machines."""

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
        # A request that does not exist any more: its build has ended, or its executor has died.
        gone = bool(node.request) and node.request not in self.now.requests
        order = self.order_of(node)
        # Somebody wants to look at the failed build, so its machine stays as it is.
        if gone and node.request in self.now.held and not (order is not None and order.state in ENDING):
            return replace(node, state="hold") if node.state == "in-use" else node
        if gone and node.state in ("in-use", "hold"):
            if order is not None and order.state == "hold":
                return self._ordered(replace(given_back(node), served=node.served + 1), order)
            return self._used(node)
        # A machine that was never handed over has run nothing, so others may have it.
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
        label = node.said["label"]
        # This is the least time that a machine is kept, so it precedes all reasons to remove it for its age.
        if self.now_ms - node.asked_ms < 1000 * label.get("min-retention-time", 0):
            return False
        ready_max_s, age_max_s = label.get("max-ready-age", 0), label.get("max-age", 0)
        aged = bool(age_max_s) and self.now_ms - node.asked_ms >= 1000 * age_max_s
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
        # Reuse is only for machines that went through a build: a person may have changed one that was held.
        if node.said["label"].get("reuse") and node.state == "in-use" and not unwanted:
            return replace(after, state="rebuilding" if node.fixed else "building", why="it is to be used again")
        return replace(after, state="used")

    def _unwanted(self, node: MadeNode) -> str:
        """Return why a free machine is deleted."""
        if node.fixed:
            known = self.listed.get(node.id)
            # Several tenants may list the machine with different settings; it stays as long as one of them still does
            # in this way.
            if known is None:
                return "no tenant lists it any more"
            return "" if node.digest in known else "it is listed otherwise now"
        if node.main and self.slots.lost(node):
            return "its machine is on its way out"
        # Slots of one machine share their age and go together, so none goes while another is in use.
        if node.main and self.slots.busy(node):
            return ""
        labels = self.seen.labels(node.provider, node.label)
        if not labels:
            return "no tenant has its provider and label any more"
        if node.digest not in {label.digest for label in labels}:
            return "its label is made of something else now"
        return "it is too old" if self.expired(node) else ""


def given_back(node: MadeNode) -> MadeNode:
    """Return the machine without an owner."""
    return replace(node, request="", node="", build="", project="")
