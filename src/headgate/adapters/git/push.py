"""Push tested commits to the heads of their branches, and messages to people as notes on their commits.

A landing has three steps: the branch advances, a note reports it, and the refs of the change (its proposal and its
approvals) are deleted; all changes that land together do this together.  If the remote supports it, one atomic push
makes all steps; otherwise they are pushed in this order, each only if its ref is still where it was seen.  So it is the
remote that refuses to land a change that was withdrawn a moment ago.  A request that is repeated after an interruption
makes the remaining steps.
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
from headgate.adapters.git.notes import NOTES, UNWRITABLE, NotesMoved, annotate, landed_line, names_of, notes_at
from headgate.adapters.git.poll.names import APPROVALS, FOR, VETOES, statement_of
from headgate.base.errors import RepositoryError
from headgate.gate.state.change import Change
from headgate.gate.state.works import Landing, LandRequest, ReportRequest

log = logging.getLogger("headgate.git")

T = TypeVar("T")

ATTEMPTS_MAX = 20
"""Attempts when other pushes interfere."""
PAUSE_MAX_S = 2.0
WORDS_MAX_LINES, WORDS_MAX_CHARS = 20, 300
"""Limits on the part of a server's message that is reported when it refuses a push."""
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
"""A remote's reasons that only mean that another push came first."""
PUSHED = (
    "Let Headgate's account push to the branch past its rules, or have the forge merge (land = merge, in the section of"
    " the connection)."
)
"""Advice to the operator when a forge refuses the push of a tested commit."""
_FORBIDDEN = re.compile(r"returned error: 403|permission to \S+ denied|not allowed to push|write access", re.IGNORECASE)
"""Messages of forges to accounts that may read a repository but not push to it; another attempt cannot help."""


class _Late(Exception):
    """Report that a ref was not where it was seen; the message is the remote's reason."""


class Shut(RepositoryError):
    """Report that the queue is closed, and that the push did not happen earlier."""


class PushRefused(GitImpossible):
    """Report that the remote rejects the change of these refs."""

    def __init__(self, code: int, reasons: Mapping[str, str], words: str) -> None:
        # For an atomic push, git also lists each ref that failed only because another one did.
        own_reasons = {reason for reason in reasons.values() if "atomic" not in reason} or set(reasons.values())
        server_message = f"\nThe git server says:\n{words}" if words else ""
        super().__init__(("push",), code, f"the push was refused: {'; '.join(sorted(own_reasons))}{server_message}")
        self.refs = {ref for ref, reason in reasons.items() if "atomic" not in reason}
        """The refused refs, without those that failed only because others did."""


class _Step(NamedTuple):
    """Describe one ref to push."""

    ref: str
    seen: str
    """Commit that the ref must still have; empty: the ref must not exist."""
    to: str
    """Commit that the ref gets; empty: the ref is deleted."""


async def land(mirror: MirrorRepository, work: LandRequest, expected: Mapping[str, str]) -> bool:
    """Advance each branch from its `expected` commit to the tested one, end the changes, and write their notes; all
    this only while every change is still proposed and, if required, approved.

    Return True if a branch has moved; then nothing was pushed.  A repeated call does not repeat completed steps.  Raise
    Shut, GitError, OSError.
    """
    parts = work.parts
    branches = {_branch(part): part.commit for part in parts}
    change_refs = {ref: commit for part in parts for ref, commit in _change_refs(part).items()}

    async def once() -> bool:
        # Read the refs again at each attempt: a lost race means that something here has changed.
        refs = await mirror.remote.refs(*branches, *change_refs, VETOES, *names_of(NOTES))
        left = await _left(mirror, parts, refs)
        # This must follow `_left`: a push whose answer was lost must be reported as landed, even if the queue was
        # closed since.
        if left and work.shut:
            raise Shut
        if left and work.withheld:
            raise GitImpossible(("push",), 1, work.withheld)
        held = [step for part in left for step in _held(part)]
        # This check gives people a readable reason; the push repeats it with leases, since refs may move in the
        # meantime.
        _may_land(left, held, refs)
        moves = [_Step(branch, refs[branch], branches[branch]) for branch in dict.fromkeys(map(_branch, left))]
        if any(step.seen != expected.get(step.ref) for step in moves):
            return True
        try:
            notes = await _noted(mirror, parts, work.pipeline, notes_at(refs, NOTES))
        # Whoever may push notes must not be able to stop landings.
        except UNWRITABLE as error:
            changes = ", ".join(part.change.key for part in parts)
            log.warning("%s: %s lands without a note: %s", mirror.remote.url, changes, error)
            notes = refs.get(NOTES, "")
        # A ref that has moved since belongs to a new patchset, and stays.
        gone = [_Step(ref, commit, "") for ref, commit in change_refs.items() if refs.get(ref) == commit]
        try:
            await _push(mirror, [moves, [_Step(NOTES, refs.get(NOTES, ""), notes)], gone], held)
        # Without atomic pushes, the branch may have moved before the remote refused the notes: then the change has
        # landed, and an error would be wrong. The next poll closes the change.
        except PushRefused as refused:
            now = await mirror.remote.refs(*branches) if moves else {}
            if any(now.get(step.ref) != step.to for step in moves):
                raise
            changes = ", ".join(part.change.key for part in parts)
            log.warning(
                "%s: %s has landed, but the remote refuses the notes or deletions that follow: %s",
                mirror.remote.url,
                changes,
                refused,
            )
        return False

    return await _in_time(mirror, once)


