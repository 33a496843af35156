"""The application: every route, one shape of errors, its own description."""

from __future__ import annotations

import asyncio

from headgate.adapters.messages.board import MessageBoard
from headgate.rest import AppState, Response, WebApplication, get
from headgate.web.messages.access import ApplicationKeys
from headgate.web.messages.leases import LEASE_ROUTES
from headgate.web.messages.openapi import description, page
from headgate.web.messages.queues import QUEUE_ROUTES
from headgate.web.messages.routes import MESSAGE_ROUTES
from headgate.web.messages.schedules import SCHEDULE_ROUTES
from headgate.web.messages.state import REFUSALS, MessageSite, answer, refused
from headgate.web.routes.pages import page as document_page
from headgate.web.routes.pages import static

REQUEST_MAX_BYTES = 16_777_216


@get("/openapi.json")
async def openapi() -> Response[bytes]:
    return answer(description())


@get("/docs", media_type="text/html")
async def docs() -> str:
    return page()


@get("/", include_in_schema=False)
async def admin() -> Response[str]:
    """Return the page of queues, lag and dead letters."""
    return document_page("messages", "Queues of messages")


def create_app(board: MessageBoard, keys: ApplicationKeys, stop: asyncio.Event) -> WebApplication:
    """Create the application. The board belongs to the caller and outlives it. Streams and waiting requests end at
    `stop`."""
    routes = [
        *QUEUE_ROUTES,
        *MESSAGE_ROUTES,
        *LEASE_ROUTES,
        *SCHEDULE_ROUTES,
        openapi,
        docs,
        admin,
        static,
    ]
    state = AppState({"messages": MessageSite(board, keys, stop)})
    answers = dict.fromkeys(REFUSALS, refused)
    return WebApplication(routes, state, answers=answers, body_max_bytes=REQUEST_MAX_BYTES)
