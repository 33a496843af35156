"""What ended: builds and buildsets."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath
from msgspec.structs import replace

from headgate.config.reading.source import nearest
from headgate.gate.model import Build, Item
from headgate.gate.report import artifacts
from headgate.gate.returned.shape import joined
from headgate.ports.history import (
    LIMIT_MAX,
    Artifact,
    InBuildset,
    JobHealth,
    PastBuild,
    PastBuildset,
    Question,
    ResetCost,
    time_text,
)
from headgate.services.autohold import held_builds, hold_requests
from headgate.web.changes import past_ref
from headgate.web.site import HttpRequest, Site, site_of

NAMES = (
    "project", "pipeline", "change", "branch", "patchset", "ref", "newrev", "uuid", "job_name", "queue_item_uuid",
    "nodeset", "result",
)  # fmt: skip
FLAGS = ("voting", "final", "held", "complete")
"""Of these the history knows `voting`, `final` and `complete`; what is held is known by the build."""
DAYS_MAX = 365


def question(site: Site, tenant: str, request: HttpRequest, *others: str) -> Question | None:
    """What the query asks, but for the `others` it may name; None when no row can be an answer.  Raises 400."""
    equal: dict[str, list[str | bool]] = {}
    unequal: dict[str, list[str | bool]] = {}
    known = (*NAMES, *FLAGS, "limit", "skip", "exclude_result", *others)
    for name in request.query_params:
        if name not in known:
            raise HTTPException(f"there is no filter {name!r}{nearest(name, list(known))}", status_code=400)
        values: list[str] = request.query_params.getall(name)
        if name in FLAGS:
            flags = {_flag(name, value) for value in values}
            if name != "held":
                equal[name] = list(flags)
            elif len(flags) == 1:
                held = held_of(site, tenant)
                if flags == {True}:
                    equal["uuid"] = [uuid for uuid in held if uuid in equal.get("uuid", held)]
                else:
                    unequal["uuid"] = [*held]
        elif name in NAMES and any(values):
            wanted = [_canonical(site, tenant, v) if name == "project" else v for v in values if v]
            equal[name] = [v for v in wanted if v in equal.get(name, wanted)]
    limit, skip = (number(request, name, default) for name, default in (("limit", 50), ("skip", 0)))
    if limit > LIMIT_MAX:
        raise HTTPException(f"limit is at most {LIMIT_MAX}", status_code=400)
    unequal["result"] = [*request.query_params.getall("exclude_result", [])]
    if not all(equal.values()):
        return None
    return Question(equal, {name: values for name, values in unequal.items() if values}, limit, skip)


def held_of(site: Site, tenant: str) -> set[str]:
    """Return the ids of the tenant's builds that are held now."""
    requests = hold_requests(site.context.map, site.context.mirror)
    return {one.build for one in held_builds(request for request in requests if request.tenant == tenant)}


def _canonical(site: Site, tenant: str, name: str) -> str:
    source = site.tenant(tenant).tenant.find(name)
    return source.project if source is not None else name


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false", "1", "0"):
        raise HTTPException(f"{name} is true or false, not {value!r}", status_code=400)
    return value.lower() in ("true", "1")


def number(request: HttpRequest, name: str, default: int) -> int:
    """Raises 400."""
    value = request.query_params.get(name, str(default))
    if not (value.isdecimal() and value.isascii() and len(value) < 10):
        raise HTTPException(f"{name} is a whole number of at least 0, not {value!r}", status_code=400)
    return int(value)


@get("/api/tenant/{tenant:str}/builds")
async def builds(state: State, request: HttpRequest, tenant: FromPath[str]) -> list[PastBuild]:
    """Builds that ended, latest first.  A filter given several times is an alternative."""
    site = site_of(state)
    site.tenant(tenant)
    asked = question(site, tenant, request)
    held = held_of(site, tenant)
    found = await site.history.builds(tenant, asked) if asked else []
    return [resolved(replace(b, held=b.uuid in held), tenant) for b in found]


@get("/api/tenant/{tenant:str}/build/{uuid:str}")
async def build(state: State, tenant: FromPath[str], uuid: FromPath[str]) -> PastBuild:
    """One build, under way or ended, of whichever attempt; while it is under way `final` is false."""
    site = site_of(state)
    site.tenant(tenant)
    under_way = next((found for found in site.status.builds(tenant) if found[2].id == uuid), None)
    if under_way is not None:
        return resolved(await _under_way(site, tenant, *under_way), tenant)
    found = await site.history.build(tenant, uuid)
    if found is None:
        raise NotFoundException(f"there is no build {uuid}")
    return resolved(replace(found, held=uuid in held_of(site, tenant)), tenant)


