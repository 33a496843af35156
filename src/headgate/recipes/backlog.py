"""Track the waiting requests of one queue, and which components hold the others, as the mirror changes.

The cost of a `look` grows only with the number of changes since the last one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open
from headgate.recipes.requests import Requests

SHARES_MAX = 10_000
"""Limit on the shares and tenants whose last turn is remembered."""

Place = tuple[bool, int, str]
"""Position in the line of one share: False if the request holds semaphores (which others wait for), its age, its
name."""


class Share(NamedTuple):
    """Name the precedence, tenant and project of a request: requests with the same three form one line."""

    precedence: int
    tenant: str
    project: str


class Backlog:
    """Show one queue as one worker sees it; close it when it is no longer used."""

    def __init__(
        self,
        requests: Requests,
        mirror: Mirror,
        turns: Iterator[int] | None = None,
        able: Callable[[Open], bool] = lambda found: True,
    ) -> None:
        """Make a backlog. `turns` counts the requests taken; backlogs that are read together share it. Requests for
        which `able` returns False, because this worker cannot do them, are not in its lines."""
        self._able = able
        self.requests = requests
        self.held: Counter[str] = Counter()
        """Component -> requests it held at the last `look`, without paused and waiting ones, which take no place."""
        self.taken: Counter[Share] = Counter()
        """Share -> held requests, counted like `held`."""
        self.served: dict[Share | tuple[int, str], int] = {}
        """Share, or (precedence, tenant) -> turn in which a request of it was last taken or vanished. A request
        that is taken and completed between two looks only appears to vanish, so that counts as a turn, too."""
        self.lines: dict[Share, list[Place]] = {}
        """Share -> its requests that nobody holds, oldest first. They include running ones without a lock: their
        worker is lost."""
        self._mirror = mirror
        self._part = mirror.part(requests.places.requests, requests.places.locks)
        self._known: dict[str, Open] = {}
        self._turns = turns or count(1)

    def look(self) -> None:
        """Apply what changed in the mirror since the last look."""
        changed = self._part.changed()
        # After a gap in the watch, or at the first look, anything may have changed.
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
            # A turn is counted when a request becomes locked, or vanishes without having been seen locked.
            if last is not None and not (before and before.locked) and (now is None or now.locked):
                self._serve(_share(last))

    def __getitem__(self, name: str) -> Open:
        return self._known[name]

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
            del self.served[next(iter(self.served))]  # forgetting the share served longest ago changes the order least

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
        # The line is sorted by the same key, so that removing costs a binary search even in a long backlog.
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
        # Counters keep zeros, and there would be one for every project that ever ran anything.
        if not self.taken[_share(found)]:
            del self.taken[_share(found)]


def _share(found: Open) -> Share:
    request = found.request
    return Share(request.precedence, request.meta.get("tenant", ""), request.meta.get("project", ""))


def _place(found: Open) -> Place:
    # The name only makes keys unique, for the binary search in `_remove`.
    return "semaphores" not in found.request.meta, found.entry.born, _name(found.entry.path)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
