"""Collect what to query at a Gerrit, from hints and its stream, and set how often to query without them."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

from headgate.adapters.forges.gerrit import stream
from headgate.adapters.forges.gerrit.server import Server
from headgate.base.tasks import run_until
from headgate.ports.forge import Hint

log = logging.getLogger("headgate.gerrit")

LATELY_S = 30.0
"""Interval between two searches for recent changes, with or without a stream."""
ALL_S = 600.0
"""Interval between two listings of all open changes."""
REFS_S, REFS_STREAMED_S = 60.0, 600.0
"""Interval between two queries of branches and tags, without and with a stream."""
SILENT_S = 20.0
"""A stream counts as dead if a search finds something that the stream does not report within this time."""
RETRY_MIN_S, RETRY_MAX_S = 1.0, 15.0
HINTS_MAX = 1_000
"""Changes that a list names; with more, everything is queried."""
HEARD_MAX = 10_000
"""Limit on the changes that the stream mentioned and that are remembered, and on the events that wait for a replica."""


@dataclass(slots=True)
class GerritWatchList:
    """Collect what to query."""

    numbers: dict[int, bool] = field(default_factory=dict)
    """Change -> whether to query also the changes that it is built on."""
    refs: set[str] = field(default_factory=set)
    """Projects whose branches and tags may have moved."""
    everywhere: bool = False
    answered: list[str] = field(default_factory=list)
    """Ids of the hints that led to this list."""
    stirred: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, number: int = 0, project: str = "", id: str = "", *, afresh: bool = False) -> None:
        """Add a change, the branches and tags of a project, or, with neither, everything."""
        # The changes below those that moved are few, whatever a stream says.
        if number and (afresh or number in self.numbers or len(self.numbers) < HINTS_MAX):
            # A later hint must not take back an earlier one that wants more.
            self.numbers[number] = self.numbers.get(number, False) or afresh
        elif project and not number:
            self.refs.add(project)
        else:
            self.everywhere = True
        if id:
            self.answered.append(id)
        self.stirred.set()

    def take(self) -> GerritWatchList:
        """Return the entire list, and leave it empty."""
        taken = GerritWatchList(self.numbers, self.refs, self.everywhere, self.answered)
        self.numbers, self.refs, self.everywhere, self.answered = {}, set(), False, []
        self.stirred.clear()
        return taken

    def put_back(self, taken: GerritWatchList) -> None:
        """Put back the places whose query failed."""
        for number, afresh in taken.numbers.items():
            self.numbers[number] = self.numbers.get(number, False) or afresh
        self.refs |= taken.refs
        self.everywhere = self.everywhere or taken.everywhere
        # New hints may have come in since the list was taken.
        self.answered = [*taken.answered, *self.answered]


@dataclass(slots=True)
class GerritPace:
    """Set how often to query without hints."""

    lately_s: float = LATELY_S
    all_s: float = ALL_S
    refs_s: float = REFS_S
    refs_streamed_s: float = REFS_STREAMED_S
    silent_s: float = SILENT_S
    retry_min_s: float = RETRY_MIN_S

    @classmethod
    def every(cls, seconds: float) -> GerritPace:
        """Return the pace for an interval that the operator sets; 0 means the default."""
        return cls(lately_s=seconds, refs_s=seconds) if seconds else cls()

    def retry_s(self, failures: int) -> float:
        """Return the pause after this many failures in a row, shortened randomly by up to half."""
        longest: float = min(RETRY_MAX_S, self.retry_min_s * 2 ** min(failures, 20))
        # Otherwise all processes would try again at the same moment.
        return longest * random.uniform(0.5, 1.0)


def wanted_of(hint: Hint) -> tuple[int, str]:
    """Return the change that a hint names, or the project whose refs to query; if both are empty, query everything."""
    number = int(hint.number) if hint.number.isascii() and hint.number.isdecimal() and len(hint.number) < 10 else 0
    return number, "" if number else hint.project


class Ear:
    """Listen to the stream of one server."""

    def __init__(
        self, server: Server, wanted: GerritWatchList, projects: Collection[str], pace: GerritPace, program: str = "ssh"
    ) -> None:
        """Make a listener; `program` is the ssh client."""
        self._server, self._wanted, self._projects = server, wanted, frozenset(projects)
        self._pace, self._program = pace, program
        self.listens = False
        self.problem = ""
        """Message about why the stream does not work; empty while it works."""
        self._deaf = asyncio.Event()
        self._hinted: dict[int, float] = {}
        """Change -> when the stream last mentioned it, in monotonic seconds."""
        self._delayed = 0
        """Number of events that wait for a replica."""
        self._missed: dict[int, float] = {}
        """Change -> when a search found something new that the stream had not reported, in monotonic seconds."""

    def found(self, numbers: Collection[int]) -> None:
        """Record that a search found something new about these changes that the stream had not announced."""
        at_s = time.monotonic()
        # A stream that is down cannot miss anything.
        if self.listens:
            fresh = {n for n in numbers if at_s - self._hinted.get(n, float("-inf")) > self._pace.silent_s}
            self._missed |= {number: self._missed.get(number, at_s) for number in fresh}
        # Older hints no longer matter, and would fill the memory.
        self._hinted = {n: s for n, s in self._hinted.items() if at_s - s <= self._pace.silent_s}

    def doubt_s(self) -> float | None:
        """Return the time after which a stream that missed something counts as dead, in seconds; None if it missed
        nothing."""
        if not self._missed:
            return None
        left_s = min(self._missed.values()) + self._pace.silent_s - time.monotonic()
        if left_s <= 0:
            self._missed.clear()
            self._deaf.set()
            return None
        return left_s

    async def listen(self) -> None:
        """Listen until cancelled."""
        failures = 0
        while True:
            self._deaf.clear()
            self._missed.clear()
            began_s, well = time.monotonic(), None
            try:
                async with stream.stream(self._server, self._program) as hints:
                    self.listens = True
                    well = asyncio.get_running_loop().call_later(self._pace.silent_s, self._well)
                    await run_until(self._deaf, self._hear(hints))
                why = "the stream did not report an event that a search found"
            except stream.StreamDead as dead:
                why = str(dead)
            finally:
                self.listens = False
                if well is not None:
                    well.cancel()
            # A stream that lasted resets the pauses; one that is accepted and dropped immediately does not.
            failures = 0 if time.monotonic() - began_s > RETRY_MAX_S else failures + 1
            text = f"its event stream does not work, so Headgate polls instead: {why}"
            if self.problem != text:
                log.error("the event stream of %s does not work, polling instead: %s", self._server.ssh_server, why)
            self.problem = text
            self._wanted.stirred.set()
            await asyncio.sleep(self._pace.retry_s(failures))

    def _well(self) -> None:
        """Record that the stream works."""
        if self.problem:
            log.info("the event stream of %s works again", self._server.ssh_server)
            self.problem = ""
            self._wanted.stirred.set()

    async def _hear(self, hints: AsyncIterator[stream.GerritHint]) -> None:
        loop = asyncio.get_running_loop()
        async for hint in hints:
            self._well()
            if hint.number:
                if len(self._hinted) < HEARD_MAX:
                    self._hinted[hint.number] = time.monotonic()
                self._missed.pop(hint.number, None)
            project = self._server.project(hint.project) if hint.project else ""
            if project and project not in self._projects:
                continue
            if not self._server.replication_delay_s:
                self._wanted.add(hint.number, project)
            # The next search finds what further events are about.
            elif self._delayed < HEARD_MAX:
                # git may read from a replica, which receives the commits some time after the event.
                self._delayed += 1
                loop.call_later(self._server.replication_delay_s, self._replicated, hint.number, project)

    def _replicated(self, number: int, project: str) -> None:
        self._delayed -= 1
        self._wanted.add(number, project)
