"""Machines that make room: idle ones in the way of waiting requests, and those that hopeless requests give back.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from headgate.map.inventory.nodes import ENDING, FREE, MadeNode, NodeRequest
from headgate.services.nodes.machines.demand import NodeSurvey, add
from headgate.services.nodes.machines.fate import given_back
from headgate.services.nodes.machines.limits import Key, NodeLimits, Uses
from headgate.services.nodes.machines.shared import MachineSlots

GONE = "it makes room for others who use the account, too"


def is_free(node: MadeNode) -> bool:
    """Return whether the machine can be given to a request."""
    return not node.request and node.state in FREE and not node.slots


class YieldingMachines:
    """Tell which machines make room at one look."""

    def __init__(self, site: NodeSurvey, free: dict[str, MadeNode], limits: NodeLimits) -> None:
        """Share `free`, the machines without an owner, with the code that gives them away."""
        self._site, self._free, self._limits = site, free, limits
        self._nodes = {node.id: node for node in site.nodes}
        self._slots = MachineSlots(self._nodes)
        self._mains = sorted((node for node in site.nodes if node.slots), key=lambda node: (node.asked_ms, node.id))
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
            # Adding up thousands of machines is slow, and most requests at a look find the same ones idle.
            self._idle = now, self._limits.counted([*plain, *mains])
        several = (self._nodes.get(one.main) if one.main else one for one in taken if not one.fixed)
        mine = {one.id: one for one in several if one is not None}  # a machine may have gone before its slots
        less = self._limits.counted(one for one in mine.values() if not one.slots or self._unused(one, ()))
        found = {key: dict(uses) for key, uses in self._idle[1].items()} if less else self._idle[1]
        for key, uses in less.items():
            add(found[key], {kind: -much for kind, much in uses.items()})
        return found

    def in_the_way(self, key: Key, request: NodeRequest, taken: Collection[str], many: int) -> tuple[MadeNode, ...]:
        """Return idle machines that may be deleted to make room for so many, if no machine is being deleted already."""
        near = [
            node
            for node in self._site.nodes
            if not node.fixed
            and (node.provider == key[1] if key[0] == "provider" else self._site.place(node) == key[1:])
        ]
        # Room is on its way already; deleting more machines would make room for nobody.
        if any(node.state in ENDING for node in near):
            return ()
        line = self._site.line
        behind = set(line[line.index(request.id) + 1 :]) if request.id in line else set()
        # Slots are not deleted by themselves, only with their machine.
        idle = [node for node in near if node.id in self._free and node.id not in taken and not node.main]
        idle.sort(key=lambda node: (FREE.index(node.state), node.asked_ms, node.id))
        held = [node for node in near if node.request in behind and node.state in FREE and not node.main]
        # Of requests behind this one, the last in the line loses its machine first.
        held.sort(key=lambda node: (-line.index(node.request), node.id))
        machines = [[node] for node in idle], [[node] for node in held]
        ids = {node.id for node in near}
        for main in (one for one in self._mains if one.id in ids):
            if self._unused(main, behind) and not self._has(main, taken):
                slots = self._slots.of(main.id)
                machines[any(node.request for node in slots)].append(slots)
        return tuple(node for several in [*machines[0], *machines[1]][:many] for node in several)

    def _unused(self, machine: MadeNode, behind: Collection[str]) -> bool:
        """Return whether no request has one of its slots, except later ones that wait, too."""
        several = self._slots.of(machine.id)
        return bool(several) and all(
            one.id in self._free or (one.request in behind and one.state in FREE) for one in several
        )

    def _has(self, machine: MadeNode, taken: Collection[str]) -> bool:
        """Return whether one of the machine's slots is taken."""
        return any(one.id in taken for one in self._slots.of(machine.id))

    # --- requests that wait in vain

    def give_back(self, node: MadeNode) -> None:
        """Have one be nobody's, so that others may have it for the rest of the look, and go if nobody has it then."""
        self._back.add(node.id)
        free = given_back(node)
        # Others at this look see the room at once.
        if node.request and is_free(free):
            self._limits.returned(node, free)
            self._free[node.id] = free

    def left(self) -> Iterator[tuple[MadeNode, MadeNode]]:
        """Yield pairs: a machine that was given back and that nobody has taken since, and its next record. Listed
        machines stay, and so do machines with a slot in use.
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
