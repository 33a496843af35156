"""Which machine for which node."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def choose(wanted: Sequence[Sequence[str]], taken: Collection[str] = ()) -> list[str] | None:
    """For each node one of the machines it can have (best first), none twice, none that is taken; None: there are
    too few.  A node gives way to one that has less choice."""
    owner: dict[str, int] = {}

    def place(node: int, tried: set[str]) -> bool:
        for machine in wanted[node]:
            if machine in tried or machine in taken:
                continue
            tried.add(machine)
            if machine not in owner or place(owner[machine], tried):
                owner[machine] = node
                return True
        return False

    if not all(place(node, set()) for node in range(len(wanted))):
        return None
    chosen = {node: machine for machine, node in owner.items()}
    return [chosen[node] for node in range(len(wanted))]
