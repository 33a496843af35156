"""Serve workers that speak HTTP: they lease a partition, fetch messages, report outcomes, and return the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from headgate.base.tasks import unless
from headgate.queue.messages import leases, outcomes
from headgate.queue.messages.holders import DEFAULT_GROUP, LeaseRequest, Outcome
from headgate.queue.messages.records import READ_MAX, InvalidPost
from headgate.queue.server import forms
from headgate.queue.server.answers import OK, MessageSite, answer
from headgate.queueing.ids import is_id
from headgate.queueing.partitions import PARTITIONS_MAX, QUEUE_NAME
from headgate.rest import HttpRequest, Response, delete, get, post

T = TypeVar("T")

TTL_MAX_S = 3_600.0
LOOK_INTERVAL_S = 1.0
"""Seconds between two attempts while a request waits: leases expire and retries become due without a signal."""
NAMED_MAX = 2 * READ_MAX
RETRY_AFTER_MAX_S = 30 * 86_400.0


class LeaseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request a lease."""

    worker: str = ""
    group: str = DEFAULT_GROUP
    partition: int | None = None
    ttl: float = 30.0


@post("/v1/{app:str}/{queue:str}/lease", status_code=200)
async def take_lease(site: MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    body = _decoded(await site.body(request, app), LeaseBody)
    _between("ttl", body.ttl, 1, TTL_MAX_S)
    if body.partition is not None:
        _between("partition", body.partition, 1, PARTITIONS_MAX)
    if len(body.worker) > 200 or not body.worker.isprintable():
        raise InvalidPost({"worker": "it may have at most 200 printable characters"})
    if not QUEUE_NAME.fullmatch(body.group):
        raise InvalidPost({"group": "a name has 1 to 50 letters, digits, dots, hyphens or underscores"})
    wanted = LeaseRequest(app, queue, body.worker, body.group, body.partition, body.ttl)
    look = lambda: site.board.change(app, lambda database, now: leases.take(database, wanted, now))  # noqa: E731
    found = await _patiently(site, app, queue, forms.wait(request.query), look)
    return answer({**OK, "lease": found})


@get("/v1/{app:str}/{queue:str}/lease/{lease:str}")
async def fetch(site: MessageSite, request: HttpRequest, app: str, queue: str, lease: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    query = request.query
    limit = forms.whole_number(query, "limit", 1, READ_MAX, forms.LIMIT_DEFAULT)
    look = lambda: site.board.change(  # noqa: E731
        app, lambda database, now: leases.fetch(database, app, queue, lease, limit, now)
    )
    found = await _patiently(site, app, queue, forms.wait(query), look)
    site.metrics.read.labels(app).inc(len(found))
    return answer({**OK, "messages": found})


@post("/v1/{app:str}/{queue:str}/lease/{lease:str}", status_code=200)
async def commit(site: MessageSite, request: HttpRequest, app: str, queue: str, lease: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    outcome = _decoded(await site.body(request, app), Outcome)
    _checked(outcome)
    key = forms.idempotency_key(request.headers)
    # Each group of workers may give up the same messages once more, so dead letters are limited here, too.
    dead = lambda database, now_ms: outcomes.dead_letters(database, app, queue, lease, outcome, now_ms)  # noqa: E731
    renewed = await site.board.change(
        app,
        lambda database, now: outcomes.commit(database, app, queue, lease, outcome, now, key),
        dead=dead if outcome.failed else None,
    )
    return answer({**OK, "lease": renewed})


@delete("/v1/{app:str}/{queue:str}/lease/{lease:str}", status_code=200)
async def give_back(site: MessageSite, request: HttpRequest, app: str, queue: str, lease: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    await site.board.change(app, lambda database, now: leases.release(database, app, queue, lease, now))
    return answer(OK)


async def _patiently(site: MessageSite, app: str, queue: str, wait_s: float, look: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `look`; repeat it when something is posted, and at intervals, until `wait_s` seconds have
    passed."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    # Listening begins before the first look, so nothing posted in between is missed.
    with site.metrics.waiting.track_inprogress(), site.board.signal.listen(app, queue) as listener:
        while not (found := await look()) and (left_s := end_s - loop.time()) > 0 and not site.stop.is_set():
            try:
                async with asyncio.timeout(min(left_s, LOOK_INTERVAL_S)):
                    await unless(site.stop, listener.wait())
            except TimeoutError:
                continue
    return found


def _decoded(body: bytes, type: type[T]) -> T:
    """Parse a JSON body; an empty body counts as an object without members."""
    try:
        return msgspec.json.decode(body or b"{}", type=type)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidPost({"body": str(error)}) from error


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidPost({name: f"it must be a number from {low:g} to {high:g}, not {value:g}"})


def _checked(outcome: Outcome) -> None:
    """Check the limits of an outcome. Raise InvalidPost."""
    named = [*outcome.done, *(one.message_id for one in outcome.failed)]
    if len(named) > NAMED_MAX:
        raise InvalidPost({"done": f"at most {NAMED_MAX} messages per request, not {len(named)}"})
    # A message both done and failed would be forgotten and then tried again.
    if len(named) != len(set(named)):
        raise InvalidPost({"done": "it names a message twice"})
    if wrong := [id for id in named if not is_id(id)]:
        raise InvalidPost({"done": f"{wrong[0][:60]!r} is not a message id: write 32 hex digits"})
    _between("ttl", outcome.ttl, 1, TTL_MAX_S)
    _between("attempts", outcome.attempts, 1, 1_000)
    for one in outcome.failed:
        _between("retry_after", one.retry_after or 0, 0, RETRY_AFTER_MAX_S)


LEASE_ROUTES = [take_lease, fetch, commit, give_back]
