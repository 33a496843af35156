"""Watch a Gerrit server: query immediately what its stream announces, and everything at intervals."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from headgate.adapters.forges.gerrit.api import GerritAway, GerritRefused, GerritRest
from headgate.adapters.forges.gerrit.entities import ChangeInfo
from headgate.adapters.forges.gerrit.poll import GerritLookResult, Looker
from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.gerrit.translation import GerritMark
from headgate.adapters.forges.gerrit.watchlist import Ear, GerritPace, GerritWatchList
from headgate.adapters.git.command import GitError
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.moves import as_it_was, moved_heads, moved_refs, watched
from headgate.adapters.git.poll.names import Misfits
from headgate.base.ids import derived
from headgate.base.tasks import end
from headgate.gate.state.change import HEADS, TAGS, Change, ChangeState, EventKind, TriggerEvent
from headgate.ports.forge import Sighting

log = logging.getLogger("headgate.gerrit")

T = TypeVar("T")
MARGIN_S = 60.0
"""Searches for recent changes overlap by this much, since the server's index may lag behind."""
AT_ONCE = 20
"""Changes queried for one sighting."""
PROJECTS_AT_ONCE = 40
"""Projects named in one search."""
PROJECTS_NAMED_MAX = 200
"""With more projects than this, one search covers all projects of the server."""
PROJECTS_SHOWN_MAX = 200
"""Limit on the projects at which a problem of the server is shown."""


