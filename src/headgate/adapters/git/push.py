"""Push tested commits to the heads of their branches, and messages to people as notes on their commits.

A landing is three things: the branch advances, the note says so, the refs of the change go: its proposal and its
approval; and so for all changes that land together.  They are pushed in one step where the remote can do that, else in
this order, each only if its ref is still where it was seen: so it is the remote that refuses to land what was withdrawn
a moment ago.  A repeated request after an interruption does what is left.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from headgate.adapters.git.command import GitImpossible, GitLimits, RemoteError
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.notes import NOTES, NotesMoved, annotate, landed_line
from headgate.adapters.git.poll.names import APPROVALS, FOR, VETOES, statement_of
from headgate.gate.state.change import Change
from headgate.gate.state.works import Landing, LandRequest, ReportRequest

log = logging.getLogger("headgate.git")

T = TypeVar("T")

ATTEMPTS_MAX = 20
"""Attempts when other pushes interfere."""
PAUSE_MAX_S = 2.0
WORDS_MAX_LINES, WORDS_MAX_CHARS = 20, 300
"""Limits on what is kept of a server's message when it refuses a push."""
PUSH_LIMITS = GitLimits(timeout_s=600.0, out_max_bytes=2**20)
"""A server may run hooks that take long; after a timeout, the next attempt shows whether the push has succeeded."""
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
"""Reasons of a remote that only mean that another push came first."""
PUSHED = (
    "Let Headgate's account push to the branch past its rules, or have the forge merge (land = merge, in the section of"
    " the connection)."
)
"""Advice to the operator when a forge refuses the push of a tested commit."""
_FORBIDDEN = re.compile(r"returned error: 403|permission to \S+ denied|not allowed to push|write access", re.IGNORECASE)
"""Messages of forges to accounts that may read a repository but not push to it; another attempt cannot help."""


class _Late(Exception):
    """Report that a ref was not where it was seen; the text is the remote's reason."""


class Shut(Exception):
    """Report that the queue is closed and that the push did not happen before."""


class PushRefused(GitImpossible):
    """Report that the remote rejects the change of these refs."""

    def __init__(self, code: int, reasons: Mapping[str, str], words: str) -> None:
        # In an atomic push, git also names each ref that failed only because another one did.
        own_reasons = {reason for reason in reasons.values() if "atomic" not in reason} or set(reasons.values())
        server_message = f"\nThe git server says:\n{words}" if words else ""
        super().__init__(("push",), code, f"the push was refused: {'; '.join(sorted(own_reasons))}{server_message}")
        self.refs = {ref for ref, reason in reasons.items() if "atomic" not in reason}
        """The refused refs, without those that were refused only because others were."""


class _Step(NamedTuple):
    """Describe one ref to push."""

    ref: str
    seen: str
    """Commit that the ref must still have; empty: the ref must not exist."""
    to: str
    """Commit that the ref gets; empty: the ref is deleted."""


async def land(mirror: MirrorRepository, work: LandRequest, expected: Mapping[str, str]) -> bool:
    """Advance each branch from where it is `expected` to the tested commit, end the changes, write their notes; all
    only while every change is still proposed and, where required, approved.

    True: a branch has moved, nothing was pushed.  What was done before is not done again.  Raises Shut, GitError,
    OSError.
    """
    parts = work.parts
    branches = {_branch(part): part.commit for part in parts}
    change_refs = {ref: commit for part in parts for ref, commit in _change_refs(part).items()}

    async def once() -> bool:
        # Read again at each attempt: a lost race means that something here has changed.
        refs = await mirror.remote.refs(*branches, *change_refs, VETOES, NOTES)
        left = await _left(mirror, parts, refs)
        # Only after `_left`: a push whose answer was lost must be
        # reported as landed, even if the queue was closed since.
        if left and work.shut:
            raise Shut
        if left and work.withheld:
            raise GitImpossible(("push",), 1, work.withheld)
        held = [step for part in left for step in _held(part)]
        # Gives people a readable reason; the push repeats the check with leases, since refs may move meanwhile.
        _may_land(left, held, refs)
        moves = [_Step(branch, refs[branch], branches[branch]) for branch in dict.fromkeys(map(_branch, left))]
        if any(step.seen != expected.get(step.ref) for step in moves):
            return True
        notes = await _noted(mirror, parts, work.pipeline, refs.get(NOTES, ""))
        # A ref that moved since is a new patchset, or an approval of one, and stays.
        gone = [_Step(ref, commit, "") for ref, commit in change_refs.items() if refs.get(ref) == commit]
        try:
            await _push(mirror, [moves, [_Step(NOTES, refs.get(NOTES, ""), notes)], gone], held)
        # Without atomic pushes the branch may have moved before the notes were refused: then the change has landed, and
        # an error would make people believe otherwise. The next look closes the change.
        except PushRefused as refused:
            now = await mirror.remote.refs(*branches) if moves else {}
            if any(now.get(step.ref) != step.to for step in moves):
                raise
            changes = ", ".join(part.change.key for part in parts)
            log.warning("%s: %s has landed, but what follows it was refused: %s", mirror.remote.url, changes, refused)
        return False

    return await _in_time(mirror, once)


