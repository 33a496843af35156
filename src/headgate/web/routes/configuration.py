"""What the configuration comes to: projects, jobs, pipelines, errors, frozen graphs."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import get
from litestar.datastructures import State
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath

from headgate.config.layout import Layout
from headgate.config.model import FrozenGraph, FrozenJob
from headgate.config.parse import Stanza
from headgate.config.reading.check import as_list, deep_plain
from headgate.config.reading.document import Table
from headgate.config.reading.source import nearest
from headgate.config.telling import answers
from headgate.config.tenants import TenantProject
from headgate.web.routes.autohold import AUTOHOLD, HoldShape, of_project
from headgate.web.shapes import (
    ConfigErrorShape,
    FrozenDependency,
    FrozenName,
    JobName,
    JobVariant,
    PipelineName,
    ProjectConfig,
    ProjectName,
    ProjectPipeline,
    ProjectShape,
    TriggerShape,
)
from headgate.web.site import HttpRequest, Site, site_of


def _landed(state: State, tenant: str) -> Layout:
    return site_of(state).tenant(tenant).layouts.landed


def _context(stanza: Stanza) -> dict[str, Any]:  # JSON
    source = stanza.source
    return {"project": source.project, "branch": source.branch, "path": source.path, "line": stanza.line}


@get("/api/tenant/{tenant:str}/pipelines")
async def pipelines(state: State, tenant: FromPath[str]) -> list[PipelineName]:
    """Pipelines, in the order they are defined."""
    return [
        PipelineName(n, tuple(TriggerShape(t.connection, "git") for t in p.triggers), p.manager, p.description)
        for n, p in _landed(state, tenant).pipelines.items()
    ]


@get("/api/tenant/{tenant:str}/jobs")
async def jobs(state: State, tenant: FromPath[str]) -> list[JobName]:
    """Jobs, with what each of their definitions is the child of and where it counts."""
    return [
        JobName(
            name,
            stanzas[0].body.get("description", ""),
            tuple(dict.fromkeys(tag for s in stanzas for tag in as_list(s.body.get("tags")))),
            tuple({"parent": _parent(s), "branches": _branches(s) or None} for s in stanzas),
        )
        for name, stanzas in sorted(_landed(state, tenant).jobs.items())
        if stanzas
    ]


def _parent(stanza: Stanza) -> str | None:
    parent = stanza.body.get("parent")
    return str(parent) if parent is not None else None


def _branches(stanza: Stanza) -> list[str]:
    return [str(deep_plain(branch)) for branch in as_list(stanza.body.get("branches"))]


@get("/api/tenant/{tenant:str}/job/{rest:path}", opt={"rest": ("{job}",)})
async def job(state: State, tenant: FromPath[str], rest: FromPath[str]) -> list[JobVariant]:
    """Every definition of one job, in the order they apply."""
    known, name = _landed(state, tenant).jobs, rest.strip("/")
    if not known.get(name):
        raise NotFoundException(f"tenant {tenant} has no job {name!r}{nearest(name, list(known))}")
    return [
        JobVariant(
            name=name,
            parent=_parent(s),
            branches=tuple(_branches(s)),
            description=s.body.get("description", ""),
            source_context=_context(s),
            body={k: v for k, v in deep_plain(s.body).items() if k != "name"},
        )
        for s in known[name]
    ]


@get("/api/tenant/{tenant:str}/projects")
async def projects(state: State, tenant: FromPath[str]) -> list[ProjectName]:
    """Projects of the tenant."""
    return [
        ProjectName(p.name, p.connection, p.project, _type(p)) for p in site_of(state).tenant(tenant).tenant.projects
    ]


def _type(source: TenantProject) -> str:
    return "config" if source.trusted else "untrusted"


@get("/api/tenant/{tenant:str}/project/{rest:path}", opt={"rest": ("{project}", "{project}/autohold")})
async def project(
    state: State, request: HttpRequest, tenant: FromPath[str], rest: FromPath[str]
) -> ProjectShape | list[HoldShape]:
    """One project, with every stanza that configures it; below `…/autohold` its requests to hold builds."""
    name, _, last = rest.strip("/").rpartition("/")
    if last == AUTOHOLD:
        return of_project(site_of(state), request, tenant, name)
    site, layout = site_of(state), _landed(state, tenant)
    canonical = site.project(tenant, rest.strip("/"))
    source = layout.source(canonical)
    assert source is not None, "the site knows it from the same tenant"
    branches = layout.branches.get(canonical, ())
    return ProjectShape(
        name=source.name,
        connection_name=source.connection,
        canonical_name=canonical,
        type=_type(source),
        branches=branches,
        configs=tuple(_config(layout, stanza, branches) for stanza in layout.stanzas(canonical)),
    )


def _config(layout: Layout, stanza: Stanza, branches: tuple[str, ...]) -> ProjectConfig:
    sections = {n: s for n, s in stanza.body.items() if n in layout.pipelines and isinstance(s, Table)}
    return ProjectConfig(
        source_context=_context(stanza),
        templates=tuple(as_list(stanza.body.get("templates"))),
        default_branch=branches[0] if branches else "",
        merge_mode=stanza.body.get("merge-mode", "merge"),
        pipelines=tuple(
            ProjectPipeline(name, stanza.body.get("queue"), tuple((_named(e),) for e in as_list(section.get("jobs"))))
            for name, section in sections.items()
        ),
    )


def _named(entry: Any) -> dict[str, Any]:  # as it is written: a name, or one name with what it changes
    if isinstance(entry, str):
        return {"name": entry}
    name, changes = next(iter(entry.items()))
    return {"name": name, **(deep_plain(changes) or {})}


@get("/api/tenant/{tenant:str}/config-errors")
async def config_errors(state: State, request: HttpRequest, tenant: FromPath[str]) -> list[ConfigErrorShape]:
    """What is wrong with the configuration that landed.  Filters: project, branch, severity, name, limit, skip."""
    query = request.query_params
    names = ("project", "branch", "severity", "name")
    found = [
        error
        for error in site_of(state).tenant(tenant).layouts.errors
        if all(getattr(error, name) == query[name] for name in names if query.get(name))
    ]
    try:
        skip, limit = int(query.get("skip", 0)), int(query.get("limit", len(found)))
    except ValueError as wrong:
        raise HTTPException("limit and skip are whole numbers", status_code=400) from wrong
    return [
        ConfigErrorShape(
            source_context={"project": e.project, "branch": e.branch, "path": e.path, "line": e.line},
            error=e.render(),
            short_error=e.text,
            severity=e.severity,
            name=e.name,
        )
        for e in found[max(0, skip) :][: max(0, limit)]
    ]


@get("/api/tenant/{tenant:str}/tenant-status")
async def tenant_status(state: State, tenant: FromPath[str]) -> dict[str, int]:
    """How many errors the configuration has."""
    return {"config_error_count": len(site_of(state).tenant(tenant).layouts.errors)}


@get("/api/tenant/{tenant:str}/labels")
async def labels(state: State, tenant: FromPath[str]) -> list[dict[str, str]]:
    """Labels that the tenant's nodesets ask for."""
    found: set[str] = set()
    for stanza in _landed(state, tenant).singles["nodeset"].values():
        alternatives = [a for a in as_list(stanza.body.get("alternatives")) if isinstance(a, Table)]
        for form in (stanza.body, *alternatives):
            found |= {str(node["label"]) for node in as_list(form.get("nodes"))}
    return [{"name": name} for name in sorted(found)]


