"""Hold what the routes share: the tenants, what is known of them, and what may be asked of them by whom."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from headgate.adapters.logs.reader import KeptLogs
from headgate.gate.rules.refs import misnamed, update
from headgate.gate.state.change import Change, is_called
from headgate.gate.state.works import Managed
from headgate.map.records import Finished, ForPipeline, Management, RepositoryProblem, Reread
from headgate.ports.history import HistoryReader
from headgate.ports.secrets import NoKeys, ProjectKeyStore
from headgate.recipes.stream import Stream
from headgate.rest import Connection, HTTPException, HttpRequest, NotFoundException
from headgate.services.context import Context
from headgate.services.nodes.requester import IMAGE, executors
from headgate.services.nodes.status import Pooled
from headgate.services.orders import Unanswered, ask
from headgate.services.scheduler.refs import last_seen, looked_at
from headgate.store.store import Session
from headgate.store.types import Op, SessionLost
from headgate.web.access import Access, Bearer, mark_checked, must_be_json
from headgate.web.buildlogs import BuildLogs, RemoteLogs
from headgate.web.logfiles import Follow
from headgate.web.problems import account_problems
from headgate.web.process import Vitals
from headgate.web.review.remarks import Speaker
from headgate.web.review.service import ReviewService
from headgate.web.shapes import ConnectionShape, ItemShape, ProblemShape
from headgate.web.shots import Estimates, Shot, Shots
from headgate.web.status import Configured, Status
from headgate.web.viewers.audience import Audience, Documents

E = TypeVar("E")
FINISHED_MAX = 10_000
"""Limit on the buildsets on their way into the history that are searched."""
UNLESS = {
    "scheduler": "nothing is decided until one does",
    "merger": "nothing is merged, read or landed until one does",
    "executor": "no build is run until one does",
}
"""Kind of component -> the work that stops while none takes part."""

_COMMIT = re.compile("[0-9a-f]{40}")
OPEN = "open"
"""Key in the `opt` of a route that shows nothing private of its tenant."""
AGAIN_S = 1
"""Seconds after which clients shall retry while the data are being read."""
UNREAD = "the repository {} has not been looked at yet; ask again"
NEEDED = (
    "a bearer token is needed: the operator's, which commands of the user that runs Headgate find themselves, or a JWT"
)


@dataclass(slots=True)
class Site:
    """Hold what the routes share."""

    context: Context
    tenants: Mapping[str, Configured]
    history: HistoryReader
    log_root: Path
    follow: Follow
    access: Access = field(default_factory=Access)
    connections: tuple[ConnectionShape, ...] = ()
    keys: ProjectKeyStore = field(default_factory=NoKeys)
    remote: RemoteLogs | None = None
    """Logs of executors that are not in this process."""
    stored: KeptLogs | None = None
    vitals: Vitals | None = None
    """Health and figures of the process; None: they are not served."""
    joined: Callable[[], Session | None] = lambda: None
    """Returns the session with the store that requests use; None while there is none."""
    refused: Callable[[], RepositoryProblem | None] = lambda: None
    """Returns the reason why the latest tenant file was not adopted; None if it was."""
    hold_default_s: int = 86_400
    hold_max_s: int = 172_800
    """Longest time that builds are held."""
    root: str = ""
    """Address of the pages for people, without a trailing slash; empty: the address of each request is used."""
    at_root: str = ""
    """Tenant that is also served without its name in the path; empty: none."""
    beside: tuple[str, ...] = ()
    """Other services at the same port: inventory, queues."""
    pooled: Pooled | None = None
    """Machines of the inventory for a tenant; None: there is no inventory."""
    costs: dict[tuple[str, str], tuple[int, asyncio.Future[dict[tuple[str, str], tuple[int, int]]]]] = field(
        default_factory=dict
    )
    """(tenant, project) -> the time of the query, and the recent costs of the project's changes."""
    speakers: Mapping[str, Speaker] = field(default_factory=dict)  # by connection
    large_deliveries: int = 0
    """Number of large deliveries of forges that are being read."""
    logs: BuildLogs = field(init=False)
    status: Status = field(init=False)
    audience: Audience = field(init=False)
    documents: Documents = field(init=False)
    review: ReviewService = field(init=False)
    shots: Shots = field(init=False)
    _missed: dict[str, int] = field(default_factory=dict)
    """Kind of component that has no member -> since when, in milliseconds since the epoch."""

    def __post_init__(self) -> None:
        self.logs = BuildLogs(self.log_root, self.follow, self.remote, self.stored)
        self.status = Status(self.context, self.tenants)
        estimates = Estimates(self.history, self.context.now_ms)
        self.shots = Shots(self.status, estimates, lambda: self.away, self.problems)
        self.documents = Documents(self.context.now_ms)
        self.review = ReviewService(self.context, lambda: self.joined())
        mirror = self.context.mirror
        self.audience = Audience(
            self.shot,
            self._still,
            mirror.moved,
            self.context.now_ms,
            lambda cpu_s: self.context.observer.shown("stream", cpu_s),
        )

    def tenant(self, name: str) -> Configured:
        """Return the tenant. Raise 404."""
        found = self.tenants.get(name)
        if found is None:
            # A refusal names only tenants that everybody may read: the names of others are private, too.
            shown = ", ".join(other for other, one in self.tenants.items() if self.access.may_read(None, one.tenant))
            raise NotFoundException(f"there is no tenant {name!r}" + (f"; there are {shown}" if shown else ""))
        return found

    async def shot(self, tenant: str) -> Shot:
        """Return the status of a tenant.  Raise 404."""
        return await self.shots.of(self.tenant(tenant))

    def problems(self) -> tuple[ProblemShape, ...]:
        """Return the problems of every tenant: of the store, missing components, accounts, a refused tenant file."""
        found, refused = self.away or (*self._nobody(), *account_problems(self.context)), self.refused()
        if refused is None:
            return found
        text = f"it was read and not taken up, and everything goes on as before: {refused.text}"
        return (*found, ProblemShape("the tenant file", text, refused.since_ms))

    def _nobody(self) -> tuple[ProblemShape, ...]:
        """Return a problem for each kind of components that has no member."""
        context, absent = self.context, dict[str, str]()
        for kind, unless in UNLESS.items():
            found = context.members(getattr(context.map.components, kind).path).values()
            if not any(record.state == "running" for record in found):
                absent[kind] = unless
        zones = {record.data.zone for record in executors(context) if record.state == "running"}
        for zone in context.zone_names():
            if zone not in zones and context.zone(zone).open(context.mirror):
                absent[f"executor of zone {zone}"] = "builds for its machines wait until one does"
        if not any(record.data.containers for record in executors(context) if record.state == "running"):
            wanted = (one.request.meta.get(IMAGE) for queue in context.zones() for one in queue.open(context.mirror))
            if image := next(filter(None, wanted), None):
                absent["executor that runs containers"] = f"builds that name an image, as {image}, wait until one does"
        # A kind that is back is forgotten, so its next absence counts from its own beginning.
        self._missed = {kind: self._missed.get(kind, context.now_ms()) for kind in absent}
        return tuple(ProblemShape(f"no {kind} takes part", absent[kind], at) for kind, at in self._missed.items())

    @property
    def away(self) -> tuple[ProblemShape, ...]:
        """Return the problem that the store is unreachable, while it is; else nothing."""
        availability = self.vitals.availability if self.vitals else None
        if availability is None or availability.away_since_ms is None:
            return ()
        text = (
            f"nothing is decided until it can be used again, and what is shown is from before: {availability.away_why}"
        )
        return (ProblemShape("the store", text, availability.away_since_ms),)

    async def items(self, tenant: str) -> Iterator[tuple[str, ItemShape]]:
        """Return (pipeline, item) of everything in the queues.  Raise 404."""
        status = (await self.shot(tenant)).status
        return ((p.name, i) for p in status.pipelines for q in p.change_queues for head in q.heads for i in head)

    def leaving(self, tenant: str) -> Iterator[Finished]:
        """Return the buildsets of a tenant that ended and are not in the history yet."""
        waiting = self.context.map.history.stream.waiting(self.context.mirror, limit=FINISHED_MAX)
        return (event.event for event in waiting if event.event.tenant == tenant)

    async def owns(self, tenant: str, build: str) -> bool:
        """Return whether the build is, or was, one of this tenant's.  Raise 404."""
        self.tenant(tenant)
        # In the order of a build's life, so that one that moves on meanwhile is found at a later place.
        if any(found.id == build for _, _, found in self.status.builds(tenant)):
            return True
        if any(found.uuid == build for ended in self.leaving(tenant) for found in ended.builds):
            return True
        return await self.history.build(tenant, build) is not None

    def allow(self, request: HttpRequest, tenant: str, permission: str, **subject: str) -> None:
        """Return if the caller has the permission; `subject` gives project and ref. Raise 401, 403, 404 or 415."""
        must_be_json(request)
        must_be_permitted(self, request, tenant, permission, subject)

    def allow_all(self, request: HttpRequest) -> None:
        """Check that the caller may do what concerns every tenant. Raise 401, 403, 415."""
        must_be_json(request)
        if not self.access.permits_all(self._bearer(request)):
            raise self.access.refused(403, "the bearer of this token is not an administrator of the whole")
        mark_checked(request)

    def _bearer(self, request: HttpRequest) -> Bearer:
        """Return the bearer of the request's token. Raise 401."""
        bearer = self.access.bearer(request)
        if bearer is None:
            raise self.access.refused(401, NEEDED)
        return bearer

    def readable(self, tenant: str | None, bearer: Bearer | None) -> None:
        """Return if the caller may read the tenant or, for None, what belongs to no tenant. An unknown tenant
        passes; the route reports it. Raise 401 or 403."""
        if self._may_read(tenant, bearer):
            return
        scope = "this" if tenant is None else f"tenant {tenant}"
        if bearer is None:
            raise self.access.refused(401, f"{scope} is shown only to who brings a bearer token")
        raise self.access.refused(403, f"the bearer of this token may not read {scope}")

    def _still(self, tenant: str, bearer: Bearer | None) -> bool:
        """Return whether a viewer of a tenant may continue. Raise 404."""
        return self.access.still(bearer, self.tenant(tenant).tenant, self.context.now_ms())

    def _may_read(self, tenant: str | None, bearer: Bearer | None) -> bool:
        if tenant is None:
            return self.access.may_read_root(bearer, [found.tenant for found in self.tenants.values()])
        found = self.tenants.get(tenant)
        return found is None or self.access.may_read(bearer, found.tenant)

    async def ask(self, tenant: str, pipeline: str, work: Managed, besides: Sequence[Op] = ()) -> None:
        """Request `work` of a pipeline and return once it is done; `besides` is written in the same commit. Raise
        404, 409 if the pipeline could not do it, or 503 if there was no answer or the pipelines are not known yet."""
        self.pipeline(tenant, pipeline)
        await self._ask(tenant, partial(ForPipeline, pipeline, work), besides)

    async def reread(self, tenant: str, projects: Sequence[str], besides: Sequence[Op] = ()) -> None:
        """Have the configuration of these projects, or of all if empty, read again. Return and raise as `ask`."""
        await self._ask(tenant, partial(Reread, tuple(self.project(tenant, name) for name in projects)), besides)

    async def _ask(self, tenant: str, work: Callable[[str], Management], besides: Sequence[Op]) -> None:
        await outcome_of(self, self.context.map.events.tenant(tenant).management.stream, work, besides)

    def pipeline(self, tenant: str, name: str) -> None:
        """Require that a pipeline exists. Raise 404 when none has this name, 422 while that is not known."""
        configured = self.tenant(tenant)
        known = configured.layouts.landed.pipelines
        if name not in known:
            must_be_read(self, tenant)
            raise NotFoundException(f"tenant {tenant} has no pipeline {name!r}; it has {', '.join(known)}")

    def project(self, tenant: str, name: str) -> str:
        """Return the canonical name of a project.  Raise 404."""
        source = self.tenant(tenant).tenant.find(name)
        if source is None:
            raise NotFoundException(f"tenant {tenant} has no project {name!r}")
        return source.project

    def change(self, tenant: str, project: str, change: str) -> Change:
        """Return a change of a project by its name, by branch and name, or by its patchset: an open one, else one that
        has landed.  Raise 400 when several may be meant, 404, 503 while none is known."""
        canonical = self.project(tenant, project)
        source = self.tenant(tenant).tenant.find(canonical)
        assert source is not None, "it was found just now"
        own = [one for one in self.status.change_states(tenant).now().values() if one.change.project == canonical]
        # Open changes first: a name that was used again after a landing means the new one.
        for among in ([one.change for one in own if one.open], [one.change for one in own if one.landed]):
            found = _named(among, change)
            if len(found) > 1:
                names = ", ".join(sorted(f"{one.branch}/{one.name}" for one in found))
                raise HTTPException(f"{project} has several changes {change!r}; say which: {names}", status_code=400)
            if found:
                return found[0]
        # Absence means nothing before the first look: a 404 would tell scripts that the change does not exist.
        if not looked_at(self.context, source.connection, canonical):
            raise _too_early(UNREAD.format(canonical))
        raise NotFoundException(f"{project} has no change {change!r} that is open or has landed")