async def tried(mirror: MirrorRepository, parts: Sequence[Landing], expected: Mapping[str, str]) -> bool:
    """Check whether `land` would succeed, as far as the server tells without a push. Nothing is changed.

    Return True if a branch has moved, or another push was quicker.  Raise GitError, OSError."""
    branches = {_branch(part): part.commit for part in parts}
    refs = await mirror.remote.refs(*branches, *(ref for part in parts for ref in _change_refs(part)), VETOES)
    try:
        left = await _left(mirror, parts, refs)
        held = [step for part in left for step in _held(part)]
        _may_land(left, held, refs)
        moves = [_Step(branch, refs[branch], branches[branch]) for branch in dict.fromkeys(map(_branch, left))]
        if any(step.seen != expected.get(step.ref) for step in moves):
            return True
        if moves:
            # git checks leases on its side in a dry run; hooks of the
            # server do not run, so a refusal may still come later.
            await _push_once(mirror, [*moves, *held], "--dry-run")
    except _Late:
        return True
    return False


def _branch(part: Landing) -> str:
    return f"refs/heads/{part.change.branch}"


async def _left(mirror: MirrorRepository, parts: Sequence[Landing], refs: Mapping[str, str]) -> list[Landing]:
    """Return the parts that are not in their branches yet.  Raise GitImpossible if a branch is gone, _Late if one
    moved."""
    heads = {_branch(part): refs.get(_branch(part), "") for part in parts}
    if gone := [branch for branch, head in heads.items() if not head]:
        raise GitImpossible(("push",), 1, f"the branch {gone[0].removeprefix('refs/heads/')} is gone")
    # A listed head that cannot be fetched any more was replaced in between.
    if await mirror.bring(heads):
        raise _Late(f"{', '.join(heads)} moved")
    return [
        part for part in parts
        if not (mirror.has(part.commit) and await mirror.contains(heads[_branch(part)], part.commit))
    ]  # fmt: skip


def _held(part: Landing) -> list[_Step]:
    """Return the refs of a change that must be where they were seen when it lands."""
    # `_ours` names the proposal and then the approval; the latter matters only where an approval is required.
    commit, must = part.change.commit, (*_ours(part.change)[: 2 if part.approved else 1], *part.leases)
    return [_Step(ref, commit, commit) for ref in must]


def _change_refs(part: Landing) -> dict[str, str]:
    """Return the refs of a change, of its approvals and of other statements on it, each with its expected commit."""
    return {**dict.fromkeys((*_ours(part.change), *part.leases), part.change.commit), **part.said}


def _may_land(left: Sequence[Landing], held: Sequence[_Step], refs: Mapping[str, str]) -> None:
    """Check that the changes may land. Raise GitImpossible."""
    _still_there(held, refs)
    for part in left:
        _nobody_objects(part.change, refs, part.vetoed)


