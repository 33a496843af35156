"""Watch one forge: compare known states with current ones at the start, after hints, and at intervals.

Each project is queried separately: one that must wait, or whose query fails, delays no other.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pygit2

from headgate.adapters.forges.poll import KnownChanges, PollScope, ProjectLook
from headgate.adapters.forges.rest import ForgeDenied, NotLetIn, NotThere, Rejected
from headgate.adapters.git.command import GitError
from headgate.adapters.git.poll.names import Names
from headgate.base.tasks import end
from headgate.base.texts import line
from headgate.config.operator.model import TenantProject
from headgate.gate.state.change import ChangeState, numbered
from headgate.ports.forge import Hint, Sighting
from headgate.ports.reporter import ReporterAway

log = logging.getLogger("headgate.forges")

EVERY_S = 300.0
"""Interval between two full queries, regardless of hints."""
AGAIN_MIN_S, AGAIN_MAX_S = 1.0, 900.0
"""Pause before a project is queried again after a failure; it grows from the first value to the second."""
LOOKS_MAX = 6
"""Concurrent queries of projects."""
HINTS_MAX = 1_000
"""Waiting hints for one project; with more, the entire project is queried."""
PATIENCE_S = 5.0
"""How long to wait for the gate to record that Headgate merged a hinted change, which makes a query unnecessary."""
ODD_S, ODD_MAX_S = 30.0, 3600.0
"""Pause before a change is queried again after a failure; it doubles each time, and a hint ends it."""
ODD_AT_ONCE_MAX = 10
"""Maximum number of failed changes that are queried again together; those that have been due longest come first."""
SETTLES_S = 2.0
"""Pause before a change is queried again while the forge is still checking it; it doubles each time."""
FAILURES_SHOWN_MAX = 5
"""Maximum number of failed changes that the project's problem mentions."""

_Came = tuple[Hint, float]


@dataclass(slots=True)
class _Odd:
    """Hold a change whose query failed."""

    why: str
    times: int
    """Failures in a row."""
    due_s: float
    """Time of the next query, in monotonic seconds."""


@dataclass(slots=True)
class _PolledProject:
    """Track one project, and the results of its queries."""

    project: str
    """Canonical name of the project."""
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    hints: list[_Came] = field(default_factory=list)
    """Waiting hints, each with its arrival in monotonic seconds."""
    full_s: float = 0.0
    """When the next full query of the project is due, in monotonic seconds."""
    failures: int = 0
    odd: dict[int, _Odd] = field(default_factory=dict)
    """Changes whose query failed."""
    unsettled: frozenset[int] = frozenset()
    """Changes for which the forge is still checking whether they can be merged."""
    settling: int = 0
    """Queries in a row that found such changes."""
    misfits: str = ""
    """What is wrong with the project's refs; empty if nothing is."""
    unseen: str = ""
    """What the forge does not provide about its branches; empty if nothing is missing."""
    problem: str = ""
    """The problem that was last reported; empty if there is none."""

    def hint(self, hint: Hint) -> None:
        self.hints.append((hint, time.monotonic()))
        if len(self.hints) > HINTS_MAX:
            self.full_s = 0.0
        self.stirred.set()

    def due(self, now_s: float) -> frozenset[int]:
        """Return the failed changes that are due for another query."""
        found = sorted((one.due_s, number) for number, one in self.odd.items() if one.due_s <= now_s)
        return frozenset(number for _, number in found[:ODD_AT_ONCE_MAX])

    def learn(self, look: ProjectLook, now_s: float, *, completed: bool = True) -> bool:
        """Record which changes failed and which no longer do; return whether a new one failed. If the query was not
        `completed`, the forge itself may have failed: these changes then come last in the next query."""
        fresh = look.odd.keys() - self.odd.keys()
        for number in look.attempted - look.odd.keys():
            self.odd.pop(number, None)
        for number, why in look.odd.items():
            times = (self.odd[number].times if number in self.odd else 0) + completed
            pause_s = min(ODD_S * 2 ** min(times - 1, 10), ODD_MAX_S) if completed else 0.0
            self.odd[number] = _Odd(why, times, now_s + pause_s * random.uniform(0.75, 1.0))
        return bool(fresh)

    def pause_s(self) -> float:
        """Return the pause after another failure."""
        self.failures = min(self.failures + 1, 12)
        longest: float = min(AGAIN_MAX_S, AGAIN_MIN_S * 2 ** (self.failures - 1))
        return longest * random.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class _Seen:
    sighting: Sighting
    stored: asyncio.Event = field(default_factory=asyncio.Event)