def _named(changes: Sequence[Change], name: str) -> list[Change]:
    """Return the matching changes: only that of the exact name, if there is one."""
    called = [one for one in changes if name != one.name and is_called(one, name)]
    return called if len(called) == 1 else [one for one in changes if one in called or one.name == name]


async def ref_of(site: Site, tenant: str, project: str, ref: str, oldrev: str, newrev: str) -> Change:
    """Return a ref of a project as it was last seen, or as the caller states it. Raise 400, 404, 503 while none is
    known.
    """
    canonical = site.project(tenant, project)
    source = site.tenant(tenant).tenant.find(canonical)
    assert source is not None, "it was found just now"
    if why := misnamed(ref):
        raise HTTPException(f"ref: {why}", status_code=400)
    for name, value in (("oldrev", oldrev), ("newrev", newrev)):
        if value and not _COMMIT.fullmatch(value):
            raise HTTPException(f"{name}: it is a commit, 40 hexadecimal digits", status_code=400)
    after = newrev or await last_seen(site.context, source.connection, canonical, ref)
    if not after and not looked_at(site.context, source.connection, canonical):
        raise _too_early(UNREAD.format(canonical))
    if not after:
        raise NotFoundException(f"{project} has no ref {ref!r}; name a commit (newrev) to run it all the same")
    return update(source.connection, canonical, ref, oldrev, after)


