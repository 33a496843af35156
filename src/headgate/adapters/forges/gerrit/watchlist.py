"""Collect where to look at a Gerrit, and set how often to look without hints."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from headgate.ports.forge import Hint

LATELY_S = 30.0
"""Interval between two searches for recent changes, with or without a stream."""
ALL_S = 600.0
"""Interval between two listings of all open changes."""
REFS_S, REFS_TOLD_S = 60.0, 600.0
"""Interval between two looks at branches and tags, without and with a stream."""
SILENT_S = 20.0
"""A stream counts as dead when a look finds something that it has not reported for this long."""
RETRY_MIN_S, RETRY_MAX_S = 1.0, 15.0


@dataclass(slots=True)
class GerritWatchList:
    """Collect where to look."""

    numbers: dict[int, bool] = field(default_factory=dict)
    """Change -> whether to look also at the changes that it is built on."""
    refs: set[str] = field(default_factory=set)
    """Projects whose branches and tags may have moved."""
    everywhere: bool = False
    answered: list[str] = field(default_factory=list)
    """Ids of the hints that led to this list."""
    stirred: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, number: int = 0, project: str = "", id: str = "", *, afresh: bool = False) -> None:
        """Add a change, the branches and tags of a project, or, with neither, everything."""
        if number:
            self.numbers[number] = self.numbers.get(number, False) or afresh
        elif project:
            self.refs.add(project)
        else:
            self.everywhere = True
        if id:
            self.answered.append(id)
        self.stirred.set()

    def take(self) -> GerritWatchList:
        """Return the whole list, and leave it empty."""
        taken = GerritWatchList(self.numbers, self.refs, self.everywhere, self.answered)
        self.numbers, self.refs, self.everywhere, self.answered = {}, set(), False, []
        self.stirred.clear()
        return taken

    def put_back(self, taken: GerritWatchList) -> None:
        """Put back the places whose look failed."""
        for number, afresh in taken.numbers.items():
            self.numbers[number] = self.numbers.get(number, False) or afresh
        self.refs |= taken.refs
        self.everywhere = self.everywhere or taken.everywhere
        self.answered = [*taken.answered, *self.answered]


@dataclass(slots=True)
class GerritPace:
    """Set how often to look without hints."""

    lately_s: float = LATELY_S
    all_s: float = ALL_S
    refs_s: float = REFS_S
    refs_told_s: float = REFS_TOLD_S
    silent_s: float = SILENT_S
    retry_min_s: float = RETRY_MIN_S

    @classmethod
    def every(cls, seconds: float) -> GerritPace:
        """Return the pace for an interval that the operator sets; 0 means the default."""
        return cls(lately_s=seconds, refs_s=seconds) if seconds else cls()

    def retry_s(self, failures: int) -> float:
        """Return the pause after this many failures in a row, shortened randomly by up to half."""
        longest: float = min(RETRY_MAX_S, self.retry_min_s * 2 ** min(failures, 20))
        return longest * random.uniform(0.5, 1.0)


def wanted_of(hint: Hint) -> tuple[int, str]:
    """Return the change that a hint names, or the project whose refs to look at; neither: everything."""
    number = int(hint.number) if hint.number.isascii() and hint.number.isdecimal() and len(hint.number) < 10 else 0
    return number, "" if number else hint.project
