"""Fetch commits, and remember those that a remote lists but cannot deliver.

A few branches are fetched by name, which costs the same however many refs there are. If there are many, or if a ref has
disappeared in the meantime, all branches are fetched, but only where a branch was wanted: a caller that finds a change
gone asks for the branch on which it landed. Refs of proposed changes get no name in the mirror, where the same name may
mean something else. If a fetch fails, the refs are fetched in parts: the objects behind one ref may be
damaged or endless, and the other refs can be fetched without it."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from headgate.adapters.git.command import GitError, GitLimits, OverTime, RemoteError, is_of_this_machine
from headgate.adapters.git.remote import HEADS, Remote

ATTEMPTS_MAX = 5
FEW = 50
"""Maximum number of branches that are fetched by name."""
FIRST_MAX_S, LATER_MAX_S = 3600.0, 600.0
"""Time limits of the first fetch, which brings a whole repository, and of later ones."""
APART_MAX_S = 120.0
PACK_MAX_BYTES = 32 * 2**30
"""Size limit of one fetch."""
APART_MAX = 60
"""Maximum number of parts into which a failing fetch is split."""
OVERDUE_MAX = 3
"""Fetches that may time out before the remote counts as unable to deliver anything."""
STALE_S = 60.0
"""Age above which a lock file counts as left behind by a killed git, provided that its finder holds the mirror's lock
for fetches. So does a lock file from the future: it is older than the last step of the clock."""
_ALL_HEADS = "+refs/heads/*:refs/heads/*"
_CUT = re.compile(r"invalid index-pack output|signal 25|[Ff]ile too large")
_LOCKED = re.compile(r"Unable to create '([^\n']+\.lock)': File exists")
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 900.0
"""Pause before the object is requested again; it grows from the first value to the second."""
REFUSALS_MAX = 10_000
"""Maximum number of commits of one remote whose refusal is remembered."""
SURE_AFTER = 5
"""Failed attempts after which a failure counts as permanent."""


async def fetch(mirror: Path, remote: Remote, wanted: Mapping[str, str], *, first: bool) -> dict[str, str]:
    """Fetch the commits of these refs of the remote, and maybe more; a ref that is gone is not an error. Return ref ->
    reason, for existing refs that could not be fetched. Requires the mirror's lock for fetches. Raise GitError,
    OSError."""
    limit_s = FIRST_MAX_S if first else LATER_MAX_S
    heads = [ref for ref in wanted if ref.startswith(HEADS)]
    if len(heads) <= FEW:
        try:
            # Store branches by name, so that the next fetch can tell the server which commits are here.
            named = [f"+{ref}:{ref}" if ref in heads else ref for ref in wanted]
            await _fetch(mirror, remote, named, limit_s)
            return {}
        except RemoteError as error:
            _raise_if_ours(error)
    # A single missing ref makes the entire `git fetch` fail, so reduce the list to the refs that exist now.
    existing = (await remote.listing_by_git(*wanted) if len(wanted) <= FEW else await remote.listing_by_git()).refs
    rest = [ref for ref in wanted if ref in existing]
    if not rest:
        return {}
    try:
        all_heads = [_ALL_HEADS] if heads else []
        # A branch `a` that was replaced by `a/b` collides with the old name here; pruning removes that name first.
        await _fetch(mirror, remote, [*all_heads, *(ref for ref in rest if ref not in heads)], limit_s, "--prune")
        return {}
    except RemoteError as error:
        _raise_if_ours(error)
    return await _apart(mirror, remote, rest)


async def _apart(mirror: Path, remote: Remote, refs: Collection[str]) -> dict[str, str]:
    """Fetch the refs in halves, and the halves that fail in halves again."""
    refused: dict[str, str] = {}
    waiting, given, overdue = [list(refs)], False, 0
    for _ in range(APART_MAX):
        if not waiting:
            break
        some = waiting.pop()
        try:
            await _fetch(mirror, remote, some, APART_MAX_S)
            # From now on the remote is known to deliver, so a timeout concerns single refs.
            given = True
        except RemoteError as error:
            _raise_if_ours(error)
            overdue += isinstance(error, OverTime)
            if len(some) > 1:
                waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
            else:
                refused[some[0]] = str(error)
            # Nothing has arrived at all: the server hangs, and trying each ref would take hours.
            if not given and overdue >= OVERDUE_MAX:
                raise
    later = "other refs could not be fetched, so this one will be tried later"
    return refused | {ref: later for some in waiting for ref in some}


def _raise_if_ours(error: RemoteError) -> None:
    if is_of_this_machine(error):
        raise error


async def _fetch(mirror: Path, remote: Remote, refs: Collection[str], limit_s: float, *options: str) -> None:
    # `--refmap=` ignores configured refspecs. Refs go through stdin, since thousands of them exceed a command line.
    always = ("-q", "--no-tags", "--no-write-fetch-head", "--refmap=", "--stdin")
    lines = "".join(f"{ref}\n" for ref in refs)
    # Use at most half of the free disk, so that one huge or hostile repository does not block all others.
    most = min(PACK_MAX_BYTES, await asyncio.to_thread(lambda: shutil.disk_usage(mirror).free) // 2)
    limits = GitLimits(timeout_s=limit_s, file_max_bytes=most)
    for attempt in range(ATTEMPTS_MAX):
        try:
            await remote.talk("fetch", *always, *options, "--", remote.url, at=mirror, stdin=lines, limits=limits)
            return
        except GitError as error:
            # A killed index-pack leaves its temporary pack, which may
            # be gigabytes; the lock for fetches makes removing it safe.
            await asyncio.to_thread(_tidy, mirror)
            if _CUT.search(error.message):
                # Another attempt is useless: the same pack would be cut at the same place.
                text = f"it sends more than the limit of {most} bytes, or something that is not a pack"
                raise RemoteError(("fetch",), error.code, text) from error
            if attempt == ATTEMPTS_MAX - 1 or not _unlocked(error):
                raise


def _tidy(mirror: Path) -> None:
    """Remove the temporary packs of a failed fetch."""
    for file in (mirror / "objects/pack").glob("tmp_*"):
        file.unlink(missing_ok=True)


def _unlocked(error: GitError) -> bool:
    """Return whether the error was caused by an abandoned lock file, which has then been removed."""
    found = _LOCKED.search(error.message)
    if found is None:
        return False
    file = Path(found[1])
    try:
        stale = abs(time.time() - file.stat().st_mtime) > STALE_S
        if stale:
            file.unlink()
    except FileNotFoundError:
        # The holder of the lock has released it in the meantime; another attempt succeeds.
        return True
    return stale


class RemoteRefusal(NamedTuple):
    """Describe the failed attempts to fetch one commit."""

    why: str
    times: int
    again_s: float
    """When to request it again, in monotonic seconds."""


class Refusals:
    """Remember which commits one remote refused to send, so that not every poll requests them."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._known: dict[str, RemoteRefusal] = {}

    def add(self, commit: str, why: str) -> None:
        known = self._known.pop(commit, None)
        times = known.times + 1 if known else 1
        while len(self._known) >= REFUSALS_MAX:
            del self._known[next(iter(self._known))]
        pause_s: float = min(PAUSE_MAX_S, PAUSE_MIN_S * 4 ** min(times - 1, 10))
        self._known[commit] = RemoteRefusal(why, times, self._now_s() + pause_s)

    def is_due(self, commit: str) -> bool:
        known = self._known.get(commit)
        return known is None or known.again_s <= self._now_s()

    def why(self, commit: str) -> str:
        """Return why a commit was refused, or an empty string if it was not."""
        known = self._known.get(commit)
        return known.why if known else ""

    def is_sure(self, commit: str) -> bool:
        known = self._known.get(commit)
        return known is not None and known.times >= SURE_AFTER
