"""The application: every route, one shape of errors, its own description."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headgate.queue.messages.board import MessageBoard
from headgate.queue.server.access import ApplicationKeys
from headgate.queue.server.leases import LEASE_ROUTES
from headgate.queue.server.openapi import description, page
from headgate.queue.server.queues import QUEUE_ROUTES
from headgate.queue.server.routes import MESSAGE_ROUTES
from headgate.queue.server.schedules import SCHEDULE_ROUTES
from headgate.queue.server.state import REFUSALS, MessageSite, answer, refused
from headgate.rest import Handler, Response, WebApplication, get

REQUEST_MAX_BYTES = 16_777_216


@get("/openapi.json")
async def openapi() -> Response[bytes]:
    return answer(description())


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
    site = MessageSite(board, keys, stop)
    answers = dict.fromkeys(REFUSALS, refused)
    return WebApplication(routes, [site], answers=answers, body_max_bytes=REQUEST_MAX_BYTES)
