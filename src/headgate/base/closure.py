"""Find everything that each node of a graph needs, directly or indirectly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def closure(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return node -> the nodes that it needs, as bits at their places in `needs`: sets of a thousand names for each of
    a thousand nodes would be large. Names that are no nodes are left out. Every edge is followed twice."""
    bits = {name: 1 << place for place, name in enumerate(needs)}
    found, begun = dict[str, int](), set[str]()
    for first in needs:
        path = [] if first in found else [(first, iter(needs[first]))]
        while path:
            name, rest = path[-1]
            begun.add(name)
            # In a circle, a node that is not complete counts without the nodes that it needs.
            if (below := next((one for one in rest if one in bits and one not in begun), "")) in bits:
                path.append((below, iter(needs[below])))
                continue
            total = 0
            for one in needs[name]:
                total |= bits.get(one, 0) | found.get(one, 0)
            found[name] = total
            path.pop()
    return found