async def tried(mirror: MirrorRepository, parts: Sequence[Landing], expected: Mapping[str, str]) -> bool:
    """Check whether `land` would succeed, as far as the server shows without a push; change nothing.

    Return True if a branch has moved, or another push came first.  Raise GitError, OSError."""
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
            # In a dry run, git checks the leases on its side, but the server's hooks do not run, so it may still refuse
            # later.
            await _push_once(mirror, [*moves, *held], "--dry-run")
    except _Late:
        return True
    return False


def _branch(part: Landing) -> str:
    return f"refs/heads/{part.change.branch}"


async def _left(mirror: MirrorRepository, parts: Sequence[Landing], refs: Mapping[str, str]) -> list[Landing]:
    """Return the parts that have not landed yet.  Raise GitImpossible if a branch is gone, _Late if one moved."""
    heads = {_branch(part): refs.get(_branch(part), "") for part in parts}
    if gone := [branch for branch, head in heads.items() if not head]:
        raise GitImpossible(("push",), 1, f"the branch {gone[0].removeprefix('refs/heads/')} is gone")
    # A listed head that can no longer be fetched was replaced in between.
    if await mirror.bring(heads):
        raise _Late(f"{', '.join(heads)} moved")
    return [
        part for part in parts
        if not (mirror.has(part.commit) and await mirror.contains(heads[_branch(part)], part.commit))
    ]  # fmt: skip


def _held(part: Landing) -> list[_Step]:
    """Return the refs of a change that must still be where they were seen when it lands."""
    # `_ours` returns the proposal and then the approval; the latter matters only if an approval is required.
    commit, must = part.change.commit, (*_ours(part.change)[: 2 if part.approved else 1], *part.leases)
    return [_Step(ref, commit, commit) for ref in must]


def _change_refs(part: Landing) -> dict[str, str]:
    """Return the refs of a change, of its approvals and of other statements on it, each with its expected commit."""
    return {**dict.fromkeys((*_ours(part.change), *part.leases), part.change.commit), **part.approvals}


def _may_land(left: Sequence[Landing], held: Sequence[_Step], refs: Mapping[str, str]) -> None:
    """Check that the changes may land. Raise GitImpossible."""
    _still_there(held, refs)
    for part in left:
        _nobody_objects(part.change, refs, part.vetoed)


async def _noted(mirror: MirrorRepository, parts: Sequence[Landing], pipeline: str, notes: str) -> str:
    """Return the notes with those of the parts added, except for parts that a forge merges or whose commit cannot be
    fetched."""
    for part in parts:
        commit = part.change.commit
        if part.change.number:
            continue  # its forge merges and reports it
        if not await mirror.missing([commit]):
            landed_as = landed_line(part.change.branch, part.commit)
            notes = await annotate(mirror, commit, pipeline, part.note, notes, landed_as)
    return notes


async def report(mirror: MirrorRepository, work: ReportRequest, commit: str, heading: str) -> None:
    """Write the note on a commit below this heading, replacing an earlier one with the same heading. Raise GitError,
    OSError."""
    note = work.note
    landed = landed_line(work.change.branch, work.landed) if work.landed else ""

    async def once() -> None:
        notes = notes_at(await mirror.remote.refs(*names_of(NOTES)), NOTES)
        await _push(mirror, [[_Step(NOTES, notes, await annotate(mirror, commit, heading, note, notes, landed))]])

    await _in_time(mirror, once)


async def say(
    mirror: MirrorRepository,
    notes_ref: str,
    noted: Callable[[str], Awaitable[str]],
    words: Mapping[str, str],
    held: Mapping[str, str],
) -> None:
    """Move the refs of `words` (ref -> commit; empty: delete) and write notes, in one push, provided that the refs of
    `held` have their expected commits. Raise GitError, OSError."""

    async def once() -> None:
        refs = await mirror.remote.refs(*names_of(notes_ref), *words, *held)
        if any(refs.get(ref) != commit for ref, commit in held.items()):
            raise GitImpossible(
                ("push",), 1, "another patchset was proposed in the meantime, or it was withdrawn; reload the page"
            )
        steps = [_Step(ref, refs.get(ref, ""), to) for ref, to in words.items()]
        notes = notes_at(refs, notes_ref)
        steps.append(_Step(notes_ref, notes, await noted(notes)))
        await _push(mirror, [steps], [_Step(ref, commit, commit) for ref, commit in held.items()])

    await _in_time(mirror, once)


