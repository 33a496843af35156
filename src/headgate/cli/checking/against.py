"""`headgate check --against`: our job graphs beside those that a running server answers with."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

import click
import httpx

from headgate.base.errors import UserError
from headgate.cli.offline.graphs import Place, frozen, places
from headgate.cli.offline.reading import Loaded
from headgate.cli.offline.report import listed
from headgate.config.budgets import sized
from headgate.config.model import FrozenGraph
from headgate.config.telling import answers
from headgate.config.telling.compare import Difference

AT_ONCE_MAX = 8
"""Requests under way: it is somebody else's server."""
TIMEOUT_S = 60.0
ATTEMPTS_MAX = 3
"""Of a request that the server is too busy for."""
PAUSE_S = 1.0
ANSWER_MAX_BYTES = 50_000_000
VALUE_MAX_CHARS = 160
_BUSY = (429, 502, 503, 504)
_NOT_FROZEN = (400, 409, 500)
"""What a server answers with whose graph has configuration errors."""


class Compared(NamedTuple):
    """One graph; no differences: it is the same."""

    tenant: str
    place: Place
    jobs: int
    differences: tuple[Difference, ...]


class _Answer(NamedTuple):
    status: int
    body: Any  # JSON
    why: str


class Server:
    """A server that speaks Zuul's API."""

    def __init__(
        self,
        url: str,
        token: str,
        transport: httpx.AsyncBaseTransport | None = None,
        answer_max_bytes: int = ANSWER_MAX_BYTES,
    ) -> None:
        self._answer_max_bytes = answer_max_bytes
        self._base = url.rstrip("/").removesuffix("/api")
        headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._client = httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S, follow_redirects=True, transport=transport)
        self._free = asyncio.Semaphore(AT_ONCE_MAX)

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> _Answer:
        """Raises UserError when there is no answer, or none that is one."""
        url = f"{self._base}/api/{path}"
        async with self._free:
            for attempt in range(1, ATTEMPTS_MAX + 1):
                try:
                    async with self._client.stream("GET", url) as response:
                        status, body = response.status_code, await _bounded(url, response, self._answer_max_bytes)
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    raise UserError(f"{url}: {str(error) or type(error).__name__}") from error
                if status not in _BUSY or attempt == ATTEMPTS_MAX:
                    return _answer(url, status, body)
                await asyncio.sleep(PAUSE_S * attempt)
        raise AssertionError("the last attempt answers")


async def _bounded(url: str, response: httpx.Response, most_bytes: int) -> bytes:
    """Raises UserError, httpx.HTTPError."""
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > most_bytes:
            raise UserError(f"{url}: the answer has more than {sized(most_bytes)}")
    return body


def _answer(url: str, status: int, body: bytes) -> _Answer:
    """Raises UserError."""
    if status in (401, 403):
        raise UserError(f"{url}: the server wants a token that may read this ({status}); give one with --token FILE")
    if status != httpx.codes.OK:
        return _Answer(status, None, _plain(body.decode(errors="replace")))
    try:
        return _Answer(status, json.loads(body), "")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{url}: the answer is no JSON; is this the root of the pages, before /api?") from error


def _plain(page: str) -> str:
    """What an error page says: its paragraph, if there is one, without anything that a terminal obeys."""
    found = re.search(r"<p>(.*?)</p>", page, re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", " ", found[1] if found else page))
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:VALUE_MAX_CHARS]


async def asked(
    tenants: Mapping[str, Loaded], projects: Sequence[str], server: Server, say: Callable[[int, int], None]
) -> list[Compared]:
    """See `compared`; closes the server."""
    try:
        return await compared(tenants, projects, server, say)
    finally:
        await server.close()


async def compared(
    tenants: Mapping[str, Loaded], projects: Sequence[str], server: Server, say: Callable[[int, int], None]
) -> list[Compared]:
    """Every graph of every tenant that the server has, too, on the default branch of each project.

    `say` is told how many of how many are done.  Raises UserError.
    """
    answer = await server.get("tenants")
    there = [one.get("name") for one in answer.body if isinstance(one, dict)] if isinstance(answer.body, list) else []
    wanted = [(name, loaded, place) for name, loaded in tenants.items() for place in _places(loaded, projects)]
    if missing := [name for name in tenants if name not in there]:
        known = ", ".join(str(name) for name in there) or "none"
        raise UserError(f"the server has no tenant {', '.join(missing)}; it has {known}; choose with --tenant")
    done = 0

    async def one(name: str, loaded: Loaded, place: Place) -> Compared:
        nonlocal done
        found = await _compared(server, name, loaded, place)
        done += 1
        say(done, len(wanted))
        return found

    found: list[Compared] = []
    for start in range(0, len(wanted), 10 * AT_ONCE_MAX):
        part = wanted[start : start + 10 * AT_ONCE_MAX]
        found += await asyncio.gather(*(one(*each) for each in part))
    return found


