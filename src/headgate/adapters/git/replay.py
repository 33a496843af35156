"""Merging a chain again, on another machine or later: the commits are the same, or it is said that they are not."""

from __future__ import annotations

from headgate.adapters.git.command import Impossible
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.notes import NOTES, landed_as, read
from headgate.adapters.git.objects.merging import Conflict
from headgate.gate.change import Change
from headgate.gate.work import MergeItem, RepoState


class Lost(Exception):
    """A commit of the chain is not in the repository any more, and nothing says what became of it."""


async def replay(mirror: MirrorRepository, state: RepoState, project: str, branch: str) -> tuple[str, str]:
    """The commit before the last item of this project and branch, and after it.  Raises Lost, Conflict, GitError."""
    head = state.heads[project].get(f"refs/heads/{branch}")
    if head is None:
        raise Impossible(("merge",), 1, f"{project} has no branch {branch}")
    items = [item for item in state.chain if item.project == project and item.branch == branch]
    gone = await mirror.bring({f"refs/heads/{branch}": head, **{item.ref: item.commit for item in items}})
    if head in gone:
        raise Lost(f"commit {head} is no longer in {mirror.remote.url}")
    before = head
    for item in items:
        before, head = head, await _after(mirror, head, item, item.commit in gone)
    return before, head


async def _after(mirror: MirrorRepository, head: str, item: MergeItem, gone: bool) -> str:
    if not gone:
        return await mirror.merge(head, item)
    notes = await read(mirror, (await mirror.remote.refs(NOTES)).get(NOTES, ""), [item.commit])
    landed = landed_as(notes.get(item.commit, ""), item.branch)
    if not landed or not mirror.has(landed):
        raise Lost(f"commit {item.commit} is no longer in {mirror.remote.url}")
    return landed


async def expected(mirror: MirrorRepository, state: RepoState, change: Change, commit: str, head: str) -> str:
    """Where the branch, now at `head`, must be for `commit` to be landed: the commit it was tested on.

    Empty: it is not where it was, or has `commit` already.  Raises Impossible when `commit` cannot be had.
    """
    if mirror.has(commit) and head and await mirror.contains(head, commit):
        return ""
    own = [item for item in state.chain if item.project == change.project and item.branch == change.branch][-1]
    if not mirror.has(own.commit):
        raise Impossible(("merge",), 1, f"{change.ref} was withdrawn or replaced while it was being landed")
    try:
        if head and await mirror.merge(head, own) == commit:
            return head
        before, made = await replay(mirror, state, change.project, change.branch)
    except (Conflict, Lost):
        return ""
    if made != commit:
        raise Impossible(("merge",), 1, f"merging again gave {made}, not the tested {commit}")
    return before