class PollSource(Protocol):
    """Declare how a driver queries its forge."""

    async def look(self, scope: PollScope) -> ProjectLook:
        """Return a query of a project, not started yet. Raise NotLetIn, ReporterAway, ForgeDenied."""
        ...

    def refused(self, project: str) -> None:
        """Discard the cached credentials for a project, which the forge refused."""
        ...


class Watching:
    """Watch the projects of one forge; see `ports.forge.ForgeWatch`."""

    def __init__(
        self,
        source: PollSource,
        every_s: float = EVERY_S,
        beside: Callable[[Watching], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Make a watch; `beside` is another task that runs during the watch."""
        self._source, self._every_s, self._beside = source, every_s, beside
        self._projects: dict[str, TenantProject] | None = None
        self._followed: dict[str, _PolledProject] = {}
        self._places = asyncio.Semaphore(LOOKS_MAX)
        self._seen: asyncio.Queue[_Seen] = asyncio.Queue(1)
        self._elsewhere: list[Hint] = []
        """Hints about projects that are not watched; they only need an acknowledgement."""
        self._elsewhere_stirred = asyncio.Event()

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """Set the projects to watch; see `ports.forge.ForgeWatch`."""
        self._projects = dict(projects)
        # Hints must be answered even if their project has left all
        # tenants; otherwise their records would stay forever.
        for project in self._followed.keys() - projects.keys():
            self._elsewhere += [hint for hint, _ in self._followed.pop(project).hints]
            self._elsewhere_stirred.set()
        self._followed = {project: self._followed.get(project) or _PolledProject(project) for project in projects}

    def looks_at(self, project: str) -> bool:
        """Return whether a project is watched; a process that watches none cannot know, and returns True."""
        return self._projects is None or project in self._projects

    def stir(self, hint: Hint) -> None:
        """Poll soon what a hint names; see `ports.forge.Forge`."""
        one = self._followed.get(hint.project)
        if one is not None:
            one.hint(hint)
            return
        if not hint.project:
            for each in self._followed.values():
                each.full_s = 0.0
                each.stirred.set()
        self._elsewhere.append(hint)
        self._elsewhere_stirred.set()

    async def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """Yield what is new at the watched projects; see `ports.forge.ForgeWatch`."""
        for one in self._followed.values():
            one.full_s = 0.0
        names, all_known = Names((self._projects or {}).values()), KnownChanges(known, heads, refs)
        works = [self._follow(one, all_known, names) for one in self._followed.values()]
        works.append(self._answer_elsewhere())
        if self._beside is not None:
            works.append(self._beside(self))
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            while True:
                seen = await self._next(tasks)
                yield seen.sighting
                seen.stored.set()
        finally:
            await end(*tasks)

    async def _next(self, tasks: list[asyncio.Task[None]]) -> _Seen:
        """Return the next sighting. Raise the error of a failed task."""
        getting = asyncio.ensure_future(self._seen.get())
        try:
            await asyncio.wait({getting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                # These tasks never end on their own: a finished one has failed, so raise its error.
                if task.done():
                    await task
            return await getting
        finally:
            getting.cancel()

    async def _tell(self, sighting: Sighting) -> None:
        seen = _Seen(sighting)
        await self._seen.put(seen)
        # The next query compares with the stored states, so it must not run earlier.
        await seen.stored.wait()

    async def _answer_elsewhere(self) -> None:
        while True:
            await self._elsewhere_stirred.wait()
            self._elsewhere_stirred.clear()
            hints, self._elsewhere = self._elsewhere, []
            if hints:
                await self._tell(Sighting(answered=tuple(hint.id for hint in hints)))

    # --- one project

    async def _follow(self, one: _PolledProject, known: KnownChanges, names: Names) -> None:
        """Query one project repeatedly."""
        while True:
            # Clear the event before taking the hints: a hint that arrives during the query sets it again.
            one.stirred.clear()
            hints, one.hints = self._due(one, known)
            try:
                wait_s, problem = await self._look(one, known, names, [hint for hint, _ in hints])
                # Hints that still wait for the gate are due within PATIENCE_S, even if the next query is due later.
                wait_s = min(wait_s, PATIENCE_S / 5) if one.hints else wait_s
                one.failures = 0
            except ReporterAway as away:
                wait_s, problem = max(away.wait_s, one.pause_s()), f"it cannot be queried: {away}"
            except (NotLetIn, NotThere, ForgeDenied, Rejected, GitError, OSError, pygit2.GitError) as error:
                self._source.refused(one.project)
                wait_s, problem = one.pause_s(), f"it cannot be read: {error}"
            # A response of unexpected form must stop only this project, and not the entire connection.
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
                log.exception("%s: the forge's response has an unexpected form", one.project)
                wait_s, problem = one.pause_s(), f"the forge's response has an unexpected form: {error!r}"[:500]
            if one.failures:
                one.hints = [*hints, *one.hints]  # the next query handles them
            if problem != one.problem:
                log.warning("%s: %s", one.project, problem or "it can be read again")
                one.problem = problem
                await self._tell(Sighting(problems={one.project: problem}))
            await self._rest(one, wait_s)

    def _due(self, one: _PolledProject, known: KnownChanges) -> tuple[list[_Came], list[_Came]]:
        """Return the hints to follow now, and those that wait until the gate may have recorded the landing."""
        soon = time.monotonic() - PATIENCE_S
        later = []
        for hint, came_s in one.hints:
            was = known.change_states.get(numbered(one.project, hint.number)) if hint.number and hint.commit else None
            if was is not None and was.open and came_s > soon:
                later.append((hint, came_s))
        return [came for came in one.hints if came not in later], later

    async def _look(
        self, one: _PolledProject, known: KnownChanges, names: Names, hints: list[Hint]
    ) -> tuple[float, str]:
        """Query the project once; return the longest pause before the next query, and what is wrong with it."""
        async with self._places:
            now_s = time.monotonic()
            full = one.full_s <= now_s
            again = one.due(now_s) | one.unsettled
            resting, source = frozenset(one.odd) - again, (self._projects or {}).get(one.project)
            # Where no tenant selects branches by protection, these calls are saved.
            selective = source is not None and source.is_selective
            scope = PollScope(names, one.project, known, hints, full, again, resting, selective)
            look = await self._source.look(scope)
            # The random part keeps the full queries of many projects from coinciding.
            if full:  # a later hint about the entire project requires another query
                one.full_s = now_s + self._every_s * random.uniform(0.8, 1.0)
            try:
                async for sighting in look.sightings():
                    await self._tell(sighting)
            except BaseException:
                # A query that failed halfway has not covered the project.
                one.full_s = 0.0 if full else one.full_s
                one.learn(look, time.monotonic(), completed=False)
                raise
            one.misfits = one.misfits if look.misfits is None else look.misfits
            one.unseen = one.unseen if look.unseen is None else look.unseen
            if one.learn(look, time.monotonic()):  # our access may have been revoked
                self._source.refused(one.project)
            failures = _failures(look.asking.words.noun, one.odd)
            problem = "; ".join(filter(None, (one.misfits, one.unseen, look.hidden, *failures)))
            one.unsettled = frozenset(look.unsettled)
            one.settling = min(one.settling + 1, 10) if one.unsettled else 0
            if look.more:
                one.full_s = 0.0
                return 1.0, problem
            now_s = time.monotonic()
            wait_s = min([one.full_s, *(odd.due_s for odd in one.odd.values())]) - now_s
            wait_s = min(max(0.0, wait_s), self._every_s)
            return min(wait_s, SETTLES_S * 2 ** (one.settling - 1)) if one.settling else wait_s, problem

    async def _rest(self, one: _PolledProject, wait_s: float) -> None:
        """Wait for a hint; after a failure, wait for the entire pause despite hints."""
        try:
            async with asyncio.timeout(wait_s):
                if one.failures:
                    # This event is never set: only the time limit ends the wait.
                    await asyncio.Event().wait()
                await one.stirred.wait()
        except TimeoutError:
            pass  # the next query is due


def _failures(noun: str, odd: Mapping[int, _Odd]) -> list[str]:
    found = sorted(odd.items())[:FAILURES_SHOWN_MAX]
    return [f"{noun} {number} cannot be read: {line(one.why, 300)}" for number, one in found]
