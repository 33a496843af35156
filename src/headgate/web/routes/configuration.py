"""Show the configuration: projects, their keys, jobs, pipelines, errors and frozen jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headgate.base.hints import nearest, with_hint
from headgate.config.explain import answers
from headgate.config.explain.origins import explained
from headgate.config.explain.variants import branches_of, parent_of, variant
from headgate.config.files.checks import as_list, deep_plain
from headgate.config.freeze.sections import FreezeTarget
from headgate.config.layout import Layout
from headgate.config.model import FrozenGraph
from headgate.config.operator.model import TenantProject
from headgate.config.parse import Stanza
from headgate.map.keys import KeyPair
from headgate.ports.secrets import SecretError
from headgate.rest import HTTPException, HttpRequest, JSONBody, NotFoundException, get, post
from headgate.store.types import Op
from headgate.web.configuration import RunPlace, explanation, frozen, project_shape
from headgate.web.description import NUMBER, QueryParameter
from headgate.web.routes.actions import Hand
from headgate.web.routes.autohold import AUTOHOLD, HoldShape, of_project
from headgate.web.routes.control import OF_ALL
from headgate.web.routes.history import must_be_known, number
from headgate.web.shapes import ConfigErrorShape, JobName, PipelineName, ProjectName, ProjectShape, TriggerShape
from headgate.web.site import Site, must_be_read

SECRETS_SHOWN_MAX = 10
"""Limit on the secrets that are listed when a key cannot be retired."""


def _landed(site: Site, tenant: str) -> Layout:
    """Return the tenant's landed configuration. Raise 404, and 422 until it has been read: returning an empty list then
    would be wrong."""
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
    """Return the jobs by name, each with the parents and the branches of its variants; empty fields are omitted."""
    layout = _landed(site, tenant)
    return [_name(layout, name, stanzas) for name, stanzas in sorted(layout.jobs.items()) if stanzas]


def _name(layout: Layout, name: str, stanzas: list[Stanza]) -> JobName:
    lines = str(stanzas[0].body.get("description", "")).strip().splitlines()
    tags = dict.fromkeys(str(tag) for s in stanzas for tag in as_list(deep_plain(s.body.get("tags"))))
    variants = ({"parent": parent_of(layout, s), "branches": branches_of(s)} for s in stanzas)
    return JobName(
        name,
        lines[0] if lines else msgspec.UNSET,
        tuple(tags) or msgspec.UNSET,
        tuple({key: value for key, value in one.items() if value} for one in variants),
    )


@get("/api/tenant/{tenant:str}/job/{rest:path}", opt={"rest": ("{job}",)})
async def job(site: Site, tenant: str, rest: str) -> list[dict[str, Any]]:  # JSON
    """Return every variant of one job, in the order in which they apply. `body`, the variant's attributes as written,
    is Headgate only.
    """
    layout, name = _landed(site, tenant), rest.strip("/")
    # The table of jobs does not contain the built-in one.
    known = {**layout.jobs, "noop": layout.variants("noop")}
    if not known.get(name):
        text = f"Job not found: tenant {tenant} has no job {name!r}"
        raise NotFoundException(with_hint(text, nearest(name, known)))
    return [
        {**variant(layout, s, name), "body": {k: v for k, v in deep_plain(s.body).items() if k != "name"}}
        for s in known[name]
    ]


@get("/api/tenant/{tenant:str}/projects")
async def projects(site: Site, tenant: str) -> list[ProjectName]:
    """Return the projects of the tenant, ordered by name."""
    known = site.tenant(tenant).tenant.projects
    return [ProjectName(p.name, p.connection, p.project, _type(p)) for p in sorted(known, key=lambda p: p.name)]


def _type(source: TenantProject) -> str:
    return "config" if source.trusted else "untrusted"


@get("/api/tenant/{tenant:str}/project/{rest:path}", opt={"rest": ("{project}", "{project}/autohold")})
async def project(site: Site, request: HttpRequest, tenant: str, rest: str) -> ProjectShape | list[HoldShape]:
    """Return one project, with every stanza that configures it and the templates that these stanzas use.
    `…/autohold` returns the autoholds of the project.
    """
    # Names of projects contain slashes, so the router cannot tell them from the last word.
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
            QueryParameter("limit", "Number of results, 50 by default.", NUMBER),
            QueryParameter("skip", "Number of results to skip.", NUMBER),
        )
    },
)
async def config_errors(site: Site, request: HttpRequest, tenant: str) -> list[ConfigErrorShape]:
    """Return the errors of the landed configuration. The filters project, branch, severity and name may be repeated; an
    error matches if it has any of the values.
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
    """Return the number of errors in the landed configuration."""
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
async def freeze(site: Site, tenant: str, pipeline: str, rest: str) -> Any:  # one of several types
    """Return how jobs of a branch are frozen in a pipeline. `…/freeze-jobs` lists the jobs; `…/freeze-job/{job}`
    returns one job with all its attributes; `…/explain-job/{job}` (Headgate only) returns the places in the
    configuration that set them.
    """
    name, _, tail = rest.strip("/").partition("/branch/")
    site.pipeline(tenant, pipeline)
    if tail.endswith("/freeze-jobs"):
        return answers.graph(_graph(site, tenant, pipeline, name, tail.removesuffix("/freeze-jobs")))
    # Branches and jobs may contain slashes, so the address is split at the fixed words, from its end.
    branch, verb, wanted = tail.rpartition("/freeze-job/")
    if not verb:
        branch, verb, wanted = tail.rpartition("/explain-job/")
    if not verb:
        known_ends = "…/branch/<branch>/freeze-jobs, …/freeze-job/<job> or …/explain-job/<job>"
        raise NotFoundException(f"there is no such address; use {known_ends}")
    if verb == "/explain-job/":
        layout, canonical = site.tenant(tenant).layouts.landed, site.project(tenant, name)
        of_job = explained(layout, wanted, FreezeTarget(branch), pipeline, canonical)
        if not of_job.variants and not of_job.errors:
            raise NotFoundException(f"{name} runs no job {wanted!r} in {pipeline} on {branch}")
        return explanation(of_job)
    graph = _graph(site, tenant, pipeline, name, branch)
    found = next((j for j in graph.jobs if j.name == wanted), None)
    if found is None:
        hint = nearest(wanted, [j.name for j in graph.jobs])
        raise NotFoundException(with_hint(f"{name} runs no job {wanted!r} in {pipeline} on {branch}", hint))
    source = site.tenant(tenant).layouts.landed.source(site.project(tenant, name))
    place = RunPlace(tenant, pipeline, source, branch, f"refs/heads/{branch}")
    return frozen(site.tenant(tenant).layouts.landed, graph, found, place)


