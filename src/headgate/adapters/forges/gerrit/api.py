"""Call Gerrit's REST API: every response is limited in time and size, and only the server itself is contacted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from headgate.adapters.forges.gerrit import entities
from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.rest import forge_trust
from headgate.adapters.responses import cautious_client, content_of, from_json
from headgate.base.errors import ForgeError
from headgate.base.texts import line

CALL_MAX_S = 30.0
ANSWER_MAX_BYTES = 32 * 2**20
REASON_MAX_BYTES = 2_000
"""How much of an error response's reason is read."""
CALLS_MAX = 8
"""Concurrent calls."""
PAGE = 100
"""Changes in one response."""
CHANGES_MAX, SEARCH_MAX_BYTES = 20_000, 256 * 2**20
"""Limits on the changes that one search may return, and on the size of all its pages."""
WAIT_MAX_S = 3_600.0
# Gerrit puts this before its JSON, so that no browser can run a response as a script.
_GUARD = b")]}'"
_PATIENCE = frozenset({408, 425, 429})
"""Statuses 4xx after which another attempt may succeed."""
BRIEF = ("CURRENT_REVISION", "CURRENT_COMMIT", "DETAILED_ACCOUNTS", "DETAILED_LABELS", "SUBMIT_REQUIREMENTS")
"""Details that are requested for each change when many changes are listed."""
FULL = (*BRIEF, "CURRENT_FILES", "MESSAGES", "SUBMITTABLE")

T = TypeVar("T")


class GerritAway(ForgeError, OSError):
    """Report that Gerrit does not answer now; a later call may succeed."""

    def __init__(self, why: str, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.wait_s = wait_s
        """How long the server asks to wait, in seconds."""


class GerritRefused(ForgeError, ValueError):
    """Report that Gerrit understands a request and refuses it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class GerritNotThere(GerritRefused):
    """Report that something does not exist or is hidden from our account; Gerrit does not distinguish them."""


class GerritConflict(GerritRefused):
    """Report that a request conflicts with the current state."""


class GerritDenied(GerritRefused):
    """Report that Gerrit rejects our credentials, or that our account lacks permission."""


class GerritRest:
    """Make the calls that the driver needs; `calls` counts them."""

    def __init__(self, client: httpx.AsyncClient, server: Server, page: int = PAGE) -> None:
        """Make a client. `client` comes from `gerrit_client`; `page` is the maximum number of changes in one
        response."""
        self._client, self._server, self._page = client, server, page
        self._places = asyncio.Semaphore(CALLS_MAX)
        self.calls = 0

    async def info(self) -> entities.ServerInfo:
        """Return the server's information. Raise GerritAway, GerritRefused."""
        return await self._get("config/server/info", entities.ServerInfo)

    async def may(self) -> Mapping[str, Any]:
        """Return the server-wide rights of our account.  Raise GerritAway, GerritRefused."""
        return await self._get("accounts/self/capabilities", dict[str, Any])

    async def change(self, number: int, options: Sequence[str] = FULL) -> entities.ChangeInfo:
        """Return the change. Raise GerritAway, GerritRefused; GerritNotThere: it was deleted, or is hidden from us."""
        return await self._get(f"changes/{number}", entities.ChangeInfo, [("o", option) for option in options])

    async def changes(
        self, query: str, options: Sequence[str] = BRIEF, most: int = CHANGES_MAX
    ) -> list[entities.ChangeInfo]:
        """Return at most `most` results of a search. Raise GerritAway, GerritRefused."""
        found: dict[int, entities.ChangeInfo] = {}
        start, size_bytes = 0, 0
        while True:
            parameters = [
                ("q", query),
                ("n", str(self._page)),
                ("S", str(start)),
                *(("o", option) for option in options),
            ]
            answer, known = await self._call("GET", "changes/", parameters), len(found)
            page = _decoded("changes/", answer, list[entities.ChangeInfo])
            found.update({one.number: one for one in page})  # a change that moves up between two pages occurs twice
            start, size_bytes = start + len(page), size_bytes + len(answer)
            if size_bytes > SEARCH_MAX_BYTES:
                raise GerritAway(f"the result of a search has more than {SEARCH_MAX_BYTES} bytes")
            # A page without news comes from a server that ignores `S`; reading on would never end.
            if len(found) == known or len(found) >= most or not page[-1].more:
                return list(found.values())[:most]

    async def related(self, number: int, revision: str) -> tuple[entities.Related, ...]:
        """Return the stack that a revision is part of, uppermost first.  Raise GerritAway, GerritRefused."""
        return (await self._get(f"changes/{number}/revisions/{revision}/related", entities.RelatedChanges)).changes

    async def files(self, number: int, revision: str, parent: int = 0) -> dict[str, entities.GerritFile]:
        """Return the files that differ from the parent with that number; 0: those that Gerrit shows. Raise GerritAway,
        GerritRefused."""
        parameters = [("parent", str(parent))] if parent else []
        return await self._get(
            f"changes/{number}/revisions/{revision}/files", dict[str, entities.GerritFile], parameters
        )

    async def patchset_comments(self, number: int) -> tuple[entities.GerritComment, ...]:
        """Return the comments that are about a patch set as a whole.  Raise GerritAway, GerritRefused."""
        found = await self._get(f"changes/{number}/comments", dict[str, tuple[entities.GerritComment, ...]])
        return found.get("/PATCHSET_LEVEL", ())

    async def default_branch(self, path: str) -> str:
        """Return the branch that HEAD of a project names.  Raise GerritAway, GerritRefused."""
        return (await self._get(f"projects/{quote(path, safe='')}/HEAD", str)).removeprefix("refs/heads/")

    async def review(self, number: int, revision: str, body: Mapping[str, Any]) -> None:
        """Post a review of a revision. Raise GerritAway, GerritRefused."""
        await self._post(f"changes/{number}/revisions/{revision}/review", body)

    async def submit(self, number: int, revision: str) -> entities.ChangeInfo:
        """Submit exactly this revision, and return the change as it is then. Raise GerritConflict: it is not the
        current one, or cannot be submitted. Raise GerritAway, GerritRefused."""
        await self._post(f"changes/{number}/revisions/{revision}/submit", {})
        return await self.change(number)

    async def _get(self, path: str, kind: type[T], parameters: Sequence[tuple[str, str]] = ()) -> T:
        return _decoded(path, await self._call("GET", path, parameters), kind)

    async def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        return await self._call("POST", path, (), msgspec.json.encode(body))

    async def _call(
        self, method: str, path: str, parameters: Sequence[tuple[str, str]], body: bytes | None = None
    ) -> bytes:
        # Below `/a/` Gerrit demands credentials; other paths answer an anonymous user, with less data.
        url = httpx.URL(f"{self._server.baseurl}/a/{path}", params=list(parameters) or None)
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json; charset=UTF-8"
        self.calls += 1
        try:
            async with self._places, asyncio.timeout(CALL_MAX_S):
                async with self._client.stream(method, url, content=body, headers=headers) as answer:
                    most = ANSWER_MAX_BYTES if answer.is_success else REASON_MAX_BYTES
                    found = await content_of(answer, most + 1)
                if answer.is_success:
                    if len(found) > ANSWER_MAX_BYTES:
                        raise GerritAway(f"its response to {path} has more than {ANSWER_MAX_BYTES} bytes")
                    return found
        except TimeoutError as error:
            raise GerritAway(f"it has not answered {path} within {CALL_MAX_S:.0f} s") from error
        # httpx raises the last two for challenges of digest authentication that it cannot read.
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, LookupError, ValueError) as error:
            raise GerritAway(f"{path}: {error or type(error).__name__}") from error
        _refused(path, answer, line(found[:REASON_MAX_BYTES].decode("utf-8", "replace").strip(), 500))