async def _noted(mirror: MirrorRepository, parts: Sequence[Landing], pipeline: str, notes: str) -> str:
    """Return the notes with those of the parts, except parts that a forge merges, or whose commit cannot be fetched."""
    for part in parts:
        commit = part.change.commit
        if part.change.number:
            continue  # its forge merges and reports it
        if not await mirror.missing([commit]):
            landed_as = landed_line(part.change.branch, part.commit)
            notes = await annotate(mirror, commit, pipeline, part.note, notes, landed_as)
    return notes


async def report(mirror: MirrorRepository, work: ReportRequest, commit: str, heading: str) -> None:
    """Write the note on a commit below this heading, in place of an earlier one with the same heading. Raise GitError,
    OSError."""
    note = work.note
    landed = landed_line(work.change.branch, work.landed) if work.landed else ""

    async def once() -> None:
        notes = (await mirror.remote.refs(NOTES)).get(NOTES, "")
        await _push(mirror, [[_Step(NOTES, notes, await annotate(mirror, commit, heading, note, notes, landed))]])

    await _in_time(mirror, once)


async def say(
    mirror: MirrorRepository,
    notes_ref: str,
    noted: Callable[[str], Awaitable[str]],
    words: Mapping[str, str],
    held: Mapping[str, str],
) -> None:
    """Move refs (ref -> commit; empty: delete), and write notes, in one step, while the refs of `held` have their
    expected commits. Raise GitError, OSError."""

    async def once() -> None:
        refs = await mirror.remote.refs(notes_ref, *words, *held)
        if any(refs.get(ref) != commit for ref, commit in held.items()):
            raise GitImpossible(
                ("push",), 1, "another patchset was proposed meanwhile, or it was withdrawn; look again"
            )
        steps = [_Step(ref, refs.get(ref, ""), to) for ref, to in words.items()]
        notes = refs.get(notes_ref, "")
        steps.append(_Step(notes_ref, notes, await noted(notes)))
        await _push(mirror, [steps], [_Step(ref, commit, commit) for ref, commit in held.items()])

    await _in_time(mirror, once)


async def remove(mirror: MirrorRepository, refs: Mapping[str, str]) -> str:
    """Remove the refs that are still where they were seen, and leave those that moved meanwhile.

    Return why the remote does not let one of them go, or an empty string if it does.  Raise GitError, OSError."""
    async with mirror.exclusive.hold():
        for ref, commit in refs.items():
            try:
                # One by one: a ref that the server protects must not keep the others from going.
                await _push(mirror, [[_Step(ref, commit, "")]])
            except _Late:
                continue
            except PushRefused as refused:
                return str(refused)
    return ""


def _still_there(held: Sequence[_Step], refs: Mapping[str, str]) -> None:
    """Raise GitImpossible for a ref that is not where it must be."""
    for step in held:
        if refs.get(step.ref) == step.seen:
            continue
        if step.ref.startswith(("refs/approved/", APPROVALS)):
            raise GitImpossible(("push",), 1, f"its approval was withdrawn: {step.ref} is not {step.seen[:8]} any more")
        raise GitImpossible(("push",), 1, f"{step.ref} was withdrawn or replaced while it was being landed")


def _nobody_objects(change: Change, refs: Mapping[str, str], vetoed: bool) -> None:
    """Raise GitImpossible if somebody vetoes the change and vetoes count."""
    name = change.ref.removeprefix(FOR)
    vetoes = [statement for ref in refs if (statement := statement_of(ref, VETOES)) is not None]
    found = [person for person, proposal in vetoes if proposal == name]
    if vetoed and found:
        raise GitImpossible(("push",), 1, f"it was vetoed by {', '.join(sorted(found))}")


def _ours(change: Change) -> tuple[str, ...]:
    """Return the refs that propose a change and approve it; none for a change of a forge."""
    if change.number:
        return ()
    return f"refs/for/{change.branch}/{change.topic}", f"refs/approved/{change.branch}/{change.topic}"


