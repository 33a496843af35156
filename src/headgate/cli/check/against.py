"""Implement `headgate check --against`: compare the job graphs computed here with those of a running server."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from headgate.base.errors import UserError
from headgate.base.texts import listed
from headgate.cli.offline.graphs import GraphPlace, default_branch, frozen
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.terminal.say import style
from headgate.config.budgets import sized
from headgate.config.explain import answers
from headgate.config.explain.describe import AttributeDifference
from headgate.config.model import FrozenGraph
from headgate.config.operator.model import TenantProject

AT_ONCE_MAX = 8
"""Limit on concurrent requests, to keep the load on somebody's production server low."""
TIMEOUT_S = 60.0
ATTEMPTS_MAX = 3
"""Number of attempts at a request while the server is too busy to answer."""
PAUSE_S = 1.0
ANSWER_MAX_BYTES = 50_000_000
VALUE_MAX_CHARS = 160
WHY_MAX_CHARS = 160
_BUSY = (429, 502, 503, 504)
_NOT_FROZEN = (400, 409, 500)
"""Status codes that servers return for a graph with configuration errors."""


class Compared(NamedTuple):
    """Hold the result for one graph; without differences, both sides agree."""

    tenant: str
    place: GraphPlace
    jobs: int
    differences: tuple[AttributeDifference, ...]
    unknown: str = ""
    """Message of the server if it does not know the pipeline, project or branch; empty if it does."""

    @property
    def where(self) -> tuple[str, str, str]:
        return self.tenant, self.place.project.project, self.place.branch


class Apart(NamedTuple):
    """Name a branch that was not compared, and the reason."""

    tenant: str
    project: str
    branch: str
    why: str


class GraphComparison(NamedTuple):
    """Hold the result of a comparison."""

    graphs: list[Compared]
    apart: list[Apart]


def as_json(compared: GraphComparison) -> dict[str, Any]:
    return {
        "graphs": len(compared.graphs),
        "jobs": sum(one.jobs for one in compared.graphs),
        "differing": [
            {
                "tenant": one.tenant,
                "pipeline": one.place.pipeline,
                "project": one.place.project.project,
                "branch": one.place.branch,
                "differences": [{"path": d.path, "ours": d.old, "theirs": d.new} for d in one.differences],
            }
            for one in compared.graphs
            if one.differences
        ],
        "not_compared": [one._asdict() for one in compared.apart],
    }


def as_text(compared: GraphComparison, url: str, limit: int) -> Iterator[str]:
    """Yield each difference once, with the graphs that have it; then the branches that were not compared; then the
    counts."""
    # A difference in a base job may appear in thousands of graphs, so show each difference only once.
    where: dict[tuple[str, str, str], list[str]] = {}
    for one in compared.graphs:
        graph = f"{one.place.pipeline} of {one.place.project.name}@{one.place.branch}"
        for d in one.differences:
            where.setdefault((d.path, _short(d.old), _short(d.new)), []).append(f"{one.tenant}: {graph}")
    shown = list(where.items())[: limit or None]
    for (path, mine, other), graphs in shown:
        yield f"{style('~', fg='yellow', bold=True)} {style(path, bold=True)}  {listed(graphs, 3)}"
        yield f"    {style('here', fg='blue')}   {mine}\n    {style('there', fg='blue')}  {other}\n"
    if left := len(where) - len(shown):
        yield f"{left:,} more differences are not shown; --limit 0 shows all\n"
    yield from _not_compared(compared.apart, limit)
    differing = sum(bool(one.differences) for one in compared.graphs)
    branches = len({one.where for one in compared.graphs})
    graphs_and = f"{len(compared.graphs):,} job graphs of {branches:,} branches"
    what = f"{graphs_and} and {sum(one.jobs for one in compared.graphs):,} jobs compared with {url}"
    good = style("all are the same", fg="green", bold=True)
    ends = f"; {len(compared.apart):,} not compared, see above" if compared.apart else ""
    yield f"{what}: {style(f'{differing:,} graphs differ', fg='red', bold=True) if differing else good}{ends}"


