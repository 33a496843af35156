"""Decide which stanzas a layout admits, and record why it rejects others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headgate.base.hints import HintedText, nearest
from headgate.config.definitions import PATTERNS, Key
from headgate.config.files.checks import as_list, deep_plain, entries
from headgate.config.files.document import Table
from headgate.config.files.source import MEANING, Wrong
from headgate.config.kinds.pipeline import pipeline
from headgate.config.model import ANSIBLE, ConfigError, Pipeline
from headgate.config.operator.model import Tenant, TenantProject
from headgate.config.parse import Stanza
from headgate.config.patterns import Undecided, any_matches

TIMEOUTS = ("timeout", "pre-timeout", "post-timeout")


class AdditionVerdict(NamedTuple):
    """Hold the decision about one stanza."""

    admitted: bool
    errors: tuple[ConfigError, ...] = ()
    """Reasons for a rejection, or warnings about an admitted stanza; empty for a stanza that repeats another one."""
    pipeline: Pipeline | None = None
    """Pipeline that an admitted pipeline stanza defines."""


class Admission:
    """Decide which stanzas of a tenant are admitted."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant

    def key(self, stanza: Stanza) -> Key:
        """Return the key that a stanza claims."""
        if stanza.kind != "project":
            return (stanza.kind, stanza.name)
        # A pattern may match projects of every name, so all patterns share a key.
        if stanza.name.startswith("^"):
            return PATTERNS
        target = self._target(stanza)
        return ("project", target.project if target else "")

    def verdict(self, stanza: Stanza, known: Sequence[Stanza]) -> AdditionVerdict:
        """Return whether a stanza is admitted. `known` holds the stanzas that its key has admitted so far."""
        warnings: list[Wrong] = []
        made: Pipeline | None = None
        try:
            if stanza.kind == "pipeline":
                made, admitted = self._pipeline(stanza, known, warnings), True
            else:
                admitted = self._admit(stanza, known)
                if admitted and stanza.kind == "job":
                    warnings += _image_of_nothing(stanza)
        except Wrong as wrong:
            return AdditionVerdict(False, (stanza.source.error_from(wrong, stanza.line),))
        except Undecided as undecided:
            return AdditionVerdict(False, (stanza.source.error(MEANING, str(undecided), stanza.line),))
        errors = tuple(stanza.source.error_from(warning, stanza.line) for warning in warnings)
        return AdditionVerdict(admitted, errors, made)

    def _admit(self, stanza: Stanza, known: Sequence[Stanza]) -> bool:
        """Return whether a stanza is admitted. False means that it is ignored without an error, because another stanza
        takes precedence. Raise Wrong if it is rejected."""
        match stanza.kind:
            case "job":
                return self._job(stanza, known)
            case "project":
                return self._project(stanza)
            case "project-template":
                return self._template(stanza, known)
            case kind:
                if kind == "nodeset":
                    self._check_labels(stanza.body)
                if kind == "secret":
                    self._check_oidc(stanza.body)
                return self._single(stanza, known)

    def _pipeline(self, stanza: Stanza, known: Sequence[Stanza], warnings: list[Wrong]) -> Pipeline:
        if known:
            raise Wrong(f"the pipeline {stanza.name} is already defined", stanza.body.at("name"), MEANING)
        return pipeline(stanza.body, self._tenant, warnings)

    def _single(self, stanza: Stanza, known: Sequence[Stanza]) -> bool:
        """Return whether a stanza is the first of its name. False means that it repeats the first one on another
        branch. Raise Wrong if it conflicts with the first one or has the name of a global semaphore."""
        kind, body = stanza.kind, stanza.body
        if kind == "semaphore" and stanza.name in self._tenant.semaphores:
            raise Wrong(f"the semaphore {stanza.name} is a global one; choose another name", body.at("name"), MEANING)
        if not known:
            return True
        first = known[0]
        if first.source.project != stanza.source.project:
            text = f"the {kind} {stanza.name} is already defined in project {first.source.project}"
        elif first.source.branch == stanza.source.branch:
            text = f"the {kind} {stanza.name} is already defined in {first.source.path}:{first.line}"
        # Equal files on several branches are parsed once and share their bodies, so compare by identity first.
        elif first.body is body or deep_plain(first.body) == deep_plain(body):
            return False
        else:
            text = f"the {kind} {stanza.name} does not match its existing definition on branch {first.source.branch}"
        raise Wrong(text, body.at("name"), MEANING)

    # --- jobs

    def _job(self, stanza: Stanza, known: Sequence[Stanza]) -> bool:
        body, name = stanza.body, stanza.name
        if name == "noop":
            raise Wrong("the job noop is built in", body.at("name"), MEANING)
        # Otherwise a project could change the jobs of others by adding a variant.
        if known and known[0].source.project != stanza.source.project:
            if self._shadowed(stanza, known[0].source.project):
                return False
            text = f"the job {name} is already defined in project {known[0].source.project}"
            raise Wrong(text, body.at("name"), MEANING)
        self._check_base(stanza)
        self._check_attributes(body)
        return True

    def _source(self, project: str) -> TenantProject:
        found = self._tenant.find(project)
        assert found is not None, "only the tenant's projects have stanzas"
        return found

    def _shadowed(self, stanza: Stanza, by: str) -> bool:
        source = self._source(stanza.source.project)
        return any((p := self._tenant.find(name)) is not None and p.project == by for name in source.shadow)

    def _check_base(self, stanza: Stanza) -> None:
        body = stanza.body
        if "parent" not in body or body["parent"] is not None:
            return
        # Most jobs inherit from a base job, so it can alter all of them.
        if not stanza.source.trusted:
            text = "only config-projects may define a base job (parent: null)"
            raise Wrong(text, body.at("parent"), "Base Job Not Permitted")
        if not self._source(stanza.source.project).allow_base_jobs:
            text = "this config-project may not define base jobs: the tenant file sets allow-base-jobs: false"
            raise Wrong(text, body.at("parent"), "Base Job Not Permitted")

    def _check_attributes(self, body: Table) -> None:
        """Raise Wrong if attributes of a job, in its own stanza or in a project's section, exceed what the tenant
        allows."""
        limit_s = self._tenant.max_job_timeout_s
        for key in TIMEOUTS:
            # -1 means no limit.
            if 0 <= limit_s < body.get(key, 0):
                text = f"{key} exceeds the tenant's limit of {limit_s} s"
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
        # `assembly.references` then requires that every label is defined.
        if not tenant.use_nodepool:
            return
        for node, _ in entries(nodeset.get("nodes"), nodeset.line):
            label = node["label"]
            allowed = not tenant.allowed_labels or any_matches(tenant.allowed_labels, label)
            if not allowed or any_matches(tenant.disallowed_labels, label):
                raise Wrong(f"this tenant may not use the label {label!r}", node.at("label"), "Label Forbidden")
        for other, _ in entries(nodeset.get("alternatives"), nodeset.line):
            if isinstance(other, Table):
                self._check_labels(other)

    def _check_oidc(self, body: Table) -> None:
        oidc = body.get("oidc")
        if not isinstance(oidc, Table):
            return
        most_s, allowed = self._tenant.max_oidc_ttl_s, self._tenant.allowed_oidc_issuers
        if oidc.get("ttl", 0) > most_s:
            text = f"ttl exceeds the tenant's limit of {most_s} s"
            raise Wrong(text, oidc.at("ttl"), "Max OIDC TTL Exceeded")
        if "iss" in oidc and oidc["iss"] not in allowed:
            unknown = HintedText(f"this tenant may not use the issuer {oidc['iss']!r}", nearest(oidc["iss"], allowed))
            raise Wrong(unknown, oidc.at("iss"), "OIDC issuer not allowed")

    # --- projects

    def _template(self, stanza: Stanza, known: Sequence[Stanza]) -> bool:
        # Otherwise a project could add jobs to all projects that use the template of another one.
        if known and known[0].source.project != stanza.source.project:
            text = f"the template {stanza.name} is already defined in project {known[0].source.project}"
            raise Wrong(text, stanza.body.at("name"), MEANING)
        self._sections(stanza)
        return True

    def _target(self, stanza: Stanza) -> TenantProject | None:
        return self._tenant.find(stanza.name or stanza.source.project)

    def _project(self, stanza: Stanza) -> bool:
        own, name, line = stanza.source.project, stanza.name, stanza.body.at("name")
        if not name.startswith("^"):
            target = self._target(stanza)
            if target is None:
                raise Wrong(self._tenant.why_not(name), line, "Project Not Found")
            # Otherwise a project could attach jobs to the changes of another one.
            if not self._source(own).configures(target):
                text = f"{own} may configure only itself, not {target.name}"
                raise Wrong(text, line, "Project Forbidden")
        self._sections(stanza)
        return True

    def _sections(self, stanza: Stanza) -> None:
        """Raise Wrong if attributes of jobs in the sections exceed what the tenant allows."""
        for _, section in stanza.sections():
            for job in as_list(section.get("jobs")):
                if isinstance(job, Table):
                    self._check_attributes(next(iter(job.values())))


def _image_of_nothing(stanza: Stanza) -> Iterator[Wrong]:
    """Yield a warning if none of the programs that this job itself names would run in its image. Jobs that inherit the
    image may still run something in it."""
    body = stanza.body
    if "image" not in body or "run" not in body:
        return
    names = [one["name"] if isinstance(one, Table) else one for one, _ in entries(body["run"], body.at("run"))]
    if not stanza.source.trusted or any(name.endswith(ANSIBLE) for name in names):
        return
    why = "programs of config-projects run outside it, with the executor's own files"
    yield Wrong(f"none of this job's programs runs in its image: {why}", body.at("image"), MEANING, "warning")