async def _in_time(mirror: MirrorRepository, once: Callable[[], Awaitable[T]]) -> T:
    """Call `once` with exclusive access to the mirror, and again while other pushes come first, after a random pause
    each time, so that racers part. Raise GitImpossible when every attempt was too late."""
    why = ""
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            # Outside the lock, so that our own other pushes proceed meanwhile.
            await asyncio.sleep(random.uniform(0, min(PAUSE_MAX_S, 0.05 * 2**attempt)))
        async with mirror.exclusive.hold():
            try:
                return await once()
            # A note of another merger is the common case: all pipelines of a repository write the same notes ref.
            except (_Late, NotesMoved) as late:
                why = str(late)
    raise GitImpossible(("push",), 1, f"{mirror.remote.url}: each of {ATTEMPTS_MAX} pushes was too late: {why}")


async def _push(mirror: MirrorRepository, groups: Sequence[Sequence[_Step]], held: Sequence[_Step] = ()) -> None:
    """Push all steps that change something: in one push, or group by group if the remote cannot do that or refuses only
    later groups.  `held`: refs that must be where they are when the first group is pushed; most of them go in a later
    group, and the remote itself checks that.  Raise _Late, PushRefused, RemoteError."""
    todo = [[step for step in group if step.seen != step.to] for group in groups]
    todo = [group for group in todo if group]
    if not todo:
        return
    if mirror.atomic:
        try:
            await _push_once(mirror, [step for group in todo for step in group], "--atomic")
            return
        except PushRefused as refused:
            # The branch itself was refused. If only notes or deletions were, the first group is tried alone below.
            if refused.refs & {step.ref for step in todo[0]}:
                raise
        except RemoteError as error:
            if "does not support --atomic" not in error.message:
                raise
            # Remembered for this process only; after an upgrade of the server, a restart tries again.
            mirror.atomic = False
    for group in todo:
        # Only in an atomic push does the failed lease of a held ref keep the branch from moving.
        first = mirror.atomic and group is todo[0]
        await _push_once(mirror, [*group, *held] if first else group, *(["--atomic"] if first else []))


async def _push_once(mirror: MirrorRepository, steps: Sequence[_Step], *options: str) -> None:
    # With an empty expected value, the ref must not exist. A held ref is pushed to its own value only for its lease.
    leases = [f"--force-with-lease={step.ref}:{step.seen}" for step in steps]
    specs = [f"{step.to}:{step.ref}" for step in steps]
    try:
        args = ("push", *options, "--porcelain", *leases, "--", mirror.remote.url, *specs)
        await mirror.remote.talk(*args, at=mirror.path, limits=PUSH_LIMITS)
    except RemoteError as error:
        # Porcelain goes to standard output, what the server and its hooks say to standard error.
        reasons = _reasons(error.printed)
        if not reasons and _FORBIDDEN.search(error.message):
            reasons = dict.fromkeys((step.ref for step in steps if step.seen != step.to), "the account may not push")
        if not reasons:
            raise
        # A race explains the other refusals too, so the whole push is tried again with fresh refs.
        if any(race in reason for reason in reasons.values() for race in _RACES):
            raise _Late("; ".join(sorted(set(reasons.values())))) from error
        raise PushRefused(error.code, reasons, _words(error.message)) from error


def _words(output: str) -> str:
    """Return the message of the server and its hooks, in printable form."""
    lines = [line.removeprefix("remote:").strip() for line in output.splitlines() if line.startswith("remote:")]
    # The text reaches terminals and pages; escape sequences of a hostile server must not.
    shown = ["".join(c if c.isprintable() else "\ufffd" for c in line) for line in lines if line]
    return "\n".join(f"  {line[:WORDS_MAX_CHARS]}" for line in shown[:WORDS_MAX_LINES])


def _reasons(printed: str) -> dict[str, str]:
    """Return why each ref was refused, as `git push --porcelain` says; empty if the push failed before that."""
    lines = [line.split("\t") for line in printed.split("\n") if line.startswith("!\t")]
    # A line is `!<tab>FROM:TO<tab>[rejected] (reason)`.
    return {fields[1].rpartition(":")[2]: fields[-1] for fields in lines}


def refusal(project: str, error: Exception, work: LandRequest) -> str:
    """Return the text of an error, with its place if that is another repository."""
    text = str(error) if project == work.change.project else f"{project}: {error}"
    return f"{text}\n{PUSHED}" if work.change.number and isinstance(error, PushRefused) else text
