"""Bringing commits here.

A few refs are asked for by name, whose cost does not grow with the number of refs there are; many, or such as went
meanwhile, by fetching everything.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from pathlib import Path

from headgate.adapters.git.command import GitError, RemoteError, git

ATTEMPTS_MAX = 5
FEW = 50
"""Refs asked for by name."""
TIMEOUT_S = 3600.0
"""The first fetch brings a whole repository."""
STALE_S = 60.0
"""A lock file of git this old, found by whoever has the mirror for himself, was left by a git that was killed."""
_EVERYTHING = ("+refs/heads/*:refs/heads/*", "+refs/for/*:refs/for/*")
_LOCKED = re.compile(r"Unable to create '([^\n']+\.lock)': File exists")


async def fetch(mirror: Path, url: str, refs: Collection[str]) -> None:
    """What these refs of the remote have, and maybe more; that one has gone is no failure.  For whoever has the mirror
    for himself.  Raises GitError, OSError."""
    if len(refs) <= FEW:
        try:
            # Branches are kept by name, so that the next fetch can say what is here.
            await _fetch(mirror, url, *(f"+{ref}:{ref}" if ref.startswith("refs/heads/") else ref for ref in refs))
            return
        except RemoteError:
            pass  # one went, or another has its name for a directory
    await _fetch(mirror, url, "--prune", *_EVERYTHING)


async def _fetch(mirror: Path, url: str, *args: str) -> None:
    options = ("-q", "--no-tags", "--no-write-fetch-head", "--refmap=")
    for attempt in range(ATTEMPTS_MAX):
        try:
            await git("fetch", *options, url, *args, at=mirror, remote=True, timeout_s=TIMEOUT_S)
            return
        except GitError as error:
            if attempt == ATTEMPTS_MAX - 1 or not _unlocked(error):
                raise


def _unlocked(error: GitError) -> bool:
    """Was it a lock file somebody left behind?  Then it is gone now."""
    found = _LOCKED.search(error.said)
    if found is None:
        return False
    file = Path(found[1])
    try:
        stale = time.time() - file.stat().st_mtime > STALE_S
        if stale:
            file.unlink()
    except FileNotFoundError:
        return True
    return stale
