"""Call a forge's REST API with conditional requests, within the budget of calls, and explain refusals.

Nothing sleeps here: the error tells a caller how long to wait. Redirects lead to renamed repositories and must stay on
the host. The client ignores proxies and `.netrc` of the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from headgate.adapters.forges.accounts import CallBudget
from headgate.adapters.responses import cautious_client, content_of, from_json
from headgate.base.errors import ForgeError
from headgate.ports.limits import NO_LIMIT, Alone, ForgeLimits, QuietUntil
from headgate.ports.reporter import ReporterAway

# This limits one read of the connection; only ANSWER_MAX_S stops a server that sends a byte now and then.
TIMEOUT_S = 60.0
ANSWER_MAX_S = 120.0
"""Time limit for a complete response, however slowly it arrives."""
ANSWER_MAX_BYTES = 32 * 2**20
PAGES_MAX = 200
_NEXT = 'rel="next"'
REDIRECTS_MAX, DEPTH_MAX = 3, 10
"""Limits on the redirects of one request, and on the depth of an error message."""
KNOWN_MAX, KNOWN_MAX_BYTES = 2_000, 64 * 2**20
"""Cached responses, which are requested conditionally: how many, and their total size."""
SAME_S = 2.0
"""Two end times of a limit that differ by less than this count as the same."""
_ABOUT = re.compile(r"/(?:repos/([^/?]+/[^/?]+)|projects/([^/?]+))")
AGAIN_S = 1.0
"""Pause after a request without a response, or with a server error."""


Query = Mapping[str, str | int]
NO_QUERY: Query = MappingProxyType({})


class ListTooLong(ForgeError):
    """Report that a list has more than `PAGES_MAX` pages, or continues on another host."""


class NotThere(ForgeError):
    """Report that something does not exist or is hidden from us."""


class ForgeDenied(ForgeError):
    """Report that we lack permission."""


class NotLetIn(ForgeError):
    """Report that Headgate has no credentials for a project."""


class Rejected(ForgeError):
    """Report that the forge rejects a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class ResponseTooLarge(Rejected):
    """Report that the forge's response exceeds `ANSWER_MAX_BYTES`."""


class ForgeServerError(ReporterAway):
    """Report an internal error of the forge for one request; others may succeed."""


class ForgeResponse(NamedTuple):
    status: int
    content: Any
    """JSON; None if there was none."""
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ForgeKey:
    """Identify the caller: whose budget is used, and its token."""

    who: str
    token: str = field(repr=False)


@dataclass(slots=True)
class _Known:
    tag: str
    body: bytes
    link: str


