"""Show the quarantine and the reports that wait for delivery; retry or drop them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec

from headgate.map.check import check
from headgate.map.records import Quarantined
from headgate.rest import HTTPException, HttpRequest, JSONBody, NotFoundException, get, post
from headgate.services.courier import Outbox, outboxes, wanted
from headgate.services.quarantine import Quarantine
from headgate.store.types import Op, SessionLost, StoreError
from headgate.web.routes.actions import Hand
from headgate.web.routes.control import OF_ALL
from headgate.web.site import Site

SHOWN_MAX = 1_000


class AsideShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe an entry of the quarantine. Headgate only."""

    id: str
    kind: str
    """event | change | record | report | work (a unit of the scheduler, such as a pipeline, which is stopped)"""
    what: str
    tenant: str
    """Empty if it belongs to no single tenant."""
    error: str
    since: int
    """Milliseconds since the epoch."""
    tries: int
    retry: str
    """What a retry does, in plain English."""


class DamagedShape(msgspec.Struct, frozen=True):
    """Describe an entry of the store that does not match the map; Headgate leaves it alone. Headgate only."""

    path: str
    why: str


class QuarantineShape(msgspec.Struct, frozen=True, kw_only=True):
    """List the quarantine and the damaged entries of the store. Headgate only."""

    aside: tuple[AsideShape, ...]
    damaged: tuple[DamagedShape, ...]


def shape(id: str, one: Quarantined) -> AsideShape:
    again = "puts it back at the end of its queue" if one.queue else "nothing: it must be done again by hand"
    return AsideShape(
        id=id,
        kind=one.kind,
        what=one.what,
        tenant=one.tenant,
        error=one.error,
        since=one.since_ms,
        tries=one.tries,
        retry="restarts it immediately" if one.kind == "work" else again,
    )


@get("/api/quarantine", opt={"permission": OF_ALL})
async def all_quarantined(site: Site, request: HttpRequest) -> QuarantineShape:
    """Return the quarantine of the entire system, and the entries of the store that cannot be decoded; at most 1,000 of
    each.
    """
    site.allow_all(request)
    context = site.context
    entries = list(context.mirror.under(context.map.path))
    # Decoding every entry of the store takes long, so it must not block the event loop.
    found = await asyncio.to_thread(check, entries)
    aside = [shape(id, one) for id, one in Quarantine(context).all().items()]
    damaged = [DamagedShape(one.path, one.why) for one in (*found.undecodable, *found.unknown)]
    return QuarantineShape(aside=tuple(aside[:SHOWN_MAX]), damaged=tuple(damaged[:SHOWN_MAX]))


@get("/api/tenant/{tenant:str}/quarantine")
async def tenant_quarantine(site: Site, tenant: str) -> tuple[AsideShape, ...]:
    """Return the quarantined entries of this tenant; at most 1,000. Headgate only."""
    site.tenant(tenant)
    found = (shape(id, one) for id, one in Quarantine(site.context).all().items() if one.tenant == tenant)
    return tuple(found)[:SHOWN_MAX]


