"""Serve queues, messages and schedules: the application with all its routes and its description."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import msgspec
from prometheus_client import generate_latest

from headgate.queue.messages import later, queues, schedules
from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.records import READ_MAX, TTL_DEFAULT_S, InvalidPost, NoQueue, QueueRecord
from headgate.queue.messages.storage import backlog
from headgate.queue.server import answers, forms
from headgate.queue.server.access import ApplicationKeys
from headgate.queue.server.leases import LEASE_ROUTES
from headgate.queue.server.openapi import description, page
from headgate.queueing.ids import is_id, position_of
from headgate.queueing.partitions import QUEUE_NAME
from headgate.rest import Handler, HttpRequest, Response, StreamResponse, WebApplication, delete, get, post, put

REQUEST_MAX_BYTES = 16_777_216
LIST_MAX = 100_000


@get("/v1")
async def list_applications(site: answers.MessageSite, request: HttpRequest) -> Response[bytes]:
    """Return the applications that the caller may see."""
    proved = site.keys.somebody(request.headers.get("authorization", ""))
    return answers.answer({**answers.OK, "applications": sorted(one.removeprefix("app:") for one in proved)})


# The second path is the former one.
@get(("/v1/{app:str}/{queue:str}/status", "/v1/{app:str}/{queue:str}/standing"))
async def get_queue_status(site: answers.MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    """Return the contents of each partition, and the progress of all groups of workers or of one `group`."""
    site.caller(request, app).must_be(app)
    of = await site.queue(app, queue)
    group = request.query.get("group", "")
    found = await site.board.look(app, lambda database, now_ms: queues.partition_statuses(database, of, now_ms, group))
    return answers.answer({**answers.OK, "partitions": found})


@get("/v1/{app:str}")
async def list_queues(site: answers.MessageSite, request: HttpRequest, app: str) -> Response[bytes] | StreamResponse:
    site.caller(request, app).must_be(app)
    if "text/event-stream" in request.headers.get("accept", ""):
        return answers.happenings(site, app, site.still(request, app))
    query = request.query
    limit = forms.whole_number(query, "limit", 1, LIST_MAX, None)
    found = await site.board.queues(app, limit=limit, offset=query.get("offset", ""))
    details, count = forms.truth(query, "details"), forms.truth(query, "include_count")
    listed = [await _listed(site, app, queue, details, count) for queue in found]
    # The second is the former name.
    if forms.truth(query, "include_size") or forms.truth(query, "kept"):
        totals = await site.board.look(app, lambda database, _: queues.totals(database, app))
        for queue, shown in zip(found, listed, strict=True):
            shown["messages"], shown["bytes"] = totals.get(queue.id, (0, 0))
    return answers.answer({**answers.OK, "queues": listed})


async def _listed(
    site: answers.MessageSite, app: str, queue: QueueRecord, details: bool, count: bool
) -> dict[str, Any]:  # JSON
    shown: dict[str, Any] = {"queue_name": queue.name}  # JSON
    if details:
        shown |= {**_shown(queue), "created": queue.created_ms / 1000, "application": app}
    if count:
        shown["count"] = await site.board.look(app, lambda database, now_ms: queues.count(database, queue, now_ms))
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
async def create_queue(site: answers.MessageSite, request: HttpRequest, app: str) -> Response[bytes]:
    """Create a queue. If it exists, change the given settings and leave the others."""
    site.caller(request, app).must_be(app)
    fields = forms.form(await site.body(request, app))
    wanted = forms.queue(fields, None, answers.now_ms())
    # Parsed again with the known queue: a setting that the form leaves out keeps its value and does not become the
    # default.
    with suppress(NoQueue):
        wanted = forms.queue(fields, await site.queue(app, wanted.name), answers.now_ms(), wanted.name)
    await site.board.create(app, wanted)
    return answers.answer({**answers.OK, **_shown(wanted), "application": app}, 201)


@put("/v1/{app:str}/{queue:str}")
async def change_queue(site: answers.MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    known = await site.queue(app, queue)
    wanted = forms.queue(forms.form(await site.body(request, app)), known, answers.now_ms(), queue)
    await site.board.create(app, wanted)
    return answers.answer({**answers.OK, **_shown(wanted), "created": wanted.created_ms / 1000})


@delete("/v1/{app:str}/{queue:str}", status_code=200)
async def remove_queue(site: answers.MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    await site.board.remove(app, queue)
    return answers.answer(answers.OK)


QUEUE_ROUTES = [list_applications, get_queue_status, list_queues, create_queue, change_queue, remove_queue]


@post("/v1/{app:str}/{queue:str}", status_code=201)
async def post_messages(site: answers.MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    """Post messages, once for each Idempotency-Key."""
    site.caller(request, app).must_be(app)
    key = forms.idempotency_key(request.headers)
    drafts = forms.drafts(request.headers, await site.body(request, app), queue, answers.now_ms())
    try:
        posted, replayed = await site.board.post(app, queue, drafts, key=key)
    except InvalidPost as refused:
        # A single message is a batch of one inside, and its caller never wrote an index.
        single = "json" not in request.headers.get("content-type", "")
        raise InvalidPost({n.removeprefix("0.") if single else n: t for n, t in refused.fields.items()}) from None
    site.metrics.posted.labels(app).inc(0 if replayed else len(posted))
    headers = {"Idempotent-Replayed": "true"} if replayed else None
    return answers.answer({**answers.OK, "messages": posted}, 201, headers)


async def _seen(site: answers.MessageSite, request: HttpRequest, app: str, queue: str) -> tuple[QueueRecord, str]:
    """Return the queue if the caller may read it, and the turn of the caller's reads. Raise NoQueue, AccessDenied."""
    caller = site.caller(request, app)
    of = await site.queue(app, queue, caller.turn(app))
    caller.must_see(app, of)
    return of, caller.turn(app)


