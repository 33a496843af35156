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
from headgate.config.tenants import TenantProject
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.works import ReportRequest
from headgate.ports.forge import Hint, Sighting, of_project

log = logging.getLogger("headgate.git")

RETRY_MIN_S, RETRY_MAX_S = 0.25, 30.0
"""Pause before another look at a repository that cannot be read; it grows, and is shortened randomly by up to half."""
ORPHANS_MAX = 20
"""Most approvals without a proposal that one look answers."""
LOOKS_MAX = 8
"""Concurrent looks, without those that take long."""
FIRST_LOOK_MAX_S = 15.0
"""How long changes wait until the branches of all projects are known, since their footers may name any of them."""


class GitForge:
    """See `ports.forge.Watch`."""

    def __init__(self, connection: GitConnection, engine: GitEngine, projects: Mapping[str, TenantProject]) -> None:
        self.name = connection.name
        self._connection, self._engine = connection, engine
        self._projects = dict(projects)
        self._poll: _ForgePoll | None = None

    def look_at(self, projects: Mapping[str, TenantProject]) -> None:
        """See `ports.forge.Watch`."""
        self._projects = dict(projects)

    def stir(self, hint: Hint) -> None:
        """See `ports.forge.Watch`."""
        if self._poll is not None:
            self._poll.hint(hint)

    async def sightings(
        self,
        known: Mapping[str, ChangeState],
        heads: Mapping[str, Mapping[str, str]],
        refs: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Sighting]:
        """Yield sightings. Each project is looked at when it stirs; a sighting is stored before its project is looked
        at again."""
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
    """Yield sightings, until one of the tasks fails: its error is raised."""
    while True:
        getting = asyncio.ensure_future(seen.get())
        try:
            await asyncio.wait({getting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            # These tasks never end by themselves; one that is done has raised, and awaiting it raises that here.
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
    """Refs of answered requests, which are to be deleted -> their commits."""
    deletion_error: str = ""
    """Why these refs cannot be deleted; empty if they can."""
    orphans: dict[str, str] = field(default_factory=dict)
    """Refs that approve something nobody has proposed, and that nobody has been notified of yet -> their commits."""
    notified_orphans: dict[str, str] = field(default_factory=dict)
    """Such refs that people have been notified of -> their commits."""
    doubt: Doubt = field(default_factory=Doubt)
    problem: str = ""
    """The problem that was last reported; empty if there is none."""
    failures: int = 0
    away_since: float = 0.0
    """Since when the repository cannot be read, in monotonic seconds; 0 while it can."""

    def read_failed(self, error: Exception) -> float:
        """Log once that the repository cannot be read; return the seconds to wait."""
        if not self.away_since:
            self.away_since = time.monotonic()
            log.error("%s cannot be read; it is waited for: %s", self.project, error)
        return self._pause_s()

    def _pause_s(self) -> float:
        longest: float = min(RETRY_MAX_S, RETRY_MIN_S * 2**self.failures)
        self.failures = min(self.failures + 1, 20)
        return longest * random.uniform(0.5, 1.0)

    def read_succeeded(self, *, late: bool, more: bool) -> float | None:
        """Log once that the repository can be read again. Return the seconds until the next look that is needed because
        something moved meanwhile or because there is more; None if none is."""
        if self.away_since:
            log.info("%s can be read again, after %.0f s", self.project, time.monotonic() - self.away_since)
            self.away_since, self.failures = 0.0, 0
        # `failures` grows here too: a ref that keeps moving, or cannot be fetched, is looked at less and less often.
        if late and not more:
            return self._pause_s()
        self.failures = 0
        return 0.0 if more else None


class _ForgePoll:
    """Look at the projects of a connection."""

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
        """Projects whose branches nobody has tried to read yet."""
        self._all_seen = asyncio.Event()
        # One place only: a scheduler that stores slowly holds up the looks, and no outdated sightings pile up.
        self.seen: asyncio.Queue[_StoredSighting] = asyncio.Queue(1)
        self._idle: asyncio.Queue[str] = asyncio.Queue()
        """Hints at projects that are not watched."""

    def hint(self, hint: Hint) -> None:
        """Look at the named place soon; a project that cannot be read is retried anyway, and no sooner."""
        named = [self.followed[hint.project]] if hint.project in self.followed else []
        for followed in named if hint.project else self.followed.values():
            # A project that is away has its own growing pause; hints from a busy server must not shorten it.
            followed.hinted.add(hint.id, None if followed.away_since else followed.stirred)
        if not named and (hint.project or not self.followed):
            self._idle.put_nowait(hint.id)

    async def answer(self) -> None:
        """Report hints that have no consequences as answered."""
        while True:
            await self.seen.put(_StoredSighting(Sighting(answered=(await self._idle.get(),))))

    async def follow(self, followed: _WatchedProject) -> None:
        """Look at the project again and again: when it changes and, if it is not watched, at intervals."""
        while True:
            # Cleared before the look: what stirs during the look causes another one and is not lost.
            followed.stirred.clear()
            hints = followed.hinted.taken()
            wait_s, sighting = await self._look(followed)
            if hints:
                sighting = replace(sighting or Sighting(), answered=hints)
            if sighting is not None:
                seen = _StoredSighting(sighting)
                await self.seen.put(seen)
                # The next look compares with what is stored; without this wait it would report the same news again.
                await seen.stored.wait()
            # Only after the event is stored: a crash before leaves the
            # ref, and the recheck is taken up again rather than lost.
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
                pass  # the next look is due

    async def _clear(self, followed: _WatchedProject, wait_s: float | None) -> float | None:
        """Remove the refs of requests that are on their way; return the seconds until the next look, None for no limit.
        Refs that the server does not let go stay, and have no further effect."""
        try:
            mirror = self._engine.mirror(followed.project, self._connection.name)
            followed.deletion_error = await remove(mirror, followed.answered)
        except (GitError, OSError, pygit2.GitError) as error:
            return followed.read_failed(error)
        if followed.deletion_error:
            log.warning("%s: refs below %s cannot be removed: %s", followed.project, RECHECK, followed.deletion_error)
            return min(wait_s, DOUBTED_S) if wait_s is not None else DOUBTED_S  # so that the page shows it
        # What is gone from the server, or names another commit now, needs no deletion any more.
        followed.answered = {}
        return wait_s

    async def _tell_orphans(self, followed: _WatchedProject, wait_s: float | None) -> float | None:
        """Leave a note on commits that are approved but were never proposed.  Return the seconds until the next look,
        None for no limit."""
        mirror = self._engine.mirror(followed.project, self._connection.name)
        # Each note is a push of its own; the rest waits for the next
        # look, so a flood of approvals cannot occupy the server.
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
                log.warning("%s: nobody is told that %s approves nothing: %s", followed.project, ref, error)
            except (GitError, OSError, pygit2.GitError) as error:
                # The note could not be written this time; the ref becomes
                # an orphan again at the next look, and is reported then.
                del followed.notified_orphans[ref]
                return followed.read_failed(error)
        return wait_s

    async def _look(self, followed: _WatchedProject) -> tuple[float | None, Sighting | None]:
        """Return the time of the next look at the latest (None: when the project stirs), and the news."""
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
                # In `finally`, so that a repository that cannot be read
                # does not make the others wait for their first look.
                await self._meet(followed.project)
            async with self._looks.one():
                look = Look(self._connection.name, followed.project, mirror, self._names, refs, known, misfits)
                followed.answered = {
                    ref: commit for ref, commit in followed.answered.items() if refs.get(ref) == commit
                }
                followed.deletion_error = followed.deletion_error if followed.answered else ""
                for ref in followed.answered if followed.deletion_error else ():
                    misfits.add(ref, f"it was done, but the server keeps the ref: {followed.deletion_error}; remove it")
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
        """Wait until every project was tried once."""
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
