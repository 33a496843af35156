"""Hold what the routes share, and give their answers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge

from headgate.queue.messages.board import MessageBoard
from headgate.queue.messages.database import DatabaseDown
from headgate.queue.messages.holders import LeaseLost
from headgate.queue.messages.line import AGAIN_S, Overloaded
from headgate.queue.messages.records import InvalidPost, KeyReused, NoQueue, PartitionFull, QueueRecord
from headgate.queue.server.access import AccessDenied, ApplicationKeys, QueueCaller
from headgate.rest import HTTPException, HttpRequest, Response


class MessageSite:
    """Hold what every handler of the message API works with."""

    def __init__(self, board: MessageBoard, keys: ApplicationKeys, stop: asyncio.Event) -> None:
        self.board, self.keys, self.stop = board, keys, stop
        self.metrics = CollectorRegistry()
        self.posted = Counter("headgate_messages_posted", "Messages posted.", ["app"], registry=self.metrics)
        self.read = Counter("headgate_messages_read", "Messages read.", ["app"], registry=self.metrics)
        self.waiting = Gauge("headgate_messages_waiting", "Requests that wait for messages.", registry=self.metrics)

    def caller(self, request: HttpRequest, app: str) -> QueueCaller:
        """Return the caller. Raise AccessDenied."""
        return self.keys.caller(app, request.headers.get("authorization", ""))

    def still(self, request: HttpRequest, app: str, queue: QueueRecord | None = None) -> Callable[[], bool]:
        """Return a check whether the request would still be admitted, to this queue or to the whole application:
        keys are revoked, and tokens expire."""

        def allowed() -> bool:
            try:
                caller = self.caller(request, app)
                caller.must_be(app) if queue is None else caller.must_see(app, queue)
            except AccessDenied:
                return False
            return True

        return allowed

    async def queue(self, app: str, name: str) -> QueueRecord:
        """Return the queue. Raise NoQueue, also for names that no queue can have."""
        return await self.board.queue(app, name)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def answer(record: object, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(msgspec.json.encode(record), status_code=status, media_type="application/json", headers=headers)


OK = {"status": "ok"}


def _refusal(status: int, fields: dict[str, str], again_s: float = 0.0) -> Response[bytes]:
    headers = {"WWW-Authenticate": "Application"} if status == 401 else None
    if again_s:
        # The header has whole seconds; rounded down, clients would come too early.
        headers = {"Retry-After": str(math.ceil(again_s))}
    return answer({"status": "error", "error_msg": fields}, status, headers)


def refused(_: HttpRequest, error: Exception) -> Response[bytes]:
    """Answer every error in one shape: `status` and `error_msg`."""
    match error:
        case AccessDenied():
            return _refusal(error.status, error.fields)
        case InvalidPost():
            return _refusal(400, error.fields)
        case NoQueue():
            return _refusal(404, {"queue_name": "there is no such queue"})
        case KeyReused():
            return _refusal(422, {"Idempotency-Key": str(error)})
        case LeaseLost():
            return _refusal(409, {"lease": str(error)})
        case PartitionFull():
            return _refusal(429, {"queue_name": str(error)}, error.again_s)
        case Overloaded():
            return _refusal(503, {"storage": str(error)}, AGAIN_S)
        case DatabaseDown():
            return _refusal(500, {"storage": str(error)})
        case HTTPException():
            return _refusal(error.status_code, {"request": error.detail})
        case _:
            raise error


REFUSALS = (
    AccessDenied,
    InvalidPost,
    PartitionFull,
    NoQueue,
    LeaseLost,
    KeyReused,
    Overloaded,
    DatabaseDown,
    HTTPException,
)