class Rest(ABC):
    """Call one forge. `calls` counts `rest` (including conditional requests) and `unchanged`."""

    page_size: Query = MappingProxyType({"per_page": 100})
    """Query parameters that set the length of a page."""

    def __init__(
        self,
        host: str,
        api: str,
        http: Callable[[], httpx.AsyncClient],
        now_s: Callable[[], float] = time.time,
        limits: ForgeLimits | None = None,
    ) -> None:
        """Make a client. `host` is used in messages; `api` is the address of REST; `http` makes the HTTP client on
        first use, like `forge_http`; `limits` shares limits of this API with other processes."""
        self._host, self._api, self._make, self._now_s = host, api, http, now_s
        self.limits = limits or Alone()
        self._shared: dict[str, QuietUntil] = {}
        self._http: httpx.AsyncClient | None = None
        self.budgets: dict[tuple[str, str], CallBudget] = {}
        self.calls: Counter[str] = Counter()
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._known_bytes = 0
        self._writing: dict[str, asyncio.Lock] = {}

    @abstractmethod
    def headers(self, key: ForgeKey) -> Mapping[str, str]:
        """Return the headers of every request: the credentials, and the requested format."""

    def encoded(self, content: Any) -> bytes:
        """Return the body of a request in the format that `headers` names."""
        return msgspec.json.encode(content)

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def budget(self, key: ForgeKey, kind: str = "core") -> CallBudget:
        """Return the state of a budget."""
        return self.budgets.setdefault((key.who, kind), CallBudget())

    async def get(self, key: ForgeKey, path: str, query: Query = NO_QUERY, *, urgent: bool = True) -> ForgeResponse:
        """Return a resource; a repeated request is conditional, and only checks whether it has changed. Raise NotThere,
        ForgeDenied, Rejected, ReporterAway."""
        return await self._get(key, _with(path, query), urgent)

    async def pages(
        self, key: ForgeKey, path: str, query: Query = NO_QUERY, *, urgent: bool = True, complete: bool = False
    ) -> AsyncIterator[Any]:
        """Yield the pages of a list. Raise the errors of `get`, and ListTooLong if the list must be `complete` and is
        too long."""
        url: str | None = _with(path, {**self.page_size, **query})
        for _ in range(PAGES_MAX):
            if url is None:
                return
            answer = await self._get(key, url, urgent)
            yield answer.content
            link = answer.headers.get("link", "")
            url = _next(link, self._api)
            # There is a next page, but at another host, where our token must not go.
            if complete and url is None and _NEXT in link:
                raise ListTooLong
        if complete and url is not None:
            raise ListTooLong

    async def write(self, method: str, key: ForgeKey, path: str, content: Any = None) -> ForgeResponse:
        """Send a writing request, and return the response; the requests of one account are sent one after the other.
        Raise the errors of `get`."""
        lock = self._writing.setdefault(key.who, asyncio.Lock())
        # GitHub requires this: concurrent writes of one account hit its secondary limits.
        async with lock:
            self.calls["rest"] += 1
            return await self._rest(method, key, path, content, {}, urgent=True)

    async def _get(self, key: ForgeKey, url: str, urgent: bool) -> ForgeResponse:
        # The cache is per account, since a response shows what that account may see.
        known = self._known.get((key.who, url))
        headers = {"If-None-Match": known.tag} if known is not None else {}
        self.calls["rest"] += 1
        answer = await self._rest("GET", key, url, None, headers, urgent=urgent)
        if answer.status == 304 and known is not None:
            self.calls["unchanged"] += 1
            self._known.move_to_end((key.who, url))
            # Decode it again each time, since callers may change what they receive. A 304 response has no `link`, so
            # the old one stays valid.
            return ForgeResponse(200, from_json(known.body), {**answer.headers, "link": known.link})
        return answer

    async def _rest(
        self, method: str, key: ForgeKey, url: str, content: Any, headers: Mapping[str, str], *, urgent: bool
    ) -> ForgeResponse:
        budget, project = self.budget(key), self.about(url)
        self.may(budget, key, urgent, project)
        body = None if content is None else self.encoded(content)
        place = url if "://" in url else self._api + url
        for _ in range(REDIRECTS_MAX):
            answer = await self.sent(method, place, key, headers, body)
            if answer.status not in (301, 302, 307, 308):
                break
            place = self._elsewhere(place, answer)
        if method == "GET" and answer.status == 200 and (tag := answer.headers.get("etag", "")):
            self._remember(key, url, _Known(tag, answer.body, answer.headers.get("link", "")))
        return ForgeResponse(answer.status, self.learned(answer, budget, key, project), answer.headers)

    def _elsewhere(self, path: str, answer: Heard) -> str:
        """Return the new URL of a renamed resource; the response may give it relative to the requested one."""
        location = answer.headers.get("location", "")
        try:
            place = urljoin(path, location)
            elsewhere = not location or urlsplit(place)[:2] != urlsplit(self._api)[:2]
        except ValueError:
            elsewhere = True
        # Following it would send our token to another host.
        if elsewhere:
            raise NotThere("it has moved to another host")
        self.calls["rest"] += 1
        return place

    def about(self, url: str) -> str:
        """Return the name of the project that a call is about; empty if there is none."""
        found = _ABOUT.match(url.removeprefix(self._api))
        return found[1] or found[2] if found is not None else ""

    def may(self, budget: CallBudget, key: ForgeKey, urgent: bool, project: str = "", kind: str = "core") -> None:
        """Raise ReporterAway if the budget does not allow the call."""
        others = self.limits.known(f"{key.who} {kind}")
        wait_s = budget.wait_s(self._now_s(), urgent=urgent, project=project, others=others)
        if wait_s:
            raise ReporterAway(f"the request limit of {key.who} at {self._host} is reached", wait_s, alone=True)

    def learned(self, answer: Heard, budget: CallBudget, key: ForgeKey, project: str, kind: str = "core") -> Any:
        """Return a response, and share its limits with other processes. Raise the error that it means."""
        try:
            return self.taken(answer, budget)
        # A refusal shows a limit as well, so this must also run when `taken` raises.
        finally:
            self.heed(budget, key, kind)
            # An unchanged response costs nothing of GitHub's budget.
            if answer.status != 304:
                budget.counted(project)

    def heed(self, budget: CallBudget, key: ForgeKey, kind: str) -> None:
        """Share new limits with other processes."""
        account, now = f"{key.who} {kind}", budget.quiet(self._now_s())
        shared = self._shared.get(account, NO_LIMIT)
        # Sharing is a write to the store, so a response that only confirms a known limit is not shared.
        if now.all_s > shared.all_s + SAME_S or now.spare_s > shared.spare_s + SAME_S:
            self._shared[account] = now
            self.limits.learned(account, now)

    async def sent(self, method: str, url: str, key: ForgeKey, headers: Mapping[str, str], body: bytes | None) -> Heard:
        """Send the request and return the response. Raise ReporterAway, Rejected."""
        all_headers = {"User-Agent": "headgate", **self.headers(key), **headers}
        if self._http is None:
            self._http = self._make()
        try:
            async with (
                asyncio.timeout(ANSWER_MAX_S),
                self._http.stream(method, url, content=body, headers=all_headers) as answer,
            ):
                found = await content_of(answer, ANSWER_MAX_BYTES + 1)
                if len(found) > ANSWER_MAX_BYTES:
                    raise ResponseTooLarge(answer.status_code, f"its response has more than {ANSWER_MAX_BYTES} bytes")
                return Heard(answer.status_code, answer.headers, found)
        except TimeoutError as error:
            raise ReporterAway(f"{self._host} has not answered within {ANSWER_MAX_S:.0f} s", AGAIN_S) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ReporterAway(f"{self._host}: {error or type(error).__name__}", AGAIN_S) from error

    def taken(self, answer: Heard, budget: CallBudget) -> Any:
        """Return the content of a response. Raise the error that it means."""
        now_s = self._now_s()
        budget.learn(answer.headers, now_s)
        if answer.status == 304 or (answer.status < 300 and not answer.body):
            return None
        try:
            content = from_json(answer.body)
        except msgspec.DecodeError as error:
            content = None
            if answer.status < 300:
                # Usually the page of a proxy in front of the forge, while the forge itself restarts.
                raise ReporterAway(f"{self._host} returned something other than JSON: {error}", AGAIN_S) from None
        if answer.status < 300:
            budget.answered()
            return content
        message = _message(content, answer.status)
        wait_s = budget.refused(answer.status, answer.headers, message, now_s)
        if wait_s is not None:
            raise ReporterAway(f"{self._host}: {message}", wait_s, alone=True)
        if answer.status >= 500 or answer.status == 408:
            raise ReporterAway(f"{self._host} returned status {answer.status}", AGAIN_S)
        # GitHub also returns 404 for what an account may not see, so absent and hidden things look the same.
        if answer.status in (404, 410, 451):
            raise NotThere(message)
        if answer.status in (401, 403):
            raise ForgeDenied(message)
        raise Rejected(answer.status, message)

    def _remember(self, key: ForgeKey, url: str, known: _Known) -> None:
        old = self._known.pop((key.who, url), None)
        self._known_bytes -= len(old.body) if old is not None else 0
        self._known[key.who, url] = known
        self._known_bytes += len(known.body)
        while len(self._known) > KNOWN_MAX or self._known_bytes > KNOWN_MAX_BYTES:
            _, gone = self._known.popitem(last=False)
            self._known_bytes -= len(gone.body)


