"""Manage autoholds: requests to keep failed builds together with their machines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from headgate.base.hints import nearest, with_hint
from headgate.config.patterns import BadPattern, compiled
from headgate.gate.state.autohold import EVERY, HeldBuild, HoldRequest
from headgate.rest import HTTPException, HttpRequest, NotFoundException, delete, get
from headgate.services.autohold import hold_requests
from headgate.store.types import At, Conflict, Op, StoreError
from headgate.web.description import QueryParameter
from headgate.web.routes.actions import Hand, plain
from headgate.web.site import Site

AUTOHOLD = "autohold"
"""Permission to hold builds."""
HOLDS_MAX = 100
"""Limit on the autoholds of one tenant."""
COUNT_MAX = 1_000
ATTEMPTS_MAX = 100
"""Limit on the attempts to find an unused id."""


class ForHold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request an autohold."""

    job: str
    count: int
    """Number of builds to hold."""
    reason: str | None = None
    node_hold_expiration: int | None = None
    """Seconds for which each build is held. Null means the default of the settings. 0, or a value above the maximum of
    the settings, means that maximum.
    """
    change: str | None = None
    """`<topic>` or `<branch>/<topic>`: hold only builds for this change, with any patchset."""
    ref: str | None = None
    """A regular expression that must match the full ref, such as `refs/heads/stable/.*`. Without it, and without a
    change, builds for any ref are held.
    """
    ref_filter: str | None = None
    """Alternative name of `ref`, which some clients use."""


class HeldShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a build that is or was held."""

    build: str
    nodes: tuple[str, ...]
    """Names of its machines."""
    directory: str
    """Its work directory on the executor; only shown to people with the permission `autohold`. Headgate only."""
    executor: str
    """The host of its executor; only shown to people with the permission `autohold`. Headgate only."""
    until: int
    """When the hold ends, in seconds since the epoch. Headgate only."""
    over: bool
    """Whether the hold has ended. Headgate only."""


class HoldShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe an autohold."""

    id: str
    tenant: str
    project: str
    job: str
    ref_filter: str
    max_count: int
    current_count: int
    reason: str | None
    node_expiration: int
    """Seconds."""
    expired: int | None
    """When it held its last build, in seconds since the epoch; null if it may still hold more builds."""
    nodes: tuple[HeldShape, ...]
    who: str
    """The person who requested it. Headgate only."""


def wanted(site: Site, request: HttpRequest, tenant: str, project: str, data: ForHold) -> HoldRequest:
    """Return the request without an id.  Raise 400, 404, 409."""
    canonical = site.project(tenant, project)
    configured = site.tenant(tenant)
    known = configured.layouts.landed.jobs
    # Until the configuration has been read, no job is known.
    if configured.loaded.is_set() and data.job not in known:
        text = f"tenant {tenant} has no job {data.job!r}"
        raise NotFoundException(with_hint(text, nearest(data.job, known)))
    if not 1 <= data.count <= COUNT_MAX:
        raise HTTPException(f"count must be between 1 and {COUNT_MAX}", status_code=400)
    if data.node_hold_expiration is not None and data.node_hold_expiration < 0:
        raise HTTPException("node_hold_expiration must be a number of seconds of at least 0, or null", status_code=400)
    of_tenant = [one for one in hold_requests(site.context.map, site.context.mirror) if one.tenant == tenant]
    if len(of_tenant) >= HOLDS_MAX:
        raise HTTPException(f"tenant {tenant} has {HOLDS_MAX} autoholds; delete some of them first", status_code=409)
    bearer = site.access.bearer(request)
    return HoldRequest(
        id="",
        tenant=tenant,
        project=canonical,
        job=data.job,
        ref_filter=_filter(site, tenant, project, data),
        count_max=data.count,
        expiration_s=site.settings.held_s(data.node_hold_expiration),
        reason=plain(data.reason or ""),
        who=plain(bearer.name) if bearer is not None else "",
        at_ms=site.context.now_ms(),
    )


def _filter(site: Site, tenant: str, project: str, data: ForHold) -> str:
    """Return the expression for the refs whose builds are held.  Raise 400, 404."""
    if data.change and data.ref:
        raise HTTPException("change and ref are mutually exclusive", status_code=400)
    if data.change:
        # A change's ref is stored as an expression: names such as `a.b` must not match other refs.
        return _escaped(site.change(tenant, project, data.change).ref)
    if not data.ref:
        return EVERY
    try:
        compiled(data.ref)
    except BadPattern as bad:
        raise HTTPException(f"ref: {bad}", status_code=400) from bad
    return data.ref


def _escaped(ref: str) -> str:
    """Return the expression that matches only this ref, with no more escapes than needed, as people read it."""
    return "".join(f"\\{c}" if c in r".^$*+?{}[]\|()" else c for c in ref)


