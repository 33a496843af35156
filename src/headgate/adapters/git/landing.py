"""Pushing: a tested commit becomes the head of its branch; what people are told becomes a note on their commit.

A landing is three things: the branch advances, the note says so, the refs of the change go.  They are pushed in one
step where the remote can do that, else in this order, each only if its ref is still where it was seen.  Whoever asks
again after an interruption does what is left.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from headgate.adapters.git.command import Impossible, Limits, RemoteError
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.notes import NOTES, NotesMoved, annotate, landed_line
from headgate.gate.change import Change

log = logging.getLogger("headgate.git")

T = TypeVar("T")

ATTEMPTS_MAX = 20
"""Tries when somebody else pushes at the same moment."""
PAUSE_MAX_S = 2.0
PUSH_LIMITS = Limits(timeout_s=600.0, out_max_bytes=2**20)
"""A server may run hooks that take long; whether the push has arrived after all is seen when it is tried again."""
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


class _Late(Exception):
    """A ref was not where it was seen; the text is the remote's reason."""


class _Refused(Impossible):
    """The remote does not want these refs to change."""

    def __init__(self, code: int, reasons: Mapping[str, str]) -> None:
        told = {reason for reason in reasons.values() if "atomic" not in reason} or set(reasons.values())
        super().__init__(("push",), code, f"the push was refused: {'; '.join(sorted(told))}")
        self.refs = {ref for ref, reason in reasons.items() if "atomic" not in reason}
        """Without those that were refused only for the sake of others."""


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

    async def once() -> bool:
        refs = await mirror.remote.refs(branch, *_ours(change), NOTES)
        head = refs.get(branch)
        if head is None:
            raise Impossible(("push",), 1, f"the branch {change.branch} is gone")
        if await mirror.bring({branch: head}):
            raise _Late(f"{branch} moved")
        landed = mirror.has(commit) and await mirror.contains(head, commit)
        if not landed and refs.get(_ours(change)[0]) != change.commit:
            raise Impossible(("push",), 1, f"{_ours(change)[0]} was withdrawn or replaced while it was being landed")
        if not landed and head != expected:
            return True
        steps = [] if landed else [[_Step(branch, head, commit)]]
        if not await mirror.missing([change.commit]):
            notes = refs.get(NOTES, "")
            steps.append([_Step(NOTES, notes, await annotate(mirror, change.commit, pipeline, told, notes))])
        steps.append([_Step(ref, change.commit, "") for ref in _ours(change) if refs.get(ref) == change.commit])
        try:
            await _push(mirror, steps)
        except _Refused as refused:
            if not landed and (await mirror.remote.refs(branch)).get(branch) != commit:
                raise
            log.warning(
                "%s: %s has landed, but what follows it was refused: %s", mirror.remote.url, change.key, refused
            )
        return False

    return await _in_time(mirror, once)


async def report(mirror: MirrorRepository, commit: str, pipeline: str, note: str) -> None:
    """The note of `pipeline` on `commit`, in place of an earlier one of it.  Raises GitError, OSError."""

    async def once() -> None:
        notes = (await mirror.remote.refs(NOTES)).get(NOTES, "")
        await _push(mirror, [[_Step(NOTES, notes, await annotate(mirror, commit, pipeline, note, notes))]])

    await _in_time(mirror, once)


def _ours(change: Change) -> tuple[str, str]:
    return f"refs/for/{change.branch}/{change.topic}", f"refs/approved/{change.branch}/{change.topic}"


async def _in_time(mirror: MirrorRepository, once: Callable[[], Awaitable[T]]) -> T:
    """Alone with the mirror, and tried again when somebody else was quicker; later by chance, so that racers part."""
    why = ""
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            await asyncio.sleep(random.uniform(0, min(PAUSE_MAX_S, 0.05 * 2**attempt)))
        async with mirror.exclusive.hold():
            try:
                return await once()
            except (_Late, NotesMoved) as late:
                why = str(late)
    raise Impossible(("push",), 1, f"{mirror.remote.url}: each of {ATTEMPTS_MAX} pushes was too late: {why}")


async def _push(mirror: MirrorRepository, groups: Sequence[Sequence[_Step]]) -> None:
    """All steps that change something, in one push, or group by group when the remote cannot do that or does not want
    the later ones.  Raises _Late, _Refused, RemoteError."""
    todo = [[step for step in group if step.seen != step.to] for group in groups]
    todo = [group for group in todo if group]
    if not todo:
        return
    if mirror.atomic:
        try:
            await _push_once(mirror, [step for group in todo for step in group], "--atomic")
            return
        except _Refused as refused:
            if refused.refs & {step.ref for step in todo[0]}:
                raise
        except RemoteError as error:
            if "does not support --atomic" not in error.said:
                raise
            mirror.atomic = False
    for group in todo:
        await _push_once(mirror, group)


async def _push_once(mirror: MirrorRepository, steps: Sequence[_Step], *options: str) -> None:
    leases = [f"--force-with-lease={step.ref}:{step.seen}" for step in steps]
    specs = [f"{step.to}:{step.ref}" for step in steps]
    try:
        args = ("push", *options, "--porcelain", *leases, "--", mirror.remote.url, *specs)
        await mirror.remote.talk(*args, at=mirror.path, limits=PUSH_LIMITS)
    except RemoteError as error:
        reasons = _reasons(error.printed)
        if not reasons:
            raise
        if any(race in reason for reason in reasons.values() for race in _RACES):
            raise _Late("; ".join(sorted(set(reasons.values())))) from error
        raise _Refused(error.code, reasons) from error


def _reasons(printed: str) -> dict[str, str]:
    """ref -> why it was refused, as `git push --porcelain` says; empty: it did not come to that."""
    lines = [line.split("\t") for line in printed.split("\n") if line.startswith("!\t")]
    return {fields[1].rpartition(":")[2]: fields[-1] for fields in lines}