def _decoded(path: str, answer: bytes, kind: type[T]) -> T:
    try:
        return from_json(answer.removeprefix(_GUARD), kind)
    except msgspec.DecodeError as error:
        raise GerritAway(f"its response to {path} is not what Gerrit sends: {error}") from error


def _refused(path: str, answer: httpx.Response, text: str) -> NoReturn:
    status = answer.status_code
    why = f"it returned status {status} for {path}{f': {text}' if text else ''}"
    if answer.is_redirect:
        raise GerritRefused(status, f"{why}; redirects are not followed: set `baseurl` to the final address")
    if status in _PATIENCE or status >= 500:
        wait = answer.headers.get("retry-after", "")
        raise GerritAway(why, min(float(wait), WAIT_MAX_S) if wait.isascii() and wait.isdecimal() else 0.0)
    match status:
        case 401 | 403:
            raise GerritDenied(status, f"{why}; see `user` and `password`, and what that account may do in Gerrit")
        case 404:
            raise GerritNotThere(status, why)
        case 409 | 412:
            raise GerritConflict(status, why)
    raise GerritRefused(status, why)


def gerrit_client(server: Server) -> httpx.AsyncClient:
    """Return the HTTP client; see `cautious_client`."""
    user, password = server.user, server.password
    auth: httpx.Auth = httpx.DigestAuth(user, password) if server.digest else httpx.BasicAuth(user, password)
    return cautious_client(CALL_MAX_S, forge_trust(server.verify_ssl), auth=auth)