async def hold(site: Site, request: HttpRequest, tenant: str, project: str, data: ForHold) -> None:
    """Create an autohold, which holds builds of a job that fail.  Raise 400, 404, 409, 503."""
    data = replace(data, ref=data.ref or data.ref_filter)
    subject = f"{data.job} of {project}{f' for {data.change or data.ref}' if data.change or data.ref else ''}"

    async def work(besides: Sequence[Op]) -> None:
        await _made(site, wanted(site, request, tenant, project, data), besides)

    await Hand(site, request, AUTOHOLD, tenant, subject, data.reason or "").does(work)


async def _made(site: Site, request: HoldRequest, besides: Sequence[Op]) -> None:
    """Store the request under an unused id.  Raise 503."""
    # Ids are seconds since the epoch, so they sort by age; a second one in the same second takes the next free number.
    first = site.context.now_ms() // 1000
    for number in range(first, first + ATTEMPTS_MAX):
        one = replace(request, id=f"{number:010}")
        place = site.context.map.hold_requests(one.id).record
        try:
            # With the check, two processes that choose the same number conflict, instead of overwriting each other.
            written = await site.context.store.commit([At(place.path, None)], [place.put(one), *besides])
        except Conflict:
            continue
        except StoreError as error:
            raise HTTPException(f"the store: {error}", status_code=503) from error
        if written[0] is not None:
            await site.context.mirror.reached(place.path, written[0].version)
        return
    raise HTTPException("too many autoholds are requested at the moment; try again", status_code=503)


def of_project(site: Site, request: HttpRequest, tenant: str, project: str) -> list[HoldShape]:
    """Return the autoholds of a project; an unknown project has none."""
    found = _of(site, tenant)
    # An unknown project is no error here, so compare names instead of looking it up.
    return [_shape(site, request, one) for one in found if f"/{one.project}".endswith(f"/{project}")]


def _of(site: Site, tenant: str) -> list[HoldRequest]:
    """Return the tenant's autoholds. Raise 404."""
    site.tenant(tenant)
    return [one for one in hold_requests(site.context.map, site.context.mirror) if one.tenant == tenant]


def _shape(site: Site, request: HttpRequest, one: HoldRequest) -> HoldShape:
    bearer = site.access.reader(request)
    # Roles name projects without their host.
    subject = {"project": one.project.partition("/")[2]}
    located = bearer is not None and site.access.permits(bearer, site.tenant(one.tenant).tenant, AUTOHOLD, subject)
    return HoldShape(
        id=one.id,
        tenant=one.tenant,
        project=one.project,
        job=one.job,
        ref_filter=one.ref_filter,
        max_count=one.count_max,
        current_count=len(one.builds),
        reason=one.reason or None,
        node_expiration=one.expiration_s,
        expired=one.expired_ms // 1000 or None,
        nodes=tuple(_held(build, located=located) for build in one.builds),
        who=one.who,
    )


def _held(build: HeldBuild, *, located: bool) -> HeldShape:
    return HeldShape(
        build=build.build,
        nodes=build.machines,
        directory=build.directory if located else "",
        executor=build.executor if located else "",
        until=build.until_ms // 1000,
        over=build.over,
    )


def _found(site: Site, tenant: str, id: str) -> HoldRequest:
    """Return an autohold of this tenant. Raise 404, also for one of another tenant."""
    found = next((one for one in _of(site, tenant) if one.id == id), None)
    if found is None:
        raise NotFoundException(f"Hold request {id} not found.")
    return found


@get("/api/tenant/{tenant:str}/autohold", opt={"query": (QueryParameter("project", "Only its autoholds."),)})
async def holds(site: Site, request: HttpRequest, tenant: str) -> list[HoldShape]:
    """Return the tenant's autoholds with the builds that they hold, oldest first; `project` selects those of one
    project.
    """
    project = request.query.get("project", "")
    if project:
        return of_project(site, request, tenant, project)
    return [_shape(site, request, one) for one in _of(site, tenant)]


@get("/api/tenant/{tenant:str}/autohold/{id:str}")
async def one_hold(site: Site, request: HttpRequest, tenant: str, id: str) -> HoldShape:
    """Return one autohold, with the builds that it holds."""
    return _shape(site, request, _found(site, tenant, id))


@delete(
    "/api/tenant/{tenant:str}/autohold/{id:str}",
    status_code=204,
    opt={"permission": AUTOHOLD, "query": (QueryParameter("reason", "Why; recorded with the action."),)},
)
async def end_hold(site: Site, request: HttpRequest, tenant: str, id: str) -> None:
    """Delete an autohold, and release the builds that it holds immediately; `reason` is recorded with the action."""
    site.allow(request, tenant, AUTOHOLD)

    async def work(besides: Sequence[Op]) -> None:
        place = site.context.map.hold_requests(_found(site, tenant, id).id).record
        try:
            await site.context.store.commit([], [place.delete(), *besides])
        except StoreError as error:
            raise HTTPException(f"the store: {error}", status_code=503) from error
        await site.context.mirror.gone(place.path)

    await Hand(site, request, "autohold-delete", tenant, id, request.query.get("reason", "")).does(work)


ROUTES = (holds, one_hold, end_hold)
