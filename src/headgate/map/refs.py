"""Record where the tags and other refs of repositories pointed when last seen, and which branches are protected; for
where branches point, see the branch cache."""

from __future__ import annotations

import msgspec

from headgate.config.operator.model import Protection
from headgate.map.tree import Dir, each, place


class RefsLooked(msgspec.Struct, frozen=True):
    """Record since when the refs of a project are watched: from then on, refs that appear, move or vanish cause
    events."""

    since_ms: int


class RefsSeen(msgspec.Struct, frozen=True):
    """Map each ref to the commit, tag or other object that it named when last seen."""

    refs: dict[str, str]


class RefsPart(Dir):
    """Hold a part of the refs of one project, by the first two digits of the sha256 of their names."""

    record = place(
        RefsSeen,
        "What they named; by the first digits of the sha256 of their names. Written with the events that tell of it.",
        by="scheduler",
        own=True,
        seed=False,
    )


class ProjectRefs(Dir):
    """Hold the tags and other refs of one project, without its branches."""

    looked = place(RefsLooked, "Since when they are looked at.", by="scheduler", own=True, seed=False)
    part = each(RefsPart, key="part", bare=True, seed=False)


class BranchRules(Dir):
    """Hold the protection of the branches of one project."""

    record = place(
        Protection,
        "Its protected and its locked branches. Written with what has every tenant read its configuration anew.",
        by="scheduler",
        node="sharded",
        own=True,
        seed=False,
    )
