"""Decide when to poll a repository: when its refs change, at hints, and once there is a place for the poll."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from watchfiles import Change, awatch

from headgate.base.tasks import run_until

log = logging.getLogger("headgate.git")

CHECK_S = 2.0
"""Interval between two checks whether the set of repositories has changed."""
STEP_MS, DEBOUNCE_MS = 10, 30
"""How long a repository must be quiet before it is polled, and the longest wait for that."""
UNREPORTABLE_S = 1.0
"""Pause of the watch after a change that cannot be reported, which bounds the load that many of them cause."""
_REFS = ("refs", "reftable")
_NOTES = "refs/notes/"
REST_S = 1.0
"""Shortest interval between the starts of two polls that hints request."""
SLOW_S = 5.0
"""Time after which a poll that is still running gives its place to the next one."""
SLOW_MAX = 100
"""Maximum number of polls that continue without a place."""

GitDirs = Callable[[], Mapping[str, Path]]
_Identity = tuple[Path, int, int, int]


async def watch(git_dirs: GitDirs, stir: Callable[[str], None], retry_s: float) -> None:
    """Call `stir` with each project whose refs may have changed, or that appeared or vanished.

    `git_dirs` returns the current repositories, project -> git directory.  If watching is impossible, `stir` is
    called for all of them every `retry_s` seconds.
    """
    seen: dict[str, _Identity] = {}
    unwatched = False
    while True:
        current = await asyncio.to_thread(lambda: _identities(git_dirs()))
        for project in {*current, *seen}:
            if current.get(project) != seen.get(project):
                stir(project)
        seen = current
        try:
            await _until_others(current, git_dirs, stir)
        except ExceptionGroup as error:  # the watcher cannot report a name that is not UTF-8
            log.info(
                "the watch reports a change that cannot be read; polling all repositories: %s", error.exceptions[0]
            )
            for project in current:
                stir(project)
            await asyncio.sleep(UNREPORTABLE_S)
        except (OSError, RuntimeError) as error:
            if await asyncio.to_thread(lambda: _identities(git_dirs())) != current:
                continue  # a repository has just disappeared
            if not unwatched:
                log.warning("repositories cannot be watched, polling every %.0f s instead: %s", retry_s, error)
            unwatched = True
            await asyncio.sleep(retry_s)
            for project in current:
                stir(project)


def _identities(dirs: Mapping[str, Path]) -> dict[str, _Identity]:
    """Return the identities of directories. A new directory at the same path may reuse the inode number, but its file
    `config` is newer."""
    found = {}
    for project, path in dirs.items():
        try:
            status = path.stat()
        except OSError:
            continue
        try:
            made_ns = (path / "config").stat().st_ctime_ns
        except OSError:
            made_ns = 0
        found[project] = (path, status.st_dev, status.st_ino, made_ns)
    return found


async def _until_others(current: Mapping[str, _Identity], git_dirs: GitDirs, stir: Callable[[str], None]) -> None:
    """Watch until the set of repositories changes."""
    others = asyncio.Event()
    projects = {str(path): project for project, (path, *_) in current.items()}
    refs = [place for path, *_ in current.values() for name in _REFS if (place := path / name).is_dir()]

    async def changes() -> None:
        watched = awatch(*refs, step=STEP_MS, debounce=DEBOUNCE_MS, watch_filter=_settled, stop_event=others)
        async for found in watched:
            for project in _stirred(projects, found):
                stir(project)

    async def check() -> None:
        for project in current:  # a poll finds what changed before the watch began
            stir(project)

        def now() -> Mapping[str, _Identity]:
            return _identities(git_dirs())

        while await asyncio.to_thread(now) == current:  # noqa: ASYNC110  # no event reports a replaced directory
            await asyncio.sleep(CHECK_S)
        others.set()

    await run_until(others, *([changes()] if refs else []), check())


def _stirred(projects: Mapping[str, str], found: Iterable[tuple[Change, str]]) -> set[str]:
    """Return the projects with changes that a poll handles. Ignore notes: those with results are read once their change
    is gone, and most notes are our own."""
    stirred = set()
    for _, path in found:
        for git_dir in map(str, Path(path).parents):
            if git_dir in projects and not path.startswith(f"{git_dir}/{_NOTES}"):
                stirred.add(projects[git_dir])
    return stirred


def _settled(change: Change, path: str) -> bool:
    """Return whether the path shows a finished change: git locks a ref before it changes it, and removing the lock
    completes the change, even of a packed ref."""
    return change is Change.deleted or not path.endswith(".lock")


class Hinted:
    """Collect hints. A poll answers the hints that arrived before it started; later ones wait for the next poll."""

    def __init__(self, rest_s: float = REST_S) -> None:
        self._rest_s, self._ids = rest_s, list[str]()
        self._from: float | None = None
        """When the last poll began, by the loop's clock; None before the first."""
        self._later: asyncio.TimerHandle | None = None

    def add(self, id: str, stirred: asyncio.Event | None) -> None:
        """Add a hint. Set `stirred` once it is time to poll; None: a poll will follow anyway."""
        self._ids.append(id)
        # A timer is already running; its poll will answer this hint as well.
        if stirred is None or self._later is not None:
            return
        loop = asyncio.get_running_loop()
        if self._from is None or loop.time() >= self._from + self._rest_s:
            stirred.set()
        else:
            self._later = loop.call_at(self._from + self._rest_s, stirred.set)

    def taken(self) -> tuple[str, ...]:
        """Return the hints that the poll which begins now answers."""
        self._from = asyncio.get_running_loop().time()
        if self._later is not None:
            self._later.cancel()
            self._later = None
        ids, self._ids = tuple(self._ids), []
        return ids


class LookPlaces:
    """Limit how many polls run concurrently; a slow one gives its place to the next, and continues without one."""

    def __init__(self, most: int) -> None:
        self._free, self._slow = asyncio.Semaphore(most), 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Provide a place for the context, or for its first seconds."""
        await self._free.acquire()
        given = False

        def give() -> None:
            nonlocal given
            # The bound keeps a server that hangs from collecting unlimited processes.
            if self._slow < SLOW_MAX:
                given = True
                self._slow += 1
                self._free.release()

        timer = asyncio.get_running_loop().call_later(SLOW_S, give)
        try:
            yield
        finally:
            timer.cancel()
            if given:
                self._slow -= 1
            else:
                self._free.release()
