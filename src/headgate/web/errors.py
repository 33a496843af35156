"""Answer errors: in one form for programs, in another for people and for pages that ask for HTML."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from typing import Any

from headgate.ports.history import HistoryUnavailable
from headgate.ports.secrets import SecretError
from headgate.rest import HTTPException, HttpRequest, Response
from headgate.rest.application import Answer
from headgate.store.types import SessionLost, StoreError
from headgate.web.files import edition

log = logging.getLogger("headgate.web")

_HTML = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{title} · Headgate</title>
<link rel="icon" href="/static/{edition}/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/{edition}/style.css"></head>
<body><header><a class="brand" href="/"><img src="/static/{edition}/icon.svg" alt="" width="22" height="22">Headgate</a>
</header>
<main><h1>{title}</h1><p>{text}</p><p><a href="/">To the first page</a></p></main></body></html>
"""


def wants_html(accept: str) -> bool:
    """Return whether an error is asked for as HTML: by a browser that follows a link, or by a page that names both JSON
    and plain text, as the reference's dashboard does, which takes the first paragraph of it."""
    named = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return "text/html" in named or {"application/json", "text/plain"} <= named


def answer(
    request: HttpRequest,
    status: int,
    text: str,
    error: str = "",
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,  # JSON
) -> Response[Any]:
    """Return the answer of this status; `error` is one word for programs, by default the name of the status."""
    sent = {"Vary": "Accept, Authorization, Cookie", "Access-Control-Allow-Origin": "*", **(headers or {})}
    name = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
    if wants_html(request.headers.get("accept", "")):
        page = _HTML.format(title=escape(f"{status} {name}"), text=escape(text), edition=edition())
        return Response(page, status_code=status, media_type="text/html", headers=sent)
    body = {"error": error or name, "description": text, **(more or {})}
    return Response(body, status_code=status, media_type="application/json", headers=sent)


def _refused(request: HttpRequest, refused: HTTPException) -> Response[Any]:
    more = dict(refused.extra) if isinstance(refused.extra, dict) else {}
    error = str(more.pop("error", ""))
    text = refused.detail or HTTPStatus(refused.status_code).phrase
    if isinstance(refused.extra, list):  # what is wrong with each part of a body or query
        parts = [f"{one.get('key', '')}: {one['message']}" for one in refused.extra if isinstance(one, dict)]
        text = "; ".join([text, *(part.removeprefix(": ") for part in parts)])
    return answer(request, refused.status_code, text, error, refused.headers, more)


def _no_history(request: HttpRequest, error: HistoryUnavailable) -> Response[Any]:
    return answer(request, 503, f"the history cannot be read just now: {error}; the queues are not affected")


def _no_store(request: HttpRequest, error: Exception) -> Response[Any]:
    return answer(request, 503, f"the store cannot be used just now: {error}")


def _no_keys(request: HttpRequest, error: SecretError) -> Response[Any]:
    return answer(request, 503, str(error))


def _fault(request: HttpRequest, error: Exception) -> Response[Any]:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    # The text of an unexpected error stays in the log: it may name paths, tenants or secrets.
    return answer(request, 500, "this is a fault of Headgate, and is in its log")


def _no_body(request: HttpRequest, error: Exception) -> Response[Any]:
    # A body of 100,000 brackets exhausts the recursion of a decoder: that is the sender's fault, and no fault of ours.
    fault = "nested too deep" if isinstance(error, RecursionError) else "not Unicode"
    return answer(request, 400, f"what was sent is {fault}")


HANDLERS: dict[type[Exception], Answer] = {
    HTTPException: _refused,
    HistoryUnavailable: _no_history,
    StoreError: _no_store,
    SessionLost: _no_store,
    SecretError: _no_keys,
    RecursionError: _no_body,
    UnicodeError: _no_body,
    Exception: _fault,
}