def _places(loaded: Loaded, projects: Sequence[str]) -> list[Place]:
    """Raises UserError."""
    if not projects:
        return places(loaded, None, None, None)
    return [place for project in projects for place in places(loaded, None, project, None)]


async def _compared(server: Server, tenant: str, loaded: Loaded, place: Place) -> Compared:
    ours = frozen(loaded, place, None)
    name = place.project.name if loaded.tenant.find(place.project.name) else place.project.project
    at = f"tenant/{quote(tenant)}/pipeline/{quote(place.pipeline)}/project/{quote(name)}/branch/{quote(place.branch)}"
    theirs = await server.get(f"{at}/freeze-jobs")
    if theirs.status != httpx.codes.OK or ours.errors:
        return Compared(tenant, place, 0, tuple(_ends(ours, theirs)))
    if not isinstance(theirs.body, list):
        return Compared(tenant, place, 0, (Difference("graph", "a list of jobs", type(theirs.body).__name__),))
    optional = {job.name for job in ours.reporters}
    told = [job for job in theirs.body if not (isinstance(job, dict) and job.get("name") in optional)]
    differences = list(answers.graphs_differ(answers.graph(ours), told))
    apart = {d.path for d in differences}
    both = [job for job in ours.jobs if job.name not in apart]
    found = await asyncio.gather(*(server.get(f"{at}/freeze-job/{quote(job.name, safe='')}") for job in both))

    for job, answer in zip(both, found, strict=True):
        if answer.status != httpx.codes.OK:
            differences.append(Difference(job.name, "runs", f"{answer.status} {answer.why}"))
            continue
        changed = answers.jobs_differ(answers.job(job), answer.body, partial(_named, loaded), place.project.project)
        differences += (Difference(f"{job.name}.{d.path}", d.old, d.new) for d in changed)
    return Compared(tenant, place, len(both), tuple(differences))


def _named(loaded: Loaded, project: str) -> str:
    """Canonical, as it is here: where host names are only assumed, the server's are others."""
    source = loaded.tenant.find(project) or loaded.tenant.find(project.partition("/")[2])
    return source.project if source is not None else project


def _ends(ours: FrozenGraph, theirs: _Answer) -> Iterator[Difference]:
    """A graph that one of both cannot freeze, or does not know."""
    if ours.errors and theirs.status in _NOT_FROZEN:
        return  # for the same reason or another: no job runs at either
    mine = ours.errors[0].text if ours.errors else f"{len(ours.jobs)} jobs"
    other = f"{theirs.status} {theirs.why}".strip() if theirs.status != httpx.codes.OK else f"{len(theirs.body)} jobs"
    yield Difference("graph", mine, other)


# --- for people, and as JSON


def as_json(found: Sequence[Compared]) -> dict[str, Any]:
    differing = [one for one in found if one.differences]
    return {
        "graphs": len(found),
        "jobs": sum(one.jobs for one in found),
        "differing": [
            {
                "tenant": one.tenant,
                "pipeline": one.place.pipeline,
                "project": one.place.project.project,
                "branch": one.place.branch,
                "differences": [{"path": d.path, "ours": d.old, "theirs": d.new} for d in one.differences],
            }
            for one in differing
        ],
    }


def as_text(found: Sequence[Compared], url: str, limit: int) -> Iterator[str]:
    """Each difference once, with the graphs that have it; then the sentence that counts."""
    where: dict[tuple[str, str, str], list[str]] = {}
    for one in found:
        graph = f"{one.place.pipeline} of {one.place.project.name}@{one.place.branch}"
        for d in one.differences:
            where.setdefault((d.path, _short(d.old), _short(d.new)), []).append(f"{one.tenant}: {graph}")
    shown = list(where.items())[: limit or None]
    for (path, mine, other), graphs in shown:
        yield f"{click.style('~', fg='yellow', bold=True)} {click.style(path, bold=True)}  {listed(graphs, 3)}"
        yield f"    {click.style('here', fg='blue')}   {mine}\n    {click.style('there', fg='blue')}  {other}\n"
    if left := len(where) - len(shown):
        yield f"{left:,} more differences are not shown; --limit 0 shows all\n"
    differing = sum(bool(one.differences) for one in found)
    what = f"{len(found):,} job graphs and {sum(one.jobs for one in found):,} jobs compared with {url}"
    good = click.style("all are the same", fg="green", bold=True)
    yield f"{what}: {click.style(f'{differing:,} graphs differ', fg='red', bold=True) if differing else good}"


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value)
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[: VALUE_MAX_CHARS - 1]}…"
