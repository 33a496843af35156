"""Show the resulting configuration: projects, jobs, pipelines, errors and frozen job graphs."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from headgate.config.explain import answers
from headgate.config.explain.origins import explained
from headgate.config.explain.variants import branches_of, parent_of, variant
from headgate.config.files.check import as_list, deep_plain
from headgate.config.files.source import nearest
from headgate.config.freeze.sections import FreezeTarget
from headgate.config.layout import Layout
from headgate.config.model import FrozenGraph
from headgate.config.parse import Stanza
from headgate.config.tenants import TenantProject
from headgate.rest import HTTPException, HttpRequest, NotFoundException, get
from headgate.web.description import NUMBER, QueryParameter
from headgate.web.jobview import RunPlace, explanation, frozen
from headgate.web.projects import project_shape
from headgate.web.routes.autohold import AUTOHOLD, HoldShape, of_project
from headgate.web.routes.history import must_be_known, number
from headgate.web.shapes import ConfigErrorShape, JobName, PipelineName, ProjectName, ProjectShape, TriggerShape
from headgate.web.site import Site, must_be_read


def _landed(site: Site, tenant: str) -> Layout:
    """Raise 404; 422 while it is being read: what is not known yet is not nothing."""
    return must_be_read(site, tenant).layouts.landed


@get("/api/tenant/{tenant:str}/pipelines")
async def pipelines(site: Site, tenant: str) -> list[PipelineName]:
    """Return the pipelines, in the order of their definitions."""
    configured = must_be_read(site, tenant)
    return [
        PipelineName(
            name,
            tuple(TriggerShape(t.connection, configured.tenant.driver(t.connection)) for t in pipeline.triggers),
            pipeline.manager,
            pipeline.description,
        )
        for name, pipeline in configured.layouts.landed.pipelines.items()
    ]


@get("/api/tenant/{tenant:str}/jobs")
async def jobs(site: Site, tenant: str) -> list[JobName]:
    """Return the jobs, each with the parent and the branches of its variants; empty members are left out."""
    layout = _landed(site, tenant)
    return [_name(layout, name, stanzas) for name, stanzas in sorted(layout.jobs.items()) if stanzas]


def _name(layout: Layout, name: str, stanzas: list[Stanza]) -> JobName:
    lines = str(stanzas[0].body.get("description", "")).strip().splitlines()
    tags = dict.fromkeys(str(tag) for s in stanzas for tag in as_list(deep_plain(s.body.get("tags"))))
    variants = ({"parent": parent_of(layout, s), "branches": branches_of(s)} for s in stanzas)
    return JobName(
        name,
        lines[0] if lines else UNSET,
        tuple(tags) or UNSET,
        tuple({key: value for key, value in one.items() if value} for one in variants),
    )


@get("/api/tenant/{tenant:str}/job/{rest:path}", opt={"rest": ("{job}",)})
async def job(site: Site, tenant: str, rest: str) -> list[dict[str, Any]]:  # JSON
    """Return every variant of one job, in the order in which they apply. `body`, the variant as written, is Headgate
    only.
    """
    layout, name = _landed(site, tenant), rest.strip("/")
    known = {**layout.jobs, "noop": layout.variants("noop")}
    if not known.get(name):
        text = f"Job not found: tenant {tenant} has no job {name!r}{nearest(name, list(known))}"
        raise NotFoundException(text)
    return [
        {**variant(layout, s, name), "body": {k: v for k, v in deep_plain(s.body).items() if k != "name"}}
        for s in known[name]
    ]


@get("/api/tenant/{tenant:str}/projects")
async def projects(site: Site, tenant: str) -> list[ProjectName]:
    """Return the projects of the tenant, by name."""
    known = site.tenant(tenant).tenant.projects
    return [ProjectName(p.name, p.connection, p.project, _type(p)) for p in sorted(known, key=lambda p: p.name)]


def _type(source: TenantProject) -> str:
    return "config" if source.trusted else "untrusted"


@get("/api/tenant/{tenant:str}/project/{rest:path}", opt={"rest": ("{project}", "{project}/autohold")})
async def project(site: Site, request: HttpRequest, tenant: str, rest: str) -> ProjectShape | list[HoldShape]:
    """Return one project, with every stanza that configures it and the templates that these stanzas name. Below
    `…/autohold`, return the requests to hold builds of the project.
    """
    name, _, last = rest.strip("/").rpartition("/")
    if last == AUTOHOLD:
        return of_project(site, request, tenant, name)
    layout = _landed(site, tenant)
    canonical = site.project(tenant, rest.strip("/"))
    source = layout.source(canonical)
    assert source is not None, "the site knows it from the same tenant"
    return project_shape(layout, source, _type(source))


@get(
    "/api/tenant/{tenant:str}/config-errors",
    opt={
        "query": (
            *(QueryParameter(name, several=True) for name in ("project", "branch", "severity", "name")),
            QueryParameter("limit", "At most so many; 50.", NUMBER),
            QueryParameter("skip", schema=NUMBER),
        )
    },
)
async def config_errors(site: Site, request: HttpRequest, tenant: str) -> list[ConfigErrorShape]:
    """Return the errors of the configuration that has landed. Filters are project, branch, severity and name, each of
    which may be given several times; limit (50) and skip.
    """
    query, names = request.query, ("project", "branch", "severity", "name")
    must_be_known(request, (*names, "limit", "skip"))
    found = [
        error
        for error in must_be_read(site, tenant).layouts.errors
        if all(getattr(error, name) in query.all(name) for name in names if query.get(name))
    ]
    limit, skip = number(request, "limit", 50), number(request, "skip", 0)
    return [
        ConfigErrorShape(
            source_context={"project": e.project, "branch": e.branch, "path": e.path, "line": e.line},
            error=e.render(),
            short_error=e.text,
            severity=e.severity,
            name=e.name,
        )
        for e in found[skip:][:limit]
    ]


@get("/api/tenant/{tenant:str}/tenant-status")
async def tenant_status(site: Site, tenant: str) -> dict[str, int]:
    """Return the number of errors in the configuration."""
    return {"config_error_count": len(must_be_read(site, tenant).layouts.errors)}


@get(
    "/api/tenant/{tenant:str}/pipeline/{pipeline:str}/project/{rest:path}",
    opt={
        "rest": (
            "{project}/branch/{branch}/freeze-jobs",
            "{project}/branch/{branch}/freeze-job/{job}",
            "{project}/branch/{branch}/explain-job/{job}",
        )
    },
)
async def freeze(site: Site, tenant: str, pipeline: str, rest: str) -> Any:  # of two
    """Return the jobs that a branch of a project runs in a pipeline; or one of these jobs with all its frozen
    attributes; or, Headgate only, with the place in the configuration that sets each attribute.
    """
    name, _, tail = rest.strip("/").partition("/branch/")
    site.pipeline(tenant, pipeline)
    if tail.endswith("/freeze-jobs"):
        return answers.graph(_graph(site, tenant, pipeline, name, tail.removesuffix("/freeze-jobs")))
    # Branches and jobs may contain slashes, so the address is split at the words that are known, from its end.
    branch, verb, wanted = tail.rpartition("/freeze-job/")
    if not verb:
        branch, verb, wanted = tail.rpartition("/explain-job/")
    if not verb:
        raise NotFoundException("ask …/branch/<branch>/freeze-jobs, …/freeze-job/<job> or …/explain-job/<job>")
    if verb == "/explain-job/":
        layout, canonical = site.tenant(tenant).layouts.landed, site.project(tenant, name)
        of_job = explained(layout, wanted, FreezeTarget(branch), pipeline, canonical)
        if not of_job.variants and not of_job.errors:
            raise NotFoundException(f"{name} runs no job {wanted!r} in {pipeline} on {branch}")
        return explanation(of_job)
    graph = _graph(site, tenant, pipeline, name, branch)
    found = next((j for j in graph.jobs if j.name == wanted), None)
    if found is None:
        known = nearest(wanted, [j.name for j in graph.jobs])
        raise NotFoundException(f"{name} runs no job {wanted!r} in {pipeline} on {branch}{known}")
    source = site.tenant(tenant).layouts.landed.source(site.project(tenant, name))
    place = RunPlace(tenant, pipeline, source, branch, f"refs/heads/{branch}")
    return frozen(site.tenant(tenant).layouts.landed, graph, found, place)


def _graph(site: Site, tenant: str, pipeline: str, project: str, branch: str) -> FrozenGraph:
    """Raise 404, and 409 when the configuration cannot be frozen."""
    graph = site.tenant(tenant).layouts.landed.freeze(pipeline, site.project(tenant, project), branch)
    if graph.errors:
        raise HTTPException("\n".join(error.render() for error in graph.errors), status_code=409)
    return graph


ROUTES = (
    pipelines, jobs, job, projects, project, config_errors, tenant_status, freeze,
)  # fmt: skip
