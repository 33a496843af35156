"""Show proposed changes: their state, when they will land, and what they need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from headgate.config.forges.facts import Word
from headgate.config.model import Pipeline
from headgate.gate.rules.requirements import lacking, rulings
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.world import World
from headgate.ports.history import LIMIT_MAX, HistoryQuery, HistoryReader, HistoryUnavailable
from headgate.rest import HTTPException, HttpRequest, get
from headgate.web.description import NUMBER, QueryParameter
from headgate.web.itemshapes import ref_shape
from headgate.web.routes.history import number
from headgate.web.shapes import ItemShape, RefShape
from headgate.web.shots import ItemPlaces, ItemSpot
from headgate.web.site import Site
from headgate.web.status import timed_item

OTHERS_MAX = 100
"""Limit on the listed changes that a change needs, and on those that need it."""
FILES_MAX = 1_000
"""Limit on the listed paths."""
DEPTH_MAX = 20
"""Limit on the length of a chain of dependencies."""

LATELY_MS = 30 * 86_400_000
COSTS_MS = 60_000
"""Cache time of the recent costs of changes: pages poll every ten seconds, but the query counts a month."""
AT_ONCE = 20
"""Number of changes that are described before other tasks may run."""

Costs = dict[tuple[str, str], tuple[int, int]]
"""(project, pipeline) -> the numbers of buildsets and of resets."""


class ApprovalStatement(msgspec.Struct, frozen=True):
    """Represent one person's approval or veto of a change of plain git."""

    who: str
    current: bool
    """Whether it is about the current patchset; statements on older patchsets do not count."""
    since: int
    """Milliseconds since the epoch."""


class MissingRequirements(msgspec.Struct, frozen=True):
    """List the requirements of a pipeline that lands changes which a change does not meet yet."""

    pipeline: str
    lacks: tuple[str, ...]
    """One line for each missing requirement; empty if the change could enter."""


