"""Define the records of the operator's file, and decide who fulfils its rules and which branches it includes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.base.errors import ConfigurationError
from headgate.base.hints import HintedText, did_you_mean, nearest
from headgate.config.files.source import STANDARD_PATHS, touches
from headgate.config.keys.objects import CONFIG_KINDS
from headgate.config.model import ConfigError
from headgate.config.patterns import Rule, any_fullmatch

ALIKE_MAX = 4
"""Number of projects with an equal last name that are suggested."""
BUILT_IN_ROLES = ("admin", "read")
"""Roles with all permissions, and with permission to read only."""
UID_CLAIM = "zuul_uid"
"""Placeholder for the claim that names the user."""
_MISSING = object()


class Connection(NamedTuple):
    name: str
    canonical_hostname: str
    driver: str = "git"
    """Driver, which decides the keys that pipelines may use: a key of `drivers.DRIVERS`."""
    bound: bool = False
    """Whether its server ensures that people approve and veto only under their own names."""


class Protection(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name the protected and the locked branches of a project, as its forge reports them."""

    protected: frozenset[str] | None = None
    """Protected branches; None if the forge does not tell, so that every branch counts as protected."""
    locked: frozenset[str] | None = None
    """Branches to which nobody may push; None if the forge does not tell, so that no branch counts as locked."""


