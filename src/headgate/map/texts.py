"""The places of configuration files, stored as text."""

from __future__ import annotations

from headgate.map.records import ConfigBranch, ConfigRead, Empty, Raw
from headgate.map.tree import Dir, each, place


class ConfigFile(Dir):
    """Hold one configuration file."""

    text = place(Raw, "The text of one configuration file, unparsed.", by="scheduler", node="sharded", own=True)


class ConfigFiles(Dir):
    """Hold the configuration files of one branch of one project."""

    record = place(
        ConfigBranch, "At which commit the files were read, and where they were looked for.", own=True, by="scheduler"
    )
    file = each(ConfigFile, key="file", bare=True, under="config/lock/<project>")


class ConfigProject(Dir):
    """Hold the configuration of one project, by branch."""

    read = place(ConfigRead, "How it was read, or that it could not be.", own=True, by="scheduler")
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
        Empty, "Readers and writers of the cached configuration of one project.", by="scheduler", node="lock", own=True
    )


class ConfigPlace(Dir):
    """Hold configuration as text, so that a layout can be built without calling mergers."""

    cache = each(ConfigProject, key="project", doc="Texts by project, branch and file name.")
    lock = each(ConfigLock, key="project", doc="Who reads or replaces those texts.")
    former = each(
        FormerProject, key="project", doc="Texts that a layout is made of though newer ones were read.", seed=False
    )
