"""Show builds and buildsets, running and finished, and statistics about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from headgate.base.hints import nearest, with_hint
from headgate.map.projects import layout_at
from headgate.ports import history
from headgate.ports.statistics import Throughput
from headgate.rest import HTTPException, HttpRequest, NotFoundException, get
from headgate.web.builds import Builds
from headgate.web.description import FLAG, NUMBER, QueryParameter
from headgate.web.site import Site

NAMES = (
    "project", "pipeline", "change", "branch", "patchset", "ref", "newrev", "uuid", "job_name", "queue_item_uuid",
    "nodeset", "result",
)  # fmt: skip
RECONFIGURED = "tenant reconfiguration"
FLAGS = ("voting", "final", "held", "complete")
"""Filters that are flags: the history stores `voting`, `final` and `complete`; `held` follows from the autoholds."""
BOUNDS = ("idx_min", "idx_max", "limit", "skip")
DAYS_MAX = 365
DIGITS_MAX = 15
NUMBER_MAX = 10**DIGITS_MAX - 1
STARS_MAX = 3
"""Limit on the stars in a pattern: patterns with more are expensive to match."""


FILTERS = (
    *(QueryParameter(name, several=True) for name in NAMES),
    *(QueryParameter(name, schema=FLAG) for name in FLAGS),
    *(QueryParameter(name, schema=NUMBER) for name in BOUNDS),
    QueryParameter("exclude_result", "Results to leave out.", several=True),
)
"""Filters of builds and buildsets."""
OF_SETS = tuple(one for one in FILTERS if one.name not in ("job_name", "nodeset", "voting", "held"))
"""Filters of buildsets: all except those that only builds have."""
DAYS = QueryParameter(
    "days", "How far to look back, 30 by default.", {"type": "integer", "minimum": 1, "maximum": DAYS_MAX}
)


def question(
    site: Site, tenant: str, request: HttpRequest, filters: Iterable[QueryParameter] = FILTERS
) -> history.HistoryQuery | None:
    """Return the query of a request, or None if no row can match. `filters` are the allowed parameters. Raise
    HTTPException (400) for an unknown filter or an invalid value.
    """
    equal: dict[str, list[str | bool]] = {}
    unequal: dict[str, list[str | bool]] = {}
    must_be_known(request, [one.name for one in filters])
    for name in request.query:
        values = request.query.all(name)
        if name in FLAGS:
            flags = {_flag(name, value) for value in values}
            if name != "held":
                equal[name] = list(flags)
            # Both values together select every build.
            elif len(flags) == 1:
                held = Builds(site, tenant, "").held()
                if flags == {True}:
                    # The request may also name ids, in either order; both conditions must hold.
                    equal["uuid"] = [uuid for uuid in held if uuid in equal.get("uuid", held)]
                else:
                    unequal["uuid"] = [*held]
        elif name in NAMES and any(values):
            wanted = [_canonical(site, tenant, v) if name == "project" else _bounded(name, v) for v in values if v]
            equal[name] = [v for v in wanted if v in equal.get(name, wanted)]
    limit, skip = (number(request, name, default) for name, default in (("limit", 50), ("skip", 0)))
    if limit > history.LIMIT_MAX:
        raise HTTPException(f"limit must be at most {history.LIMIT_MAX}", status_code=400)
    unequal["result"] = [*request.query.all("exclude_result")]
    # A filter without any remaining value matches nothing, so there is no need to query the history.
    if not all(equal.values()):
        return None
    least, most = (number(request, n, 0) if n in request.query else None for n in ("idx_min", "idx_max"))
    nonempty = {name: values for name, values in unequal.items() if values}
    return history.HistoryQuery(equal, nonempty, limit, skip, (least, most))


def must_be_known(request: HttpRequest, filters: Collection[str]) -> None:
    """Raise 400 if the query has an unknown filter."""
    for name in request.query:
        if name not in filters:
            raise HTTPException(with_hint(f"there is no filter {name!r}", nearest(name, filters)), status_code=400)


def _bounded(name: str, value: str) -> str:
    """Return the value. Raise 400 for a pattern that is expensive to match."""
    if name in history.WILD and value.count("*") > STARS_MAX:
        raise HTTPException(f"{name}: at most {STARS_MAX} `*` in one value", status_code=400)
    return value


def _canonical(site: Site, tenant: str, name: str) -> str:
    """Return the canonical name of a project. A pattern with `*` matches any host, unless it names one."""
    source = site.tenant(tenant).tenant.find(name)
    if source is not None:
        return source.project
    hosts = {project.project.partition("/")[0] for project in site.tenant(tenant).tenant.projects}
    names_host = "*" not in name or name.startswith("*") or name.partition("/")[0] in hosts
    return _bounded("project", name if names_host else f"*/{name}")


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false", "1", "0"):
        raise HTTPException(f"{name} must be true or false, not {value!r}", status_code=400)
    return value.lower() in ("true", "1")


def number(request: HttpRequest, name: str, default: int) -> int:
    """Return a number of the query. Raise 400."""
    value = request.query.get(name, str(default))
    # `isdecimal` alone accepts digits of other scripts, and very long numbers are too large for the database.
    if not (value.isdecimal() and value.isascii() and len(value) <= DIGITS_MAX):
        raise HTTPException(f"{name} must be an integer of at least 0, not {value!r}", status_code=400)
    return int(value)


@get("/api/tenant/{tenant:str}/builds", opt={"query": FILTERS})
async def builds(site: Site, request: HttpRequest, tenant: str) -> list[history.PastBuild]:
    """Return builds: first the running ones, then those that have ended, latest first. Several values of one filter are
    alternatives. `exclude_result` also leaves out running builds. In project, pipeline, branch and job_name, `*`
    matches any string.
    """
    of = Builds.of(site, tenant, request)
    query = question(of.site, tenant, request)
    return await of.builds(query) if query else []


@get("/api/tenant/{tenant:str}/build/{uuid:str}")
async def build(site: Site, request: HttpRequest, tenant: str, uuid: str) -> history.PastBuild:
    """Return one build, running or finished, of any attempt; while it is running, `final` is false."""
    found = await Builds.of(site, tenant, request).build(uuid)
    if found is None:
        raise NotFoundException(f"Build not found: there is no build {uuid}")
    return found


@get("/api/tenant/{tenant:str}/buildsets", opt={"query": OF_SETS})
async def buildsets(site: Site, request: HttpRequest, tenant: str) -> list[history.PastBuildset]:
    """Return buildsets: first the running ones, then those that have ended, latest first. Filters work as for
    builds."""
    of = Builds.of(site, tenant, request)
    query = question(of.site, tenant, request, OF_SETS)
    return await of.buildsets(query) if query else []


@get("/api/tenant/{tenant:str}/buildset/{uuid:str}")
async def buildset(site: Site, request: HttpRequest, tenant: str, uuid: str) -> history.PastBuildset:
    """Return one buildset, running or finished, with its builds and, once it has ended, their earlier attempts."""
    found = await Builds.of(site, tenant, request).buildset(uuid)
    if found is None:
        raise NotFoundException(f"Buildset not found: there is no buildset {uuid}")
    return found


class BuildTime(msgspec.Struct, frozen=True, kw_only=True):
    """Describe how long one build took."""

    id: int = msgspec.field(name="_id")
    uuid: str
    job_name: str
    result: str
    start_time: str | None
    end_time: str | None
    duration: float | None
    """Seconds."""
    final: bool
    project: str
    branch: str | None
    pipeline: str
    ref: str
    nodeset: str | None
    """Headgate only."""


TIMES = (
    "project", "pipeline", "branch", "ref", "job_name", "final", "exclude_result", "limit", "skip", "result", "nodeset",
)  # fmt: skip
"""Filters of build times; `result` and `nodeset` are Headgate's own."""