def _not_compared(apart: Sequence[Apart], limit: int) -> Iterator[str]:
    """Yield each reason once, with the branches that were not compared because of it."""
    why: dict[str, list[str]] = {}
    for one in apart:
        why.setdefault(one.why, []).append(f"{one.tenant}: {one.project}{f'@{one.branch}' if one.branch else ''}")
    for reason, branches in why.items():
        names = listed(branches, limit or len(branches))
        yield f"{style('not compared', fg='yellow', bold=True)}  {names}\n    {_short(reason)}\n"


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    # Show unprintable text as JSON, which escapes control characters.
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value)
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[: VALUE_MAX_CHARS - 1]}…"


class Only(NamedTuple):
    """Restrict what is compared; empty means everything."""

    projects: Sequence[str] = ()
    branches: Collection[str] = ()

    def names(self, branch: str) -> bool:
        return not self.branches or branch in self.branches

    def of(self, loaded: LoadedTenant) -> Sequence[TenantProject]:
        """Return the projects to compare. Raise UserError."""
        if not self.projects:
            return loaded.tenant.projects
        return [loaded.project(name) for name in self.projects]


class _Answer(NamedTuple):
    status: int
    body: Any  # JSON
    why: str


class ReferenceServer:
    """Call a server that implements Zuul's API."""

    def __init__(
        self,
        url: str,
        token: str,
        transport: httpx.AsyncBaseTransport | None = None,
        answer_max_bytes: int = ANSWER_MAX_BYTES,
    ) -> None:
        self._answer_max_bytes = answer_max_bytes
        self.url = url
        # People may give the address of the pages or of the API.
        self._base = url.rstrip("/").removesuffix("/api")
        headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        # Redirects are safe: httpx drops the Authorization header when one leads to another server.
        self._client = httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S, follow_redirects=True, transport=transport)
        self._free = asyncio.Semaphore(AT_ONCE_MAX)

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> _Answer:
        """Return the response to a request. Raise UserError if there is none, or if it is invalid."""
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
                # Wait longer after each attempt, because the server is overloaded.
                await asyncio.sleep(PAUSE_S * attempt)
        raise AssertionError("the last attempt answers")


