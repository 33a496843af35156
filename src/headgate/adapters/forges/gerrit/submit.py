"""Landing by submit: exactly the patch set that was tested, and a look at what Gerrit made of it."""

from __future__ import annotations

import pygit2

from headgate.adapters.forges.gerrit.rest import GerritConflict, GerritNotThere, GerritRefused, GerritRest
from headgate.adapters.git.command import GitError
from headgate.adapters.git.mirror import MirrorRepository
from headgate.gate.change import HEADS, Change
from headgate.gate.work import LandRequest
from headgate.ports.forge import MergeLanded, NotLanded, is_tested_on, tested_tree

UPON_MAX = 20
"""Commits that others may have added on top of ours before we look."""


async def submit(
    rest: GerritRest, mirror: MirrorRepository, work: LandRequest, change: Change
) -> MergeLanded | NotLanded:
    """Have Gerrit merge the change.  Raise GerritAway, GitError."""
    try:
        info = await rest.change(int(change.number))
    except GerritNotThere as error:
        return NotLanded(f"change {change.number} is not there any more, or hidden from us: {error}")
    if info.status == "MERGED":
        return await _landed(mirror, work, change)
    if not info.is_open:
        return NotLanded(f"change {change.number} is {info.status.lower()}")
    if info.current_revision != change.commit:
        number = info.current.number if info.current is not None else "another one"
        return NotLanded(f"patch set {change.patchset} was tested, and patch set {number} is the current one by now")
    if info.branch != change.branch:
        return NotLanded(f"change {change.number} was tested on {change.branch}, and is for {info.branch} by now")
    if not is_tested_on(work, change, await _head(mirror, change)):
        return NotLanded(f"{change.branch} is not where change {change.number} was tested", moved=True)
    try:
        # The revision is part of the call, so Gerrit refuses if another patch set has come since.
        info = await rest.submit(int(change.number), change.commit)
    except GerritConflict as error:
        return NotLanded(_why(change, error))
    except GerritRefused as error:
        return NotLanded(f"Gerrit does not let us submit it: {error}")
    if info.status != "MERGED":
        return NotLanded(f"Gerrit took the submit, but the change is {info.status}; see its page")
    return await _landed(mirror, work, change)


def _why(change: Change, error: GerritConflict) -> str:
    return f"Gerrit does not submit change {change.number}: {error}"


async def _landed(mirror: MirrorRepository, work: LandRequest, change: Change) -> MergeLanded:
    """Compare the branch with the tested commit."""
    head, tested = await _head(mirror, change), tested_tree(work, change)
    if not tested:
        return MergeLanded(head)
    try:
        if await mirror.bring({HEADS + change.branch: head}):
            raise GitError(("fetch",), 1, f"{head} of {change.project} cannot be had")
        # Others may have pushed on top before we look, so the tested tree is also sought a few commits below the head.
        commit = _with_tree(mirror, head, tested)
    except (KeyError, pygit2.GitError) as error:
        raise GitError(("fetch",), 1, f"{head} of {change.project} cannot be read: {error}") from error
    return MergeLanded(commit or head, differs=not commit)


def _with_tree(mirror: MirrorRepository, head: str, tested: str) -> str:
    """Return the commit of a branch that has this tree: its head, or a commit below later pushes; empty if there is
    none."""
    at = head
    for _ in range(UPON_MAX):
        if str(mirror.tree(at).id) == tested:
            return at
        parents = mirror.parents(at)
        if not parents:
            break
        at = parents[0]
    return ""


async def _head(mirror: MirrorRepository, change: Change) -> str:
    ref = HEADS + change.branch
    heads = await mirror.remote.refs(ref)
    if ref not in heads:
        raise GitError(("ls-remote",), 1, f"{change.project} has no branch {change.branch}")
    return heads[ref]