class PlaceInLine(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the place of a change in a queue."""

    pipeline: str
    queue: str
    item: str
    position: int
    """Position in the queue; 1 is the head."""
    active: bool
    """Whether it is within the window of its queue, so that its jobs may run."""
    phase: str
    failing_reasons: tuple[str, ...]
    enqueue_time: int
    """Milliseconds since the epoch."""
    remaining_time: int | None
    """Milliseconds until the jobs of the item and of all items ahead of it have ended; null if this cannot be estimated
    yet.
    """
    basis: str
    """What the estimate is based on, in plain English."""
    resets: int | None
    """How many of `buildsets` were reset because of items ahead; null unless the pipeline is dependent."""
    buildsets: int | None
    """Buildsets of its project in this pipeline in the last 30 days; null unless the pipeline is dependent."""


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a change that this one needs, or that needs this one."""

    key: str
    state: str
    """open | landed | closed | unknown"""
    ref: RefShape | None = None
    pipelines: tuple[str, ...] = ()
    """Pipelines that it is in now."""
    depth: int = 1
    """1 for a direct dependency, more for an indirect one."""


class ProposedShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one change in a list."""

    ref: RefShape
    state: str
    """open | landed | closed"""
    approved: bool
    approvals: tuple[ApprovalStatement, ...]
    draft: bool | None
    labels: tuple[str, ...]
    mergeable: bool | None
    lacks: tuple[MissingRequirements, ...]
    """The missing requirements of each pipeline that lands changes of its project."""
    places: tuple[PlaceInLine, ...]


class ChangeShape(ProposedShape, frozen=True, kw_only=True):
    """Describe one change as its connection reports it now, with its dependencies and when it may land."""

    message: str
    files: tuple[str, ...] | None
    """The changed paths, at most the first thousand; null if they are unknown."""
    reason: str
    """Why it is closed, unless its owner closed it."""
    vetoes: tuple[ApprovalStatement, ...]
    needs: tuple[Neighbour, ...]
    """The changes that it is based on or names in its footers, and those that they need in turn, nearest first; at most
    100.
    """
    needed_by: tuple[Neighbour, ...]
    """At most 100 changes that need this one."""
    circle: tuple[str, ...]
    """Keys of the changes among `needs` that also need this one; Headgate tests and lands them together."""
    unresolved: tuple[str, ...]
    """Footers that do not name a known change."""


class Outlook:
    """Describe changes of one tenant at one moment."""

    def __init__(self, site: Site, tenant: str, places: ItemPlaces) -> None:
        self._site, self._tenant, self._places = site, tenant, places
        self._configured, self._now_ms = site.tenant(tenant), site.context.now_ms()
        self._known = site.status.change_states(tenant)
        self._change_states = self._known.now()

    def open(self, project: str) -> list[ChangeState]:
        """Return the open changes of one project (canonical name), or of all projects of the tenant if empty."""
        own = {one.project for one in self._configured.tenant.projects}
        wanted = {project} if project else own
        return [one for one in self._change_states.values() if one.open and one.change.project in wanted]

    def listed(self, change_state: ChangeState) -> ProposedShape:
        """Return the description of a change in a list of changes."""
        return ProposedShape(**self._members(change_state, {}))

    def of(self, change: Change, costs: Mapping[tuple[str, str], tuple[int, int]]) -> ChangeShape:
        """Describe a change. `costs` maps (project, pipeline) to the numbers of recent buildsets and of reset ones."""
        change_state = self._change_states.get(change.key) or ChangeState(change, open=False)
        change = change_state.change
        needs = tuple(islice(self._needed(change), OTHERS_MAX))
        return ChangeShape(
            **self._members(change_state, costs),
            message=change.message,
            files=change.files[:FILES_MAX] if change.files is not None else None,
            reason=change_state.reason,
            vetoes=_statements(change_state, change_state.vetoes),
            needs=needs,
            circle=self._circle(change, needs),
            needed_by=tuple(islice(self._needing(change), OTHERS_MAX)),
            unresolved=change.unresolved,
        )

    def _members(self, change_state: ChangeState, costs: Mapping[tuple[str, str], tuple[int, int]]) -> dict[str, Any]:
        """Return the members of a `ProposedShape`."""
        change, details = change_state.change, change_state.details
        return {
            "ref": ref_shape(change, change_state),
            "state": state_of(change_state),
            "approved": change_state.is_approved,
            "approvals": _statements(change_state, change_state.approvals),
            "draft": details.draft if details else None,
            "labels": (details.labels or ()) if details else (),
            "mergeable": details.mergeable if details else None,
            "lacks": tuple(self._lacks(change_state)) if change_state.open else (),
            "places": tuple(self._place(spot, costs) for spot in self._places.live(change.key)),
        }

    def _lacks(self, change_state: ChangeState) -> Iterator[MissingRequirements]:
        change, layouts = change_state.change, self._configured.layouts
        for name, pipeline in layouts.landed.pipelines.items():
            lands = pipeline.manager == "dependent" or change.connection in pipeline.lands
            if lands and layouts.landed.takes_part(name, change.project, change.branch):
                world = self._world(pipeline)
                reasons = [*lacking(world, change_state, entering=True), *rulings(world, change_state)]
                yield MissingRequirements(name, tuple(dict.fromkeys(reasons)))

    def _world(self, pipeline: Pipeline) -> World:
        return World(
            tenant=self._tenant,
            pipeline=pipeline,
            layouts=self._configured.layouts,
            change_states=self._change_states,
            now_ms=self._now_ms,
        )

    def _place(self, spot: ItemSpot, costs: Mapping[tuple[str, str], tuple[int, int]]) -> PlaceInLine:
        pipeline, queue, item = spot.pipeline, spot.queue, timed_item(spot.item, self._now_ms)
        gates = pipeline.manager == "dependent"
        # Only in a dependent pipeline does an item wait for those ahead of it; elsewhere it is independent of them.
        ahead = spot.line[: spot.position] if gates and item.active else ()
        before = [timed_item(one, self._now_ms) for one in ahead]
        known = [one.remaining_time for one in (*before, item)]
        left = max((ms for ms in known if ms is not None), default=None) if None not in known else None
        some = costs.get((item.refs[0].project_canonical, pipeline.name))
        return PlaceInLine(
            pipeline=pipeline.name,
            queue=queue.name,
            item=item.id,
            position=spot.position + 1,
            active=item.active,
            phase=item.phase,
            failing_reasons=item.failing_reasons,
            enqueue_time=item.enqueue_time,
            remaining_time=left if item.active else None,
            basis=_basis(item, before, queue.window, known=left is not None),
            buildsets=some[0] if some and gates else None,
            resets=some[1] if some and gates else None,
        )

    def _needed(self, change: Change) -> Iterator[Neighbour]:
        """Yield each change that it needs, directly ones first; of a change of another tenant, only the key."""
        seen, level = {change.key}, [change]
        for depth in range(1, DEPTH_MAX + 1):
            # A mapping instead of a set, as it preserves the order of the footers.
            keys = dict.fromkeys(key for one in level for key in one.needs if key not in seen)
            # Marked before they are followed, so that the loop ends even if changes need each other in a circle.
            seen.update(keys)
            yield from (self._neighbour(key, depth) for key in keys)
            level = [own.change for own in map(self._own, keys) if own is not None]

    def _circle(self, change: Change, needs: Sequence[Neighbour]) -> tuple[str, ...]:
        """Return the keys of the needed changes that need this one in turn, directly or indirectly."""
        of = {one.key: own.change.needs for one in needs if (own := self._own(one.key)) is not None and own.open}
        found, level = dict[str, None](), {change.key}
        while level:
            # From the change backwards, one step at a time: each round finds
            # those that need one found in the round before.
            level = {key for key, keys in of.items() if key not in found and not level.isdisjoint(keys)}
            found.update(dict.fromkeys(level))
        return tuple(key for key in of if key in found)

    def _needing(self, change: Change) -> Iterator[Neighbour]:
        for key in sorted(self._known.dependants.get(change.key, ())):
            if (own := self._own(key)) is not None and own.open and change.key in own.change.needs:
                yield self._neighbour(key, 1)

    def _own(self, key: str) -> ChangeState | None:
        """Return the state of a change if its project belongs to this tenant: tenants may share a connection."""
        known = self._change_states.get(key)
        return known if known is not None and self._configured.tenant.find(known.change.project) is not None else None

    def _neighbour(self, key: str, depth: int) -> Neighbour:
        known = self._own(key)
        if known is None:
            return Neighbour(key=key, state="unknown", depth=depth)
        ref, pipelines = ref_shape(known.change, known), self._places.pipelines(key)
        return Neighbour(key=key, state=state_of(known), ref=ref, pipelines=pipelines, depth=depth)


def state_of(change_state: ChangeState) -> str:
    return "landed" if change_state.landed else "open" if change_state.open else "closed"


def _statements(change_state: ChangeState, words: Iterable[Word]) -> tuple[ApprovalStatement, ...]:
    return tuple(
        ApprovalStatement(word.who, word.commit == change_state.change.commit, word.since_ms) for word in words
    )


def _basis(item: ItemShape, before: Sequence[ItemShape], window: int, *, known: bool) -> str:
    """Return the basis of an estimate, or the reason why there is none."""
    if not item.active:
        return f"its jobs begin once it is among the first {window} items of its queue"
    if not item.jobs:
        return "its jobs are not known yet"
    new = [job.name for one in (*before, item) for job in one.jobs if job.result is None and job.estimated_time is None]
    if not known:
        names = ", ".join(dict.fromkeys(new)) or "a job that takes longer than usual"
        return f"the remaining time is unknown for: {names}"
    ahead = f", and of the {len(before)} ahead of it" if before else ""
    return f"the median durations of the last successful builds of its jobs{ahead}; assumes that nothing ahead fails"


@dataclass(slots=True)
class RecentCosts:
    """Cache what the recent changes of each project cost."""

    history: HistoryReader
    now_ms: Callable[[], int]
    _known: dict[tuple[str, str], tuple[int, asyncio.Future[Costs]]] = field(default_factory=dict)
    """(tenant, project) -> the time of the query, and its result."""

    async def of(self, tenant: str, project: str) -> Costs:
        """Return the costs of a project's changes; empty if the history is unavailable."""
        now_ms, known = self.now_ms(), self._known.get((tenant, project))
        failed = known is not None and known[1].done() and known[1].exception() is not None
        if known is None or failed or not 0 <= now_ms - known[0] < COSTS_MS:
            pending = asyncio.ensure_future(self._read(tenant, project, now_ms - LATELY_MS))
            known = self._known[tenant, project] = now_ms, pending
        # Simultaneous requests share the query, so a client that disconnects must not cancel it.
        return await asyncio.shield(known[1])

    async def _read(self, tenant: str, project: str, since_ms: int) -> Costs:
        try:
            costs = await self.history.reset_costs(tenant, HistoryQuery({"project": [project]}), since_ms)
        except HistoryUnavailable:
            return {}
        return {(one.project, one.pipeline): (one.buildsets, one.resets) for one in costs}


async def _outlook(site: Site, tenant: str) -> Outlook:
    shot = await site.shot(tenant)
    if shot.places is None:
        # Stored with the status it is derived from, so that all requests about this status share it.
        shot.places = ItemPlaces(shot.status)
    return Outlook(site, tenant, shot.places)


@get(
    "/api/tenant/{tenant:str}/changes",
    opt={
        "query": (
            QueryParameter("project", "Name of a project; by default, the open changes of all projects are returned."),
            QueryParameter("limit", "Number of results, 50 by default.", NUMBER),
            QueryParameter("skip", "Number of results to skip.", NUMBER),
        )
    },
)
async def changes(site: Site, request: HttpRequest, tenant: str) -> list[ProposedShape]:
    """Return the open changes, ordered by project, branch and name, with the requirements that each does not meet yet.
    Headgate only.
    """
    name, limit, skip = (
        request.query.get("project", ""),
        number(request, "limit", 50),
        number(request, "skip", 0),
    )
    if limit > LIMIT_MAX:
        raise HTTPException(f"limit must be at most {LIMIT_MAX}", status_code=400)
    project = site.project(tenant, name) if name else ""
    outlook = await _outlook(site, tenant)
    found = sorted(outlook.open(project), key=lambda one: (one.change.project, one.change.branch, one.change.name))
    listed = list[ProposedShape]()
    for count, one in enumerate(found[skip:][:limit], 1):
        listed.append(outlook.listed(one))
        if count % AT_ONCE == 0:
            await asyncio.sleep(0)  # a gate may run in the same process and must not wait
    return listed


@get(
    "/api/tenant/{tenant:str}/change",
    opt={
        "query": (
            QueryParameter("project", "Name of the change's project."),
            QueryParameter("change", "`NAME` or `BRANCH/NAME` of the change, optionally with `,PATCHSET`."),
        )
    },
)
async def change(site: Site, costs: RecentCosts, request: HttpRequest, tenant: str) -> ChangeShape:
    """Return one open or landed change: its places in queues, when it may land, the changes that it needs, and the
    requirements that it does not meet. Headgate only.
    """
    project, name = (request.query.get(key, "") for key in ("project", "change"))
    if not project or not name:
        raise HTTPException("the parameters project and change are required", status_code=400)
    site.tenant(tenant)
    found = site.change(tenant, project, name)
    return (await _outlook(site, tenant)).of(found, await costs.of(tenant, found.project))


ROUTES = (changes, change)
