"""Routes of messages: posting, reading, waiting, putting, deleting."""

from __future__ import annotations

from dataclasses import asdict

from prometheus_client import generate_latest

from headgate.queue.messages import later
from headgate.queue.messages.pages import backlog
from headgate.queue.messages.records import READ_MAX, InvalidPost, QueueRecord
from headgate.queue.server import forms
from headgate.queue.server.state import OK, MessageSite, answer, now_ms
from headgate.queue.server.streams import messages, stream
from headgate.queueing.ids import is_id, position_of
from headgate.rest import HttpRequest, Response, StreamResponse, delete, get, post, put


@post("/v1/{app:str}/{queue:str}", status_code=201)
async def post_messages(site: MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    """Post messages, once for each Idempotency-Key."""
    site.caller(request, app).must_be(app)
    key = forms.idempotency_key(request.headers)
    drafts = forms.drafts(request.headers, await request.body(), queue, now_ms())
    try:
        posted, replayed = await site.board.post(app, queue, drafts, key=key)
    except InvalidPost as refused:
        # A single message is a batch of one inside, and its caller never wrote an index.
        single = "json" not in request.headers.get("content-type", "")
        raise InvalidPost({n.removeprefix("0.") if single else n: t for n, t in refused.fields.items()}) from None
    site.posted.labels(app).inc(0 if replayed else len(posted))
    headers = {"Idempotent-Replayed": "true"} if replayed else None
    return answer({**OK, "messages": posted}, 201, headers)


async def _seen(site: MessageSite, request: HttpRequest, app: str, queue: str) -> QueueRecord:
    """Return the queue if the caller may read it. Raise NoQueue, Denied."""
    caller = site.caller(request, app)
    of = await site.queue(app, queue)
    caller.must_see(app, of)
    return of


@get("/v1/{app:str}/{queue:str}")
async def get_messages(site: MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    of = await _seen(site, request, app, queue)
    return answer({**OK, "messages": await messages(site, app, of, forms.page(request.query, of))})


@get("/v1/{app:str}/{queue:str}/stream")
async def stream_messages(site: MessageSite, request: HttpRequest, app: str, queue: str) -> StreamResponse:
    """Stream messages. Continue after `Last-Event-ID`, which browsers send after a broken connection."""
    of = await _seen(site, request, app, queue)
    page = forms.page(request.query, of)
    last = request.headers.get("last-event-id", "")
    # An id says nothing about the partition, so a stream of several cannot be continued by it.
    if is_id(last) and len(page.partitions) == 1:
        page = forms.MessagePage(page.partitions, position_of(last), True, page.limit, False, 0)
    return stream(site, app, of, page, site.still(request, app, of))


@get("/v1/{app:str}/{queue:str}/lag")
async def get_lag(site: MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    """Return what waits behind `after` in one `partition`."""
    of = await _seen(site, request, app, queue)
    partition = forms.whole_number(request.query, "partition", 1, of.partitions, 1)
    after = forms.position_after(request.query)
    found = await site.board.look(lambda database, now_ms: backlog(database, of.id, partition, after, now_ms))
    return answer({**OK, **asdict(found)})


@get("/v1/{app:str}/{queue:str}/delayed")
async def get_delayed(site: MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    """Return what is not due yet in one `partition`."""
    of = await _seen(site, request, app, queue)
    query = request.query
    partition = forms.whole_number(query, "partition", 1, of.partitions, 1)
    limit = forms.whole_number(query, "limit", 1, READ_MAX, forms.LIMIT_DEFAULT)
    found = await site.board.look(lambda database, _: later.delayed(database, of.id, partition, limit))
    return answer({**OK, "messages": found})


@delete("/v1/{app:str}/{queue:str}/delayed/{ids:str}", status_code=200)
async def withdraw(site: MessageSite, request: HttpRequest, app: str, queue: str, ids: str) -> Response[bytes]:
    caller = site.caller(request, app)
    of = await site.queue(app, queue)
    caller.must_change(app, of)
    named = forms.ids(ids)
    count = await site.board.change(app, lambda database, now: later.withdraw(database, of.id, named, now.now_ns))
    return answer({**OK, "withdrawn": count})


@get("/v1/{app:str}/{queue:str}/{ids:str}")
async def get_by_id(site: MessageSite, request: HttpRequest, app: str, queue: str, ids: str) -> Response[bytes]:
    of = await _seen(site, request, app, queue)
    return answer({**OK, "messages": await site.board.get(of, forms.ids(ids))})


@put("/v1/{app:str}/{queue:str}/{ids:str}")
async def put_by_id(site: MessageSite, request: HttpRequest, app: str, queue: str, ids: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    body, ttl_s = forms.single(request.headers, await request.body())
    await site.board.put(app, queue, forms.ids(ids), body, ttl_s)
    return answer(OK)


@delete("/v1/{app:str}/{queue:str}/{ids:str}", status_code=200)
async def delete_by_id(site: MessageSite, request: HttpRequest, app: str, queue: str, ids: str) -> Response[bytes]:
    caller = site.caller(request, app)
    caller.must_change(app, await site.queue(app, queue))
    await site.board.delete(app, queue, forms.ids(ids))
    return answer(OK)


@get("/__heartbeat__", media_type="text/plain")
async def heartbeat() -> str:
    return "OK"


@get("/metrics")
async def metrics(site: MessageSite, request: HttpRequest) -> Response[bytes]:
    """Return metrics. They name applications, so the caller needs a key of one, or the operator's token."""
    site.keys.somebody(request.headers.get("authorization", ""))
    return Response(generate_latest(site.metrics), media_type="text/plain; version=0.0.4; charset=utf-8")


MESSAGE_ROUTES = [
    post_messages, get_messages, stream_messages, get_lag, get_delayed, withdraw, get_by_id, put_by_id, delete_by_id,
    heartbeat, metrics,
]  # fmt: skip
