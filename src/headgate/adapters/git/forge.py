"""Connect to plain git: changes are refs, and people propose, approve and abandon by pushing them."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pygit2
from msgspec.structs import replace

from headgate.adapters.git.command import GitError, GitImpossible
from headgate.adapters.git.connection import GitConnection
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.look import Look
from headgate.adapters.git.poll.moves import DOUBTED_S, Doubt, as_before
from headgate.adapters.git.poll.names import APPROVED, APPROVES_NOTHING, FOR, RECHECK, Names
from headgate.adapters.git.poll.watch import Hinted, LookPlaces, watch
from headgate.adapters.git.push import remove, report
from headgate.base.tasks import end
from headgate.config.operator.model import TenantProject
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.works import ReportRequest
from headgate.ports.forge import Hint, Sighting, of_project

log = logging.getLogger("headgate.git")

RETRY_MIN_S, RETRY_MAX_S = 0.25, 30.0
"""Pause before another poll of a repository that cannot be read; it grows, and is shortened randomly by up to half."""
ORPHANS_MAX = 20
"""Maximum number of approvals without a proposal that one poll answers."""
LOOKS_MAX = 8
"""Concurrent polls; those that take long do not count."""
FIRST_LOOK_MAX_S = 15.0
"""How long changes wait until the branches of all projects are known, since their footers may name any of them."""


class GitForge:
    """Watch the repositories of one connection; see `ports.forge.ForgeWatch`."""

    def __init__(self, connection: GitConnection, engine: GitEngine, projects: Mapping[str, TenantProject]) -> None:
        self.name = connection.name
        self._connection, self._engine = connection, engine
        self._projects = dict(projects)
        self._poll: _ForgePoll | None = None

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """Set the projects to watch; see `ports.forge.ForgeWatch`."""
        self._projects = dict(projects)

    def stir(self, hint: Hint) -> None:
        """Poll soon what a hint names; see `ports.forge.ForgeWatch`."""
        if self._poll is not None:
            self._poll.hint(hint)

    async def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """Yield sightings. A project is polled when its event `stirred` is set; its sighting is stored before the
        project is polled again."""
        poll = _ForgePoll(self._connection, self._engine, Names(self._projects.values()), known, heads, refs)
        followed = poll.followed = {project: _WatchedProject(project) for project in self._projects}
        poll.unseen = set(followed)

        def git_dirs() -> dict[str, Path]:
            found = ((project, self._connection.git_dir(project)) for project in followed)
            return {project: path for project, path in found if path is not None}

        def stir(project: str) -> None:
            followed[project].stirred.set()

        works = [poll.follow(one) for one in followed.values()] + [poll.answer()]
        if self._connection.local:
            works.append(watch(git_dirs, stir, self._connection.poll_interval_s))
        tasks = [asyncio.ensure_future(work) for work in works]
        self._poll = poll
        try:
            async for seen in _merged(poll.seen, tasks):
                yield seen.sighting
                seen.stored.set()
        finally:
            self._poll = None
            await end(*tasks)


@dataclass(frozen=True, slots=True)
class _StoredSighting:
    sighting: Sighting
    stored: asyncio.Event = field(default_factory=asyncio.Event)


async def _merged(
    seen: asyncio.Queue[_StoredSighting], tasks: list[asyncio.Task[None]]
) -> AsyncIterator[_StoredSighting]:
    """Yield sightings until one of the tasks fails, and then raise its error."""
    while True:
        getting = asyncio.ensure_future(seen.get())
        try:
            await asyncio.wait({getting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            # These tasks never end on their own; one that is done has failed, and awaiting it raises its error here.
            for task in tasks:
                if task.done():
                    await task
            yield await getting
        finally:
            getting.cancel()


@dataclass(slots=True)
class _WatchedProject:
    """Track one project, and the results of reading it."""

    project: str
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    hinted: Hinted = field(default_factory=Hinted)
    doubts: set[tuple[str, str]] = field(default_factory=set)
    answered: dict[str, str] = field(default_factory=dict)
    """Refs of answered requests, which must be deleted -> their commits."""
    deletion_error: str = ""
    """Why these refs cannot be deleted; empty if they can."""
    orphans: dict[str, str] = field(default_factory=dict)
    """Refs that approve something that is not proposed, without a notification so far -> their commits."""
    notified_orphans: dict[str, str] = field(default_factory=dict)
    """Refs like `orphans` for which a notification was written -> their commits."""
    doubt: Doubt = field(default_factory=Doubt)
    problem: str = ""
    """The problem that was last reported; empty if there is none."""
    failures: int = 0
    away_since: float = 0.0
    """The time since which the repository cannot be read, in monotonic seconds; 0 while it can."""

    def read_failed(self, error: Exception) -> float:
        """Log, once for each outage, that the repository cannot be read; return the seconds to wait."""
        if not self.away_since:
            self.away_since = time.monotonic()
            log.error("%s cannot be read; retrying until it can: %s", self.project, error)
        return self._pause_s()

    def _pause_s(self) -> float:
        longest: float = min(RETRY_MAX_S, RETRY_MIN_S * 2**self.failures)
        self.failures = min(self.failures + 1, 20)
        return longest * random.uniform(0.5, 1.0)

    def read_succeeded(self, *, late: bool, more: bool) -> float | None:
        """Log once that the repository can be read again. Return the seconds until the next poll, which is needed if
        something moved in the meantime (`late`) or if there is `more`; None if neither is the case."""
        if self.away_since:
            log.info("%s can be read again, after %.0f s", self.project, time.monotonic() - self.away_since)
            self.away_since, self.failures = 0.0, 0
        # `failures` grows here too: a ref that keeps moving, or cannot be fetched, is polled less and less often.
        if late and not more:
            return self._pause_s()
        self.failures = 0
        return 0.0 if more else None


class _ForgePoll:
    """Poll the projects of a connection."""

    def __init__(
        self,
        connection: GitConnection,
        engine: GitEngine,
        names: Names,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        others: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._connection, self._engine, self._names = connection, engine, names
        self._known, self._heads, self._others = known, heads, others
        self._looks = LookPlaces(LOOKS_MAX)
        self.followed: Mapping[str, _WatchedProject] = {}
        self.unseen: set[str] = set()
        """Projects whose branches were not read yet, not even unsuccessfully."""
        self._all_seen = asyncio.Event()
        # The queue has one place: a scheduler that stores slowly delays the polls, so no outdated sightings pile up.
        self.seen: asyncio.Queue[_StoredSighting] = asyncio.Queue(1)
        self._idle: asyncio.Queue[str] = asyncio.Queue()
        """Ids of hints about projects that are not watched."""

    def hint(self, hint: Hint) -> None:
        """Poll the named project soon; a project that cannot be read keeps its own pause before a retry."""
        named = [self.followed[hint.project]] if hint.project in self.followed else []
        for followed in named if hint.project else self.followed.values():
            # A project that cannot be read has a growing pause; hints from a busy server must not shorten it.
            followed.hinted.add(hint.id, None if followed.away_since else followed.stirred)
        if not named and (hint.project or not self.followed):
            self._idle.put_nowait(hint.id)

    async def answer(self) -> None:
        """Report hints without consequences as answered."""
        while True:
            await self.seen.put(_StoredSighting(Sighting(answered=(await self._idle.get(),))))

    async def follow(self, followed: _WatchedProject) -> None:
        """Poll the project repeatedly: when it changes and, if it is not watched, at intervals."""
        while True:
            # Clear the event before the poll: a change during the poll then causes another poll.
            followed.stirred.clear()
            hints = followed.hinted.taken()
            wait_s, sighting = await self._look(followed)
            if hints:
                sighting = replace(sighting or Sighting(), answered=hints)
            if sighting is not None:
                seen = _StoredSighting(sighting)
                await self.seen.put(seen)
                # The next poll compares with the stored state; without this wait it would report the same events again.
                await seen.stored.wait()
            # Delete the ref only after the event is stored: a crash before that leaves the ref, so that the recheck is
            # repeated, not lost.
            if followed.answered and not followed.deletion_error:
                wait_s = await self._clear(followed, wait_s)
            if followed.orphans:
                wait_s = await self._tell_orphans(followed, wait_s)
            if self._connection.git_dir(followed.project) is None:
                wait_s = self._connection.poll_interval_s if wait_s is None else wait_s
            try:
                async with asyncio.timeout(wait_s):
                    await followed.stirred.wait()
            except TimeoutError:
                pass  # the next poll is due

    async def _clear(self, followed: _WatchedProject, wait_s: float | None) -> float | None:
        """Remove the refs of requests whose events are stored; return the seconds until the next poll, None for no
        limit. Refs that the server refuses to delete stay, and have no further effect."""
        try:
            mirror = self._engine.mirror(followed.project, self._connection.name)
            followed.deletion_error = await remove(mirror, followed.answered)
        except (GitError, OSError, pygit2.GitError) as error:
            return followed.read_failed(error)
        if followed.deletion_error:
            log.warning("%s: refs below %s cannot be removed: %s", followed.project, RECHECK, followed.deletion_error)
            return min(wait_s, DOUBTED_S) if wait_s is not None else DOUBTED_S  # so that the page shows it
        # A ref that is gone from the server, or now names another commit, needs no deletion.
        followed.answered = {}
        return wait_s

    async def _tell_orphans(self, followed: _WatchedProject, wait_s: float | None) -> float | None:
        """Leave a note on commits that are approved but were never proposed. Return the seconds until the next poll,
        None for no limit."""
        mirror = self._engine.mirror(followed.project, self._connection.name)
        # Each note is a separate push; the rest waits for the next poll, so that a flood of approvals cannot occupy the
        # server.
        for ref, commit in list(followed.orphans.items())[:ORPHANS_MAX]:
            del followed.orphans[ref]
            followed.notified_orphans[ref] = commit
            name = ref.removeprefix(APPROVED)
            text = f"{ref} has no effect: {APPROVES_NOTHING}. Propose it first: push it to {FOR}{name}."
            try:
                if not await mirror.bring({ref: commit}):
                    about = Change(self._connection.name, followed.project, "", commit=commit, ref=ref)
                    await report(mirror, ReportRequest(about, "approval", text), commit, "approval")
            except GitImpossible as error:
                log.warning("%s: the note that %s approves nothing cannot be written: %s", followed.project, ref, error)
            except (GitError, OSError, pygit2.GitError) as error:
                # The note could not be written this time; at the next poll the ref becomes an orphan again, and is
                # reported then.
                del followed.notified_orphans[ref]
                return followed.read_failed(error)
        return wait_s

    async def _look(self, followed: _WatchedProject) -> tuple[float | None, Sighting | None]:
        """Return the longest wait before the next poll (None: until the project changes), and what is new."""
        old_heads, seen = self._heads.get(followed.project), self._others.get(followed.project)
        old = {**(seen or {}), **(old_heads or {})}
        try:
            mirror = self._engine.mirror(followed.project, self._connection.name)
            try:
                async with self._looks.one():
                    listing = await mirror.remote.listing()
                    known = of_project(self._known, followed.project)
                    refs, misfits = as_before(listing, old, known)
                    if await followed.doubt.of(mirror.remote, refs, old, known):
                        return DOUBTED_S, _with_problem(None, followed, followed.doubt.problem)
                self._names.saw(followed.project, refs)
            finally:
                # This is in `finally`, so that a repository that cannot be read does not delay the first poll of the
                # others.
                await self._meet(followed.project)
            async with self._looks.one():
                look = Look(self._connection.name, followed.project, mirror, self._names, refs, known, misfits)
                followed.answered = {
                    ref: commit for ref, commit in followed.answered.items() if refs.get(ref) == commit
                }
                followed.deletion_error = followed.deletion_error if followed.answered else ""
                for ref in followed.answered if followed.deletion_error else ():
                    misfits.add(ref, f"it is done, but the server keeps the ref: {followed.deletion_error}; remove it")
                sighting = await look.compare(old_heads, seen, followed.doubts, followed.answered)
        except (GitError, OSError, pygit2.GitError) as error:
            return followed.read_failed(error), _with_problem(None, followed, f"it cannot be read: {error}")
        followed.doubts = look.doubts
        followed.answered |= look.answered
        followed.notified_orphans = {
            ref: commit for ref, commit in followed.notified_orphans.items() if look.orphans.get(ref) == commit
        }
        followed.orphans = {ref: commit for ref, commit in look.orphans.items() if ref not in followed.notified_orphans}
        followed.deletion_error = "" if look.answered else followed.deletion_error
        return followed.read_succeeded(late=look.late, more=look.more), _with_problem(
            sighting, followed, look.misfits.text
        )

    async def _meet(self, project: str) -> None:
        """Wait until Headgate has tried to read every project once, but at most `FIRST_LOOK_MAX_S`."""
        self.unseen.discard(project)
        if not self.unseen:
            self._all_seen.set()
        try:
            async with asyncio.timeout(FIRST_LOOK_MAX_S):
                await self._all_seen.wait()
        except TimeoutError:
            self._all_seen.set()  # a repository that does not answer delays no other


def _with_problem(sighting: Sighting | None, followed: _WatchedProject, problem: str) -> Sighting | None:
    if problem == followed.problem:
        return sighting
    followed.problem = problem
    return replace(sighting or Sighting(), problems={followed.project: problem})