class Watcher:
    """Find what is new, for one call of `sightings`."""

    def __init__(
        self,
        rest: GerritRest,
        server: Server,
        engine: GitEngine,
        looker: Looker,
        wanted: GerritWatchList,
        projects: Collection[str],
        pace: GerritPace,
        program: str = "ssh",
    ) -> None:
        """Make a watcher. `projects` has canonical names; `program` is the ssh client."""
        self._rest, self._server, self._engine, self._looker = rest, server, engine, looker
        self._wanted, self._projects, self._pace = wanted, frozenset(projects), pace
        self._ear = Ear(server, wanted, self._projects, pace, program)
        self._problem = self._shown_problem = ""
        self._searched_s = self._all_searched_s = self._refs_read_s = float("-inf")
        """When recent changes, all open changes and all refs were last requested."""
        self._refs_problems: dict[str, str] = {}

    async def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """Yield what is new at the watched projects; see `ports.forge.ForgeWatch`."""
        listening = [asyncio.ensure_future(self._ear.listen())] if self._server.stream_events else []
        failures = 0
        try:
            while True:
                for task in listening:
                    if task.done():
                        task.result()
                taken = self._wanted.take()
                wait_s = 0.0
                try:
                    async for sighting in self._round(taken, known, heads, refs):
                        yield sighting
                    self._problem, failures = "", 0
                except (GerritAway, GerritRefused) as error:
                    # Put the hints back, so that an outage loses none; a change that was already queried yields nothing
                    # new.
                    self._wanted.put_back(taken)
                    self._went(error)
                    wait_s = max(self._pace.retry_s(failures), getattr(error, "wait_s", 0.0))
                    failures += 1
                if (problem := self._changed_problem()) is not None:
                    yield problem
                await self._pause(wait_s)
        finally:
            await end(*listening)

    # --- one round

    async def _round(
        self,
        taken: GerritWatchList,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """Query what is due or hinted at. Raise GerritAway, GerritRefused."""
        now = dict(known)
        # At the first query of a project, record its open changes, but start nothing for their past events.
        quiet = {project for project in self._projects if heads.get(project) is None}
        numbers = dict(taken.numbers)
        found, everywhere = await self._searched(taken, now)
        numbers |= {number: numbers.get(number, False) for number in found}
        for some in _portions(sorted(numbers), AT_ONCE):
            sighting = await self._look(some, numbers, known, quiet)
            if sighting is not None:
                yield sighting
        for project in sorted(self._due_refs(taken, everywhere)):
            async for sighting in self._look_at_refs(project, heads, refs):
                yield sighting
        if taken.answered:
            yield Sighting(answered=tuple(taken.answered))

    async def _searched(self, taken: GerritWatchList, now: Mapping[str, ChangeState]) -> tuple[set[int], bool]:
        """Make the searches that are due. Return the changes that differ from their known states, and whether all open
        changes were searched."""
        at_s = time.monotonic()
        if taken.everywhere or at_s - self._all_searched_s >= self._pace.all_s:
            there = [one for query in self._queries("status:open") for one in await self._rest.changes(query, ())]
            listed = {one.number for one in there}
            self._looker.learn(now.values())
            submits_topics = (await self._rest.info()).change.submit_whole_topic
            # The setting decides which changes land together, but the marks of the changes do not show that it moved.
            turned = {one.number for one in there} if self._looker.turns(submits_topics) else set()
            ours = [s for s in now.values() if s.change.number and s.change.project in self._projects]
            # Known as open and no longer listed: merged, abandoned, deleted or hidden since.
            gone = {int(s.change.number) for s in ours if s.untold or s.open}
            self._searched_s = self._all_searched_s = at_s
            return self._differing(there, now) | (gone - listed) | turned, True
        if at_s - self._searched_s < self._pace.lately_s:
            return set(), False
        since_s = at_s - self._searched_s + MARGIN_S
        queries = self._queries(f"-age:{int(since_s) + 1}s")
        differing = self._differing([one for q in queries for one in await self._rest.changes(q, ())], now)
        self._searched_s = at_s
        # A search that finds what the stream should have said shows that the stream is dead.
        self._ear.found(differing - set(taken.numbers))
        return differing, False

    def _queries(self, what: str) -> Iterator[str]:
        if len(self._projects) > PROJECTS_NAMED_MAX:
            yield what
            return
        for some in _portions(sorted(self._projects), PROJECTS_AT_ONCE):
            names = " OR ".join(f'project:"{self._server.path(project)}"' for project in some)
            yield f"{what} ({names})"

    def _differing(self, there: Iterable[ChangeInfo], now: Mapping[str, ChangeState]) -> set[int]:
        marks = {}
        for change_state in now.values():
            if change_state.details is not None and change_state.change.number and not change_state.untold:
                marks[int(change_state.change.number)] = GerritMark.of(change_state.details.mark).state
        ours = (one for one in there if self._server.project(one.project) in self._projects)
        # A server that is too old to send marks needs all its open changes read each time.
        return {one.number for one in ours if not one.mark or marks.get(one.number) != one.mark}

    async def _look(
        self,
        numbers: Sequence[int],
        afresh: Mapping[int, bool],
        known: Mapping[str, ChangeState],
        quiet: Collection[str],
    ) -> Sighting | None:
        by_number = {change_state.change.number: change_state for change_state in dict(known).values()}
        looks = [
            self._looker.look(n, by_number.get(str(n)), self._projects, afresh=afresh.get(n, False)) for n in numbers
        ]
        found = await self._all(looks)
        for one in found:
            self._stir_above(one, by_number)
        if not found:
            return None
        events = (event for one in found if one.change_state.change.project not in quiet for event in one.events)
        return Sighting(tuple(one.change_state for one in found), tuple(events))

    async def _all(self, looks: Sequence[Coroutine[Any, Any, GerritLookResult | None]]) -> list[GerritLookResult]:
        """Return the news about these changes. A change whose query fails alone yields nothing, and is queried again
        while it differs. Raise GerritAway, GerritRefused."""
        tasks = [asyncio.ensure_future(look) for look in looks]
        found, failed = list[GerritLookResult](), 0
        try:
            for task in tasks:
                try:
                    one = await task
                except (GerritAway, GerritRefused) as error:
                    failed += 1
                    log.warning("a change of %s cannot be read: %s", self._server.baseurl, error)
                else:
                    found += [one] if one is not None else []
        finally:
            await end(*tasks)
        # All failed: this call raises if the reason is that the server is unavailable.
        if failed == len(tasks):
            await self._rest.may()
        return found

    def _stir_above(self, found: GerritLookResult, by_number: Mapping[str, ChangeState]) -> None:
        """Query the changes again that are built on a change with a new patch set, or on one that is gone."""
        change = found.change_state.change
        was = by_number.get(change.number)
        if was is not None and (was.change.commit, was.open) != (change.commit, found.change_state.open):
            for change_state in by_number.values():
                if change_state.open and change.key in change_state.change.bases:
                    self._wanted.add(int(change_state.change.number), afresh=True)

    def _due_refs(self, taken: GerritWatchList, everywhere: bool) -> set[str]:
        at_s = time.monotonic()
        every_s = self._pace.refs_streamed_s if self._ear.listens else self._pace.refs_s
        if everywhere or at_s - self._refs_read_s >= every_s:
            self._refs_read_s = at_s
            return set(self._projects)
        return taken.refs & self._projects

    async def _look_at_refs(
        self, project: str, heads: Mapping[str, Mapping[str, str]], refs: Mapping[str, Mapping[str, str]]
    ) -> AsyncIterator[Sighting]:
        try:
            looked = await look_at_refs(self._engine, self._server.name, project, heads.get(project), refs.get(project))
        except (GitError, OSError) as error:
            if project not in self._refs_problems:
                log.error("%s cannot be read; retrying until it can: %s", project, error)
            self._refs_problems[project] = text = f"it cannot be read: {error}"
            yield Sighting(problems={project: text})
            return
        if looked.again:
            self._wanted.add(project=project)
        if looked.sighting is not None:
            yield looked.sighting
        if self._refs_problems.pop(project, ""):
            yield Sighting(problems={project: ""})

    # --- problems and time

    def _went(self, error: Exception) -> None:
        if not self._problem:
            log.error("%s does not answer; retrying until it does: %s", self._server.baseurl, error)
        self._problem = f"{self._server.baseurl} cannot be queried: {error}"

    def _changed_problem(self) -> Sighting | None:
        text = self._problem or self._ear.problem
        if text == self._shown_problem:
            return None
        self._shown_problem = text
        return Sighting(problems=dict.fromkeys(sorted(self._projects)[:PROJECTS_SHOWN_MAX], text))

    async def _pause(self, least_s: float) -> None:
        """Wait until there is something to query, but at least this long."""
        if least_s:
            # Ignore hints in the meantime: each event would otherwise cause a call to a server that is overloaded or
            # refuses us.
            await asyncio.sleep(least_s)
            return
        wait_s = max(0.0, self._searched_s + self._pace.lately_s - time.monotonic())
        doubt_s = self._ear.doubt_s()
        try:
            async with asyncio.timeout(wait_s if doubt_s is None else min(wait_s, doubt_s)):
                await self._wanted.stirred.wait()
        except TimeoutError:
            pass  # the next search is due


def _portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


class Looked(NamedTuple):
    sighting: Sighting | None
    """None if nothing is new."""
    again: bool = False
    """Whether to query again, because there is more or a part failed."""


async def look_at_refs(
    engine: GitEngine,
    connection: str,
    project: str,
    old: Mapping[str, str] | None,
    seen: Mapping[str, str] | None,
) -> Looked:
    """Compare a project's branches with `old`, and its tags with `seen`; None: this is the first query, whose refs
    cause no events. Raise GitError, OSError.
    """
    mirror = engine.mirror(project, connection)
    refs = await mirror.remote.refs(HEADS, TAGS)
    heads = {ref: commit for ref, commit in refs.items() if ref.startswith(HEADS)}
    misfits, events, again = Misfits(), list[TriggerEvent](), False
    if old is not None and heads != old:
        gone = await mirror.bring({ref: commit for ref, commit in heads.items() if old.get(ref) != commit})
        for ref in [ref for ref, commit in heads.items() if commit in gone]:
            # The branch moved between listing and fetch, or cannot be fetched: report it once its commit is here.
            as_it_was(old, ref, heads)
        found = await moved_heads(connection, project, mirror, old, heads)
        heads, again = found.now, found.more or bool(gone)
        events += map(_ref_updated, found.updates)
    others = moved_refs(connection, project, seen, watched(refs, misfits))
    if others is not None:
        again = again or others.more
        events += map(_ref_updated, others.updates)
    if old is not None and heads == old and others is None:
        return Looked(None, again)
    moved = {project: heads} if old is None or heads != old else {}
    return Looked(Sighting((), tuple(events), moved, {project: others.now} if others is not None else {}), again)


def _ref_updated(change: Change) -> TriggerEvent:
    at_ms = int(time.time() * 1000)
    # The id includes the time, because a branch may move back and forth between the same two commits.
    id = derived(EventKind.REF_UPDATED, change.project, change.ref, change.old_commit, change.commit, str(at_ms))
    return TriggerEvent(EventKind.REF_UPDATED, change, id, at_ms)