@get(
    "/api/tenant/{tenant:str}/pipeline/{pipeline:str}/project/{rest:path}",
    opt={"rest": ("{project}/branch/{branch}/freeze-jobs", "{project}/branch/{branch}/freeze-job/{job}")},
)
async def freeze(state: State, tenant: FromPath[str], pipeline: FromPath[str], rest: FromPath[str]) -> Any:  # of two
    """The jobs a branch of a project runs in a pipeline; or one of them with everything that it is frozen to."""
    name, _, tail = rest.strip("/").partition("/branch/")
    site = site_of(state)
    site.pipeline(tenant, pipeline)
    if tail.endswith("/freeze-jobs"):
        graph = _graph(site, tenant, pipeline, name, tail.removesuffix("/freeze-jobs"))
        return [FrozenName(j.name, tuple(FrozenDependency(d.name, d.soft) for d in j.dependencies)) for j in graph.jobs]
    branch, verb, wanted = tail.rpartition("/freeze-job/")
    if not verb:
        raise NotFoundException("of a project in a pipeline, ask …/branch/<branch>/freeze-jobs or …/freeze-job/<job>")
    graph = _graph(site, tenant, pipeline, name, branch)
    found = next((j for j in graph.jobs if j.name == wanted), None)
    if found is None:
        known = nearest(wanted, [j.name for j in graph.jobs])
        raise NotFoundException(f"{name} runs no job {wanted!r} in {pipeline} on {branch}{known}")
    return _frozen(found)


def _graph(site: Site, tenant: str, pipeline: str, project: str, branch: str) -> FrozenGraph:
    """Raises 404, and 400 when the configuration cannot be frozen."""
    graph = site.tenant(tenant).layouts.landed.freeze(pipeline, site.project(tenant, project), branch)
    if graph.errors:
        raise HTTPException("\n".join(error.render() for error in graph.errors), status_code=400)
    return graph


def _frozen(job: FrozenJob) -> dict[str, Any]:  # JSON
    """As Zuul has it, and beside it everything else that we know of the job."""
    found: dict[str, Any] = msgspec.to_builtins(job)  # JSON
    for book in (book for phase in ("pre_run", "run", "post_run") for book in found.get(phase, [])):
        book["secrets"] = [{"name": secret["name"], "data": "REDACTED"} for secret in book.get("secrets", [])]
    return {**found, "voting": job.voting, **answers.job(job)}


ROUTES = (
    pipelines, jobs, job, projects, project, config_errors, tenant_status, labels, freeze,
)  # fmt: skip
