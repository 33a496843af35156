"""Choose which machine serves which node."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def choose(wanted: Sequence[Sequence[str]], taken: Collection[str] = ()) -> list[str] | None:
    """Choose for each node one of the machines that can serve it (best first), none of them twice or already taken;
    return None if there are too few. A node yields to one with fewer options."""
    owner: dict[str, int] = {}

    def place(node: int, tried: set[str]) -> bool:
        for machine in wanted[node]:
            if machine in tried or machine in taken:
                continue
            tried.add(machine)
            # An augmenting path: the owner takes another machine if it can, so a greedy choice never leaves too few.
            if machine not in owner or place(owner[machine], tried):
                owner[machine] = node
                return True
        return False

    # Each node may try every machine again, because the choice has changed since.
    if not all(place(node, set()) for node in range(len(wanted))):
        return None
    chosen = {node: machine for machine, node in owner.items()}
    return [chosen[node] for node in range(len(wanted))]
