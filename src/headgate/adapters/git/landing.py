"""Pushing: a tested commit becomes the head of its branch; what people are told becomes a note on their commit.

A landing is three things: the branch advances, the note says so, the refs of the change go.  They are pushed in one
step where the remote can do that, else in this order, each only if its ref is still where it was seen.  Whoever asks
again after an interruption does what is left.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from headgate.adapters.git.command import GitError, RemoteError, git
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.notes import NOTES, annotate, landed_line
from headgate.gate.change import Change

log = logging.getLogger("headgate.git")

ATTEMPTS_MAX = 20
"""Tries when somebody else pushes at the same moment."""
PAUSE_MAX_S = 2.0
_RACES = (
    "stale info",
    "fetch first",
    "non-fast-forward",
    "cannot lock ref",
    "failed to update ref",
    "failed to lock",
    "incorrect old value provided",
    "reference already exists",
    "atomic transaction failed",
)
"""Reasons of a remote that only say that another push was quicker."""


class _Step(NamedTuple):
    """One ref to push."""

    ref: str
    seen: str
    """Where it must still be; empty: it must not be."""
    to: str
    """Empty: it goes."""


async def land(mirror: MirrorRepository, change: Change, expected: str, commit: str, pipeline: str, note: str) -> bool:
    """Advances the branch from `expected` to `commit`, ends the change, writes its note.

    True: the branch has moved, nothing was pushed.  What was done before is not done again.  Raises GitError, OSError.
    """
    branch = f"refs/heads/{change.branch}"
    told = f"{note}\n\n{landed_line(change.branch, commit)}"
    why = ""
    async for _ in _attempts(mirror):
        refs = await mirror.remote.refs(branch, *_ours(change), NOTES)
        head = refs.get(branch)
        if head is None:
            raise GitError(("push",), 1, f"the branch {change.branch} is gone")
        if await mirror.bring({branch: head}):
            why = f"{branch} moved"
            continue
        landed = mirror.has(commit) and await mirror.contains(head, commit)
        if not landed and refs.get(_ours(change)[0]) != change.commit:
            raise GitError(("push",), 1, f"{_ours(change)[0]} was withdrawn or replaced while it was being landed")
        if not landed and head != expected:
            return True
        steps = [] if landed else [[_Step(branch, head, commit)]]
        if not await mirror.missing([change.commit]):
            notes = refs.get(NOTES, "")
            steps.append([_Step(NOTES, notes, await annotate(mirror, change.commit, pipeline, told, notes))])
        steps.append([_Step(ref, change.commit, "") for ref in _ours(change) if refs.get(ref) == change.commit])
        try:
            why = await _push(mirror, steps)
        except RemoteError:
            raise
        except GitError as error:
            if not landed and (await mirror.remote.refs(branch)).get(branch) != commit:
                raise
            log.warning("%s: %s has landed, but what follows it was refused: %s", mirror.remote.url, change.key, error)
            return False
        if not why:
            return False
    raise _never(mirror, why)


async def report(mirror: MirrorRepository, commit: str, pipeline: str, note: str) -> None:
    """The note of `pipeline` on `commit`, in place of an earlier one of it.  Raises GitError, OSError."""
    why = ""
    async for _ in _attempts(mirror):
        notes = (await mirror.remote.refs(NOTES)).get(NOTES, "")
        why = await _push(mirror, [[_Step(NOTES, notes, await annotate(mirror, commit, pipeline, note, notes))]])
        if not why:
            return
    raise _never(mirror, why)


def _ours(change: Change) -> tuple[str, str]:
    return f"refs/for/{change.branch}/{change.topic}", f"refs/approved/{change.branch}/{change.topic}"


def _never(mirror: MirrorRepository, why: str) -> GitError:
    return GitError(("push",), 1, f"{mirror.remote.url}: each of {ATTEMPTS_MAX} pushes was too late: {why}")


async def _attempts(mirror: MirrorRepository) -> AsyncIterator[int]:
    """Each alone with the mirror, and later than the one before by chance, so that racers part."""
    await mirror.ready()
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            await asyncio.sleep(random.uniform(0, min(PAUSE_MAX_S, 0.05 * 2**attempt)))
        async with mirror.exclusive.hold():
            yield attempt


async def _push(mirror: MirrorRepository, groups: Sequence[Sequence[_Step]]) -> str:
    """All steps that change something, in one push or group by group.  Not empty: a ref was not where it was seen."""
    todo = [[step for step in group if step.seen != step.to] for group in groups]
    todo = [group for group in todo if group]
    if not todo:
        return ""
    if mirror.atomic:
        try:
            return await _push_once(mirror, [step for group in todo for step in group], "--atomic")
        except RemoteError as error:
            if "does not support --atomic" not in error.said:
                raise
            mirror.atomic = False
    for group in todo:
        if late := await _push_once(mirror, group):
            return late
    return ""


async def _push_once(mirror: MirrorRepository, steps: Sequence[_Step], *options: str) -> str:
    """Empty when done; the remote's reason when another was quicker.  Raises RemoteError; GitError for a refusal."""
    leases = [f"--force-with-lease={step.ref}:{step.seen}" for step in steps]
    specs = [f"{step.to}:{step.ref}" for step in steps]
    args = ("push", *options, "--porcelain", *leases, mirror.remote.url, *specs)
    try:
        await git(*args, at=mirror.path, remote=True)
    except RemoteError as error:
        reasons = _reasons(error.printed)
        if not reasons:
            raise
        told = "; ".join(sorted({reason for reason in reasons if "atomic" not in reason} or reasons))
        if any(race in reason for reason in reasons for race in _RACES):
            return told
        raise GitError(args, error.code, f"the push was refused: {told}") from error
    return ""


def _reasons(printed: str) -> set[str]:
    """Why refs were refused, as `git push --porcelain` says; empty: it did not come to that."""
    return {line.split("\t")[-1] for line in printed.split("\n") if line.startswith("!\t")}
