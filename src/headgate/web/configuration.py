"""Describe the configuration of a project, and a frozen job with the origins of its attributes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from headgate.config.explain import answers
from headgate.config.explain.origins import Elements, Explained
from headgate.config.explain.variants import context_of, parameter, variant
from headgate.config.files.checks import as_list
from headgate.config.files.document import Table
from headgate.config.freeze.sections import Section, is_dropped, parameters
from headgate.config.kinds.stanza import section_jobs
from headgate.config.layout import Layout
from headgate.config.model import FrozenGraph, FrozenJob
from headgate.config.operator.model import TenantProject
from headgate.config.parse import Stanza
from headgate.web.shapes import ProjectConfig, ProjectPipeline, ProjectShape

# As in Zuul's answer: a job that is only frozen has no build.
NO_BUILD = "0" * 32
PHASES = ("pre_playbooks", "playbooks", "post_playbooks", "cleanup_playbooks")
Json = dict[str, Any]


def project_shape(layout: Layout, source: TenantProject, type: str) -> ProjectShape:
    """Return the project with every stanza that configures it, each followed by the templates it uses."""
    canonical, stanzas = source.project, layout.stanzas(source.project)
    branches = layout.branches.get(canonical, ())
    configs = tuple(config for stanza in stanzas for config in _configs(layout, stanza, branches))
    metadata: dict[str, Any] = {
        "merge_mode": layout.merge_mode(canonical, branches[0] if branches else ""),
        "default_branch": default_branch(layout, canonical),
        "is_template": False,
        "queue_name": next((config.queue_name for config in configs if config.queue_name), None),
    }
    return ProjectShape(
        name=source.name,
        connection_name=source.connection,
        canonical_name=canonical,
        type=type,
        branches=branches,
        configs=configs,
        metadata=metadata if stanzas else {},
    )


def default_branch(layout: Layout, project: str) -> str:
    """Return the branch that applies where none is given; empty: the tenant does not have the project."""
    source, branches = layout.source(project), layout.branches.get(project, ())
    return layout.default_branch(project) or (branches[0] if branches else source.load_branch if source else "")


def _configs(layout: Layout, stanza: Stanza, branches: tuple[str, ...]) -> Iterator[ProjectConfig]:
    names = as_list(stanza.body.get("templates"))
    for one in (stanza, *(template for name in names for template in layout.templates.get(name, ()))):
        yield ProjectConfig(
            source_context=context_of(one),
            is_template=one.kind == "project-template",
            templates=tuple(as_list(one.body.get("templates"))),
            default_branch=one.body.get("default-branch") or (branches[0] if branches else None),
            merge_mode=one.body.get("merge-mode"),
            queue_name=one.body.get("queue"),
            pipelines=tuple(_pipelines(layout, one)),
        )


def _pipelines(layout: Layout, stanza: Stanza) -> Iterator[ProjectPipeline]:
    for name, section in stanza.body.items():
        if name not in layout.pipelines or not isinstance(section, Table) or is_dropped(layout, name, section):
            continue
        shapes: dict[str, list[dict[str, Any]]] = {}
        for job, attributes, line in section_jobs(section):
            # `variant` describes stanzas of jobs, so present the entry as one.
            named = replace(stanza, kind="job", body=attributes, line=line)
            shapes.setdefault(job, []).append(variant(layout, named, job, attaching=True))
        known = tuple(parameter(one) for one in parameters([Section(stanza, section)]))
        yield ProjectPipeline(name, known, tuple(tuple(several) for several in shapes.values()))


class OriginShape(msgspec.Struct, frozen=True, kw_only=True):
    """Locate the place in the configuration where an attribute of a job is set. Headgate only."""

    step: int
    """Position in the order in which variants apply, from 1; 0 means variables of the project, which every variant
    overrides.
    """
    job: str
    """Job that this variant defines: the job itself, or one of its parents."""
    project: str
    """Canonical name; empty for built-in settings, like the following members."""
    branch: str
    path: str
    line: int
    attaching: bool
    """Whether the place is where a project or a template adds the job to a pipeline."""


class SettingShape(msgspec.Struct, frozen=True):
    """Hold a value and the place that sets it. Headgate only."""

    value: Any
    origin: OriginShape


class AttributeShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe an attribute of a frozen job with all its settings. Headgate only."""

    name: str
    """Name of the attribute; dots separate the keys of nested mappings."""
    elements: bool
    """Whether each setting adds elements to a list; otherwise the last setting applies."""
    settings: tuple[SettingShape, ...]


class ExplainedShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a frozen job and the origin of each of its attributes. Headgate only."""

    job: str
    inheritance: tuple[OriginShape, ...]
    """Every variant that applies, in the order of application."""
    attributes: tuple[AttributeShape, ...]
    errors: tuple[str, ...]
    """Why the job cannot be frozen, or is too large to explain."""


def explanation(found: Explained) -> ExplainedShape:
    """Return the origins of a job's attributes; secrets appear by name only."""
    return ExplainedShape(
        job=found.job,
        inheritance=tuple(OriginShape(**one._asdict()) for one in found.variants),
        attributes=tuple(
            AttributeShape(
                name=one.path,
                elements=isinstance(one, Elements),
                settings=tuple(SettingShape(s.value, OriginShape(**s.origin._asdict())) for s in one.settings),
            )
            for one in found.attributes
        ),
        errors=tuple(error.render() for error in found.errors),
    )


class RunPlace(NamedTuple):
    """Identify what a job is frozen for: a ref of a project in a pipeline of a tenant."""

    tenant: str
    pipeline: str
    project: TenantProject
    branch: str
    ref: str


def frozen(layout: Layout, graph: FrozenGraph, job: FrozenJob, place: RunPlace) -> Json:
    """Return the response of `freeze-job` as JSON: Zuul's fields, and all others that Headgate knows."""
    view = answers.job(job)
    pipeline = layout.pipelines[place.pipeline]
    for role in (role for phase in PHASES for book in view.get(phase, ()) for role in book["roles"]):
        role["project_default_branch"] = default_branch(layout, role["project"])
    # Clients of Zuul's API expect all of these keys, although only a build has values for most of them.
    view |= {
        "branch": place.branch,
        "items": [],
        "projects": [],
        "repo_state_keys": [],
        "ssh_keys": [],
        "pipeline_builds_images": False,
        "override_branch": None,
        "secret_vars": None,
        "ansible_version": view["ansible_version"] or "",
    }
    view["zuul"] |= {
        "project": _project(place.project),
        "branch": place.branch,
        "build": NO_BUILD,
        "buildset": None,
        "ref": place.ref,
        "change_url": None,
        "buildset_refs": [],
        "build_refs": [],
        "pipeline": place.pipeline,
        "post_review": pipeline.post_review,
        "tenant": place.tenant,
        "event_id": None,
        "include_vars": [{"name": one.name, "required": one.required} for one in job.include_vars],
        "projects": {one.project: _project(layout.source(one.project)) for one in job.required_projects},
        "items": [],
        "child_jobs": [j.name for j in graph.jobs if any(d.name == job.id for d in j.dependencies)],
        "timeouts": {},
        "image_build_name": job.image_build_name or None,
        "deduplicate": job.deduplicate,
        "_inheritance_path": list(job.inheritance),
    }
    # Zuul's form takes precedence where both have a key, such as `nodeset`.
    return {**_ours(job), **view}


def _project(source: TenantProject) -> Json:
    host = source.project.partition("/")[0]
    return {
        "name": source.name,
        "short_name": source.name.rpartition("/")[2],
        "canonical_hostname": host,
        "canonical_name": source.project,
        "src_dir": f"src/{source.project}",
    }


def _ours(job: FrozenJob) -> Json:
    found: Json = msgspec.to_builtins(job)
    for book in (book for phase in ("pre_run", "run", "post_run") for book in found.get(phase, [])):
        # The frozen job carries the secrets' data; readers of the tenant may see only their names.
        book["secrets"] = [{"name": secret["name"], "data": "REDACTED"} for secret in book.get("secrets", [])]
    # Encoding leaves out default values, and true is the default, but readers look for `voting`.
    return {**found, "voting": job.voting}
