"""Merge a chain again, on another machine or later, and read the configuration and trees of the merged state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pygit2

from headgate.adapters.git.command import GitError, GitImpossible, RemoteError
from headgate.adapters.git.merge import MergeConflict
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.notes import NOTES, landed_as, read
from headgate.base.errors import RepositoryError
from headgate.config.operator.model import content_of
from headgate.gate.state.change import HEADS
from headgate.gate.state.gitwork import MergeItem, Trees
from headgate.gate.state.works import MergeRequest, RepoState

log = logging.getLogger("headgate.git")

BRANCHES_MAX = 200
"""Maximum number of branches of one repository whose trees are reported."""


class LostCommit(RepositoryError):
    """Report that a commit of the chain is no longer in the repository and nothing shows what replaced it."""


async def check_present(mirror: MirrorRepository, head: str, item: MergeItem) -> None:
    """Raise RemoteError if commits to merge are missing but may become available later."""
    absent = await mirror.missing([head, item.commit])
    refusals = mirror.refusals
    if head in absent:
        why = refusals.why(head) or "it moved"
        raise RemoteError(("fetch",), 1, f"the head of {item.branch}, {head}, cannot be fetched: {why}")
    if item.commit in absent and refusals.why(item.commit) and not refusals.is_sure(item.commit):
        raise RemoteError(("fetch",), 1, f"{item.ref} cannot be fetched: {refusals.why(item.commit)}")


async def brought(mirror: MirrorRepository, heads: Mapping[str, str], commit: str) -> bool:
    """Fetch the heads if possible; return whether the mirror then has `commit`, which is a head or was merged here.
    Raise GitError, OSError."""
    try:
        await mirror.bring(heads)
    except RemoteError:
        if not mirror.has(commit):
            raise
    return not await mirror.missing([commit])


async def replay(mirror: MirrorRepository, state: RepoState, project: str, branch: str) -> tuple[str, str]:
    """Return two commits: the states before and after the last item of the chain for this project and branch. Raise
    LostCommit, MergeConflict, GitError."""
    head = state.heads[project].get(f"{HEADS}{branch}")
    if head is None:
        raise GitImpossible(("merge",), 1, f"{project} has no branch {branch}")
    items = [item for item in state.chain if item.project == project and item.branch == branch]
    gone = await mirror.bring({f"{HEADS}{branch}": head, **{item.ref: item.commit for item in items}})
    if head in gone:
        raise LostCommit(f"commit {head} is no longer in {mirror.remote.url}")
    before, of = head, ""
    for item in items:
        # An item may have several changes of one branch: `before` is the state ahead of the first of them.
        before, of = (before if item.item == of else head), item.item
        head = await _after(mirror, head, item, item.commit in gone)
    return before, head


async def _after(mirror: MirrorRepository, head: str, item: MergeItem, gone: bool) -> str:
    if not gone:
        return await mirror.merge(head, item)
    # The change of an item ahead may have landed, and its ref been deleted; its note names the commit as which it
    # landed.
    notes = await read(mirror, (await mirror.remote.refs(NOTES)).get(NOTES, ""), [item.commit])
    landed = landed_as(notes.get(item.commit, ""), item.branch)
    # The copy may have been fetched before the change landed, and then lacks this commit of the branch.
    if not landed or landed in await mirror.bring({f"{HEADS}{item.branch}": landed}):
        raise LostCommit(f"commit {item.commit} is no longer in {mirror.remote.url}")
    return landed


async def expected(mirror: MirrorRepository, state: RepoState, project: str, ref: str, commit: str, head: str) -> str:
    """Return the commit at which the branch `ref`, now at `head`, must be for `commit` to land: the one on which
    `commit` was tested; empty if the branch has moved away from it. Raise GitImpossible if a change of the item cannot
    be fetched."""
    branch = ref.removeprefix(HEADS)
    items = [item for item in state.chain if (item.project, item.branch) == (project, branch)]
    own = [item for item in items if item.item == items[-1].item]
    if gone := [item for item in own if not mirror.has(item.commit)]:
        raise GitImpossible(("merge",), 1, f"{gone[0].ref} was withdrawn or replaced during its landing")
    try:
        made = head
        # Try the usual case first: everything ahead has landed, so merging the item's own changes into the current head
        # gives the tested commit.
        for item in own if head else ():
            made = await mirror.merge(made, item)
        if head and made == commit:
            return head
        before, made = await replay(mirror, state, project, branch)
    # The branch has moved so that the state cannot be merged again; the caller then tests the item again.
    except (MergeConflict, LostCommit):
        return ""
    # Merging is deterministic, so the two mergers must differ: in their git, or in the identity that they write.
    if made != commit:
        raise GitImpossible(("merge",), 1, f"merging again gave {made}, not the tested {commit}")
    return before


async def configuration(
    mirror: MirrorRepository, work: MergeRequest, state: RepoState, project: str
) -> dict[str, dict[str, str]]:
    """Return branch -> path -> text at the merged state, except for branches whose texts are known. Raise GitImpossible
    if the objects of a branch are damaged, GitError, OSError."""
    heads, known = state.heads[project], work.config_known.get(project, {})
    as_is = {b: heads[ref] for b in work.config_heads.get(project, ()) if (ref := f"{HEADS}{b}") in heads}
    found: dict[str, dict[str, str]] = {}
    for branch, commit in {**as_is, **state.merged.get(project, {})}.items():
        files = await _texts(mirror, branch, commit, work.config_paths[project])
        if content_of(files) != known.get(branch):
            found[branch] = files
    return found


async def _texts(mirror: MirrorRepository, branch: str, commit: str, paths: tuple[str, ...]) -> dict[str, str]:
    why = f"the configuration of the branch {branch} cannot be read"
    # A head that moved, or that the remote refused a few times, may come with a later attempt; after `SURE_AFTER`
    # refusals, waiting would only block all work.
    if await mirror.missing([commit]) and not mirror.refusals.is_sure(commit):
        reason = mirror.refusals.why(commit) or "it moved"
        raise RemoteError(("fetch",), 1, f"{why}: {commit} cannot be fetched: {reason}")
    try:
        return await mirror.texts(commit, paths)
    except GitImpossible as error:
        raise GitImpossible(("cat-file",), error.code, f"{why}: {error.message}") from error


async def trees_of(mirror: MirrorRepository, commits: Mapping[str, str]) -> dict[str, str]:
    """Return branch -> tree, for a mapping of branch -> commit. Raise GitError."""

    def read() -> dict[str, str]:
        return {branch: mirror.parts(commit).tree for branch, commit in commits.items()}

    return await asyncio.to_thread(read)


async def known_trees(
    mirrors: Mapping[str, MirrorRepository],
    heads: Mapping[str, Mapping[str, str]],
    bases: Mapping[str, Mapping[str, str]],
) -> Trees:
    """Return the trees of `heads` and `bases` (project -> ref, or branch -> commit) of these projects, except those
    that cannot be read."""
    found = Trees()
    for project, mirror in mirrors.items():
        commits = {ref.removeprefix(HEADS): commit for ref, commit in heads[project].items()}
        # Trees are needed only to find reusable results; without them, jobs run again.
        if len(commits) > BRANCHES_MAX:
            continue
        try:
            found.heads[project] = await trees_of(mirror, commits)
            if project in bases:
                found.bases[project] = await trees_of(mirror, bases[project])
        except (GitError, OSError, pygit2.GitError) as error:
            log.warning("the trees of %s cannot be read: %s", project, error)
    return found
