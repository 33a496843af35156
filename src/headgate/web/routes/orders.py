"""Let people pause a tenant: close queues so that nothing lands, and pause events and results."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from headgate.base.texts import line
from headgate.gate.state.world import Closing
from headgate.map.queues import TenantState
from headgate.rest import HTTPException, HttpRequest, JSONBody, NotFoundException, post
from headgate.services.orders import landings_over, ordered, state_of
from headgate.store.types import Op
from headgate.web.routes.actions import Hand
from headgate.web.site import Site

STATE = "set-tenant-state"
"""Permission to change the state of a tenant."""
WORDS_MAX_CHARS = 4_096
CLOSINGS_MAX = 100
"""Limit on the closed queues of one tenant."""


class ForState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request a change of a tenant's state. Missing flags keep their values; a missing reason or info is cleared."""

    trigger_queue_discarding: bool | None = None
    trigger_queue_paused: bool | None = None
    result_queue_paused: bool | None = None
    reason: str | None = None
    info: str | None = None


@post("/api/tenant/{tenant:str}/state", status_code=200, opt={"permission": STATE})
async def tenant_state(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForState]) -> None:
    """Pause or discard the events of a tenant, pause its results, or resume them."""
    site.allow(request, tenant, STATE)
    flags = {name: value for name, value in msgspec.structs.asdict(data).items() if isinstance(value, bool)}
    words = {"reason": (data.reason or "")[:WORDS_MAX_CHARS], "info": (data.info or "")[:WORDS_MAX_CHARS]}

    async def work(besides: Sequence[Op]) -> None:
        await ordered(site.context, tenant, lambda now: replace(now, **flags, **words), besides)

    subject = ", ".join(f"{name} {'on' if value else 'off'}" for name, value in flags.items()) or "reason and info"
    await Hand(site, request, STATE, tenant, subject, words["reason"]).does(work)


class ForQueue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to close or open a queue."""

    pipeline: str
    queue: str = ""
    """Name of the queue; empty: every queue of the pipeline."""
    reason: str = ""


class Closed(msgspec.Struct, frozen=True):
    """Report what may still land after a queue was closed."""

    landing: tuple[str, ...] = ()
    """Changes whose push had begun and has no result yet: they may still land, but nothing else will."""


@post("/api/tenant/{tenant:str}/close", status_code=200, opt={"permission": STATE})
async def close(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForQueue]) -> Closed:
    """Close a pipeline, or one of its queues: nothing lands from it any more, but changes are tested as usual. The
    response comes once pushes in progress have ended. Headgate only.
    """
    site.allow(request, tenant, STATE)
    wanted = _wanted(site, request, tenant, data)
    pushed = list[str]()

    def closed(now: TenantState) -> TenantState:
        others = tuple(one for one in now.closings if (one.pipeline, one.queue) != (wanted.pipeline, wanted.queue))
        if len(others) >= CLOSINGS_MAX:
            raise HTTPException(f"{CLOSINGS_MAX} queues are already closed; close the pipeline", status_code=409)
        return replace(now, closings=(*others, wanted))

    async def work(besides: Sequence[Op]) -> None:
        _closable(site, tenant, wanted)
        await ordered(site.context, tenant, closed, besides)
        # Wait only after the closing is written: before that, another push could begin during the wait.
        pushed.extend(await landings_over(site.context, tenant, wanted.pipeline))

    await Hand(site, request, "close", tenant, wanted.what, wanted.reason).does(work)
    return Closed(tuple(pushed))


@post("/api/tenant/{tenant:str}/open", status_code=200, opt={"permission": STATE})
async def open_again(site: Site, request: HttpRequest, tenant: str, data: JSONBody[ForQueue]) -> bool:
    """Open a closed queue, so that changes land again; without a queue, open the pipeline with all its queues. Headgate
    only.
    """
    site.allow(request, tenant, STATE)
    wanted = _wanted(site, request, tenant, data)

    def opened(now: TenantState) -> TenantState:
        named = {"", wanted.pipeline}
        # A closing without a pipeline represents a damaged record, which
        # closes everything; opening any pipeline removes it, too.
        gone = [c for c in now.closings if c.pipeline in named and (not wanted.queue or c.queue == wanted.queue)]
        if not gone:
            of_pipeline = [c for c in now.closings if c.pipeline in named and not c.queue]
            more = f"; {of_pipeline[0].what} is closed: open that instead" if of_pipeline else ""
            raise HTTPException(f"{wanted.what} is not closed{more}", status_code=409)
        return replace(now, closings=tuple(c for c in now.closings if c not in gone))

    async def work(besides: Sequence[Op]) -> None:
        await ordered(site.context, tenant, opened, besides)

    await Hand(site, request, "open", tenant, wanted.what, wanted.reason).does(work)
    return True


def _wanted(site: Site, request: HttpRequest, tenant: str, data: ForQueue) -> Closing:
    """Return the requested closing, with its strings reduced to one line.  Raise 404, 503."""
    bearer = site.access.bearer(request)
    who = line(bearer.name if bearer is not None else "", WORDS_MAX_CHARS)
    closing = Closing(data.pipeline, data.queue, line(data.reason, WORDS_MAX_CHARS), who, site.context.now_ms())
    known = {one.pipeline for one in state_of(site.context, tenant).closings}
    # A closed pipeline can be opened even if it was removed from the configuration.
    if data.pipeline not in known:
        site.pipeline(tenant, data.pipeline)
    return closing


def _closable(site: Site, tenant: str, wanted: Closing) -> None:
    """Check that the queue can be closed. Raise 404 if it does not exist, 409 if nothing lands from its pipeline."""
    site.pipeline(tenant, wanted.pipeline)
    layout = site.tenant(tenant).layouts.landed
    if not layout.pipelines[wanted.pipeline].lands:
        raise HTTPException(f"{wanted.what} cannot be closed: the pipeline does not land changes", status_code=409)
    if not wanted.queue:
        return
    projects = site.tenant(tenant).tenant.projects
    heads = [(p.project, branch) for p in projects for branch in layout.branches.get(p.project, ())]
    names = {layout.queue_of(project, branch, wanted.pipeline) for project, branch in heads}
    names |= {queue.name for queue in site.status.state(tenant, wanted.pipeline).state.queues}
    if wanted.queue not in names:
        raise NotFoundException(f"{wanted.pipeline} has no queue {wanted.queue!r}; it has {', '.join(sorted(names))}")


ROUTES = (tenant_state, close, open_again)
