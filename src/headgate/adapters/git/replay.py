"""Merging a chain again, on another machine or later: the commits are the same, or an error says why not."""

from __future__ import annotations

from headgate.adapters.git.command import GitImpossible
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.notes import NOTES, landed_as, read
from headgate.adapters.git.objects.merge import MergeConflict
from headgate.gate.work import MergeItem, RepoState


class LostCommit(Exception):
    """Report that a commit of the chain is no longer in the repository and nothing shows what replaced it."""


async def replay(mirror: MirrorRepository, state: RepoState, project: str, branch: str) -> tuple[str, str]:
    """Return two commits: before the last item of the chain that is of this project and branch, and after it. Raises
    LostCommit, MergeConflict, GitError."""
    head = state.heads[project].get(f"refs/heads/{branch}")
    if head is None:
        raise GitImpossible(("merge",), 1, f"{project} has no branch {branch}")
    items = [item for item in state.chain if item.project == project and item.branch == branch]
    gone = await mirror.bring({f"refs/heads/{branch}": head, **{item.ref: item.commit for item in items}})
    if head in gone:
        raise LostCommit(f"commit {head} is no longer in {mirror.remote.url}")
    before, of = head, ""
    for item in items:
        # An item with several changes of one branch counts as one: `before` is the state ahead of its first change.
        before, of = (before if item.item == of else head), item.item
        head = await _after(mirror, head, item, item.commit in gone)
    return before, head


async def _after(mirror: MirrorRepository, head: str, item: MergeItem, gone: bool) -> str:
    if not gone:
        return await mirror.merge(head, item)
    # The change of an item ahead may have landed and its ref be
    # deleted since; its note names the commit that it became.
    notes = await read(mirror, (await mirror.remote.refs(NOTES)).get(NOTES, ""), [item.commit])
    landed = landed_as(notes.get(item.commit, ""), item.branch)
    if not landed or not mirror.has(landed):
        raise LostCommit(f"commit {item.commit} is no longer in {mirror.remote.url}")
    return landed


async def expected(mirror: MirrorRepository, state: RepoState, project: str, ref: str, commit: str, head: str) -> str:
    """Return the commit at which the branch `ref`, now at `head`, must be for `commit` to land: the one it was tested
    on. Empty if the branch is not there. Raises GitImpossible when `commit` cannot be fetched."""
    branch = ref.removeprefix("refs/heads/")
    items = [item for item in state.chain if (item.project, item.branch) == (project, branch)]
    own = [item for item in items if item.item == items[-1].item]
    if gone := [item for item in own if not mirror.has(item.commit)]:
        raise GitImpossible(("merge",), 1, f"{gone[0].ref} was withdrawn or replaced while it was being landed")
    try:
        made = head
        # The usual case first: everything ahead has landed, so the
        # own changes on the present head give the tested commit.
        for item in own if head else ():
            made = await mirror.merge(made, item)
        if head and made == commit:
            return head
        before, made = await replay(mirror, state, project, branch)
    # The branch has moved such that the state cannot be made again; the caller takes that as moved and tests anew.
    except (MergeConflict, LostCommit):
        return ""
    # Merging is deterministic, so the two mergers differ: in their git, or in the identity that they write.
    if made != commit:
        raise GitImpossible(("merge",), 1, f"merging again gave {made}, not the tested {commit}")
    return before
