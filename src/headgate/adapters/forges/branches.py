"""Read the state of a branch at a forge from git, without relying on the forge's word."""

from __future__ import annotations

from collections.abc import Callable

import pygit2

from headgate.adapters.git.command import GitError
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.poll.names import HEADS
from headgate.ports.reporter import ReporterAway

MERGES_MAX = 200
"""Number of a branch's commits that are searched for a merge."""


class BranchReader:
    """Read branches of one connection."""

    def __init__(self, engine: Callable[[], GitEngine], connection: str) -> None:
        self._engine, self._connection = engine, connection

    async def head(self, project: str, branch: str) -> str:
        """Return the current commit of a branch; empty if the branch does not exist. Raise ReporterAway."""
        ref = HEADS + branch
        try:
            return (await self._engine().mirror(project, self._connection).remote.refs(ref)).get(ref, "")
        except (GitError, OSError, pygit2.GitError) as error:
            raise ReporterAway(f"{project} cannot be read: {error}") from error

    async def tree(self, project: str, branch: str, commit: str) -> str:
        """Return the tree of a commit on a branch; empty if the branch no longer contains the commit. Raise
        ReporterAway."""
        mirror, head = self._engine().mirror(project, self._connection), await self.head(project, branch)
        try:
            if head and await mirror.bring({HEADS + branch: head}):
                raise ReporterAway(f"{project} cannot be read: {head} cannot be had")
            return "" if await mirror.missing((commit,)) else str(mirror.tree(commit).id)
        except (GitError, OSError, KeyError, pygit2.GitError) as error:
            raise ReporterAway(f"{project} cannot be read: {error}") from error

    async def merge_of(self, project: str, branch: str, commit: str) -> str:
        """Return the commit that brought another one into a branch; empty if the branch does not contain that one, or
        has contained it for long. Raise ReporterAway."""
        at = await self.head(project, branch)
        if not at or not await self.tree(project, branch, at):
            return ""
        mirror = self._engine().mirror(project, self._connection)
        for _ in range(MERGES_MAX):
            # Along first parents: what was merged is the second parent of a commit of the branch itself.
            parents = mirror.parents(at)
            if at == commit or commit in parents[1:]:
                return at
            if not parents:
                break
            at = parents[0]
        return ""
