"""Read the projects of a tenant: names, names with settings, and groups that share settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.config.drivers import DRIVERS
from headgate.config.files.check import Keys, as_list, deep_plain, entries, table
from headgate.config.files.document import Table
from headgate.config.files.roots import STANDARD_PATHS
from headgate.config.files.source import Wrong, nearest
from headgate.config.keys.objects import CONFIG_KINDS, NODEPOOL_KINDS
from headgate.config.keys.tenant import CONFIG_PROJECT_KINDS, GROUP, PROJECT, SOURCE
from headgate.config.operator.model import Connection, TenantProject
from headgate.config.patterns import any_whole

_FOR_CONFIG_PROJECTS = ("allow-base-jobs",)
_FOR_UNTRUSTED = ("configure-projects", "allow-reporter-jobs")
GROUPS_MAX = 20
"""Largest number of levels of nested groups."""


def tenant_projects(
    stanza: Table, connections: Mapping[str, Connection], warnings: list[Wrong]
) -> tuple[TenantProject, ...]:
    """Return the config-projects, then the other projects, each in the order of the file; projects with the same short
    name are adjacent. Raise Wrong."""
    found: list[TenantProject] = []
    sources = stanza.get("source", Table(stanza.line))
    for name, source in sources.items():
        if name not in connections:
            text = f"the connection {name!r} is not configured{nearest(name, list(connections))}"
            raise Wrong(text, sources.at(name), "Unknown Connection")
        if (driver := DRIVERS.get(connections[name].driver)) is not None and driver.posts:
            raise Wrong(f"the connection {name!r} has no projects: it takes reports", sources.at(name))
        table(source, SOURCE, "source", warnings, sources.at(name))
        for key, trusted in (("config-projects", True), ("untrusted-projects", False)):
            reader = _Reader(connections[name], trusted, stanza, warnings)
            for entry, line in entries(source.get(key), source.at(key)):
                found += reader.read(entry, line, {}, 0)
    together = {name: place for place, name in reversed(list(enumerate(p.name for p in found)))}
    found.sort(key=lambda project: (not project.trusted, together[project.name]))
    _no_config_project_is_configured(found, stanza.at("source"))
    return tuple(found)


def _no_config_project_is_configured(found: list[TenantProject], line: int) -> None:
    trusted = [p for p in found if p.trusted]
    for project in found:
        for other in trusted if project.configure_projects else ():
            rules = project.configure_projects
            # Otherwise an untrusted project could choose the jobs that test changes of trusted playbooks.
            if any_whole(rules, other.name) or any_whole(rules, other.project):
                raise Wrong(f"configure-projects of {project.name} includes the config-project {other.name}", line)


class _Reader:
    """Read the entries of one list of projects."""

    def __init__(self, at: Connection, trusted: bool, tenant: Table, warnings: list[Wrong]) -> None:
        self._at, self._trusted, self._tenant, self._warnings = at, trusted, tenant, warnings
        others = _FOR_UNTRUSTED if trusted else _FOR_CONFIG_PROJECTS
        self._keys: Keys = {name: key for name, key in PROJECT.items() if name not in others}

    def read(self, entry: Any, line: int, given: Mapping[str, Any], depth: int) -> list[TenantProject]:
        if isinstance(entry, str):
            return [self._project(entry, line, given)]
        if isinstance(entry.get("projects"), list):
            return self._group(entry, given, depth)
        if len(entry) != 1:
            raise Wrong("a project is a name, or a mapping of one name to its settings", line)
        ((name, settings),) = entry.items()
        table(settings, self._keys, f"{'config' if self._trusted else 'untrusted'} project", self._warnings, line)
        self._paths(settings)
        return [self._project(name, line, {**given, **settings})]

    def _group(self, entry: Table, given: Mapping[str, Any], depth: int) -> list[TenantProject]:
        keys = {**self._keys, "projects": GROUP["projects"]}
        table(entry, keys, "group of projects", self._warnings, entry.line)
        if depth >= GROUPS_MAX:
            raise Wrong(f"groups are nested more than {GROUPS_MAX} levels deep", entry.line)
        self._paths(entry)
        settings = {**given, **{k: v for k, v in entry.items() if k != "projects"}}
        inner = entries(entry["projects"], entry.at("projects"))
        return [p for one, at in inner for p in self.read(one, at, settings, depth + 1)]

    def _paths(self, settings: Table) -> None:
        standard = {path.rstrip("/") for path in STANDARD_PATHS}
        for path, at in entries(settings.get("extra-config-paths"), settings.at("extra-config-paths")):
            if path.rstrip("/") in standard:
                raise Wrong(f"{path} is read anyway; extra-config-paths are others", at)

    def _project(self, name: str, line: int, settings: Mapping[str, Any]) -> TenantProject:
        host = self._at.canonical_hostname
        # The file may also name a project canonically.
        short = name.removeprefix(f"{host}/")
        if not short:
            raise Wrong("a project must have a name", line)
        defaults = self._tenant

        def rules(key: str) -> tuple[Any, ...]:
            return tuple(as_list(deep_plain(settings.get(key))))

        def inherited(key: str) -> bool:
            return bool(settings.get(key, defaults.get(key, False)))

        return TenantProject(
            project=f"{host}/{short}",
            name=short,
            connection=self._at.name,
            trusted=self._trusted,
            include=self._include(settings),
            shadow=rules("shadow"),
            include_branches=rules("include-branches"),
            exclude_branches=rules("exclude-branches"),
            always_dynamic_branches=rules("always-dynamic-branches"),
            exclude_unprotected_branches=inherited("exclude-unprotected-branches"),
            exclude_locked_branches=inherited("exclude-locked-branches"),
            implied_branch_matchers=settings.get("implied-branch-matchers"),
            extra_config_paths=rules("extra-config-paths"),
            load_branch=settings.get("load-branch", "master"),
            allow_base_jobs=settings.get("allow-base-jobs", True),
            allow_reporter_jobs=self._trusted or settings.get("allow-reporter-jobs", False),
            configure_projects=rules("configure-projects"),
        )

    def _include(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the kinds of stanzas that are read: those that the project or its group includes, plus the kinds of
        provider configuration if it asks for them, minus those that it excludes."""
        kinds = CONFIG_PROJECT_KINDS if self._trusted else CONFIG_KINDS
        included = tuple(as_list(settings["include"])) if "include" in settings else kinds
        if settings.get("include-provider-config"):
            included = (*included, *NODEPOOL_KINDS)
        excluded = as_list(settings.get("exclude"))
        return tuple(kind for kind in dict.fromkeys(included) if kind not in excluded)
