"""Serve the page of a message server, whose application runs beside the API."""

from __future__ import annotations

from headgate.rest import Response, get
from headgate.web.routes.pages import page, static


@get("/", include_in_schema=False)
async def messages() -> Response[str]:
    """Return the page of queues, lag and dead letters."""
    return page("messages", "Queues of messages")


MESSAGE_PAGES = (messages, static)
