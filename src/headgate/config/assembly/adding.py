"""One stanza after another into a layout; one that is refused is left out, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headgate.config.kinds.pipeline import pipeline
from headgate.config.model import ConfigError
from headgate.config.operator.model import TenantProject
from headgate.config.parse import Stanza
from headgate.config.patterns import any_matches, any_whole
from headgate.config.reading.check import as_list, deep_plain, entries
from headgate.config.reading.document import Table
from headgate.config.reading.source import MEANING, Wrong, nearest

if TYPE_CHECKING:
    from headgate.config.layout import Layout

SINGLE = ("nodeset", "secret", "image", "flavor", "label", "semaphore", "section", "provider", "queue")
"""Kinds of which there is one of a name; the same once more on another branch is no harm."""
ORDER = (
    "pipeline",
    "nodeset",
    "secret",
    "job",
    "image",
    "flavor",
    "label",
    "semaphore",
    "section",
    "provider",
    "queue",
    "project-template",
    "project",
)
TIMEOUTS = ("timeout", "pre-timeout", "post-timeout")


class Adder:
    """`labels` are the names of all label stanzas, for a tenant that must define its labels."""

    def __init__(self, layout: Layout, labels: frozenset[str]) -> None:
        self._layout, self._labels = layout, labels
        self._tenant = layout.tenant
        self.kept: list[Stanza] = []
        """What was added."""

    def add(self, stanza: Stanza) -> Iterator[ConfigError]:
        """Errors of a stanza that is left out, and warnings of one that is not."""
        warnings: list[Wrong] = []
        try:
            if self._add(stanza, warnings):
                self.kept.append(stanza)
        except Wrong as wrong:
            yield stanza.source.told(wrong, stanza.line)
        for warning in warnings:
            yield stanza.source.told(warning, stanza.line)

    def _add(self, stanza: Stanza, warnings: list[Wrong]) -> bool:
        """False: silently left out, as another says the same.  Raises Wrong."""
        match stanza.kind:
            case "pipeline":
                return self._pipeline(stanza, warnings)
            case "job":
                return self._job(stanza)
            case "project":
                return self._project(stanza)
            case "project-template":
                return self._template(stanza)
            case kind:
                if kind == "nodeset":
                    self._check_labels(stanza.body)
                if kind == "secret":
                    self._check_oidc(stanza.body)
                return self._single(stanza)

    def _pipeline(self, stanza: Stanza, warnings: list[Wrong]) -> bool:
        if stanza.name in self._layout.pipelines:
            raise Wrong(f"the pipeline {stanza.name} is already defined", stanza.body.at("name"), MEANING)
        made = pipeline(stanza.body, self._tenant, warnings)
        self._layout.pipelines[stanza.name] = made
        return True

    def _single(self, stanza: Stanza) -> bool:
        """The first of a name counts."""
        kind, body = stanza.kind, stanza.body
        if kind == "semaphore" and stanza.name in self._tenant.semaphores:
            raise Wrong(f"the semaphore {stanza.name} is a global one; choose another name", body.at("name"), MEANING)
        first = self._layout.singles[kind].setdefault(stanza.name, stanza)
        if first is stanza:
            return True
        if first.source.project != stanza.source.project:
            text = f"the {kind} {stanza.name} is already defined in project {first.source.project}"
        elif first.source.branch == stanza.source.branch:
            text = f"the {kind} {stanza.name} is already defined in {first.source.path}:{first.line}"
        elif deep_plain(first.body) == deep_plain(body):
            return False
        else:
            text = f"the {kind} {stanza.name} does not match its existing definition on branch {first.source.branch}"
        raise Wrong(text, body.at("name"), MEANING)

    # --- jobs

    def _job(self, stanza: Stanza) -> bool:
        body, name = stanza.body, stanza.name
        known = self._layout.jobs.get(name)
        if name == "noop":
            raise Wrong("the job noop is built in", body.at("name"), MEANING)
        if known and known[0].source.project != stanza.source.project:
            if self._shadowed(stanza, known[0].source.project):
                return False
            text = f"the job {name} is already defined in project {known[0].source.project}"
            raise Wrong(text, body.at("name"), MEANING)
        self._check_base(stanza)
        self.check_attributes(body)
        self._layout.jobs.setdefault(name, []).append(stanza)
        return True

    def _shadowed(self, stanza: Stanza, by: str) -> bool:
        source = self._layout.source(stanza.source.project)
        return any((p := self._tenant.find(name)) is not None and p.project == by for name in source.shadow)

    def _check_base(self, stanza: Stanza) -> None:
        body = stanza.body
        if "parent" not in body or body["parent"] is not None:
            return
        if not stanza.source.trusted:
            text = "a base job (parent: null) is defined in config-projects only"
            raise Wrong(text, body.at("parent"), "Base Job Not Permitted")
        if not self._layout.source(stanza.source.project).allow_base_jobs:
            text = "this config-project may not define base jobs: the tenant file says allow-base-jobs: false"
            raise Wrong(text, body.at("parent"), "Base Job Not Permitted")

    def check_attributes(self, body: Table) -> None:
        """What the tenant forbids a job, wherever it is said.  Raises Wrong."""
        limit_s = self._tenant.max_job_timeout_s
        for key in TIMEOUTS:
            if 0 <= limit_s < body.get(key, 0):
                text = f"{key} is longer than the tenant allows, {limit_s} s"
                raise Wrong(text, body.at(key), "Max Timeout Exceeded")
        for key in ("required-projects", "allowed-projects"):
            for entry, line in entries(body.get(key), body.at(key)):
                self._know(entry if isinstance(entry, str) else entry["name"], line)
        for entry, line in entries(body.get("include-vars"), body.at("include-vars")):
            if isinstance(entry, Table) and "project" in entry:
                self._know(entry["project"], line)
        if isinstance(body.get("nodeset"), Table):
            self._check_labels(body["nodeset"])

    def _know(self, name: str, line: int) -> None:
        if self._tenant.find(name) is None:
            raise Wrong(self._tenant.why_not(name), line, "Project Not Found")

    def _check_labels(self, nodeset: Table) -> None:
        tenant = self._tenant
        for node, _ in entries(nodeset.get("nodes"), nodeset.line):
            label, line = node["label"], node.at("label")
            if not tenant.use_nodepool:
                if label not in self._labels:
                    text = f"there is no label {label!r}{nearest(label, self._labels)}"
                    raise Wrong(text, line, "Label Not Found")
                continue
            allowed = not tenant.allowed_labels or any_matches(tenant.allowed_labels, label)
            if not allowed or any_matches(tenant.disallowed_labels, label):
                raise Wrong(f"this tenant may not use the label {label!r}", line, "Label Forbidden")
        for other, _ in entries(nodeset.get("alternatives"), nodeset.line):
            if isinstance(other, Table):
                self._check_labels(other)

    def _check_oidc(self, body: Table) -> None:
        oidc = body.get("oidc")
        if not isinstance(oidc, Table):
            return
        most_s, allowed = self._tenant.max_oidc_ttl_s, self._tenant.allowed_oidc_issuers
        if oidc.get("ttl", 0) > most_s:
            text = f"ttl is longer than the tenant allows, {most_s} s"
            raise Wrong(text, oidc.at("ttl"), "Max OIDC TTL Exceeded")
        if "iss" in oidc and oidc["iss"] not in allowed:
            text = f"this tenant may not use the issuer {oidc['iss']!r}{nearest(oidc['iss'], allowed)}"
            raise Wrong(text, oidc.at("iss"), "OIDC issuer not allowed")

    # --- projects

    def _template(self, stanza: Stanza) -> bool:
        known = self._layout.templates.get(stanza.name)
        if known and known[0].source.project != stanza.source.project:
            text = f"the template {stanza.name} is already defined in project {known[0].source.project}"
            raise Wrong(text, stanza.body.at("name"), MEANING)
        self._sections(stanza)
        self._layout.templates.setdefault(stanza.name, []).append(stanza)
        return True

    def _project(self, stanza: Stanza) -> bool:
        own, name, line = stanza.source.project, stanza.name, stanza.body.at("name")
        if name.startswith("^"):
            if not stanza.source.trusted:
                text = "a pattern of projects is for config-projects only"
                raise Wrong(text, line, "Project Forbidden")
            self._sections(stanza)
            self._layout.patterns.append(stanza)
            return True
        target = self._tenant.find(name) if name else self._layout.source(own)
        if target is None:
            raise Wrong(self._tenant.why_not(name), line, "Project Not Found")
        if not stanza.source.trusted and target.project != own and not self._may_configure(own, target):
            text = f"{own} may configure only itself, not {target.name}"
            raise Wrong(text, line, "Project Forbidden")
        self._sections(stanza)
        self._layout.projects.setdefault(target.project, []).append(stanza)
        return True

    def _may_configure(self, own: str, target: TenantProject) -> bool:
        rules = self._layout.source(own).configure_projects
        return any_whole(rules, target.name) or any_whole(rules, target.project)

    def _sections(self, stanza: Stanza) -> None:
        """What is said of jobs in sections keeps to the tenant's limits."""
        for _, section in stanza.sections():
            for job in as_list(section.get("jobs")):
                if isinstance(job, Table):
                    self.check_attributes(next(iter(job.values())))