class TenantProject(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a project of a tenant: what is read from it, and from which branches."""

    project: str
    """Canonical name."""
    name: str
    connection: str
    trusted: bool
    """Whether it is a config-project, of which only `load_branch` is read, and never speculatively."""
    include: tuple[str, ...] = CONFIG_KINDS
    """Kinds of stanzas that are read; pragma always is."""
    shadow: tuple[str, ...] = ()
    """Projects, as written, whose jobs take precedence over jobs of the same name in this project."""
    include_branches: tuple[Rule, ...] = ()
    exclude_branches: tuple[Rule, ...] = ()
    always_dynamic_branches: tuple[Rule, ...] = ()
    exclude_unprotected_branches: bool = False
    exclude_locked_branches: bool = False
    implied_branch_matchers: bool | None = None
    extra_config_paths: tuple[str, ...] = ()
    load_branch: str = "master"
    allow_base_jobs: bool = True
    allow_reporter_jobs: bool = False
    configure_projects: tuple[Rule, ...] = ()
    protection: Protection | None = None
    """Protection that its forge last reported; it is not part of the file."""

    @property
    def is_selective(self) -> bool:
        """Return whether its forge decides from which branches configuration is read."""
        return not self.trusted and (self.exclude_unprotected_branches or self.exclude_locked_branches)

    @property
    def loads(self) -> bool:
        """Return whether any configuration of the project is read."""
        return bool(self.include)

    @property
    def config_paths(self) -> tuple[str, ...]:
        """Return the paths of its configuration: files, and directories with a trailing slash. Empty if no kind of
        stanza is read."""
        return (*STANDARD_PATHS, *self.extra_config_paths) if self.loads else ()

    def is_dynamic(self, branch: str) -> bool:
        """Return whether the branch is always dynamic: its configuration is not read, but changes on it propose
        theirs."""
        return any_fullmatch(self.always_dynamic_branches, branch)

    def is_excluded(self, branch: str) -> bool:
        """Return whether a branch is excluded because of its protection at the forge."""
        protection = self.protection or Protection()
        unprotected = protection.protected is not None and branch not in protection.protected
        locked = protection.locked is not None and branch in protection.locked
        return (self.exclude_unprotected_branches and unprotected) or (self.exclude_locked_branches and locked)

    def configures(self, other: TenantProject) -> bool:
        """Return whether this project may hold project stanzas for the other one."""
        names = (other.name, other.project)
        return (
            self.trusted
            or other.project == self.project
            or any(any_fullmatch(self.configure_projects, name) for name in names)
        )

    def touches_config(self, files: tuple[str, ...] | None, branch: str = "") -> bool:
        """Return whether a change of these files (None: not known) on this branch changes the configuration."""
        if not self.loads:
            return False
        # Unknown files may be configuration. Of a dynamic branch, only changes are read, so each of them brings its own
        # configuration.
        return files is None or self.is_dynamic(branch) or touches(files, self.extra_config_paths)


class Label(msgspec.Struct, frozen=True, omit_defaults=True):
    """Select the machines of the inventory that have a label."""

    search: str
    """Filter expression for machines of the inventory."""
    partition: str = ""
    """UUID or name; empty for the partition of the executor's zone, or for all partitions."""
    project: str = ""
    """Project of the inventory that owns the machines; `*` for any."""
    triggering: bool = False
    """Whether only the machine that started the item qualifies."""


# Cached properties need the `__dict__` that `dict=True` gives.
class Tenant(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """Describe one tenant of the tenant file."""

    name: str
    projects: tuple[TenantProject, ...]
    """Config-projects first, then the others; in this order, the first definition of a name counts."""
    connections: tuple[str, ...] = ()
    """Connections that pipelines may name in triggers and reporters."""
    drivers: dict[str, str] = {}
    """Connection -> driver; `git` for those that are not listed."""
    hosts: dict[str, str] = {}
    """Connection -> canonical hostname, for the connections of the settings that have one."""
    max_dependencies: int | None = None
    max_changes_per_pipeline: int | None = None
    max_nodes_per_job: int = 5
    max_nodes_per_project: int = -1
    max_nodes_of: dict[str, int] = {}
    """Project -> its own limit of nodes."""
    resource_limits: dict[str, float] = {}
    """Kind of resource -> amount that machines of its builds may use at a time."""
    max_job_timeout_s: int = 10_800
    """Largest timeout of a job in seconds; -1 for no limit."""
    labels: dict[str, Label] = {}
    """Labels of machines; if there are none, executors use machines of their own."""
    max_oidc_ttl_s: int = 10_800
    default_oidc_ttl_s: int = 3_600
    allowed_oidc_issuers: tuple[str, ...] = ()
    default_parent: str = "base"
    default_ansible_version: str = ""
    """Version for jobs that set none; empty for the default of the installation."""
    bound: tuple[str, ...] = ()
    """Connections whose server ensures that people approve and veto only under their own names."""
    allowed_triggers: tuple[str, ...] | None = None
    allowed_reporters: tuple[str, ...] | None = None
    allowed_labels: tuple[Rule, ...] = ()
    disallowed_labels: tuple[Rule, ...] = ()
    use_nodepool: bool = True
    web_root: str = ""
    """Root address of the tenant's pages, with a trailing slash; empty if it is below the root address of all
    tenants."""
    semaphores: dict[str, int] = {}
    """Global semaphores this tenant may use."""
    admin_rules: tuple[str, ...] = ()
    access_rules: tuple[str, ...] = ()
    role_mappings: dict[str, tuple[str, ...]] = {}
    """Rule -> roles."""
    anonymous_read_access: bool = True
    authentication_realm: str = ""
    idle: tuple[ConfigError, ...] = ()
    """Warnings about settings of the tenant that have no effect here."""

    @cached_property
    def trusted(self) -> dict[str, str]:
        """Map each config-project to its connection."""
        return {p.project: p.connection for p in self.projects if p.trusted}

    @cached_property
    def by_canonical(self) -> dict[str, TenantProject]:
        return {p.project: p for p in self.projects}

    @cached_property
    def order(self) -> dict[str, int]:
        """Map each canonical name to its position in `projects`."""
        return {p.project: n for n, p in enumerate(self.projects)}

    @cached_property
    def _by_name(self) -> dict[str, list[TenantProject]]:
        found: dict[str, list[TenantProject]] = {}
        for project in self.projects:
            found.setdefault(project.name, []).append(project)
        return found

    def most_nodes(self, project: str) -> int:
        """Return how many nodes a project's builds may have at a time; -1 for no limit."""
        return self.max_nodes_of.get(project, self.max_nodes_per_project)

    def find(self, name: str) -> TenantProject | None:
        """Return a project by canonical or short name; None if unknown, or if two connections have the short name."""
        # A canonical name is unique in the tenant, so it takes precedence.
        exact = self.by_canonical.get(name)
        short = self._by_name.get(name, [])
        return exact or (short[0] if len(short) == 1 else None)

    def why_not(self, name: str) -> HintedText:
        """Return a message for the user: why `find` returns nothing for this name."""
        several = self._by_name.get(name, [])
        if len(several) > 1:
            names = " or ".join(project.project for project in several)
            return HintedText(f"the project {name!r} is in several connections", f"write {names}")
        alike = [known for known in self._by_name if known.rpartition("/")[2] == name.rpartition("/")[2]]
        if 0 < len(alike) <= ALIKE_MAX:
            return HintedText(f"the project {name!r} is not in this tenant", did_you_mean(alike))
        hint = nearest(name, [*self._by_name, *self.by_canonical])
        return HintedText(f"the project {name!r} is not in this tenant", hint)

    def protected(self, protections: Mapping[str, Protection]) -> Tenant:
        """Return the tenant with the protections of branches that forges report, by canonical name of the project."""
        if not protections:
            return self
        return replace(self, projects=tuple(replace(p, protection=protections.get(p.project)) for p in self.projects))

    def driver(self, connection: str) -> str:
        return self.drivers.get(connection, "git")


class AuthorizationRule(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    conditions: tuple[dict[str, Any], ...]
    """Conditions, of which one must hold; in each, every claim must have its value (JSON)."""


class Role(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    permissions: dict[str, Any] = {}
    """Permission -> true or false; for dequeue, enqueue and others also {conditions: [{project, ref}]} (JSON)."""


class ApiRoot(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the access settings of addresses that belong to no tenant."""

    authentication_realm: str = ""
    access_rules: tuple[str, ...] = ()
    role_mappings: dict[str, tuple[str, ...]] = {}
    anonymous_read_access: bool = True


class TenantFile(msgspec.Struct, frozen=True, omit_defaults=True):
    tenants: dict[str, Tenant]
    """Name -> tenant, in the order of the file."""
    refused: dict[str, tuple[ConfigError, ...]] = {}
    """Tenants that cannot be loaded -> errors; they do not affect the others."""
    warnings: tuple[ConfigError, ...] = ()
    rules: dict[str, AuthorizationRule] = {}
    roles: dict[str, Role] = {}
    api_root: ApiRoot = ApiRoot()


class ConfigErrors(ConfigurationError):
    """Report that the entire file is refused."""

    def __init__(self, errors: tuple[ConfigError, ...]) -> None:
        super().__init__("\n\n".join(error.render() for error in errors))
        self.errors = errors


def holds(rule: AuthorizationRule, claims: Mapping[str, Any], tenant: str = "", uid: str = "sub") -> bool:
    """Return whether the claims fulfil the rule for `tenant`. `uid` is the name of the claim that names the user."""
    return any(
        all(_claim(_found(claims, uid if name == UID_CLAIM else name), wanted, tenant) for name, wanted in one.items())
        for one in rule.conditions
    )


def _found(claims: Mapping[str, Any], name: str) -> Any:
    """Return the claim of this name or, if there is none, the value at this dotted path; `_MISSING` if there is
    neither."""
    # Look for the whole name first, because names of claims may be URLs, which contain dots.
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _claim(value: Any, wanted: Any, tenant: str) -> bool:
    if value is _MISSING:
        return False
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(
            _claim(value.get(key, _MISSING), one, tenant) for key, one in wanted.items()
        )
    if isinstance(wanted, str):
        wanted = wanted.replace("{tenant.name}", tenant)
    # In Python, `1 == True`. Without comparing the types, a claim of another type would fulfil the rule.
    values = value if isinstance(value, list) else [value]
    return any(type(one) is type(wanted) and one == wanted for one in values)


def included(source: TenantProject, branch: str) -> bool:
    """Return whether configuration is read from the branch. Of a config-project, only `load_branch` is read. Of other
    projects, a branch is read unless it is always dynamic, excluded by its forge, or not selected by include-branches
    or exclude-branches of the tenant file."""
    if source.trusted:
        return branch == source.load_branch
    if source.is_dynamic(branch) or source.is_excluded(branch):
        return False
    if source.include_branches:
        return any_fullmatch(source.include_branches, branch)
    return not any_fullmatch(source.exclude_branches, branch)


def content_of(files: Mapping[str, str]) -> str:
    """Return a digest of configuration files, which is equal only for the same paths with the same texts."""
    # JSON delimits the strings: concatenated, text could move between files without changing the digest.
    return hashlib.sha256(msgspec.json.encode(sorted(files.items()))).hexdigest()[:16]
