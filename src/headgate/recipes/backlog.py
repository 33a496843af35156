"""What waits in a queue of requests, and who holds the rest, kept as the mirror moves: to look costs what changed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from headgate.recipes.mirror import Mirror
from headgate.recipes.requests import Open, Requests

Place = tuple[int, int, str]
"""In the line: precedence, then age; and the id."""


class Backlog:
    """Of one queue, as one worker sees it; to be closed when it no longer looks."""

    def __init__(self, requests: Requests, mirror: Mirror) -> None:
        self.requests = requests
        self.held: Counter[str] = Counter()
        """Component -> requests it holds, but for those that are paused; as of the last `look`."""
        self._mirror = mirror
        self._part = mirror.part(requests.places.requests, requests.places.locks)
        self._line: list[Place] = []
        self._known: dict[str, Open] = {}

    def look(self) -> None:
        """Takes up what the mirror was told since."""
        changed = self._part.changed()
        if changed is None:
            self.held, self._line, self._known = Counter(), [], {}
            for found in self.requests.open(self._mirror):
                self._add(found)
            return
        for id in {_name(path) for path in changed}:
            self._remove(id)
            if (now := self.requests.find(id, self._mirror)) is not None:
                self._add(now)

    def __iter__(self) -> Iterator[Open]:
        """What nobody holds, most urgent first, then oldest; a running one without a lock lost its worker."""
        return (self._known[id] for _, _, id in self._line)

    def close(self) -> None:
        self._part.leave()

    def _add(self, found: Open) -> None:
        self._known[_name(found.entry.path)] = found
        if found.locked:
            self.held[_holder(found)] += found.request.state != "paused"
        else:
            insort(self._line, _place(found))

    def _remove(self, id: str) -> None:
        found = self._known.pop(id, None)
        if found is None:
            return
        if found.locked:
            self.held[_holder(found)] -= found.request.state != "paused"
        else:
            del self._line[bisect_left(self._line, _place(found))]


def _place(found: Open) -> Place:
    return found.request.precedence, found.entry.born, _name(found.entry.path)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _holder(found: Open) -> str:
    return str(found.request.owner.get("component", ""))