OF_TIMES = (
    *(one for one in FILTERS if one.name in TIMES),
    QueryParameter("start_time"),
    QueryParameter("end_time"),
)


@get("/api/tenant/{tenant:str}/build-times", opt={"query": OF_TIMES})
async def build_times(site: Site, request: HttpRequest, tenant: str) -> list[BuildTime]:
    """Return the durations of builds that have ended, latest first. Filters work as for builds, but without `*`. Only
    builds that ended between `start_time` and `end_time` are returned.
    """
    of = Builds.of(site, tenant, request)
    query = question(of.site, tenant, request, OF_TIMES)
    if query is None:
        return []
    bounds = (moment(request, "start_time"), moment(request, "end_time"))
    found = await of.site.history.builds(
        tenant, replace(query, equal={**query.equal, "complete": [True]}, ended_ms=bounds)
    )
    return [_time(one) for one in found]


def _time(build: history.PastBuild) -> BuildTime:
    return BuildTime(
        id=build.id,
        uuid=build.uuid,
        job_name=build.job_name,
        result=build.result or "",
        start_time=build.start_time,
        end_time=build.end_time,
        duration=build.duration,
        final=build.final,
        project=build.ref.project,
        branch=build.ref.branch,
        pipeline=build.pipeline,
        ref=build.ref.ref,
        nodeset=build.nodeset,
    )


