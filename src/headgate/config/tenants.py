"""The operator's file: tenants, and which projects of which connections belong to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from headgate.config import keys
from headgate.config.check import as_list, table
from headgate.config.marked import Source, Table, Wrong, load, nearest
from headgate.config.model import ConfigError

STANDARD_PATHS = ("zuul.yaml", "zuul.d/", ".zuul.yaml", ".zuul.d/")
"""Where a project keeps its configuration; the first that exists counts."""


class ConfigErrors(Exception):
    """The whole file is refused."""

    def __init__(self, errors: tuple[ConfigError, ...]) -> None:
        super().__init__("\n\n".join(error.render() for error in errors))
        self.errors = errors


class Connection(NamedTuple):
    name: str
    canonical_hostname: str


class TenantProject(msgspec.Struct, frozen=True, omit_defaults=True):
    project: str
    """Canonical name."""
    name: str
    connection: str
    trusted: bool
    include: tuple[str, ...] = keys.KINDS
    include_branches: tuple[str, ...] = ()
    exclude_branches: tuple[str, ...] = ()
    implied_branch_matchers: bool | None = None
    extra_config_paths: tuple[str, ...] = ()
    load_branch: str = "master"
    configure_projects: tuple[str, ...] = ()

    @property
    def config_paths(self) -> tuple[str, ...]:
        """Files, and directories ending in a slash."""
        return (*STANDARD_PATHS, *self.extra_config_paths)


class Tenant(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    name: str
    projects: tuple[TenantProject, ...]
    connections: tuple[str, ...] = ()
    """Names a pipeline may use in triggers and reporters."""
    max_nodes_per_job: int = 5
    max_job_timeout_s: int = 10_800
    """-1 is no limit; so for nodes."""
    default_parent: str = "base"
    semaphores: dict[str, int] = {}
    """Global semaphores this tenant may use."""

    def find(self, name: str) -> TenantProject | None:
        """By canonical or short name; None when unknown, or when two connections have the short name."""
        short = self._by_short_name.get(name, ())
        return self._by_name.get(name) or (short[0] if len(short) == 1 else None)

    @cached_property
    def _by_name(self) -> dict[str, TenantProject]:
        return {p.project: p for p in reversed(self.projects)}

    @cached_property
    def _by_short_name(self) -> dict[str, list[TenantProject]]:
        found: dict[str, list[TenantProject]] = {}
        for p in self.projects:
            found.setdefault(p.name, []).append(p)
        return found


def parse_tenants(text: str, path: str, connections: Mapping[str, Connection]) -> dict[str, Tenant]:
    """Tenants by name, in order.  Raises ConfigErrors: a broken file changes nothing."""
    source = Source("", "", "", path, True, text)
    try:
        return _tenants(load(text), connections)
    except Wrong as wrong:
        raise ConfigErrors((source.error(wrong.name, wrong.text, wrong.line),)) from wrong


def _tenants(document: Any, connections: Mapping[str, Connection]) -> dict[str, Tenant]:
    if not isinstance(document, list):
        raise Wrong("the tenant file must be a list of `- tenant:` entries", 1)
    semaphores: dict[str, int] = {}
    tenants: dict[str, Tenant] = {}
    for item in document:
        if not isinstance(item, Table) or len(item) != 1:
            raise Wrong("each entry must be a mapping with one key, such as `- tenant:`", getattr(item, "line", 1))
        (kind, stanza) = next(iter(item.items()))
        if kind == "global-semaphore":
            table(stanza, keys.SEMAPHORE, kind)
            semaphores[stanza["name"]] = stanza.get("max", 1)
        elif kind == "tenant":
            table(stanza, keys.TENANT, kind)
            if stanza["name"] in tenants:
                raise Wrong(f"the tenant {stanza['name']!r} is defined twice", stanza.at("name"))
            tenants[stanza["name"]] = _tenant(stanza, connections, semaphores)
        else:
            raise Wrong(f"{kind!r} is not known here{nearest(kind, ['tenant', 'global-semaphore'])}", item.at(kind))
    return tenants


def _tenant(stanza: Table, connections: Mapping[str, Connection], semaphores: dict[str, int]) -> Tenant:
    projects: list[TenantProject] = []
    sources = stanza.get("source", Table(stanza.line))
    for name, source in sources.items():
        if name not in connections:
            raise Wrong(
                f"the connection {name!r} is not configured{nearest(name, list(connections))}",
                sources.at(name),
                "Unknown Connection",
            )
        table(source, keys.TENANT_SOURCE, "source", ())
        for key, trusted in (("config-projects", True), ("untrusted-projects", False)):
            for entry in as_list(source.get(key)):
                projects += _projects(entry, connections[name], trusted, {}, source.at(key))
    projects.sort(key=lambda project: not project.trusted)
    for name in as_list(stanza.get("semaphores")):
        if name not in semaphores:
            raise Wrong(f"there is no global-semaphore {name!r}", stanza.at("semaphores"), "Global Semaphore Not Found")
    return Tenant(
        name=stanza["name"],
        projects=tuple(projects),
        connections=tuple(connections),
        max_nodes_per_job=stanza.get("max-nodes-per-job", 5),
        max_job_timeout_s=stanza.get("max-job-timeout", 10_800),
        default_parent=stanza.get("default-parent", "base"),
        semaphores={name: semaphores[name] for name in as_list(stanza.get("semaphores"))},
    )


def _projects(entry: Any, at: Connection, trusted: bool, given: dict[str, Any], line: int) -> list[TenantProject]:
    """One entry: a name, `{name: settings}`, or a group with `projects` and settings for all of them."""
    if isinstance(entry, str):
        return [_project(entry, at, trusted, given)]
    if "projects" in entry:
        table(entry, keys.TENANT_PROJECT, "group of projects", ())
        settings = {**given, **{k: v for k, v in entry.items() if k != "projects"}}
        return [p for inner in as_list(entry["projects"]) for p in _projects(inner, at, trusted, settings, entry.line)]
    if len(entry) != 1:
        raise Wrong("a project is a name, or a mapping of one name to its settings", getattr(entry, "line", line))
    name, settings = next(iter(entry.items()))
    table(settings, {k: c for k, c in keys.TENANT_PROJECT.items() if k != "projects"}, "project", ())
    return [_project(name, at, trusted, {**given, **settings})]


def _project(name: str, at: Connection, trusted: bool, settings: Mapping[str, Any]) -> TenantProject:
    included = as_list(settings["include"]) if "include" in settings else list(keys.KINDS)
    excluded = as_list(settings.get("exclude"))
    short = name.removeprefix(f"{at.canonical_hostname}/")
    return TenantProject(
        project=f"{at.canonical_hostname}/{short}",
        name=short,
        connection=at.name,
        trusted=trusted,
        include=(*(kind for kind in included if kind not in excluded and kind != "pragma"), "pragma"),
        include_branches=tuple(as_list(settings.get("include-branches"))),
        exclude_branches=tuple(as_list(settings.get("exclude-branches"))),
        implied_branch_matchers=settings.get("implied-branch-matchers"),
        extra_config_paths=tuple(as_list(settings.get("extra-config-paths"))),
        load_branch=settings.get("load-branch", "master"),
        configure_projects=tuple(as_list(settings.get("configure-projects"))),
    )
