"""A job as it is put together from its variants: each attribute by its own rule (config-language §5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headgate.config.check import as_list, deep_plain, plain
from headgate.config.marked import Tagged
from headgate.config.model import (
    FrozenJob,
    JobDependency,
    JobSemaphore,
    Node,
    NodeGroup,
    Nodeset,
    Playbook,
    RequiredProject,
)
from headgate.config.parse import Stanza
from headgate.config.tenants import Tenant

CONTEXT = frozenset(
    [
        "name",
        "parent",
        "description",
        "variant-description",
        "branches",
        "final",
        "abstract",
        "intermediate",
        "protected",
        "voting",
        "hold-following-changes",
        "success-message",
        "failure-message",
        "tags",
        "provides",
        "requires",
        "dependencies",
        "files",
        "irrelevant-files",
        "match-on-config-updates",
        "deduplicate",
        "attribute-control",
        "success-url",
        "failure-url",
    ]
)
"""Attributes a variant may set although the job is final; all others change how it is executed."""
_SCALARS = {
    "voting": "voting",
    "success-message": "success_message",
    "failure-message": "failure_message",
    "pre-timeout": "pre_timeout_s",
    "timeout": "timeout_s",
    "post-timeout": "post_timeout_s",
    "attempts": "attempts_max",
    "override-checkout": "override_checkout",
    "override-branch": "override_checkout",
    "description": "description",
}


class Refused(Exception):
    """A variant may not be applied; becomes a configuration error of the item."""


@dataclass(slots=True)
class Mix:
    """A job under construction.  `apply` one variant after another, then `frozen`."""

    name: str
    tenant: Tenant
    scalars: dict[str, Any] = field(default_factory=dict)
    """Field of FrozenJob -> value, set by the last variant that says it."""
    unions: dict[str, set[str]] = field(default_factory=lambda: {"tags": set(), "provides": set(), "requires": set()})
    dependencies: dict[str, bool] = field(default_factory=dict)
    """Name -> soft"""
    files: list[Any] = field(default_factory=list)
    irrelevant: list[Any] = field(default_factory=list)
    pre_run: list[Playbook] = field(default_factory=list)
    run: list[Playbook] = field(default_factory=list)
    post_run: list[Playbook] = field(default_factory=list)
    roles: dict[str, None] = field(default_factory=dict)
    nodeset: Any = None
    semaphores: dict[str, bool] = field(default_factory=dict)
    required: dict[str, RequiredProject] = field(default_factory=dict)
    vars: dict[str, dict[str, Any]] = field(default_factory=dict)
    allowed: set[str] | None = None
    final: str = ""
    """Where it was made final."""
    controlled: dict[str, str] = field(default_factory=dict)
    abstract: bool = False
    intermediate: str = ""
    """The intermediate job the last variant was of."""
    last_name: str = ""
    protected_by: str = ""
    post_review: bool = False
    inheritance: list[str] = field(default_factory=list)

    def apply(self, stanza: Stanza, *, base_name: str, attaching: bool = False) -> None:
        """One more variant; `base_name` is the job it is of (a child's differs from its parent's).  Raises Refused."""
        body = stanza.body
        where = f"{stanza.source.project} {stanza.source.branch} {stanza.source.path}:{stanza.line}"
        self._allow(stanza, where, base_name)
        level = len(self.inheritance)
        self.inheritance.append(f"{base_name} {where}")
        for key, name in _SCALARS.items():
            if key in body and not (key == "description" and attaching):
                self.scalars[name] = body[key]
        for key, known in self.unions.items():
            if isinstance(body.get(key), Tagged):
                known.clear()
            known.update(as_list(plain(body.get(key))))
        self._replace_lists(body)
        self._playbooks(stanza, level)
        self._vars(body)
        self._places(stanza, attaching)
        self._flags(body, where, stanza.source.project, base_name)

    def _allow(self, stanza: Stanza, where: str, base_name: str) -> None:
        body = stanza.body
        changes = sorted(key for key in body if key not in CONTEXT)
        child = bool(self.last_name) and base_name != self.last_name
        if child and self.intermediate and not body.get("abstract"):
            raise Refused(f"job {self.last_name} is intermediate; its child {base_name} ({where}) must be abstract")
        if child and (self.final or (self.protected_by and stanza.source.project != self.protected_by)):
            changes = [*changes, "parent"]
        if self.final and changes:
            raise Refused(f"job {self.name} is final ({self.final}); {where} may not change {', '.join(changes)}")
        if self.protected_by and changes and stanza.source.project != self.protected_by:
            raise Refused(
                f"job {self.name} is protected by {self.protected_by}; {where} may not change {', '.join(changes)}"
            )
        for key, by in self.controlled.items():
            if key in body:
                raise Refused(f"{key} of job {self.name} is final ({by}); {where} may not set it")

    def _replace_lists(self, body: dict[str, Any]) -> None:
        if "dependencies" in body:
            if not (isinstance(body["dependencies"], Tagged) and body["dependencies"].tag == "inherit"):
                self.dependencies.clear()
            for d in as_list(plain(body["dependencies"])):
                self.dependencies[d if isinstance(d, str) else d["name"]] = not isinstance(d, str) and d.get(
                    "soft", False
                )
        for key, known in (("files", self.files), ("irrelevant-files", self.irrelevant)):
            if key in body:
                if not (isinstance(body[key], Tagged) and body[key].tag == "inherit"):
                    known.clear()
                known += as_list(plain(body[key]))
        for key in ("semaphore", "semaphores"):
            for s in as_list(body.get(key)):
                self.semaphores[s if isinstance(s, str) else s["name"]] = not isinstance(s, str) and s.get(
                    "resources-first", False
                )
        if "nodeset" in body:
            self.nodeset = body["nodeset"]

    def _playbooks(self, stanza: Stanza, level: int) -> None:
        body, source = stanza.body, stanza.source

        def books(key: str) -> list[Playbook]:
            return [
                Playbook(
                    project=source.project,
                    connection=source.connection,
                    branch=source.branch,
                    path=b if isinstance(b, str) else b["name"],
                    trusted=source.trusted,
                    nesting=level,
                    semaphores=() if isinstance(b, str) else tuple(as_list(b.get("semaphores"))),
                    cleanup=key == "cleanup-run" or (not isinstance(b, str) and b.get("cleanup", False)),
                )
                for b in as_list(plain(body.get(key)))
            ]

        if "run" in body:
            self.run = books("run")
        self.pre_run = ([] if isinstance(body.get("pre-run"), Tagged) else self.pre_run) + books("pre-run")
        self.post_run = (
            books("post-run")
            + books("cleanup-run")
            + ([] if isinstance(body.get("post-run"), Tagged) else self.post_run)
        )
        if any(key in body for key in ("run", "pre-run", "post-run")):
            self.roles[source.project] = None

    def _vars(self, body: dict[str, Any]) -> None:
        for key in ("vars", "extra-vars", "host-vars", "group-vars"):
            if key in body:
                old = {} if isinstance(body[key], Tagged) else self.vars.get(key, {})
                self.vars[key] = deep_merge(old, deep_plain(body[key]))

    def _places(self, stanza: Stanza, attaching: bool) -> None:
        body = stanza.body
        for role in as_list(body.get("roles")):
            project = self.tenant.find(role.get("zuul", ""))
            if project is not None:
                self.roles[project.project] = None
        if isinstance(body.get("required-projects"), Tagged):
            self.required.clear()
        for r in as_list(plain(body.get("required-projects"))):
            name, checkout = (
                (r, "")
                if isinstance(r, str)
                else (r["name"], r.get("override-checkout") or r.get("override-branch") or "")
            )
            project = self.tenant.find(name)
            if project is None:
                raise Refused(f"job {self.name}: the required project {name!r} is not in tenant {self.tenant.name}")
            self.required[project.project] = RequiredProject(project.project, project.connection, checkout)
        allowed = as_list(body.get("allowed-projects"))
        if allowed and not (attaching and stanza.source.trusted):
            names = {p.project for n in allowed if (p := self.tenant.find(n)) is not None}
            self.allowed = names if self.allowed is None else self.allowed & names

    def _flags(self, body: dict[str, Any], where: str, project: str, base_name: str) -> None:
        if base_name != self.last_name:
            self.intermediate = ""
        self.last_name = base_name
        if body.get("intermediate"):
            self.intermediate = base_name
        if body.get("final"):
            self.final = where
        for key, rule in (plain(body.get("attribute-control")) or {}).items():
            if isinstance(rule, dict) and rule.get("final"):
                self.controlled[key] = where
        if body.get("protected"):
            self.protected_by = project
        elif body.get("protected") is False and self.protected_by:
            raise Refused(f"job {self.name} is protected; {where} may not undo it")
        self.post_review = self.post_review or bool(body.get("post-review"))

    def frozen(self, nodesets: dict[str, Any], extra: dict[str, Any]) -> FrozenJob:
        """The job; `extra` are project variables, beneath the job's own.  Raises Refused."""
        pre_s, timeout_s = self.scalars.get("pre_timeout_s"), self.scalars.get("timeout_s")
        if pre_s and timeout_s and pre_s > timeout_s:
            self.scalars["pre_timeout_s"] = timeout_s
        return FrozenJob(
            name=self.name,
            dependencies=tuple(JobDependency(name, soft) for name, soft in self.dependencies.items()),
            pre_run=tuple(self.pre_run),
            run=tuple(self.run),
            post_run=tuple(self.post_run),
            roles=tuple(self.roles),
            nodeset=self._nodeset(nodesets, self.nodeset, set()),
            semaphores=tuple(JobSemaphore(name, first) for name, first in sorted(self.semaphores.items())),
            required_projects=tuple(self.required.values()),
            vars=deep_merge(extra, self.vars.get("vars", {})),
            extra_vars=self.vars.get("extra-vars", {}),
            host_vars=self.vars.get("host-vars", {}),
            group_vars=self.vars.get("group-vars", {}),
            post_review=self.post_review,
            inheritance=tuple(self.inheritance),
            tags=tuple(sorted(self.unions["tags"])),
            provides=tuple(sorted(self.unions["provides"])),
            requires=tuple(sorted(self.unions["requires"])),
            **self.scalars,
        )

    def _nodeset(self, nodesets: dict[str, Any], given: Any, seen: set[str]) -> Nodeset:
        if given is None:
            return Nodeset()
        if isinstance(given, str):
            if given in seen:
                raise Refused(f"job {self.name}: the nodeset {given!r} is an alternative of itself")
            if given not in nodesets:
                raise Refused(f"job {self.name}: there is no nodeset {given!r}")
            return self._nodeset(nodesets, nodesets[given], seen | {given})
        if given.get("alternatives"):
            return self._nodeset(nodesets, as_list(given["alternatives"])[0], seen)
        nodes = tuple(Node(tuple(as_list(n["name"])), n["label"]) for n in as_list(given.get("nodes")))
        groups = tuple(NodeGroup(g["name"], tuple(as_list(g["nodes"]))) for g in as_list(given.get("groups")))
        most = self.tenant.max_nodes_per_job
        if most >= 0 and len(nodes) > most:
            raise Refused(f"job {self.name} wants {len(nodes)} nodes; tenant {self.tenant.name} allows {most}")
        return Nodeset(given.get("name", ""), nodes, groups)


def deep_merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Mappings merged through and through, everything else replaced."""
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = deep_merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
