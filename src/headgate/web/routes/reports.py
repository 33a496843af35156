"""Show the reports of pipelines to mail, webhooks, chats and queues: those that wait, and those that no receiver
accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headgate.rest import HTTPException, HttpRequest, JSONBody, NotFoundException, get, post
from headgate.services.quarantine.quarantine import Quarantine
from headgate.services.reports.views import Outbox, outboxes, wanted
from headgate.store.types import Op, SessionLost, StoreError
from headgate.web.routes.actions import Hand
from headgate.web.routes.control import OF_ALL
from headgate.web.routes.quarantine import SHOWN_MAX, AsideShape, shape
from headgate.web.site import Site


class OutboxShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe what waits for delivery to one connection. Headgate only."""

    connection: str
    waiting: int
    """Number of waiting reports of all tenants."""
    oldest: int | None
    """When the first of them was submitted, in milliseconds since the epoch."""
    problem: str = msgspec.field(name="trouble")
    """Why they wait; empty if they are being delivered."""
    since: int | None
    """When the problem began."""


class ReportsShape(msgspec.Struct, frozen=True, kw_only=True):
    """List outboxes and undeliverable reports. Headgate only."""

    outboxes: tuple[OutboxShape, ...]
    undelivered: tuple[AsideShape, ...]
    """Reports that no receiver accepts; they can be retried or dropped like everything that was set aside."""


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
async def everything(site: Site, request: HttpRequest) -> ReportsShape:
    """Return what waits for delivery to each connection, and the reports that no receiver accepts, at most 1,000."""
    site.allow_all(request)
    waiting = tuple(_outbox(found) for found in outboxes(site.context))
    return ReportsShape(outboxes=waiting, undelivered=_undelivered(site, None))


@get("/api/tenant/{tenant:str}/reports")
async def of_tenant(site: Site, tenant: str) -> ReportsShape:
    """Return the same as `/api/reports`, for the connections that the tenant's pipelines report to and for the tenant's
    own reports. Headgate only.
    """
    pipelines = site.tenant(tenant).layouts.landed.pipelines.values()
    named = {name for pipeline in pipelines for name in (*pipeline.posts, *pipeline.drivers)}
    # Only connections that the tenant itself reports to: others name services of other tenants.
    waiting = tuple(_outbox(found) for found in outboxes(site.context) if found.connection in named)
    return ReportsShape(outboxes=waiting, undelivered=_undelivered(site, tenant))


class ForOutbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request an action on what waits."""

    do: Literal["retry", "drop"]
    reason: str = ""


@post("/api/reports/{connection:str}", status_code=200, opt={"permission": OF_ALL})
async def change(site: Site, request: HttpRequest, connection: str, data: JSONBody[ForOutbox]) -> bool:
    """Try to deliver what waits for a connection at once, or drop all of it."""
    site.allow_all(request)
    known = [found.connection for found in outboxes(site.context)]
    if connection not in known:
        names = ", ".join(known) or "none so far"
        raise NotFoundException(f"nothing was reported to a connection {connection!r}; to {names}")
    hand = Hand(site, request, f"reports-{data.do}", "", connection, data.reason, {"connection": connection})

    async def work(besides: Sequence[Op]) -> None:
        try:
            await site.context.store.commit([], [*wanted(site.context, connection, data.do), *besides])
        except (StoreError, SessionLost) as error:
            raise HTTPException(f"the store: {error}", status_code=503) from error

    await hand.does(work)
    return True


ROUTES = (everything, of_tenant, change)
