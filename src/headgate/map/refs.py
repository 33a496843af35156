"""Where the tags and other refs of repositories are as last seen, and which branches are protected; for where branches
are, see the branch cache."""

from __future__ import annotations

import msgspec

from headgate.config.operator.model import Protection
from headgate.map.tree import Dir, each, place


class RefsLooked(msgspec.Struct, frozen=True):
    """The refs of a project were looked at: from then on one that is new, moves or goes is told."""

    since_ms: int


class RefsSeen(msgspec.Struct, frozen=True):
    """ref -> what it named when it was last seen: a commit, a tag, or whatever it names."""

    refs: dict[str, str]


class RefsPart(Dir):
    """A part of the refs of one project, by the first two digits of the sha256 of their names."""

    record = place(
        RefsSeen,
        "What they named; by the first digits of the sha256 of their names. Written with the events that tell of it.",
        by="scheduler",
        own=True,
        seed=False,
    )


class ProjectRefs(Dir):
    """Tags and other refs of one project, without its branches."""

    looked = place(RefsLooked, "Since when they are looked at.", by="scheduler", own=True, seed=False)
    part = each(RefsPart, key="part", bare=True, seed=False)


class BranchRules(Dir):
    """Of one project."""

    record = place(
        Protection,
        "Its protected and its locked branches. Written with what has every tenant read its configuration anew.",
        by="scheduler",
        node="sharded",
        own=True,
        seed=False,
    )
