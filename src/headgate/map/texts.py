"""The places of configuration as text."""

from __future__ import annotations

from headgate.map.records import ConfigBranch, ConfigRead, Empty, Raw
from headgate.map.tree import Dir, each, place


class ConfigFile(Dir):
    """One file."""

    text = place(Raw, "The text of one configuration file, unparsed.", by="scheduler", node="sharded", own=True)


class ConfigFiles(Dir):
    """Configuration files of one branch of one project."""

    record = place(
        ConfigBranch, "At which commit the files were read, and where they were looked for.", own=True, by="scheduler"
    )
    file = each(ConfigFile, key="file", bare=True, under="config/lock/<project>")


class ConfigProject(Dir):
    """Configuration of one project, by branch."""

    read = place(ConfigRead, "How it was read, or that it could not be.", own=True, by="scheduler")
    branch = each(ConfigFiles, key="branch", bare=True)


class FormerFiles(Dir):
    """The files of a branch as it was, by their digest."""

    file = each(ConfigFile, key="file", bare=True, under="config/lock/<project>")


class FormerProject(Dir):
    """What branches of one project had."""

    content = each(FormerFiles, key="digest", bare=True)


class ConfigLock(Dir):
    """One project."""

    lock = place(
        Empty, "Readers and writers of the cached configuration of one project.", by="scheduler", node="lock", own=True
    )


class ConfigPlace(Dir):
    """Configuration as text, so that a layout can be built without asking mergers."""

    cache = each(ConfigProject, key="project", doc="Texts by project, branch and file name.")
    lock = each(ConfigLock, key="project", doc="Who reads or replaces those texts.")
    former = each(
        FormerProject, key="project", doc="Texts that a layout is made of though newer ones were read.", seed=False
    )