async def _bounded(url: str, response: httpx.Response, most_bytes: int) -> bytes:
    """Read the body of a response. Raise UserError if it is longer than `most_bytes`, and httpx.HTTPError."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > most_bytes:
            raise UserError(f"{url}: the response is larger than {sized(most_bytes)}")
    return bytes(body)


def _answer(url: str, status: int, body: bytes) -> _Answer:
    """Parse a response with status 200; keep the text of a response with another status. Raise UserError."""
    # The same token serves all requests, so a refusal concerns the entire comparison.
    if status in (401, 403):
        raise UserError(f"{url}: the server requires a token for this ({status}); pass one with --token FILE")
    if status != httpx.codes.OK:
        return _Answer(status, None, _plain(body.decode(errors="replace")))
    try:
        return _Answer(status, json.loads(body), "")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{url}: the response is not JSON; give the root URL of the pages, without /api") from error


def _plain(page: str) -> str:
    """Return the text of an error page: its paragraph, if there is one, without control characters."""
    # Servers explain errors in HTML, and their text may contain control characters, which must not reach a terminal.
    found = re.search(r"<p>(.*?)</p>", page, re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", " ", found[1] if found else page))
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:WHY_MAX_CHARS]


async def compare_and_close(
    tenants: Mapping[str, LoadedTenant], only: Only, server: ReferenceServer, say: Callable[[int, int], None]
) -> GraphComparison:
    """Compare like `compared`, then close the server."""
    try:
        return await compared(tenants, only, server, say)
    finally:
        await server.close()


async def compared(
    tenants: Mapping[str, LoadedTenant], only: Only, server: ReferenceServer, say: Callable[[int, int], None]
) -> GraphComparison:
    """Compare every graph of every tenant, on every branch that both sides have, and return the differences. Call `say`
    with the number of graphs compared so far and the total number. Raise UserError."""
    answer = await server.get("tenants")
    known_tenants = (
        [one.get("name") for one in answer.body if isinstance(one, dict)] if isinstance(answer.body, list) else []
    )
    if missing := [name for name in tenants if name not in known_tenants]:
        known = ", ".join(str(name) for name in known_tenants) or "none"
        raise UserError(f"the server has no tenant {', '.join(missing)}; it has {known}; choose with --tenant")
    wanted = [(name, loaded, place) for name, loaded in tenants.items() for place in _places(loaded, only)]
    if only.branches and not wanted:
        raise UserError(f"none of the selected projects has a branch {' or '.join(sorted(only.branches))}")
    done = 0

    async def one(name: str, loaded: LoadedTenant, place: GraphPlace) -> Compared:
        nonlocal done
        found = await _compared(server, name, loaded, place)
        done += 1
        say(done, len(wanted))
        return found

    found: list[Compared] = []
    # A large tenant has tens of thousands of graphs: work in batches, so that not all of them are in memory at the same
    # time.
    for start in range(0, len(wanted), 10 * AT_ONCE_MAX):
        part = wanted[start : start + 10 * AT_ONCE_MAX]
        found += await asyncio.gather(*(one(*each) for each in part))
    apart = _unknown(tenants, found)
    for name, loaded in tenants.items():
        apart += await _elsewhere(server, name, loaded, only)
    without = {(one.tenant, one.project, one.branch) for one in apart}
    return GraphComparison([one for one in found if one.where not in without], apart)


def _unknown(tenants: Mapping[str, LoadedTenant], found: Sequence[Compared]) -> list[Apart]:
    """Return the branches, except default ones, for which the server knows no graph."""
    why: dict[tuple[str, str, str], str] = {}
    answered = {one.where for one in found if not one.unknown}
    for one in found:
        known = one.where in answered
        # A default branch that the server does not know is a difference, not a branch that only exists here.
        if not known and one.place.branch != default_branch(tenants[one.tenant], one.place.project):
            why[one.where] = f"the server does not know it: {one.unknown}"
    return [Apart(*branch, text) for branch, text in why.items()]


def _branches(loaded: LoadedTenant, source: TenantProject) -> list[str]:
    """List the branches with configuration, the default branch first. For a project whose configuration is not loaded,
    list only the default branch."""
    read = loaded.branches.get(source.project, {})
    if source.loads and not read:
        return []
    return list(dict.fromkeys((default_branch(loaded, source), *read)))


def _places(loaded: LoadedTenant, only: Only) -> list[GraphPlace]:
    """List the graphs to compare. Raise UserError."""
    return [
        GraphPlace(pipeline, source, branch)
        for source in only.of(loaded)
        for branch in _branches(loaded, source)
        if only.names(branch)
        for pipeline in loaded.layout.pipelines
    ]


async def _elsewhere(server: ReferenceServer, tenant: str, loaded: LoadedTenant, only: Only) -> list[Apart]:
    """Find branches whose configuration only the server has, that cannot be read here, or that the tenant file
    excludes."""
    sources = only.of(loaded)
    unread = {error.project: error.text for error in loaded.unread}
    at = f"tenant/{quote(tenant)}/project"
    shown = await asyncio.gather(*(server.get(f"{at}/{quote(_name_for_server(loaded, source))}") for source in sources))
    found: list[Apart] = []
    for source, answer in zip(sources, shown, strict=True):
        whys = dict.fromkeys(loaded.excluded.get(source.project, ()), "the tenant file excludes it")
        for branch in _branches_shown(loaded, source, answer):
            what = "but the tenant file here excludes it" if branch in whys else "but the branch does not exist here"
            whys[branch] = f"the server reads this branch, {what}"
        mine = _branches(loaded, source)
        if not mine:
            whys[""] = unread.get(source.project, "no configuration of it is read")
        found += [
            Apart(tenant, source.project, branch, why)
            for branch, why in whys.items()
            if branch not in mine and (not branch or only.names(branch))
        ]
    return found


def _branches_shown(loaded: LoadedTenant, source: TenantProject, answer: _Answer) -> Iterator[str]:
    """Yield the branches for which the server shows the project's own stanzas. Skip malformed parts of the response."""
    configs = answer.body.get("configs") if isinstance(answer.body, dict) else None
    for one in configs if isinstance(configs, list) else ():
        place = one.get("source_context") if isinstance(one, dict) else None
        if not isinstance(place, dict) or not isinstance(place.get("project"), str):
            continue
        branch = place.get("branch")
        if isinstance(branch, str) and _named(loaded, place["project"]) == source.project:
            yield _plain(branch)


