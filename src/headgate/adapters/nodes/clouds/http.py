"""Send requests to a cloud over HTTP, within limits of time and size; raise errors of the port if no response comes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import cache, wraps
from time import time
from typing import Generic, NamedTuple, ParamSpec, TypeVar

import httpx

from headgate.adapters.responses import cautious_client, content_of
from headgate.base.certificates import client_context
from headgate.ports.clouds import CloudUnavailable

ANSWER_MAX_S = 60.0
"""Time limit for a complete response, however slowly it arrives."""
# Limits the memory for one response, whatever a server sends; a page of 500 instances has a few MB.
ANSWER_MAX_BYTES = 64 * 2**20
PATIENCE_S = 5.0
"""Pause if a cloud asks the client to wait without naming a time."""
PATIENCE_MAX_S = 300.0
PART_TRIES = 5
"""Attempts to send a part of a file before the complete file counts as not sent."""
TEXT_MAX = 1000
"""Limit on the characters of a cloud's message."""

T = TypeVar("T")
P = ParamSpec("P")


class CloudResponse(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]


class Http:
    """Send requests only to the given address: no proxies, no `.netrc`, no redirections."""

    def __init__(self, verify: str | bool = True) -> None:
        """Create a client. `verify`: whether to check certificates, or the file with the trusted authorities."""
        self._verify = verify
        self._client: httpx.AsyncClient | None = None

    async def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes] = b"",
        max_s: float = ANSWER_MAX_S,
        silence_max_s: float = ANSWER_MAX_S,
    ) -> CloudResponse:
        """Return the response, whatever its status. Raise CloudUnavailable if there is none. `max_s`: time limit for
        the response; `silence_max_s`: longest pause before and within it."""
        patience = httpx.Timeout(ANSWER_MAX_S, read=silence_max_s)
        if self._client is None:
            self._client = self.made()
        host = httpx.URL(url).host
        try:
            async with (
                # httpx limits only the silence between two pieces, so a server that sends a byte a minute would block
                # the launcher.
                asyncio.timeout(max_s),
                self._client.stream(method, url, headers=headers, content=body, timeout=patience) as response,
            ):
                read = await content_of(response, ANSWER_MAX_BYTES + 1)
                if len(read) > ANSWER_MAX_BYTES:
                    raise CloudUnavailable(f"{host} returned more than {ANSWER_MAX_BYTES >> 20} MB")
        except TimeoutError as error:
            raise CloudUnavailable(f"{host} has not answered within {max_s:.0f} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise CloudUnavailable(f"{host} does not answer: {one_line(str(error) or type(error).__name__)}") from error
        return CloudResponse(
            response.status_code, read, {name.lower(): value for name, value in response.headers.items()}
        )

    def made(self) -> httpx.AsyncClient:
        """Make the HTTP client, for the first request."""
        return client(self._verify)

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def client(verify: str | bool) -> httpx.AsyncClient:
    """Make an HTTP client without redirections and proxies."""
    limits = httpx.Limits(max_connections=20, max_keepalive_connections=10)
    return cautious_client(ANSWER_MAX_S, _trust(verify), limits=limits)


@cache
def _trust(verify: str | bool) -> ssl.SSLContext | bool:
    """Return the TLS context; all connections share it, because reading certificates takes long."""
    return client_context(verify if isinstance(verify, str) else None) if verify else False


def patience_s(headers: Mapping[str, str]) -> float:
    """Return the time to wait according to the header `Retry-After`, in seconds."""
    value = headers.get("retry-after", "")
    try:
        after_s = float(value) if value else PATIENCE_S
    except ValueError:
        try:
            after_s = parsedate_to_datetime(value).timestamp() - time()
        except ValueError:
            after_s = PATIENCE_S
    # `float` also accepts "nan", which is not equal to itself, and "inf", which `min` bounds.
    return min(max(after_s, 0.0), PATIENCE_MAX_S) if after_s == after_s else PATIENCE_S


def one_line(text: str) -> str:
    """Return a cloud's message as one line of limited length."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 1] + "…"


async def patient(call: Callable[[], Awaitable[T]]) -> T:
    """Send a part of a file and return the response; if there is none, send it again after the pause that the cloud
    requests."""
    # Safe to repeat, because a part has a number, and a second copy replaces the first.
    for _ in range(PART_TRIES - 1):
        try:
            return await call()
        except CloudUnavailable as error:
            await asyncio.sleep(error.after_s)
    return await call()


def understood(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Wrap a driver's method, so that it raises CloudUnavailable if a cloud's response has an unexpected form."""

    @wraps(method)
    async def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            # A response in an unexpected form must not look like a bug of Headgate, and even less like an empty
            # response.
            reason = one_line(f"{type(error).__name__}: {error}")
            raise CloudUnavailable(f"the cloud's response has an unexpected form ({reason})") from error

    return checked


class Shared(Generic[T]):
    """Share one response among many callers. Each caller gets the response to a request that was sent after its
    call."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._turn = asyncio.Lock()
        self._questions = 0
        self._answer: tuple[int, T] | None = None
        """Number of the request, and its response; None before the first one."""

    async def __call__(self) -> T:
        """Return a fresh response. Raise the errors of the request."""
        # A request that is already in flight may show the state before the caller's own earlier call, so its response
        # is not used.
        sent_before = self._questions
        async with self._turn:
            if self._answer is not None and self._answer[0] > sent_before:
                return self._answer[1]
            self._questions += 1
            number = self._questions
            found = await self._ask()
            self._answer = number, found
            return found
