"""Read the operator's file, with the projects of its tenants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate.base.hints import HintedText, nearest
from headgate.config.drivers import ALWAYS_THERE, DRIVERS
from headgate.config.files.checks import Keys, as_list, deep_plain, entries, one_stanza, table
from headgate.config.files.document import Table, load
from headgate.config.files.source import MEANING, NO_EFFECT, STANDARD_PATHS, Source, Wrong
from headgate.config.keys import tenantfile
from headgate.config.keys.job import ANSIBLE_DEFAULT, ANSIBLE_VERSIONS
from headgate.config.keys.objects import CONFIG_KINDS, NODEPOOL_KINDS
from headgate.config.operator import model
from headgate.config.patterns import any_fullmatch

_TABLES: dict[str, Keys] = {
    "tenant": tenantfile.TENANT,
    "global-semaphore": tenantfile.SEMAPHORE,
    "authorization-rule": tenantfile.RULE,
    "admin-rule": tenantfile.RULE,
    "role": tenantfile.ROLE,
    "api-root": tenantfile.API_ROOT,
}
_FOR_CONFIG_PROJECTS = ("allow-base-jobs",)
"""Settings that only config-projects have."""
_FOR_UNTRUSTED = ("configure-projects", "allow-reporter-jobs")
"""Settings that only other projects have."""
GROUPS_MAX = 20
"""Largest number of levels of nested groups."""


def parse_tenant_file(text: str, path: str, connections: Mapping[str, model.Connection]) -> model.TenantFile:
    """Parse the tenant file. Raise ConfigErrors if it is refused; the earlier file then stays in effect."""
    source = Source("", "", "", path, True, text)
    try:
        return _File(load(text), connections, source).read()
    except Wrong as wrong:
        raise model.ConfigErrors((source.error_from(wrong),)) from wrong


class _File:
    def __init__(self, document: Any, connections: Mapping[str, model.Connection], source: Source) -> None:
        self._connections, self._source = connections, source
        self._warnings: list[Wrong] = []
        self._stanzas: dict[str, list[Table]] = {kind: [] for kind in tenantfile.FILE_KINDS}
        if not isinstance(document, list):
            raise Wrong("the tenant file must be a list of `- tenant:` entries", 1)
        for item in document:
            what = "each entry must be a mapping with one key, such as `- tenant:`"
            kind, stanza = one_stanza(item, tenantfile.FILE_KINDS, what)
            if kind not in tenantfile.FILE_KINDS:
                raise Wrong(
                    HintedText(f"{kind!r} is not known here", nearest(kind, tenantfile.FILE_KINDS)), item.at(kind)
                )
            warnings = self._warnings if kind != "tenant" else []  # `_tenant` collects those of tenants
            table(stanza, _TABLES[kind], kind, warnings, item.at(kind))
            self._stanzas[kind].append(stanza)

    def read(self) -> model.TenantFile:
        semaphores = {s["name"]: s.get("max", 1) for s in self._unique("global-semaphore")}
        rules = {s["name"]: self._rule(s) for s in self._unique("authorization-rule", "admin-rule")}
        roles = {s["name"]: self._role(s) for s in self._unique("role")}
        tenants: dict[str, model.Tenant] = {}
        refused = {}
        for stanza in self._unique("tenant"):
            tenant = self._tenant(stanza, semaphores)
            problems = [*self._unknown(stanza, semaphores, rules, roles), *self._doubled(tenant, stanza)]
            if problems:
                refused[tenant.name] = tuple(self._source.error_from(wrong) for wrong in problems)
            else:
                tenants[tenant.name] = tenant
        warnings = tuple(self._source.error_from(wrong) for wrong in self._warnings)
        return model.TenantFile(tenants, refused, warnings, rules, roles, self._api_root())

    def _unique(self, *kinds: str) -> list[Table]:
        # Several kinds may share one set of names, as the two spellings of rules do.
        found = [stanza for kind in kinds for stanza in self._stanzas[kind]]
        known: set[str] = set()
        for stanza in found:
            if stanza["name"] in known:
                raise Wrong(f"the {kinds[0]} {stanza['name']!r} is defined twice", stanza.at("name"))
            known.add(stanza["name"])
        return found

    def _rule(self, stanza: Table) -> model.AuthorizationRule:
        return model.AuthorizationRule(stanza["name"], tuple(deep_plain(as_list(stanza["conditions"]))))

    def _role(self, stanza: Table) -> model.Role:
        if stanza["name"] in model.BUILT_IN_ROLES:
            raise Wrong(f"the role {stanza['name']} is built in", stanza.at("name"))
        return model.Role(stanza["name"], deep_plain(stanza.get("permissions", {})))

    def _api_root(self) -> model.ApiRoot:
        found = self._stanzas["api-root"]
        if len(found) > 1:
            raise Wrong("there may be only one api-root", found[1].line)
        stanza = found[0] if found else Table(0)
        return model.ApiRoot(
            authentication_realm=stanza.get("authentication-realm", ""),
            access_rules=tuple(as_list(stanza.get("access-rules"))),
            role_mappings=_mappings(stanza),
            anonymous_read_access=stanza.get("anonymous-read-access", True),
        )

    def _tenant(self, stanza: Table, semaphores: Mapping[str, int]) -> model.Tenant:
        """Return the tenant that a stanza describes, without checking whether what it names exists."""

        def names(key: str) -> tuple[Any, ...]:
            return tuple(deep_plain(as_list(stanza.get(key))))

        def names_or_all(key: str) -> tuple[str, ...] | None:
            # An empty list allows nothing; a missing one allows everything.
            return names(key) if key in stanza else None

        root, warnings = stanza.get("web-root", ""), list[Wrong]()
        # The first check only had to raise errors; this one collects the tenant's warnings.
        table(stanza, tenantfile.TENANT, "tenant", warnings, stanza.line)
        projects = tenant_projects(stanza, self._connections, warnings)
        self._warnings += [wrong for wrong in warnings if wrong.name != NO_EFFECT]
        nodes_of = _nodes_of(stanza)
        drivers = {name: connection.driver for name, connection in self._connections.items()}
        return model.Tenant(
            name=stanza["name"],
            projects=projects,
            idle=tuple(self._source.error_from(wrong) for wrong in warnings if wrong.name == NO_EFFECT),
            # The built-in connections exist even without a section in the settings.
            connections=(*self._connections, *(name for name in ALWAYS_THERE if name not in self._connections)),
            drivers={**ALWAYS_THERE, **drivers},
            hosts={name: one.canonical_hostname for name, one in self._connections.items() if one.canonical_hostname},
            bound=tuple(name for name, connection in self._connections.items() if connection.bound),
            max_dependencies=stanza.get("max-dependencies"),
            max_changes_per_pipeline=stanza.get("max-changes-per-pipeline"),
            max_nodes_per_job=stanza.get("max-nodes-per-job", 5),
            max_nodes_per_project=nodes_of.pop("default", -1),
            max_nodes_of=nodes_of,
            resource_limits=_amounts(stanza),
            labels=_labels(stanza),
            max_job_timeout_s=stanza.get("max-job-timeout", 10_800),
            max_oidc_ttl_s=stanza.get("max-oidc-ttl", 10_800),
            default_oidc_ttl_s=stanza.get("default-oidc-ttl", 3_600),
            allowed_oidc_issuers=names("allowed-oidc-issuers"),
            default_parent=stanza.get("default-parent", "base"),
            default_ansible_version=str(stanza.get("default-ansible-version", "")),
            allowed_triggers=names_or_all("allowed-triggers"),
            allowed_reporters=names_or_all("allowed-reporters"),
            allowed_labels=names("allowed-labels"),
            disallowed_labels=names("disallowed-labels"),
            use_nodepool=stanza.get("use-nodepool", True),
            web_root=f"{root.rstrip('/')}/" if root else "",
            # A tenant with an unknown semaphore is refused, see `_unknown`.
            semaphores={name: semaphores[name] for name in names("semaphores") if name in semaphores},
            admin_rules=names("admin-rules"),
            access_rules=names("access-rules"),
            role_mappings=_mappings(stanza),
            anonymous_read_access=stanza.get("anonymous-read-access", True),
            authentication_realm=stanza.get("authentication-realm", ""),
        )

    def _unknown(
        self,
        stanza: Table,
        semaphores: Mapping[str, int],
        rules: Mapping[str, model.AuthorizationRule],
        roles: Mapping[str, model.Role],
    ) -> list[Wrong]:
        """Return an error for each undefined name that the tenant uses."""

        def missing(key: str, known: Callable[[str], bool], what: str, name: str) -> list[Wrong]:
            found = entries(stanza.get(key), stanza.at(key))
            return [Wrong(f"there is no {what} {n!r}", at, name) for n, at in found if not known(n)]

        wrong = missing("semaphores", semaphores.__contains__, "global-semaphore", "Global Semaphore Not Found")
        for key in ("admin-rules", "access-rules"):
            wrong += missing(key, rules.__contains__, "authorization-rule", "AuthZ Rule Not Found")
        mappings = stanza.get("role-mappings") or Table(stanza.line)
        for rule, given in mappings.items():
            line = mappings.at(rule)
            if rule not in rules:
                wrong.append(Wrong(f"there is no authorization-rule {rule!r}", line, "AuthZ Rule Not Found"))
            for role, at in entries(given, line):
                if role not in roles and role not in model.BUILT_IN_ROLES:
                    wrong.append(Wrong(f"there is no role {role!r}", at, "Role Not Found"))
        # YAML parses `9` as a number.
        version = str(stanza.get("default-ansible-version", ANSIBLE_DEFAULT))
        if version not in ANSIBLE_VERSIONS:
            hint = f"there are: {', '.join(ANSIBLE_VERSIONS)}"
            text = HintedText(f"there is no Ansible version {version}", hint)
            wrong.append(Wrong(text, stanza.at("default-ansible-version"), MEANING))
        return wrong

    def _doubled(self, tenant: model.Tenant, stanza: Table) -> list[Wrong]:
        known: set[str] = set()
        for project in tenant.projects:
            if project.project in known:
                return [Wrong(f"the project {project.project} is listed twice", stanza.at("source"), MEANING)]
            known.add(project.project)
        return []


def _nodes_of(stanza: Table) -> dict[str, int]:
    """Map each project to the largest number of nodes that it may have; `default` applies to all others."""
    limits = stanza.get("max-nodes-per-project", -1)
    # A number applies to every project.
    return {"default": limits} if isinstance(limits, int) else {str(name): most for name, most in limits.items()}


def _amounts(stanza: Table) -> dict[str, float]:
    limits = stanza.get("resource-limits") or {}
    return {str(kind): float(most) for kind, most in limits.items() if most is not None}


def _mappings(stanza: Table) -> dict[str, tuple[str, ...]]:
    found = stanza.get("role-mappings") or {}
    return {rule: tuple(str(role) for role in as_list(deep_plain(roles))) for rule, roles in found.items()}


def _labels(stanza: Table) -> dict[str, model.Label]:
    found: dict[str, model.Label] = {}
    for one, at in entries(stanza.get("labels"), stanza.at("labels")):
        if one["name"] in found:
            raise Wrong(f"the label {one['name']!r} is defined twice", at)
        found[one["name"]] = model.Label(
            one["search"], one.get("partition", ""), one["project"], one.get("triggering", False)
        )
    return found


def tenant_projects(
    stanza: Table, connections: Mapping[str, model.Connection], warnings: list[Wrong]
) -> tuple[model.TenantProject, ...]:
    """Return the config-projects, then the other projects, each in the order of the file; projects with the same short
    name are adjacent. Raise Wrong."""
    found: list[model.TenantProject] = []
    sources = stanza.get("source", Table(stanza.line))
    for name, source in sources.items():
        if name not in connections:
            text = HintedText(f"the connection {name!r} is not configured", nearest(name, connections))
            raise Wrong(text, sources.at(name), "Unknown Connection")
        # A driver that only posts has no repositories.
        if (driver := DRIVERS.get(connections[name].driver)) is not None and driver.posts:
            raise Wrong(f"the connection {name!r} has no projects: it is only for reports", sources.at(name))
        table(source, tenantfile.SOURCE, "source", warnings, sources.at(name))
        for key, trusted in (("config-projects", True), ("untrusted-projects", False)):
            reader = _ProjectListReader(connections[name], trusted, stanza, warnings)
            for entry, line in entries(source.get(key), source.at(key)):
                found += reader.read(entry, line, {}, 0)
    # Reversed, so that the first place of each name remains.
    together = {name: place for place, name in reversed(list(enumerate(p.name for p in found)))}
    # Sorting is stable, so the order of the file remains within each group.
    found.sort(key=lambda project: (not project.trusted, together[project.name]))
    _no_config_project_is_configured(found, stanza.at("source"))
    return tuple(found)


def _no_config_project_is_configured(found: list[model.TenantProject], line: int) -> None:
    trusted = [p for p in found if p.trusted]
    for project in found:
        for other in trusted if project.configure_projects else ():
            rules = project.configure_projects
            # Otherwise an untrusted project could choose the jobs that test changes of trusted playbooks.
            if any_fullmatch(rules, other.name) or any_fullmatch(rules, other.project):
                raise Wrong(f"configure-projects of {project.name} includes the config-project {other.name}", line)


class _ProjectListReader:
    """Read the entries of one list of projects."""

    def __init__(self, at: model.Connection, trusted: bool, tenant: Table, warnings: list[Wrong]) -> None:
        self._at, self._trusted, self._tenant, self._warnings = at, trusted, tenant, warnings
        # Settings of the other list are unknown keys here, so that a misplaced one is reported.
        others = _FOR_UNTRUSTED if trusted else _FOR_CONFIG_PROJECTS
        self._keys: Keys = {name: key for name, key in tenantfile.PROJECT.items() if name not in others}

    def read(self, entry: Any, line: int, given: Mapping[str, Any], depth: int) -> list[model.TenantProject]:
        if isinstance(entry, str):
            return [self._project(entry, line, given)]
        # A group gives its settings to each of its projects.
        if isinstance(entry.get("projects"), list):
            return self._group(entry, given, depth)
        if len(entry) != 1:
            raise Wrong("a project is a name, or a mapping of one name to its settings", line)
        ((name, settings),) = entry.items()
        table(settings, self._keys, f"{'config' if self._trusted else 'untrusted'} project", self._warnings, line)
        self._paths(settings)
        return [self._project(name, line, {**given, **settings})]

    def _group(self, entry: Table, given: Mapping[str, Any], depth: int) -> list[model.TenantProject]:
        keys = {**self._keys, "projects": tenantfile.GROUP["projects"]}
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
                raise Wrong(f"{path} is always read; remove it from extra-config-paths", at)

    def _project(self, name: str, line: int, settings: Mapping[str, Any]) -> model.TenantProject:
        host = self._at.canonical_hostname
        # The file may also use the canonical name of a project.
        short = name.removeprefix(f"{host}/")
        if not short:
            raise Wrong("a project must have a name", line)
        defaults = self._tenant

        def rules(key: str) -> tuple[Any, ...]:
            return tuple(as_list(deep_plain(settings.get(key))))

        def inherited(key: str) -> bool:
            return bool(settings.get(key, defaults.get(key, False)))

        return model.TenantProject(
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
        kinds = tenantfile.CONFIG_PROJECT_KINDS if self._trusted else CONFIG_KINDS
        included = tuple(as_list(settings["include"])) if "include" in settings else kinds
        if settings.get("include-provider-config"):
            included = (*included, *NODEPOOL_KINDS)
        excluded = as_list(settings.get("exclude"))
        return tuple(kind for kind in dict.fromkeys(included) if kind not in excluded)