async def remove(mirror: MirrorRepository, refs: Mapping[str, str]) -> str:
    """Remove the refs that are still where they were seen, and leave those that moved in the meantime.

    Return why the remote refuses to delete one of them; empty if it does not.  Raise GitError, OSError."""
    async with mirror.exclusive.hold():
        for ref, commit in refs.items():
            try:
                # Push them one by one: a ref that the server protects must not keep the others from being deleted.
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
            raise GitImpossible(("push",), 1, f"its approval was withdrawn: {step.ref} is no longer {step.seen[:8]}")
        raise GitImpossible(("push",), 1, f"{step.ref} was withdrawn or replaced during its landing")


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
    """Call `once` with exclusive access to the mirror, and return its result; repeat it while other pushes come first.
    The pause before each repetition is random, so that competing processes do not stay in step. Raise GitImpossible if
    every attempt was too late."""
    why = ""
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            # Sleep outside the lock, so that our own other pushes proceed in the meantime.
            await asyncio.sleep(random.uniform(0, min(PAUSE_MAX_S, 0.05 * 2**attempt)))
        async with mirror.exclusive.hold():
            try:
                return await once()
            # Usually another merger has pushed a note: all pipelines of a repository write the same notes ref.
            except (_Late, NotesMoved) as late:
                why = str(late)
    raise GitImpossible(("push",), 1, f"{mirror.remote.url}: each of {ATTEMPTS_MAX} pushes was too late: {why}")


async def _push(mirror: MirrorRepository, groups: Sequence[Sequence[_Step]], held: Sequence[_Step] = ()) -> None:
    """Push all steps that change something: in one atomic push, or group by group if the remote does not support that
    or refuses only later groups. `held`: refs that must not have moved when the first group is pushed, which the remote
    itself checks; a later group deletes most of them. Raise _Late, PushRefused, RemoteError."""
    todo = [[step for step in group if step.seen != step.to] for group in groups]
    todo = [group for group in todo if group]
    if not todo:
        return
    if mirror.remote.atomic:
        try:
            await _push_once(mirror, [step for group in todo for step in group], "--atomic")
            return
        except PushRefused as refused:
            # The remote refuses the branch itself. If it refuses only notes or deletions, try the first group alone.
            if refused.refs & {step.ref for step in todo[0]}:
                raise
        except RemoteError as error:
            if "does not support --atomic" not in error.message:
                raise
            # Only this process remembers it; after an upgrade of the server, a restart tries again.
            mirror.remote.update_singly()
    for group in todo:
        # The failed lease of a held ref keeps the branch from moving only in an atomic push.
        first = mirror.remote.atomic and group is todo[0]
        await _push_once(mirror, [*group, *held] if first else group, *(["--atomic"] if first else []))


async def _push_once(mirror: MirrorRepository, steps: Sequence[_Step], *options: str) -> None:
    # An empty expected value means that the ref must not exist. A held ref is pushed unchanged, only for its lease.
    leases = [f"--force-with-lease={step.ref}:{step.seen}" for step in steps]
    specs = [f"{step.to}:{step.ref}" for step in steps]
    try:
        args = ("push", *options, "--porcelain", *leases, "--", mirror.remote.url, *specs)
        await mirror.remote.talk(*args, at=mirror.path, limits=PUSH_LIMITS)
    except RemoteError as error:
        # git writes porcelain to standard output, and the messages of the server and its hooks to standard error.
        reasons = _reasons(error.printed)
        if not reasons and _FORBIDDEN.search(error.message):
            reasons = dict.fromkeys((step.ref for step in steps if step.seen != step.to), "the account may not push")
        if not reasons:
            raise
        # A race also explains the other refusals, so repeat the entire push with fresh refs.
        if any(race in reason for reason in reasons.values() for race in _RACES):
            raise _Late("; ".join(sorted(set(reasons.values())))) from error
        raise PushRefused(error.code, reasons, _words(error.message)) from error


def _words(output: str) -> str:
    """Return the message of the server and its hooks, in printable form."""
    lines = [line.removeprefix("remote:").strip() for line in output.splitlines() if line.startswith("remote:")]
    # The message is shown on terminals and pages, which escape sequences of a hostile server must not reach.
    shown = ["".join(c if c.isprintable() else "\ufffd" for c in line) for line in lines if line]
    return "\n".join(f"  {line[:WORDS_MAX_CHARS]}" for line in shown[:WORDS_MAX_LINES])


def _reasons(printed: str) -> dict[str, str]:
    """Return why each ref was refused, from the output of `git push --porcelain`; empty if the push failed earlier."""
    lines = [line.split("\t") for line in printed.split("\n") if line.startswith("!\t")]
    # A line is `!<tab>FROM:TO<tab>[rejected] (reason)`.
    return {fields[1].rpartition(":")[2]: fields[-1] for fields in lines}


def refusal(project: str, error: Exception, work: LandRequest) -> str:
    """Return the message of an error, with the project if that is not the change's own."""
    text = str(error) if project == work.change.project else f"{project}: {error}"
    return f"{text}\n{PUSHED}" if work.change.number and isinstance(error, PushRefused) else text