def _name_for_server(loaded: LoadedTenant, source: TenantProject) -> str:
    """Return the project's name for requests to the server, without the host name if possible: the host name here may
    be only an assumption."""
    return source.name if loaded.tenant.find(source.name) else source.project


async def _compared(server: ReferenceServer, tenant: str, loaded: LoadedTenant, place: GraphPlace) -> Compared:
    ours = frozen(loaded, place, None)
    name = _name_for_server(loaded, place.project)
    at = f"tenant/{quote(tenant)}/pipeline/{quote(place.pipeline)}/project/{quote(name)}/branch/{quote(place.branch)}"
    theirs = await server.get(f"{at}/freeze-jobs")
    if theirs.status != httpx.codes.OK or ours.errors:
        unknown = (theirs.why or "404") if theirs.status == httpx.codes.NOT_FOUND else ""
        return Compared(tenant, place, 0, tuple(_ends(ours, theirs)), unknown)
    if not isinstance(theirs.body, list):
        return Compared(tenant, place, 0, (AttributeDifference("graph", "a list of jobs", type(theirs.body).__name__),))
    optional = {job.name for job in ours.reporters}
    their_jobs = [job for job in theirs.body if not (isinstance(job, dict) and job.get("name") in optional)]
    differences = list(answers.graphs_differ(answers.graph(ours), their_jobs))
    apart = {d.path for d in differences}
    # A job that only one side has is already a difference.
    both = [job for job in ours.jobs if job.name not in apart]
    found = await asyncio.gather(*(server.get(f"{at}/freeze-job/{quote(job.name, safe='')}") for job in both))

    for job, answer in zip(both, found, strict=True):
        if answer.status != httpx.codes.OK:
            differences.append(AttributeDifference(job.name, "runs", f"{answer.status} {answer.why}"))
            continue
        changed = answers.jobs_differ(answers.job(job), answer.body, partial(_named, loaded), place.project.project)
        differences += (AttributeDifference(f"{job.name}.{d.path}", d.old, d.new) for d in changed)
    return Compared(tenant, place, len(both), tuple(differences))


def _named(loaded: LoadedTenant, project: str) -> str:
    """Return the canonical name used here for a project of the server, whose host name may differ if the one here is
    only an assumption."""
    source = loaded.tenant.find(project) or loaded.tenant.find(project.partition("/")[2])
    return source.project if source is not None else project


def _ends(ours: FrozenGraph, theirs: _Answer) -> Iterator[AttributeDifference]:
    """Yield the difference if only one side can freeze the graph."""
    # If neither side can, neither runs any jobs, for whatever reason.
    if ours.errors and theirs.status in _NOT_FROZEN:
        return
    mine = ours.errors[0].text if ours.errors else f"{len(ours.jobs)} jobs"
    other = f"{theirs.status} {theirs.why}".strip() if theirs.status != httpx.codes.OK else f"{len(theirs.body)} jobs"
    yield AttributeDifference("graph", mine, other)
