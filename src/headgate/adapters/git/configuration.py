"""The configuration on the branches of one project, as a merge request wants it."""

from __future__ import annotations

from headgate.adapters.git.command import GitImpossible, RemoteError
from headgate.adapters.git.mirror import MirrorRepository
from headgate.config.branches import content_of
from headgate.gate.change import HEADS
from headgate.gate.work import MergeRequest, RepoState


async def configuration(
    mirror: MirrorRepository, work: MergeRequest, state: RepoState, project: str
) -> dict[str, dict[str, str]]:
    """Return branch -> path -> text at the merged state, without texts that are known. Raise GitImpossible if what a
    branch holds is damaged, GitError, OSError."""
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
    # A head that moved, or was refused a few times, may come with a later attempt; for ever, it would hold up all work.
    if await mirror.missing([commit]) and not mirror.refusals.is_sure(commit):
        raise RemoteError(("fetch",), 1, f"{why}: {commit} cannot be had: {mirror.refusals.why(commit) or 'it moved'}")
    try:
        return await mirror.texts(commit, paths)
    except GitImpossible as error:
        raise GitImpossible(("cat-file",), error.code, f"{why}: {error.message}") from error