async def _under_way(site: Site, tenant: str, pipeline: str, item: Item, build: Build) -> PastBuild:
    assert item.buildset is not None, "a build is of a buildset"
    shown = next((j for _, i in await site.items(tenant) for j in i.jobs if j.uuid == build.id), None)
    began = shown.start_time if shown else None
    ref = past_ref(item.change, site.status.standings(tenant).get(item.change.key))
    return PastBuild(
        id=build.id,
        uuid=build.id,
        job_name=build.job,
        result=build.result,
        final=False,
        attempt=build.attempt,
        voting=build.voting,
        start_time=time_text(int(began * 1000)) if began else None,
        end_time=time_text(build.end_ms),
        duration=(build.end_ms / 1000 - began) if began and build.end_ms else None,
        estimated_time=shown.estimated_time if shown else None,
        error_detail=build.error or None,
        log_url=build.log_url or None,
        artifacts=msgspec.convert(artifacts(build), tuple[Artifact, ...]),
        ref=ref,
        pipeline=pipeline,
        event_id=item.event,
        event_timestamp=time_text(item.enqueued_ms),
        queue_item_uuid=item.id,
        buildset=InBuildset(item.buildset.id, (ref,)),
    )


def resolved(build: PastBuild, tenant: str) -> PastBuild:
    """With artifacts as whole URLs: relative ones are below the build's log."""
    base = build.log_url or f"/t/{tenant}/logs/{build.uuid}"
    return replace(build, artifacts=tuple(replace(a, url=joined(base, a.url)) for a in build.artifacts))


@get("/api/tenant/{tenant:str}/buildsets")
async def buildsets(state: State, request: HttpRequest, tenant: FromPath[str]) -> list[PastBuildset]:
    """Buildsets that ended, latest first.  A filter given several times is an alternative."""
    site = site_of(state)
    site.tenant(tenant)
    asked = question(site, tenant, request)
    return await site.history.buildsets(tenant, asked) if asked else []


@get("/api/tenant/{tenant:str}/buildset/{uuid:str}")
async def buildset(state: State, tenant: FromPath[str], uuid: FromPath[str]) -> PastBuildset:
    """One buildset that ended, with its builds and their earlier attempts."""
    site_of(state).tenant(tenant)
    found = await site_of(state).history.buildset(tenant, uuid)
    if found is None:
        raise NotFoundException(f"there is no buildset {uuid} in the history (yet)")
    return replace(found, builds=tuple(resolved(b, tenant) for b in found.builds or ()))


@get("/api/tenant/{tenant:str}/build-times")
async def build_times(state: State, request: HttpRequest, tenant: FromPath[str]) -> list[dict[str, Any]]:  # JSON
    """How long builds took, latest first; filters as for builds."""
    names = ("uuid", "job_name", "result", "start_time", "end_time", "duration", "pipeline", "nodeset")
    found = await builds.fn(state, request, tenant)
    return [{**{name: getattr(b, name) for name in names}, "ref": b.ref} for b in found]


@get("/api/tenant/{tenant:str}/job-health")
async def job_health(state: State, request: HttpRequest, tenant: FromPath[str]) -> list[JobHealth]:
    """How reliable jobs are, the flakiest first; filters as for builds, and `days` to look back (30).  A job is flaky
    on a tree where it failed and passed later; of the latest 20,000 builds.  Ours."""
    site = site_of(state)
    site.tenant(tenant)
    asked = question(site, tenant, request, "days")
    return await site.history.job_health(tenant, asked, _since_ms(site, request)) if asked else []


@get("/api/tenant/{tenant:str}/reset-costs")
async def reset_costs(state: State, request: HttpRequest, tenant: FromPath[str]) -> list[ResetCost]:
    """What it cost that changes were tested anew, the dearest first; filters as for buildsets, and `days` to look back
    (30); of the latest 20,000 buildsets.  Ours."""
    site = site_of(state)
    site.tenant(tenant)
    asked = question(site, tenant, request, "days")
    return await site.history.reset_costs(tenant, asked, _since_ms(site, request)) if asked else []


def _since_ms(site: Site, request: HttpRequest) -> int:
    """Raises 400."""
    days = number(request, "days", 30)
    if not 1 <= days <= DAYS_MAX:
        raise HTTPException(f"days is between 1 and {DAYS_MAX}", status_code=400)
    return site.context.now_ms() - days * 86_400_000


@get("/api/tenant/{tenant:str}/badge")
async def badge(state: State, request: HttpRequest, tenant: FromPath[str]) -> Response[str]:
    """An SVG picture of how the latest buildset ended; `project`, `pipeline`, `branch` say of which."""
    site = site_of(state)
    site.tenant(tenant)
    asked = question(site, tenant, request)
    latest = replace(asked, equal={**asked.equal, "final": [True], "complete": [True]}, limit=1) if asked else None
    found = await site.history.buildsets(tenant, latest) if latest else []
    if not found:
        raise NotFoundException("no buildset like this has ended")
    word, colour = ("passing", "#1a7f45") if found[0].result == "SUCCESS" else ("failing", "#c22f2f")
    headers = {"Cache-Control": "no-cache"}
    return Response(_BADGE.format(word=word, colour=colour), media_type="image/svg+xml", headers=headers)


_BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="104" height="20" role="img" aria-label="gate: {word}">
<title>gate: {word}</title><rect width="104" height="20" rx="3" fill="#4a5361"/>
<path d="M40 0h61a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H40z" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="20" y="14">gate</text><text x="72" y="14">{word}</text></g></svg>"""

ROUTES = (builds, build, buildsets, buildset, build_times, job_health, reset_costs, badge)