@dataclass(frozen=True, slots=True)
class Heard:
    """Represent a raw response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def _message(content: Any, status: int) -> str:
    """Return the forge's error message, as one string."""
    if not isinstance(content, dict):
        return f"it returned status {status}"
    parts = [str(content.get("message", ""))]
    for error in content.get("errors") or [] if isinstance(content.get("errors"), list) else []:
        parts.append(str(error.get("message") or error.get("code") or "") if isinstance(error, dict) else str(error))
    return "; ".join(dict.fromkeys(part for part in parts if part))[:2_000] or f"it returned status {status}"


@contextlib.contextmanager
def expected_form() -> Iterator[None]:
    """Raise Rejected for every error that a response of an unexpected form causes inside the context."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise Rejected(200, f"its response has an unexpected form: {error!r}"[:300]) from error


def in_one_form(body: bytes) -> bytes:
    """Return the error as a `message` that is a string, whichever form the forge uses: a string, lists by member, or
    `error`."""
    try:
        content = from_json(body)
    except msgspec.DecodeError:
        return body
    if not isinstance(content, dict):
        return body
    parts = [content.get("message"), content.get("error_description") or content.get("error"), content.get("errors")]
    return msgspec.json.encode({"message": "; ".join(text for part in parts if (text := _text(part)))})


def _text(part: object, depth: int = 0) -> str:
    if depth > DEPTH_MAX:
        return "…"
    if isinstance(part, dict):
        texts = ((name, _text(value, depth + 1)) for name, value in part.items())
        return "; ".join(f"{name} {text}" if name != "base" else text for name, text in texts)
    if isinstance(part, list):
        return ", ".join(_text(one, depth + 1) for one in part)
    return str(part) if part is not None else ""


def _with(path: str, query: Query) -> str:
    return path if not query else f"{path}?{httpx.QueryParams(query)}"


def _next(link: str, api: str) -> str | None:
    """Return the URL of the next page, which must be at the same host."""
    for part in link.split(","):
        address, _, rel = part.partition(";")
        place = address.strip().strip("<>")
        with contextlib.suppress(ValueError):
            if _NEXT in rel and urlsplit(place)[:2] == urlsplit(api)[:2]:
                return place
    return None


def forge_http(verify: bool = True) -> httpx.AsyncClient:
    """Return an HTTP client; see `cautious_client`."""
    limits = httpx.Limits(max_connections=20, max_keepalive_connections=10)
    return cautious_client(TIMEOUT_S, forge_trust(verify), limits=limits)


@cache
def forge_trust(verify: bool) -> ssl.SSLContext:
    """Return the TLS context of forges' clients. The clients share it, because reading the certificate authorities
    takes 30 ms."""
    return httpx.create_ssl_context(verify, trust_env=False)
