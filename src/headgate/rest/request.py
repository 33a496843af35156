"""A request with a limited body, and its query."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request, empty_receive
from starlette.types import Receive, Scope

from headgate.rest.errors import HTTPException

BODY_MAX_BYTES = 10_000_000
"""Default size limit of a request's body; handlers and applications may set others."""


class QueryValues(Mapping[str, str]):
    """Hold the query of an address; a name that is given several times has its first value."""

    def __init__(self, raw: bytes) -> None:
        self.pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True)
        self._first = dict(reversed(self.pairs))

    def __getitem__(self, name: str) -> str:
        return self._first[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self.pairs))

    def __len__(self) -> int:
        return len(self._first)

    def all(self, name: str) -> list[str]:
        """Return every value of the name, in the order of the address."""
        return [value for known, value in self.pairs if known == name]


class HttpRequest(Request[Any]):
    """Represent one request. Its body has at most `body_max_bytes`."""

    def __init__(self, scope: Scope, receive: Receive = empty_receive, body_max_bytes: int = BODY_MAX_BYTES) -> None:
        super().__init__(scope, receive)
        self._body_max_bytes = body_max_bytes

    @cached_property
    def query(self) -> QueryValues:
        return QueryValues(self.scope.get("query_string", b""))

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raise 413 as soon as it is too large, and 400 for an invalid length."""
        length = self.headers.get("content-length", "0")
        # `int` accepts digits of other scripts, blanks and signs.
        if not (length.isdecimal() and length.isascii()):
            raise HTTPException(f"Invalid content-length: {length[:40]!r}", status_code=400)
        # Python raises ValueError for a number of thousands of digits; twenty are already too large.
        size = int(length[:20])
        if size <= self._body_max_bytes:
            size = 0
            async for piece in super().stream():
                size += len(piece)
                if size > self._body_max_bytes:
                    break
                yield piece
        if size > self._body_max_bytes:
            raise HTTPException(status_code=413)
