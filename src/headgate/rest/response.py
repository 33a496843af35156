"""Make responses: plain ones, streams, redirections, and exceptions that become responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec
from starlette import responses
from starlette.types import Send

from headgate.base.errors import HeadgateError

T = TypeVar("T")
JSON, TEXT = "application/json", "text/plain"
BARE = (204, 304)
"""Status codes of responses without a body."""


@dataclass(frozen=True, slots=True)
class Cookie:
    """Declare a cookie that scripts cannot read. With `age_s` 0 the browser deletes it."""

    name: str
    value: str
    age_s: int
    secure: bool


class Response(responses.Response, Generic[T]):
    """Answer with a complete body: bytes and strings unchanged, anything else as JSON."""

    def __init__(
        self,
        content: T,
        *,
        status_code: int = 200,
        media_type: str = JSON,
        headers: Mapping[str, str] | None = None,
        cookies: Iterable[Cookie] = (),
    ) -> None:
        kind = None if status_code in BARE else media_type
        self._bare = kind is None
        super().__init__(content, status_code, headers, kind)
        for one in cookies:
            self.set_cookie(one.name, one.value, one.age_s, secure=one.secure, httponly=True)

    def render(self, content: Any) -> bytes:  # JSON
        if isinstance(content, bytes):
            return content
        if isinstance(content, str):
            return content.encode()
        if self._bare or (content is None and self.media_type != JSON):
            return b""
        return msgspec.json.encode(content)


class Redirect(Response[str]):
    """Send the client elsewhere."""

    def __init__(
        self,
        address: str,
        *,
        status_code: int = 302,
        headers: Mapping[str, str] | None = None,
        cookies: Iterable[Cookie] = (),
    ) -> None:
        # Starlette escapes characters that a header may not contain, such as line breaks in a URL from a client.
        place = responses.RedirectResponse(address).headers["location"]
        with_location = {**(headers or {}), "Location": place}
        super().__init__("", status_code=status_code, media_type=TEXT, headers=with_location, cookies=cookies)


class StreamResponse(responses.StreamingResponse):
    """Answer piece by piece. Close the generator of pieces when the client disconnects or the response ends."""

    def __init__(
        self,
        pieces: AsyncIterable[bytes],
        *,
        status_code: int = 200,
        media_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(pieces, status_code, headers, media_type)

    async def stream_response(self, send: Send) -> None:
        if isinstance(self.body_iterator, AsyncGenerator):
            # Otherwise the generator and everything it holds would stay until the garbage collector finds it.
            async with aclosing(self.body_iterator):
                await super().stream_response(send)
        else:
            await super().stream_response(send)


class ServerSentEvents(StreamResponse):
    """Stream events; each is a mapping of `event`, `id` and `data`."""

    def __init__(self, events: AsyncIterator[Mapping[str, str]]) -> None:
        # Proxies such as nginx buffer responses unless `X-Accel-Buffering` says no; events would arrive late.
        headers = {"Cache-Control": "no-cache", "Connection": "keep-alive", "X-Accel-Buffering": "no"}
        super().__init__(_written(events), media_type="text/event-stream", headers=headers)


async def _written(events: AsyncIterator[Mapping[str, str]]) -> AsyncIterator[bytes]:
    """Encode events for sending. Only their data may have several lines."""
    try:
        async for event in events:
            lines = [f"{name}: {line}" for name in ("id", "event") if (line := event.get(name))]
            lines += [f"data: {line}" for line in _lines(event.get("data", ""))]
            yield "".join(f"{line}\r\n" for line in (*lines, "")).encode()
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


def _lines(text: str) -> list[str]:
    """Return the lines of a string as readers of server-sent events split them; `splitlines` splits at more
    characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


class HTTPException(HeadgateError):
    """Report that a request is refused. `detail` is a human-readable reason."""

    status_code = 500

    def __init__(
        self,
        detail: str = "",
        *,
        status_code: int = 0,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | Sequence[Mapping[str, str]] | None = None,  # JSON
    ) -> None:
        """Create the error. `extra` holds further members of the response, or the errors of single parts of the
        request."""
        self.status_code = status_code or self.status_code
        self.detail = detail or HTTPStatus(self.status_code).phrase
        self.headers, self.extra = headers, extra
        super().__init__(f"{self.status_code}: {self.detail}")


class NotFoundException(HTTPException):
    """Report that there is nothing at an address."""

    status_code = 404
