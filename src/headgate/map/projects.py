"""Declare the records of projects: refs, protected branches, configuration; read and write layouts."""

from __future__ import annotations

import msgspec

from headgate.config.operator.model import Protection
from headgate.map.records import ConfigBranch, ConfigRead, Empty, LayoutRecord, Raw
from headgate.map.tree import Address, Dir, each, place
from headgate.recipes import blob
from headgate.recipes.codec import decode, readable
from headgate.recipes.mirror import Mirror
from headgate.store.types import Delete, Op, Put


class RefsLooked(msgspec.Struct, frozen=True):
    """Record the time since which the refs of a project are watched: from then on, refs that are created, moved or
    deleted cause events."""

    since_ms: int


class RefsSeen(msgspec.Struct, frozen=True):
    """Map each ref to the object (commit, tag or other) that it named when it was last read."""

    refs: dict[str, str]


class RefsPart(Dir):
    """Hold a part of the refs of one project, by the first two digits of the sha256 of their names."""

    record = place(
        RefsSeen,
        "Refs and their objects, written in the same commit as the events about changed refs.",
        by="scheduler",
        own=True,
        seed=False,
    )


class ProjectRefs(Dir):
    """Hold the tags and other refs of one project, without its branches."""

    looked = place(RefsLooked, "The time since which they are watched.", by="scheduler", own=True, seed=False)
    part = each(RefsPart, key="part", bare=True, seed=False)


class BranchRules(Dir):
    """Hold the protection of the branches of one project."""

    record = place(
        Protection,
        "Protected and locked branches, written in the same commit as the events that make tenants read them.",
        by="scheduler",
        node="sharded",
        own=True,
        seed=False,
    )


class ConfigFile(Dir):
    """Hold one configuration file."""

    text = place(Raw, "The text of one configuration file, unparsed.", by="scheduler", node="sharded", own=True)


class ConfigFiles(Dir):
    """Hold the configuration files of one branch of one project."""

    record = place(
        ConfigBranch,
        "The commit at which the files were read, and the paths that were searched.",
        own=True,
        by="scheduler",
    )
    file = each(ConfigFile, key="file", bare=True, under="config/lock/<project>")


class ConfigProject(Dir):
    """Hold the configuration of one project, by branch."""

    read = place(
        ConfigRead, "The settings with which it was read, or that it cannot be read.", own=True, by="scheduler"
    )
    branch = each(ConfigFiles, key="branch", bare=True)


class FormerFiles(Dir):
    """Hold the files of an earlier state of a branch, by their digest."""

    file = each(ConfigFile, key="file", bare=True, under="config/lock/<project>")


class FormerProject(Dir):
    """Hold earlier configuration of the branches of one project."""

    content = each(FormerFiles, key="digest", bare=True)


class ConfigLock(Dir):
    """Lock the configuration of one project."""

    lock = place(
        Empty,
        "Held by readers and writers of the cached configuration of one project.",
        by="scheduler",
        node="lock",
        own=True,
    )


class ConfigPlace(Dir):
    """Hold configuration as text, so that a layout can be built without calling mergers."""

    cache = each(ConfigProject, key="project", doc="Files by project, branch and name.")
    lock = each(ConfigLock, key="project", doc="Locks of these files.")
    former = each(
        FormerProject, key="project", doc="Files that a layout still uses although newer ones were read.", seed=False
    )


def layout_at(place: Address[LayoutRecord], mirror: Mirror) -> LayoutRecord | None:
    """Return the record in the mirror; None: there is none, or it is damaged, which is logged."""
    entry = mirror.get(place.path)
    if entry is None:
        return None
    try:
        return decode(blob.assemble(entry, mirror.under(place.path)), LayoutRecord)
    except ValueError:
        # A pointer whose pieces are missing cannot be decoded either: this logs the damage once, and returns None.
        return readable(entry, LayoutRecord)


def layout_ops(place: Address[LayoutRecord], record: LayoutRecord, mirror: Mirror) -> tuple[list[Op], Op, list[Op]]:
    """Return the operations that write the record: its pieces, each in a commit of its own; the switch to them; and the
    removal of the previous record's pieces."""
    *pieces, pointer = place.blob(record)
    written = {place.path, *(op.path for op in pieces if isinstance(op, Put))}
    stale: list[Op] = [Delete(entry.path) for entry in mirror.under(place.path) if entry.path not in written]
    return pieces, pointer, stale
