"""Routes of queues: listing, making, changing, removing; and what happens in an application, as it happens."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from headgate.queue.messages import queues, status
from headgate.queue.messages.records import NoQueue, QueueRecord
from headgate.queue.server import forms
from headgate.queue.server.state import OK, MessageSite, answer, now_ms
from headgate.queue.server.streams import happenings
from headgate.rest import HttpRequest, Response, StreamResponse, delete, get, post, put

LIST_MAX = 100_000


@get("/v1")
async def list_applications(site: MessageSite, request: HttpRequest) -> Response[bytes]:
    """Return the applications that the caller may see."""
    proved = site.keys.somebody(request.headers.get("authorization", ""))
    return answer({**OK, "applications": sorted(one.removeprefix("app:") for one in proved)})


@get("/v1/{app:str}/{queue:str}/standing")
async def get_queue_status(site: MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    """Return what each partition holds, and how far all groups of workers, or one `group`, have got."""
    site.caller(request, app).must_be(app)
    of = await site.queue(app, queue)
    group = request.query.get("group", "")
    found = await site.board.look(lambda database, now_ms: status.partition_statuses(database, of, now_ms, group))
    return answer({**OK, "partitions": found})


@get("/v1/{app:str}")
async def list_queues(site: MessageSite, request: HttpRequest, app: str) -> Response[bytes] | StreamResponse:
    site.caller(request, app).must_be(app)
    if "text/event-stream" in request.headers.get("accept", ""):
        return happenings(site, app, site.still(request, app))
    query = request.query
    limit = forms.whole_number(query, "limit", 1, LIST_MAX, None)
    found = await site.board.queues(app, limit=limit, offset=query.get("offset", ""))
    details, count = forms.truth(query, "details"), forms.truth(query, "include_count")
    listed = [await _listed(site, app, queue, details, count) for queue in found]
    if forms.truth(query, "kept"):
        totals = await site.board.look(lambda database, _: status.totals(database, app))
        for queue, shown in zip(found, listed, strict=True):
            shown["messages"], shown["bytes"] = totals.get(queue.id, (0, 0))
    return answer({**OK, "queues": listed})


async def _listed(
    site: MessageSite, app: str, queue: QueueRecord, details: bool, count: bool
) -> dict[str, Any]:  # JSON
    shown: dict[str, Any] = {"queue_name": queue.name}  # JSON
    if details:
        shown |= {**_shown(queue), "created": queue.created_ms / 1000, "application": app}
    if count:
        shown["count"] = await site.board.look(lambda database, now_ms: queues.count(database, queue, now_ms))
    return shown


def _shown(queue: QueueRecord) -> dict[str, Any]:  # JSON
    return {
        "queue_name": queue.name,
        "partitions": queue.partitions,
        "type": queue.kind,
        "consistency": queue.consistency,
        "principles": queue.principles or None,
        **_bounds(queue),
        **({"priorities": queue.priorities} if queue.priorities > 1 else {}),
    }


def _bounds(queue: QueueRecord) -> dict[str, Any]:  # JSON
    """Return the limits of a queue, if it has any."""
    limits = {"messages_max": queue.messages_max, "bytes_max": queue.bytes_max, "full": queue.full}
    aged = {"age_max": queue.age_max_s} if queue.age_max_s else {}
    return {**limits, **aged} if queue.messages_max or queue.bytes_max else aged


@post("/v1/{app:str}", status_code=201)
async def create_queue(site: MessageSite, request: HttpRequest, app: str) -> Response[bytes]:
    """Create a queue. If it exists, change the given settings and leave the others."""
    site.caller(request, app).must_be(app)
    fields = forms.form(await request.body())
    wanted = forms.queue(fields, None, now_ms())
    # Parsed again with the known queue: a setting that the form leaves out keeps its value and does not become the
    # default.
    with suppress(NoQueue):
        wanted = forms.queue(fields, await site.queue(app, wanted.name), now_ms(), wanted.name)
    await site.board.create(app, wanted)
    return answer({**OK, **_shown(wanted), "application": app}, 201)


@put("/v1/{app:str}/{queue:str}")
async def change_queue(site: MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    known = await site.queue(app, queue)
    wanted = forms.queue(forms.form(await request.body()), known, now_ms(), queue)
    await site.board.create(app, wanted)
    return answer({**OK, **_shown(wanted), "created": wanted.created_ms / 1000})


@delete("/v1/{app:str}/{queue:str}", status_code=200)
async def remove_queue(site: MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    await site.board.remove(app, queue)
    return answer(OK)


QUEUE_ROUTES = [list_applications, get_queue_status, list_queues, create_queue, change_queue, remove_queue]