def must_be_read(site: Site, tenant: str) -> Configured:
    """Return a tenant whose configuration has been read.  Raise 404; 422 while it is being read."""
    configured = site.tenant(tenant)
    if not configured.loaded.is_set():
        why = f"Tenant {tenant} isn't ready: its configuration is still being read; ask again"
        raise HTTPException(why, status_code=422, headers={"Retry-After": str(AGAIN_S)})
    return configured


def _too_early(why: str) -> HTTPException:
    """Return a 503 that asks programs to retry: nothing was done."""
    return HTTPException(why, status_code=503, headers={"Retry-After": str(AGAIN_S)})


def must_be_permitted(
    site: Site, request: HttpRequest, tenant: str, permission: str, subject: Mapping[str, str] | None = None
) -> None:
    """Check as `Site.allow` does, where nothing is read from a body. Raise 401, 403, 404."""
    bearer, found = site._bearer(request), site.tenant(tenant).tenant
    if not site.access.permits(bearer, found, permission, subject or {}):
        raise site.access.refused(403, f"the bearer of this token may not {permission} in tenant {tenant}")
    mark_checked(request)


def must_read(site: Site, connection: Connection, tenant: str | None = None) -> None:
    """Check that the caller may read a tenant, and raise as `Site.readable` does. An invalid token is refused only
    where a token is needed.
    """
    try:
        site.readable(tenant, site.access.reader(connection))
    except HTTPException:
        # Raises the reason why the token is invalid, which is more useful than that one is needed.
        site.access.bearer(connection)
        raise


async def outcome_of(site: Site, stream: Stream[E], work: Callable[[str], E], besides: Sequence[Op] = ()) -> str:
    """Return the outcome once it is done; `besides` is written with it. Raise 409 when it could not be done, 503 when
    nobody answered.
    """
    session = site.joined()
    if session is None:
        raise HTTPException("the store cannot be reached just now; nothing was asked", status_code=503)
    try:
        outcome = await ask(site.context, session, stream, work, besides)
    except (Unanswered, SessionLost) as error:
        raise HTTPException(str(error), status_code=503) from error
    if not outcome.done:
        raise HTTPException(outcome.text, status_code=409)
    return outcome.text
