"""Hold the data that the routes share: the tenants and their state, access checks, and requests to schedulers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from headgate.gate.rules.refs import misnamed, update
from headgate.gate.state.change import Change, is_called
from headgate.gate.state.management import Managed
from headgate.map.records import Finished, ForPipeline, Management, Reread
from headgate.ports.history import HistoryReader
from headgate.ports.secrets import NoKeys, ProjectKeyStore
from headgate.recipes.stream import Stream
from headgate.rest import Connection, HTTPException, HttpRequest, NotFoundException
from headgate.services.context import Context
from headgate.services.nodes.status import Pooled
from headgate.services.orders import Unanswered, ask
from headgate.services.scheduler.refs import last_seen, looked_at
from headgate.store.store import Session
from headgate.store.types import Op, SessionLost
from headgate.web.access import Access, Bearer, mark_checked, must_be_json
from headgate.web.buildlogs import BuildLogs
from headgate.web.problems import SystemProblems
from headgate.web.review.remarks import Speaker
from headgate.web.review.service import ReviewService
from headgate.web.shapes import ConnectionShape, ItemShape
from headgate.web.shots import Estimates, Shot, Shots
from headgate.web.status import Configured, Status
from headgate.web.viewers.audience import Audience

E = TypeVar("E")
FINISHED_MAX = 10_000
"""Limit on the buildsets that are searched among those that are not recorded in the history yet."""
_COMMIT = re.compile("[0-9a-f]{40}")
OPEN = "open"
"""Key in the `opt` of a route that reveals nothing private of its tenant."""
AGAIN_S = 1
"""Seconds after which clients should retry while data are being read."""
UNREAD = "the repository {} has not been read yet; try again"
NEEDED = "a bearer token is needed: the operator's token, which commands read if they run as Headgate's user, or a JWT"


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Hold the settings of the pages and the API."""

    root: str = ""
    """Public address of the pages, without a trailing slash; empty: use the address of each request."""
    at_root: str = ""
    """Tenant that is also served without its name in the path; empty: none."""
    beside: tuple[str, ...] = ()
    """Other services on the same port: inventory, queues."""
    connections: tuple[ConnectionShape, ...] = ()
    speakers: Mapping[str, Speaker] = field(default_factory=dict)
    """Connection -> how people approve its changes on the pages."""
    hold_default_s: int = 86_400
    hold_max_s: int = 172_800
    """Maximum duration of a hold."""

    def held_s(self, wanted_s: int | None) -> int:
        """Return the duration of a hold that somebody requests; None: the default, 0: the maximum."""
        seconds = self.hold_default_s if wanted_s is None else wanted_s
        return seconds if 0 < seconds <= self.hold_max_s else self.hold_max_s


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """Hold the settings and sources of data that the routes share, and the results computed once for all requests."""

    context: Context
    tenants: Mapping[str, Configured]
    history: HistoryReader
    logs: BuildLogs
    problems: SystemProblems
    access: Access = field(default_factory=Access)
    settings: WebSettings = field(default_factory=WebSettings)
    keys: ProjectKeyStore = field(default_factory=NoKeys)
    joined: Callable[[], Session | None] = lambda: None
    """Return the session with the store for requests to schedulers; None while there is none."""
    pooled: Pooled | None = None
    """Find the machines of the inventory for a tenant; None: there is no inventory."""
    status: Status = field(init=False)
    shots: Shots = field(init=False)
    audience: Audience = field(init=False)
    review: ReviewService = field(init=False)

    def __post_init__(self) -> None:
        context, status = self.context, Status(self.context, self.tenants)
        computed = {
            "status": status,
            "shots": Shots(status, Estimates(self.history, context.now_ms), self.problems),
            "audience": Audience(
                self.shot,
                self._still,
                context.mirror.moved,
                context.now_ms,
                lambda cpu_s: context.observer.shown("stream", cpu_s),
            ),
            "review": ReviewService(context, self.joined),
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)  # nobody else can set a field of a frozen class

    def tenant(self, name: str) -> Configured:
        """Return the tenant. Raise 404."""
        found = self.tenants.get(name)
        if found is None:
            # The error names only public tenants: the names of others are private, too.
            shown = ", ".join(other for other, one in self.tenants.items() if self.access.may_read(None, one.tenant))
            raise NotFoundException(f"there is no tenant {name!r}" + (f"; there are {shown}" if shown else ""))
        return found

    async def shot(self, tenant: str) -> Shot:
        """Return the status of a tenant.  Raise 404."""
        return await self.shots.of(self.tenant(tenant))

    async def items(self, tenant: str) -> Iterator[tuple[str, ItemShape]]:
        """Return (pipeline, item) for every item in the queues.  Raise 404."""
        status = (await self.shot(tenant)).status
        return ((p.name, i) for p in status.pipelines for q in p.change_queues for head in q.heads for i in head)

    def leaving(self, tenant: str) -> Iterator[Finished]:
        """Return the buildsets of a tenant that have ended and are not in the history yet."""
        waiting = self.context.map.history.stream.waiting(self.context.mirror, limit=FINISHED_MAX)
        return (event.event for event in waiting if event.event.tenant == tenant)

    async def owns(self, tenant: str, build: str) -> bool:
        """Return whether the build belongs, or belonged, to this tenant.  Raise 404."""
        self.tenant(tenant)
        # Searched in the order of a build's life, so that a build that moves on in the meantime is found further on.
        if any(found.id == build for _, _, found in self.status.builds(tenant)):
            return True
        if any(found.uuid == build for ended in self.leaving(tenant) for found in ended.builds):
            return True
        return await self.history.build(tenant, build) is not None

    def allow(self, request: HttpRequest, tenant: str, permission: str, **subject: str) -> None:
        """Check that the caller has the permission; `subject` has project and ref. Raise 401, 403, 404 or 415."""
        must_be_json(request)
        must_be_permitted(self, request, tenant, permission, subject)

    def allow_all(self, request: HttpRequest) -> None:
        """Check that the caller may act on all tenants together. Raise 401, 403, 415."""
        must_be_json(request)
        # A permission in one tenant does not cover the others.
        if not self.access.permits_all(self._bearer(request)):
            raise self.access.refused(403, "the bearer of this token is not an administrator of the entire system")
        mark_checked(request)

    def _bearer(self, request: HttpRequest) -> Bearer:
        """Return the bearer of the request's token. Raise 401."""
        bearer = self.access.bearer(request)
        if bearer is None:
            raise self.access.refused(401, NEEDED)
        return bearer

    def readable(self, tenant: str | None, bearer: Bearer | None) -> None:
        """Check that the caller may read the tenant or, for None, what belongs to no tenant. An unknown tenant passes,
        as the route reports it. Raise 401 or 403."""
        if self._may_read(tenant, bearer):
            return
        scope = "this" if tenant is None else f"tenant {tenant}"
        if bearer is None:
            raise self.access.refused(401, f"reading {scope} needs a bearer token")
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
        """Request `work` from a pipeline, and return once it is done; `besides` is written in the same commit. Raise
        404, 409 if the pipeline refused it, 422 while the configuration is being read, or 503 without an answer."""
        self.pipeline(tenant, pipeline)
        await self._ask(tenant, partial(ForPipeline, pipeline, work), besides)

    async def reread(self, tenant: str, projects: Sequence[str], besides: Sequence[Op] = ()) -> None:
        """Have the configuration of these projects, or of all if empty, read again. Return and raise like `ask`."""
        await self._ask(tenant, partial(Reread, tuple(self.project(tenant, name) for name in projects)), besides)

    async def _ask(self, tenant: str, work: Callable[[str], Management], besides: Sequence[Op]) -> None:
        await outcome_of(self, self.context.map.events.tenant(tenant).management.stream, work, besides)

    def pipeline(self, tenant: str, name: str) -> None:
        """Check that a pipeline exists. Raise 404 if none has this name, 422 while the configuration is being read."""
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
        """Return a change of a project by its name, by branch and name, or by its patchset: an open one or else a
        landed one.  Raise 400 if the name is ambiguous, 404, and 503 before the repository was first read."""
        canonical = self.project(tenant, project)
        source = self.tenant(tenant).tenant.find(canonical)
        assert source is not None, "it was found just now"
        own = [one for one in self.status.change_states(tenant).now().values() if one.change.project == canonical]
        # Open changes first: if a name was reused after a landing, it means the new change.
        for among in ([one.change for one in own if one.open], [one.change for one in own if one.landed]):
            found = _named(among, change)
            if len(found) > 1:
                names = ", ".join(sorted(f"{one.branch}/{one.name}" for one in found))
                raise HTTPException(f"{project} has several changes {change!r}; use one of {names}", status_code=400)
            if found:
                return found[0]
        # Before the repository was first read, 404 would wrongly tell scripts that the change does not exist.
        if not looked_at(self.context, source.connection, canonical):
            raise _too_early(UNREAD.format(canonical))
        raise NotFoundException(f"{project} has no open or landed change {change!r}")


