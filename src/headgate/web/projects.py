"""Describe how a project is configured, as the API tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headgate.config.explain.variants import context_of, parameter, variant
from headgate.config.files.check import as_list
from headgate.config.files.document import Table
from headgate.config.freeze.sections import Section, is_dropped, parameters
from headgate.config.kinds.stanza import section_jobs
from headgate.config.layout import Layout
from headgate.config.parse import Stanza
from headgate.config.tenants import TenantProject
from headgate.web.shapes import ProjectConfig, ProjectPipeline, ProjectShape


def project_shape(layout: Layout, source: TenantProject, type: str) -> ProjectShape:
    """Return the project with every stanza that configures it, each followed by the templates that it names."""
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
    """Return the branch of a project that is used where none is named; empty: the tenant does not have the project."""
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
            named = replace(stanza, kind="job", body=attributes, line=line)
            shapes.setdefault(job, []).append(variant(layout, named, job, attaching=True))
        known = tuple(parameter(one) for one in parameters([Section(stanza, section)]))
        yield ProjectPipeline(name, known, tuple(tuple(several) for several in shapes.values()))