def moment(request: HttpRequest, name: str) -> int | None:
    """Return a time of the query, in milliseconds since the epoch; None: it is not given.  Raise 400."""
    text = request.query.get(name, "")
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        # A time without a zone means UTC, as in all responses of the API, and never the zone of this machine.
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise HTTPException(f"{name} must be a time in UTC such as 2026-12-31T23:59:59", status_code=400) from error


class SystemEvent(msgspec.Struct, frozen=True):
    """Describe something that happened to the tenant."""

    id: int = msgspec.field(name="_id")
    """When it happened, in milliseconds since the epoch. Headgate only."""
    event_id: str
    event_time: str
    event_type: str
    """tenant reconfiguration"""
    description: str


@get(
    "/api/tenant/{tenant:str}/system-events",
    opt={
        "query": (
            QueryParameter("event_type", "Only `tenant reconfiguration` exists.", several=True),
            *(QueryParameter(name, schema=NUMBER) for name in BOUNDS),
        )
    },
)
async def system_events(site: Site, request: HttpRequest, tenant: str) -> list[SystemEvent]:
    """Return reconfigurations of the tenant, latest first: the latest new configuration, and the requests of people to
    read the configuration again.
    """
    wanted = request.query.all("event_type") or [RECONFIGURED]
    site.tenant(tenant)
    must_be_known(request, ("event_type", *BOUNDS))
    limit, skip = number(request, "limit", 50), number(request, "skip", 0)
    least, most = number(request, "idx_min", 0), number(request, "idx_max", NUMBER_MAX)
    found = [
        SystemEvent(
            one.at_ms,
            one.id,
            history.time_text(one.at_ms) or "",
            RECONFIGURED,
            f"{one.who} requested to read the configuration again: {one.subject}",
        )
        for one in await site.history.actions(tenant, limit=history.LIMIT_MAX)
        if one.verb == "reconfigure"
    ]
    layout = layout_at(site.context.map.layout(tenant).record, site.context.mirror)
    if layout is not None:
        why = f"the configuration {layout.uuid} is in force"
        found.append(SystemEvent(layout.at_ms, layout.uuid, history.time_text(layout.at_ms) or "", RECONFIGURED, why))
    ordered = sorted((one for one in found if least <= one.id <= most), key=lambda one: one.id, reverse=True)
    return ordered[skip:][:limit] if RECONFIGURED in wanted else []


@get("/api/tenant/{tenant:str}/job-health", opt={"query": (*FILTERS, DAYS)})
async def job_health(site: Site, request: HttpRequest, tenant: str) -> list[history.JobHealth]:
    """Return how reliable jobs are, the flakiest first. A job is flaky if it failed on a tree and later passed on the
    same tree. Filters work as for builds. Only the latest 20,000 builds count. Headgate only.
    """
    site.tenant(tenant)
    query = question(site, tenant, request, (*FILTERS, DAYS))
    return await site.history.job_health(tenant, query, _since_ms(site, request)) if query else []


@get("/api/tenant/{tenant:str}/reset-costs", opt={"query": (*OF_SETS, DAYS)})
async def reset_costs(site: Site, request: HttpRequest, tenant: str) -> list[history.ResetCost]:
    """Return the cost of testing changes again after resets, the highest first. Filters work as for buildsets. Only the
    latest 20,000 buildsets count. Headgate only.
    """
    site.tenant(tenant)
    query = question(site, tenant, request, (*OF_SETS, DAYS))
    return await site.history.reset_costs(tenant, query, _since_ms(site, request)) if query else []


@get("/api/tenant/{tenant:str}/statistics", opt={"query": (*OF_SETS, DAYS)})
async def statistics(site: Site, request: HttpRequest, tenant: str) -> list[Throughput]:
    """Return how quickly changes passed and how much work that took: for each pipeline (`project` is empty), for each
    project (`pipeline` is empty), and for each project in each pipeline. Filters work as for buildsets. Only the latest
    20,000 buildsets count. Headgate only.
    """
    site.tenant(tenant)
    query = question(site, tenant, request, (*OF_SETS, DAYS))
    return await site.history.throughput(tenant, query, _since_ms(site, request)) if query else []


def _since_ms(site: Site, request: HttpRequest) -> int:
    """Return the beginning of the period that `days` selects, in milliseconds since the epoch. Raise 400."""
    days = number(request, "days", 30)
    if not 1 <= days <= DAYS_MAX:
        raise HTTPException(f"days must be between 1 and {DAYS_MAX}", status_code=400)
    return site.context.now_ms() - days * 86_400_000


ROUTES = (builds, build, buildsets, buildset, build_times, system_events, job_health, reset_costs, statistics)
