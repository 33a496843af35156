"""The trees of commits, which identify their content whoever made them and when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pygit2

from headgate.adapters.git.command import GitError
from headgate.adapters.git.mirror import MirrorRepository
from headgate.gate.change import HEADS
from headgate.gate.trees import Trees

log = logging.getLogger("headgate.git")

BRANCHES_MAX = 200
"""Most branches of one repository whose trees are reported."""


async def trees_of(mirror: MirrorRepository, commits: Mapping[str, str]) -> dict[str, str]:
    """Return branch -> tree, for a mapping of branch -> commit. Raises GitError."""

    def read() -> dict[str, str]:
        return {branch: mirror.parts(commit).tree for branch, commit in commits.items()}

    return await asyncio.to_thread(read)


async def known(
    mirrors: Mapping[str, MirrorRepository],
    heads: Mapping[str, Mapping[str, str]],
    bases: Mapping[str, Mapping[str, str]],
) -> Trees:
    """Return the trees of `heads` and `bases` (project -> ref, or branch -> commit) of these projects, except those
    that cannot be read."""
    found = Trees()
    for project, mirror in mirrors.items():
        commits = {ref.removeprefix(HEADS): commit for ref, commit in heads[project].items()}
        # Trees only serve to find reusable results; without them jobs run again, and nothing breaks.
        if len(commits) > BRANCHES_MAX:
            continue
        try:
            found.heads[project] = await trees_of(mirror, commits)
            if project in bases:
                found.bases[project] = await trees_of(mirror, bases[project])
        except (GitError, OSError, pygit2.GitError) as error:
            log.warning("the trees of %s are not known: %s", project, error)
    return found
