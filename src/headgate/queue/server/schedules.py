"""Routes of schedules: messages that the server posts again and again."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.queue.messages import schedules
from headgate.queue.messages.records import TTL_DEFAULT_S, InvalidPost
from headgate.queue.messages.schedules import BODY_MAX_CHARS, MessageSchedule
from headgate.queue.server import forms
from headgate.queue.server.state import OK, MessageSite, answer, now_ms
from headgate.queueing.partitions import QUEUE_NAME
from headgate.rest import HttpRequest, Response, delete, get, put


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
async def list_schedules(site: MessageSite, request: HttpRequest, app: str, queue: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    of = await site.queue(app, queue)
    found = await site.board.look(lambda database, _: schedules.every(database, of.id))
    return answer({**OK, "schedules": found})


@put("/v1/{app:str}/{queue:str}/schedules/{name:str}")
async def put_schedule(site: MessageSite, request: HttpRequest, app: str, queue: str, name: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    wanted = _wanted(name, await request.body())
    stored = await site.board.change(
        app, lambda database, now: schedules.put(database, app, queue, wanted, now.now_ms), soon=True
    )
    return answer({**OK, **msgspec.to_builtins(stored)})


@delete("/v1/{app:str}/{queue:str}/schedules/{name:str}", status_code=200)
async def remove_schedule(site: MessageSite, request: HttpRequest, app: str, queue: str, name: str) -> Response[bytes]:
    site.caller(request, app).must_be(app)
    count = await site.board.change(app, lambda database, _: schedules.remove(database, app, queue, name))
    return answer({**OK, "removed": count})


def _wanted(name: str, body: bytes) -> MessageSchedule:
    """Read the schedule that is wanted. Raise InvalidPost."""
    if not QUEUE_NAME.fullmatch(name):
        raise InvalidPost({"name": "a name has 1 to 50 letters, digits, dots, hyphens or underscores"})
    try:
        requested = msgspec.json.decode(body, type=ScheduleBody)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidPost({"body": str(error)}) from error
    if requested.missed not in ("once", "all", "skip"):
        raise InvalidPost({"missed": f"one of once, all, skip is wanted, not {requested.missed[:40]!r}"})
    if len(requested.body) > BODY_MAX_CHARS:
        raise InvalidPost({"body": f"the message of a schedule has at most {BODY_MAX_CHARS} characters"})
    fields: dict[str, Any] = {
        name: getattr(requested, name) for name in ("body", "partition", "key", "ttl", "priority")
    }
    draft = forms.draft(fields, "", now_ms())
    return MessageSchedule(
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
