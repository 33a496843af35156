"""Put the requests of several backlogs in the order in which workers take them.

Within one precedence, places are shared among tenants, and within a tenant among its projects: the next request
belongs to the tenant with the fewest running requests; between equals, to the one served longest ago. So a flood
of requests from one tenant delays the first request of another by no more than one place, however few places there
are. Workers that have watched a queue for the same time compute the same line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace, merge
from itertools import count, groupby

from headgate.recipes.backlog import Backlog, Share
from headgate.recipes.requestforms import Open

Next = tuple[bool, int, str, Backlog]
"""Next request of a line: its `Place`, and the backlog that contains it."""


def line(backlogs: Sequence[Backlog]) -> Iterator[Open]:
    """Yield the requests that nobody holds in any of the backlogs: the most urgent first; within one precedence,
    tenants take turns, and within a tenant its projects; within a project, requests that hold semaphores come
    first, then the oldest."""
    shares = sorted({share for backlog in backlogs for share in backlog.lines})
    taken: Counter[Share] = sum((backlog.taken for backlog in backlogs), Counter())
    of_tenant = Counter[tuple[int, str]]()
    for share, number in taken.items():
        of_tenant[share[:2]] += number

    def served(whose: Share | tuple[int, str]) -> int:
        return max(backlog.served.get(whose, 0) for backlog in backlogs)

    for precedence, urgent in groupby(shares, key=lambda share: share.precedence):
        tenants = list[tuple[int, int, Iterator[Next]]]()
        for tenant, own in groupby(urgent, key=lambda share: share.tenant):
            projects = [(taken[share], served(share), _own_line(backlogs, share)) for share in own]
            tenant_key = precedence, tenant
            tenants.append((of_tenant[tenant_key], served(tenant_key), _in_turn(projects)))
        for _, _, name, backlog in _in_turn(tenants):
            yield backlog[name]


def _own_line(backlogs: Sequence[Backlog], share: Share) -> Iterator[Next]:
    # The key excludes the backlog, because backlogs cannot be compared.
    lines = [[(*place, backlog) for place in backlog.lines.get(share, ())] for backlog in backlogs]
    return merge(*lines, key=lambda one: one[:3])


def _in_turn(takers: Sequence[tuple[int, int, Iterator[Next]]]) -> Iterator[Next]:
    """Yield requests of the takers in turn, until no taker has any left: from the taker with the fewest running
    requests; between equals, from the one served longest ago; then the oldest. Each taker is the number of its running
    requests, the turn in which it was last served, and its own line."""
    # Every turn here is later than all earlier ones, so a taker that is served goes behind the others.
    turns = count(1 + max((served for _, served, _ in takers), default=0))
    firsts = ((taken, served, next(rest, None), n, rest) for n, (taken, served, rest) in enumerate(takers))
    heap = [(taken, served, f[:3], n, f, rest) for taken, served, f, n, rest in firsts if f is not None]
    heapify(heap)
    while heap:
        taken, _, _, n, first, rest = heap[0]
        yield first
        following = next(rest, None)
        if following is None:
            heappop(heap)
        else:
            heapreplace(heap, (taken + 1, next(turns), following[:3], n, following, rest))
