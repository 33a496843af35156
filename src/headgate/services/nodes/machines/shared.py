"""Machines that several builds use at a time: each slot is a node of its own, for requests and for people.

Only the machine, not its slots, counts for its account. It is made for the first request of a slot, and deleted once
its last slot is gone. A used slot is gone, unless its label is reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.map.inventory.nodes import ENDING, FREE, MadeNode

SLOT_HOST = "slot-host"
"""State of a machine with slots once it is usable."""
OPENED_MAX = 20
"""Limit of slots that are recorded in one commit."""


def slot_ids(machine: MadeNode) -> list[str]:
    """Return the ids of all slots that a machine ever has."""
    return [derived(machine.id, str(number)) for number in range(machine.slots)]


def open_slots(machine: MadeNode, many: int = OPENED_MAX) -> tuple[MadeNode, list[MadeNode]]:
    """Return the machine with at most this many more of its slots open, and these slots: those of the lowest
    numbers."""
    upto = min(machine.opened + many, machine.slots)
    definition = {
        # What only makes the machine, such as its user data, would be stored once for each slot.
        "label": {key: value for key, value in machine.said["label"].items() if key != "userdata"},
        "image": {key: value for key, value in machine.said["image"].items() if key == "upload"},
        "flavor": {},
        "provider": {key: value for key, value in machine.said["provider"].items() if key == "region"},
    }
    ids = slot_ids(machine)
    # Only the tenant's limit counts slots by their part; the account counts the machine.
    share = {kind: much / machine.slots for kind, much in machine.uses.items()}
    several = [
        MadeNode(
            id=ids[number],
            provider=machine.provider,
            connection=machine.connection,
            label=machine.label,
            said=definition,
            digest=machine.digest,
            tenant=machine.tenant,
            asked_ms=machine.asked_ms,
            since_ms=machine.since_ms,
            slot=number,
            main=machine.id,
            share=share,
        )
        for number in range(machine.opened, upto)
    ]
    return replace(machine, opened=upto), several


def with_machine(slot: MadeNode, machine: MadeNode) -> MadeNode:
    """Return a slot of a machine that is usable: ready, with the machine's properties."""
    # A slot may be recorded before its machine is there, so it learns of the machine's address only here.
    return replace(
        slot,
        state="ready",
        external_id=machine.external_id,
        host=machine.host,
        about=machine.about,
        resources=machine.resources,
        secrets=machine.secrets,
        why="",
    )


class MachineSlots:
    """Hold the slots of all machines at one look."""

    def __init__(self, nodes: Mapping[str, MadeNode]) -> None:
        self._nodes, self._of = nodes, dict[str, list[MadeNode]]()
        for node in nodes.values():
            if node.main:
                self._of.setdefault(node.main, []).append(node)

    def of(self, machine: str) -> list[MadeNode]:
        """Return the remaining slots of a machine."""
        return self._of.get(machine, [])

    def lost(self, slot: MadeNode) -> bool:
        """Return whether the slot's machine is being deleted, or gone."""
        machine = self._nodes.get(slot.main)
        return machine is None or machine.state in ENDING

    def busy(self, slot: MadeNode) -> bool:
        """Return whether a slot of the same machine has a user; unused ones are deleted together."""
        return any(is_busy(one) for one in self.of(slot.main))


def is_busy(slot: MadeNode) -> bool:
    """Return whether the slot has a user."""
    return bool(slot.request) or slot.state not in (*FREE, *ENDING)


def held_machines(nodes: Iterable[MadeNode]) -> set[str]:
    """Return the machines of which a slot is held."""
    return {one.main for one in nodes if one.main and one.state == "hold"}