class What(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request an action on an entry of the quarantine."""

    do: Literal["retry", "drop"]
    reason: str = ""


@post("/api/quarantine/{id:str}", status_code=200, opt={"permission": OF_ALL})
async def change_quarantined(site: Site, request: HttpRequest, id: str, data: JSONBody[What]) -> bool:
    """Retry an entry of the quarantine, or drop it."""
    site.allow_all(request)
    quarantine = Quarantine(site.context)
    # Only for the record of the action: `retry` and `drop` themselves check that the entry still exists.
    known = quarantine.all().get(id)
    subject = f"{known.what if known else id}"
    hand = Hand(site, request, f"quarantine-{data.do}", known.tenant if known else "", subject, data.reason, {"id": id})

    async def work(besides: Sequence[Op]) -> None:
        try:
            await (quarantine.retry if data.do == "retry" else quarantine.drop)(id, besides)
        except LookupError as error:
            raise NotFoundException(f"the quarantine has no entry {id!r}") from error
        except (StoreError, SessionLost) as error:
            raise HTTPException(f"the store: {error}", status_code=503) from error

    await hand.does(work)
    return True


class OutboxShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the reports that wait for delivery to one connection. Headgate only."""

    connection: str
    waiting: int
    """Number of waiting reports, of all tenants."""
    oldest: int | None
    """When the oldest of them was submitted, in milliseconds since the epoch."""
    problem: str = ""
    """Why they wait; empty if they are being delivered."""
    former_problem: str = msgspec.field(name="trouble", default="")
    """Deprecated: the same as `problem`."""
    since: int | None
    """When the problem began, in milliseconds since the epoch."""

    def __post_init__(self) -> None:
        # A server of the previous release sends only the former name.
        problem = self.problem or self.former_problem
        msgspec.structs.force_setattr(self, "problem", problem)
        msgspec.structs.force_setattr(self, "former_problem", problem)


class ReportsShape(msgspec.Struct, frozen=True, kw_only=True):
    """List outboxes and undeliverable reports. Headgate only."""

    outboxes: tuple[OutboxShape, ...]
    undelivered: tuple[AsideShape, ...]
    """Reports that the receiver rejects; they are in the quarantine, and can be retried or dropped there."""


def _outbox(found: Outbox) -> OutboxShape:
    problem = found.problem
    return OutboxShape(
        connection=found.connection,
        waiting=found.waiting,
        oldest=found.oldest_ms,
        problem=problem.text if problem is not None else "",
        since=problem.since_ms if problem is not None else None,
    )


def _undelivered(site: Site, tenant: str | None) -> tuple[AsideShape, ...]:
    aside = Quarantine(site.context).all().items()
    found = (shape(id, one) for id, one in aside if one.kind == "report" and tenant in (None, one.tenant))
    return tuple(found)[:SHOWN_MAX]


@get("/api/reports", opt={"permission": OF_ALL})
async def all_reports(site: Site, request: HttpRequest) -> ReportsShape:
    """Return the reports that wait for delivery to each connection, and those that the receiver rejects, at most
    1,000."""
    site.allow_all(request)
    waiting = tuple(_outbox(found) for found in outboxes(site.context))
    return ReportsShape(outboxes=waiting, undelivered=_undelivered(site, None))


@get("/api/tenant/{tenant:str}/reports")
async def tenant_reports(site: Site, tenant: str) -> ReportsShape:
    """Return the same as `/api/reports`, for the connections that the tenant's pipelines report to and for the tenant's
    own reports. Headgate only.
    """
    pipelines = site.tenant(tenant).layouts.landed.pipelines.values()
    named = {name for pipeline in pipelines for name in (*pipeline.posts, *pipeline.drivers)}
    # Only connections that the tenant itself reports to: others may be private to other tenants.
    waiting = tuple(_outbox(found) for found in outboxes(site.context) if found.connection in named)
    return ReportsShape(outboxes=waiting, undelivered=_undelivered(site, tenant))


class ForOutbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request an action on the waiting reports of a connection."""

    do: Literal["retry", "drop"]
    reason: str = ""


@post("/api/reports/{connection:str}", status_code=200, opt={"permission": OF_ALL})
async def change_reports(site: Site, request: HttpRequest, connection: str, data: JSONBody[ForOutbox]) -> bool:
    """Retry the waiting reports of a connection immediately, or drop all of them."""
    site.allow_all(request)
    known = [found.connection for found in outboxes(site.context)]
    if connection not in known:
        others = f"; there are reports to {', '.join(known)}" if known else ""
        raise NotFoundException(f"there are no reports to a connection {connection!r}{others}")
    hand = Hand(site, request, f"reports-{data.do}", "", connection, data.reason, {"connection": connection})

    async def work(besides: Sequence[Op]) -> None:
        try:
            await site.context.store.commit([], [*wanted(site.context, connection, data.do), *besides])
        except (StoreError, SessionLost) as error:
            raise HTTPException(f"the store: {error}", status_code=503) from error

    await hand.does(work)
    return True


ROUTES = (all_quarantined, tenant_quarantine, change_quarantined, all_reports, tenant_reports, change_reports)
