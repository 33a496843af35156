"""Show a frozen job with all the data that a build of it would receive."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from headgate.config.explain import answers
from headgate.config.explain.origins import Elements, Explained
from headgate.config.layout import Layout
from headgate.config.model import FrozenGraph, FrozenJob
from headgate.config.tenants import TenantProject
from headgate.web.projects import default_branch

NO_BUILD = "0" * 32
PHASES = ("pre_playbooks", "playbooks", "post_playbooks", "cleanup_playbooks")
Json = dict[str, Any]


class OriginShape(msgspec.Struct, frozen=True, kw_only=True):
    """Name a place in the configuration that sets something of a job. Headgate only."""

    step: int
    """The step towards the frozen job, counted from 1; 0 means variables of the project, which any other setting
    overrides.
    """
    job: str
    """The job that is defined here: the job itself, or one of its parents."""
    project: str
    """Canonical name; empty for built-in settings, like the following members."""
    branch: str
    path: str
    line: int
    attaching: bool
    """Whether a project or a template sets it where it attaches the job."""


class SettingShape(msgspec.Struct, frozen=True):
    """Hold a value and where it comes from. Headgate only."""

    value: Any
    origin: OriginShape


class AttributeShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe an attribute of a frozen job with all its settings. Headgate only."""

    name: str
    """Name of the attribute; dots separate the keys of nested mappings."""
    elements: bool
    """Whether each setting adds an element to a list; otherwise the last setting applies."""
    settings: tuple[SettingShape, ...]


class ExplainedShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a frozen job and the origin of each of its attributes. Headgate only."""

    job: str
    inheritance: tuple[OriginShape, ...]
    """Every variant that applies, in the order of application."""
    attributes: tuple[AttributeShape, ...]
    errors: tuple[str, ...]
    """Why the job cannot be frozen."""


def explanation(found: Explained) -> ExplainedShape:
    """Return the known origins of a job; secrets are given by name alone."""
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
    """Identify where jobs run."""

    tenant: str
    pipeline: str
    project: TenantProject
    branch: str
    ref: str


def frozen(layout: Layout, graph: FrozenGraph, job: FrozenJob, place: RunPlace) -> Json:
    """Return the answer of `freeze-job` with everything else that is known about the job, as JSON."""
    view = answers.job(job)
    pipeline = layout.pipelines[place.pipeline]
    for role in (role for phase in PHASES for book in view.get(phase, ()) for role in book["roles"]):
        role["project_default_branch"] = default_branch(layout, role["project"])
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
        # The frozen job carries the secrets' data; whoever may read the tenant may see their names only.
        book["secrets"] = [{"name": secret["name"], "data": "REDACTED"} for secret in book.get("secrets", [])]
    return {**found, "voting": job.voting}