def _graph(site: Site, tenant: str, pipeline: str, project: str, branch: str) -> FrozenGraph:
    """Return the frozen jobs. Raise 404, and 409 if they cannot be frozen."""
    graph = site.tenant(tenant).layouts.landed.freeze(pipeline, site.project(tenant, project), branch)
    if graph.errors:
        raise HTTPException("\n".join(error.render() for error in graph.errors), status_code=409)
    return graph


@get("/api/tenant/{tenant:str}/key/{rest:path}", media_type="text/plain", opt={"rest": ("{project}.pub",)})
async def public_key(site: Site, tenant: str, rest: str) -> str:
    """Return the newest public key of a project as PEM, with which to encrypt secrets; create a key pair if there is
    none."""
    if not rest.endswith(".pub"):
        raise NotFoundException("there is no such address; request <project>.pub")
    source = _project(site, tenant, rest.strip("/").removesuffix(".pub"))
    try:
        return await site.keys.public(source.connection, source.name)
    except SecretError as error:
        raise HTTPException(str(error), status_code=503) from error


class ForKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request a new key, or the retirement of one."""

    retire: int | None = None
    """Version of an older key to retire, which then can no longer decrypt secrets; null: create a new key."""
    lossy: bool = False
    """Whether to retire the key even if secrets of the configuration can be decrypted only with it."""
    reason: str = ""


class KeyShape(msgspec.Struct, frozen=True):
    """Describe one key pair; lists begin with the newest."""

    version: int
    created_ms: int
    public: str


@post("/api/tenant/{tenant:str}/key/{rest:path}", status_code=200, opt={"rest": ("{project}",), "permission": OF_ALL})
async def change_keys(
    site: Site, request: HttpRequest, tenant: str, rest: str, data: JSONBody[ForKey]
) -> list[KeyShape]:
    """Create a new key of a project, or retire an older one. Return the keys that the project then has."""
    site.allow_all(request)
    project = _project(site, tenant, rest.strip("/"))
    verb = "rotate-key" if data.retire is None else "retire-key"
    hand = Hand(site, request, verb, tenant, project.project, data.reason, {"version": data.retire})
    left: list[KeyPair] = []

    async def work(besides: Sequence[Op]) -> None:
        try:
            if data.retire is None:
                left.extend(await site.keys.rotate(project.connection, project.name, besides))
                return
            # Builds could no longer use secrets that only the retired key decrypts.
            needed = [] if data.lossy else await _needing(site, project, data.retire)
            if needed:
                raise HTTPException(_still(data.retire, project, needed), status_code=409)
            left.extend(await site.keys.retire(project.connection, project.name, data.retire, besides))
        except SecretError as error:
            raise HTTPException(str(error), status_code=503) from error

    await hand.does(work)
    return [KeyShape(pair.version, pair.created_ms, pair.public) for pair in left]


def _project(site: Site, tenant: str, name: str) -> TenantProject:
    """Return a project of the tenant by its name. Raise 404."""
    known = site.tenant(tenant).tenant
    found = known.find(name)
    if found is None:
        raise NotFoundException(str(known.why_not(name)))
    return found


async def _needing(site: Site, project: TenantProject, version: int) -> list[str]:
    """List the secrets of all tenants that the key decrypts, each with its name and its place in the configuration."""
    found: dict[str, None] = {}
    # Other tenants may have the same project, and their secrets need the same key.
    for configured in site.tenants.values():
        for stanza in configured.layouts.landed.singles["secret"].values():
            if stanza.source.project == project.project and "data" in stanza.body:
                data = deep_plain(stanza.body["data"])
                if version in await site.keys.openers(project.connection, project.name, data):
                    found[f"{stanza.name} ({stanza.place})"] = None
    return list(found)


def _still(version: int, project: TenantProject, needed: Sequence[str]) -> str:
    more = f" and {len(needed) - SECRETS_SHOWN_MAX} more" if len(needed) > SECRETS_SHOWN_MAX else ""
    listed = f"{', '.join(needed[:SECRETS_SHOWN_MAX])}{more}"
    return (
        f"key {version} of {project.name} is needed to decrypt {listed}: encrypt these again with the newest key, "
        "or retire it anyway with `lossy` (--lossy)"
    )


ROUTES = (pipelines, jobs, job, projects, project, config_errors, tenant_status, freeze, public_key, change_keys)