def _named(changes: Sequence[Change], name: str) -> list[Change]:
    """Return the changes that match a name."""
    # An abbreviation counts only if it is unambiguous.
    called = [one for one in changes if name != one.name and is_called(one, name)]
    return called if len(called) == 1 else [one for one in changes if one in called or one.name == name]


async def ref_of(site: Site, tenant: str, project: str, ref: str, oldrev: str, newrev: str) -> Change:
    """Return an update of a ref to the commit `newrev` or, if that is empty, to its latest known commit. Raise 400,
    404, and 503 before the repository was first read.
    """
    canonical = site.project(tenant, project)
    source = site.tenant(tenant).tenant.find(canonical)
    assert source is not None, "it was found just now"
    if why := misnamed(ref):
        raise HTTPException(f"ref: {why}", status_code=400)
    for name, value in (("oldrev", oldrev), ("newrev", newrev)):
        if value and not _COMMIT.fullmatch(value):
            raise HTTPException(f"{name} must be a commit: 40 hexadecimal digits", status_code=400)
    # Manual requests usually concern the latest commit.
    after = newrev or await last_seen(site.context, source.connection, canonical, ref)
    if not after and not looked_at(site.context, source.connection, canonical):
        raise _too_early(UNREAD.format(canonical))
    if not after:
        raise NotFoundException(f"{project} has no ref {ref!r}; give a commit (newrev) to enqueue it anyway")
    return update(source.connection, canonical, ref, oldrev, after)