@get("/v1/{app:str}/{queue:str}")
async def get_messages(site: answers.MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    of, turn = await _seen(site, request, app, queue)
    return answers.answer(
        {**answers.OK, "messages": await answers.messages(site, app, of, forms.page(request.query, of), turn)}
    )


@get("/v1/{app:str}/{queue:str}/stream")
async def stream_messages(site: answers.MessageSite, request: HttpRequest, app: str, queue: str) -> StreamResponse:
    """Stream messages. Continue after `Last-Event-ID`, which browsers send after a broken connection."""
    of, turn = await _seen(site, request, app, queue)
    page = forms.page(request.query, of)
    last = request.headers.get("last-event-id", "")
    # An id says nothing about the partition, so a stream of several cannot be continued by it.
    if is_id(last) and len(page.partitions) == 1:
        page = forms.MessagePage(page.partitions, position_of(last), True, page.limit, False, 0)
    return answers.stream(site, app, of, page, turn, site.still(request, app, of))


@get("/v1/{app:str}/{queue:str}/lag")
async def get_lag(site: answers.MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    """Return the number of messages that wait behind `after` in one `partition`."""
    of, turn = await _seen(site, request, app, queue)
    partition = forms.whole_number(request.query, "partition", 1, of.partitions, 1)
    after = forms.position_after(request.query)
    found = await site.board.look(turn, lambda database, now_ms: backlog(database, of.id, partition, after, now_ms))
    return answers.answer({**answers.OK, **asdict(found)})


@get("/v1/{app:str}/{queue:str}/delayed")
async def get_delayed(site: answers.MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    """Return the delayed messages of one `partition`."""
    of, turn = await _seen(site, request, app, queue)
    query = request.query
    partition = forms.whole_number(query, "partition", 1, of.partitions, 1)
    limit = forms.whole_number(query, "limit", 1, READ_MAX, forms.LIMIT_DEFAULT)
    found = await site.board.look(turn, lambda database, _: later.delayed(database, of.id, partition, limit))
    return answers.answer({**answers.OK, "messages": found})


@delete("/v1/{app:str}/{queue:str}/delayed/{ids:str}", status_code=200)
async def withdraw(site: answers.MessageSite, request: HttpRequest, app: str, queue: str, ids: str) -> Response[bytes]:
    caller = site.caller(request, app)
    of = await site.queue(app, queue, caller.turn(app))
    caller.must_change(app, of)
    named = forms.ids(ids)
    count = await site.board.change(app, lambda database, now: later.withdraw(database, of.id, named, now.now_ns))
    return answers.answer({**answers.OK, "withdrawn": count})


@get("/v1/{app:str}/{queue:str}/{ids:str}")
async def get_by_id(site: answers.MessageSite, request: HttpRequest, app: str, queue: str, ids: str) -> Response[bytes]:
    of, turn = await _seen(site, request, app, queue)
    return answers.answer({**answers.OK, "messages": await site.board.get(turn, of, forms.ids(ids))})


@put("/v1/{app:str}/{queue:str}/{ids:str}")
async def put_by_id(site: answers.MessageSite, request: HttpRequest, app: str, queue: str, ids: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    body, ttl_s = forms.single(request.headers, await site.body(request, app))
    await site.board.put(app, queue, forms.ids(ids), body, ttl_s)
    return answers.answer(answers.OK)


@delete("/v1/{app:str}/{queue:str}/{ids:str}", status_code=200)
async def delete_by_id(
    site: answers.MessageSite, request: HttpRequest, app: str, queue: str, ids: str
) -> Response[bytes]:
    caller = site.caller(request, app)
    caller.must_change(app, await site.queue(app, queue, caller.turn(app)))
    await site.board.delete(app, queue, forms.ids(ids))
    return answers.answer(answers.OK)


@get("/__heartbeat__", media_type="text/plain")
async def heartbeat() -> str:
    return "OK"


@get("/metrics")
async def metrics(site: answers.MessageSite, request: HttpRequest) -> Response[bytes]:
    """Return metrics. They name applications, so the caller needs a key of one, or the operator's token."""
    site.keys.somebody(request.headers.get("authorization", ""))
    return Response(generate_latest(site.metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")


MESSAGE_ROUTES = [
    post_messages, get_messages, stream_messages, get_lag, get_delayed, withdraw, get_by_id, put_by_id, delete_by_id,
    heartbeat, metrics,
]  # fmt: skip


class ScheduleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request a schedule."""

    cron: str
    body: str
    zone: str = "UTC"
    missed: str = "once"
    partition: int | None = None
    key: str = ""
    ttl: int = TTL_DEFAULT_S
    priority: str | int = ""


@get("/v1/{app:str}/{queue:str}/schedules")
async def list_schedules(site: answers.MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    of = await site.queue(app, queue)
    found = await site.board.look(app, lambda database, _: schedules.every(database, of.id))
    return answers.answer({**answers.OK, "schedules": found})


@put("/v1/{app:str}/{queue:str}/schedules/{name:str}")
async def put_schedule(
    site: answers.MessageSite, request: HttpRequest, app: str, queue: str, name: str
) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    wanted = _wanted(name, await site.body(request, app))
    stored = await site.board.change(
        app, lambda database, now: schedules.put(database, app, queue, wanted, now.now_ms), soon=True
    )
    return answers.answer({**answers.OK, **msgspec.to_builtins(stored)})


@delete("/v1/{app:str}/{queue:str}/schedules/{name:str}", status_code=200)
async def remove_schedule(
    site: answers.MessageSite, request: HttpRequest, app: str, queue: str, name: str
) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    count = await site.board.change(app, lambda database, _: schedules.remove(database, app, queue, name))
    return answers.answer({**answers.OK, "removed": count})


def _wanted(name: str, body: bytes) -> schedules.MessageSchedule:
    """Parse the requested schedule. Raise InvalidPost."""
    if not QUEUE_NAME.fullmatch(name):
        raise InvalidPost({"name": "a name has 1 to 50 letters, digits, dots, hyphens or underscores"})
    try:
        requested = msgspec.json.decode(body, type=ScheduleBody)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidPost({"body": str(error)}) from error
    if requested.missed not in ("once", "all", "skip"):
        raise InvalidPost({"missed": f"it must be once, all or skip, not {requested.missed[:40]!r}"})
    if len(requested.body) > schedules.BODY_MAX_CHARS:
        raise InvalidPost({"body": f"the message of a schedule may have at most {schedules.BODY_MAX_CHARS} characters"})
    fields: dict[str, Any] = {
        name: getattr(requested, name) for name in ("body", "partition", "key", "ttl", "priority")
    }
    draft = forms.draft(fields, "", answers.now_ms())
    return schedules.MessageSchedule(
        name=name,
        cron=requested.cron,
        body=draft.body,
        zone=requested.zone,
        missed=requested.missed,
        partition=draft.partition,
        key=draft.key,
        ttl=draft.ttl_s,
        priority=draft.priority,
    )


SCHEDULE_ROUTES = [list_schedules, put_schedule, remove_schedule]


@get("/openapi.json")
async def openapi() -> Response[bytes]:
    return answers.answer(description())


@get("/docs", media_type="text/html")
async def docs() -> str:
    return page()


def create_app(
    board: MessageBoard, keys: ApplicationKeys, stop: asyncio.Event, pages: Sequence[Handler] = ()
) -> WebApplication:
    """Create the application: the API, and `pages` for people. The board belongs to the caller and outlives it. Streams
    and waiting requests end at `stop`."""
    routes = [
        *QUEUE_ROUTES,
        *MESSAGE_ROUTES,
        *LEASE_ROUTES,
        *SCHEDULE_ROUTES,
        openapi,
        docs,
        *pages,
    ]
    site = answers.MessageSite(board, keys, stop)
    refusals = dict.fromkeys(answers.REFUSALS, answers.refused)
    return WebApplication(routes, [site], answers=refusals, body_max_bytes=REQUEST_MAX_BYTES)
