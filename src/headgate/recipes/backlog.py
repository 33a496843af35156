"""Track what waits in a queue of requests, and who holds the rest, as the mirror moves: a look costs only what changed.

Within one precedence places are shared among the tenants, and those of a tenant among its projects: next is one of
whoever has the fewest under way, of those whoever was served longest ago.  So a flood of one delays the first request
of another by no more than one place, however few places there are.  Workers that have looked on for as long compute
the same line.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace, merge
from itertools import count, groupby
from typing import NamedTuple

from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open
from headgate.recipes.requests import Requests

SHARES_MAX = 10_000
"""Shares and tenants of which it is known when they were served last."""

Place = tuple[bool, int, str]
"""Position in the line of one share: whether it holds nothing that others wait for, its age, and its name."""


class Share(NamedTuple):
    """Name the owners of a request."""

    precedence: int
    tenant: str
    project: str


class Backlog:
    """Hold one queue as one worker sees it; close it when the worker no longer looks."""

    def __init__(
        self,
        requests: Requests,
        mirror: Mirror,
        turns: Iterator[int] | None = None,
        able: Callable[[Open], bool] = lambda found: True,
    ) -> None:
        """Make a backlog. `turns` counts what is taken; backlogs that are read together share it. Requests that the
        worker is not `able` to do are in none of its lines."""
        self._able = able
        self.requests = requests
        self.held: Counter[str] = Counter()
        """Component -> requests it holds, but for those that take no place (paused, waiting); as of the last `look`."""
        self.taken: Counter[Share] = Counter()
        """Share -> the same."""
        self.served: dict[Share | tuple[int, str], int] = {}
        """Share, and precedence and tenant -> which turn it was when its last request was taken, or went,
        as far as that was seen: what was taken and done between two looks just went."""
        self.lines: dict[Share, list[Place]] = {}
        """What nobody holds, oldest first; a running one without a lock lost its worker."""
        self._mirror = mirror
        self._part = mirror.part(requests.places.requests, requests.places.locks)
        self._known: dict[str, Open] = {}
        self._turns = turns or count(1)

    def look(self) -> None:
        """Take up what the mirror was told since."""
        changed = self._part.changed()
        if changed is None:
            self.held, self.taken, self.lines, self._known = Counter(), Counter(), {}, {}
            for found in self.requests.open(self._mirror):
                self._add(found)
            return
        for id in sorted({_name(path) for path in changed}):
            before, now = self._remove(id), self.requests.find(id, self._mirror)
            if now is not None:
                self._add(now)
            last = now or before
            if last is not None and not (before and before.locked) and (now is None or now.locked):
                self._serve(_share(last))

    def __getitem__(self, name: str) -> Open:
        return self._known[name]

    def __iter__(self) -> Iterator[Open]:
        return line([self])

    def close(self) -> None:
        self._part.leave()

    def _add(self, found: Open) -> None:
        self._known[_name(found.entry.path)] = found
        if found.locked:
            self._count(found, 1)
        elif self._able(found):
            insort(self.lines.setdefault(_share(found), []), _place(found))

    def _serve(self, share: Share) -> None:
        turn = next(self._turns)
        for whose in (share, share[:2]):
            self.served.pop(whose, None)
            self.served[whose] = turn
        while len(self.served) > SHARES_MAX:
            del self.served[next(iter(self.served))]  # whoever was served longest ago is as good as never served

    def _remove(self, id: str) -> Open | None:
        found = self._known.pop(id, None)
        if found is None:
            return None
        if found.locked:
            self._count(found, -1)
            return found
        if not self._able(found):
            return found
        share = _share(found)
        own = self.lines[share]
        del own[bisect_left(own, _place(found))]
        if not own:
            del self.lines[share]
        return found

    def _count(self, found: Open, by: int) -> None:
        if found.request.state in ("paused", "waiting"):
            return
        self.held[found.request.owner.component] += by
        self.taken[_share(found)] += by
        if not self.taken[_share(found)]:
            del self.taken[_share(found)]


Next = tuple[bool, int, str, Backlog]
"""What is next of somebody: its place in its line, and where it waits."""


def line(backlogs: Sequence[Backlog]) -> Iterator[Open]:
    """Yield what nobody holds in any of them: the most urgent first; of those each tenant's in turn, and of those each
    project's; of these those that hold semaphores, and the oldest first."""
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
            whole = precedence, tenant
            tenants.append((of_tenant[whole], served(whole), _in_turn(projects)))
        for _, _, name, backlog in _in_turn(tenants):
            yield backlog[name]


def _own_line(backlogs: Sequence[Backlog], share: Share) -> Iterator[Next]:
    lines = [[(*place, backlog) for place in backlog.lines.get(share, ())] for backlog in backlogs]
    return merge(*lines, key=lambda one: one[:3])


def _in_turn(takers: Sequence[tuple[int, int, Iterator[Next]]]) -> Iterator[Next]:
    """Yield in turn: from the taker with the fewest under way, then from the one served longest ago, then the
    oldest, until nobody has anything left. `takers` says how many each has, which turn its last one was, and what is
    next."""
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


def _share(found: Open) -> Share:
    request = found.request
    return Share(request.precedence, request.meta.get("tenant", ""), request.meta.get("project", ""))


def _place(found: Open) -> Place:
    return "semaphores" not in found.request.meta, found.entry.born, _name(found.entry.path)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