def must_be_read(site: Site, tenant: str) -> Configured:
    """Return a tenant whose configuration has been read.  Raise 404; 422 while it is being read."""
    configured = site.tenant(tenant)
    if not configured.loaded.is_set():
        why = f"Tenant {tenant} isn't ready: its configuration is still being read; try again"
        raise HTTPException(why, status_code=422, headers={"Retry-After": str(AGAIN_S)})
    return configured


def _too_early(why: str) -> HTTPException:
    """Return a 503 that tells clients when to retry."""
    return HTTPException(why, status_code=503, headers={"Retry-After": str(AGAIN_S)})


def must_be_permitted(
    site: Site, request: HttpRequest, tenant: str, permission: str, subject: Mapping[str, str] | None = None
) -> None:
    """Check a permission like `Site.allow`, for requests without a body. Raise 401, 403, 404."""
    bearer, found = site._bearer(request), site.tenant(tenant).tenant
    if not site.access.permits(bearer, found, permission, subject or {}):
        raise site.access.refused(403, f"the bearer of this token lacks the permission {permission} in tenant {tenant}")
    mark_checked(request)


def must_read(site: Site, connection: Connection, tenant: str | None = None) -> None:
    """Check that the caller may read a tenant, and raise like `Site.readable`. An invalid token is an error only where
    a token is needed.
    """
    try:
        site.readable(tenant, site.access.reader(connection))
    except HTTPException:
        # If there is an invalid token, this raises the reason, which is more useful than that a token is needed.
        site.access.bearer(connection)
        raise


async def outcome_of(site: Site, stream: Stream[E], work: Callable[[str], E], besides: Sequence[Op] = ()) -> str:
    """Request work from a scheduler, and return the outcome once it is done; `besides` is written in the same commit.
    Raise 409 if the scheduler refused it, 503 if none answered.
    """
    session = site.joined()
    if session is None:
        raise HTTPException("the store cannot be reached at the moment; no request was sent", status_code=503)
    try:
        outcome = await ask(site.context, session, stream, work, besides)
    except (Unanswered, SessionLost) as error:
        raise HTTPException(str(error), status_code=503) from error
    if not outcome.done:
        raise HTTPException(outcome.text, status_code=409)
    return outcome.text
