"""When one change will land: where it is, what keeps it, what it needs and what needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from headgate.config.forges.facts import Word
from headgate.config.model import Pipeline
from headgate.gate.asking import lacking, rulings
from headgate.gate.change import Change, Standing
from headgate.gate.world import World
from headgate.web.changes import ref_shape
from headgate.web.shapes import ItemShape, PipelineShape, QueueShape, RefShape, StatusShape
from headgate.web.site import Site

OTHERS_MAX = 100
"""Changes shown that need one."""
DEPTH_MAX = 20
"""Of the chain of what is needed."""


class Said(msgspec.Struct, frozen=True):
    """What one person says of a change of plain git."""

    who: str
    current: bool
    """Of this patchset; else of an older one, and it does not count."""
    since: int
    """Milliseconds since the epoch."""


class Kept(msgspec.Struct, frozen=True):
    """What a pipeline that lands changes still asks for."""

    pipeline: str
    lacks: tuple[str, ...]
    """One line each; none: it would come in."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the change is now."""

    pipeline: str
    queue: str
    item: str
    position: int
    """In its queue; 1: the head."""
    active: bool
    """Within the window of its queue: its jobs run."""
    phase: str
    failing_reasons: tuple[str, ...]
    enqueue_time: int
    """Milliseconds since the epoch."""
    remaining_time: int | None
    """Milliseconds until the jobs have ended of it and of all that is ahead of it; null: nobody knows yet."""
    basis: str
    """What that rests on, for people."""
    resets: int | None
    """Of the `buildsets` of its project in this pipeline in the last 30 days, those made anew because of what is ahead;
    null where nothing is ahead of anything."""
    buildsets: int | None


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A change that it needs, or that needs it."""

    key: str
    state: str
    """open | landed | closed | unknown"""
    ref: RefShape | None = None
    pipelines: tuple[str, ...] = ()
    """Where it is now."""
    depth: int = 1
    """1: it is named by the change itself; more: by what that needs."""


class ChangeShape(msgspec.Struct, frozen=True, kw_only=True):
    """One change, as its connection knows it now, and what comes of it."""

    ref: RefShape
    message: str
    files: tuple[str, ...] | None
    """Changed paths; null: unknown."""
    state: str
    """open | landed | closed"""
    reason: str
    """Why it is closed, where nobody withdrew it."""
    approved: bool
    approvals: tuple[Said, ...]
    vetoes: tuple[Said, ...]
    draft: bool | None
    labels: tuple[str, ...]
    mergeable: bool | None
    lacks: tuple[Kept, ...]
    """Of each pipeline that lands changes of its project."""
    places: tuple[Place, ...]
    needs: tuple[Neighbour, ...]
    """What it rests on and what its footers name, nearest first, and what those need."""
    needed_by: tuple[Neighbour, ...]
    unresolved: tuple[str, ...]
    """Footers that name nothing that is known."""


class Outlook:
    """Of one tenant at one moment."""

    def __init__(self, site: Site, tenant: str, status: StatusShape) -> None:
        """`status`: with what is true at this moment only."""
        self._site, self._tenant, self._status = site, tenant, status
        self._configured = site.tenant(tenant)
        self._standings = site.status.standings(tenant)
        self._places: dict[str, list[tuple[PipelineShape, QueueShape, ItemShape]]] = {}
        for pipeline, queue, item in _items(status):
            for ref in item.refs:
                self._places.setdefault(ref.key, []).append((pipeline, queue, item))

    def open(self, project: str) -> list[Standing]:
        """Return the open changes, of one project (canonical) or of all that the tenant has."""
        own = {one.project for one in self._configured.tenant.projects}
        wanted = {project} if project else own
        return [one for one in self._standings.values() if one.open and one.change.project in wanted]

    def of(self, change: Change, costs: Mapping[tuple[str, str], tuple[int, int]]) -> ChangeShape:
        """`costs`: (project, pipeline) -> buildsets lately, and those made anew."""
        standing = self._standings.get(change.key) or Standing(change, open=False)
        change, details = standing.change, standing.details
        return ChangeShape(
            ref=ref_shape(change, standing),
            message=change.message,
            files=change.files,
            state=state_of(standing),
            reason=standing.reason,
            approved=standing.is_approved,
            approvals=_said(standing, standing.approvals),
            vetoes=_said(standing, standing.vetoes),
            draft=details.draft if details else None,
            labels=(details.labels or ()) if details else (),
            mergeable=details.mergeable if details else None,
            lacks=tuple(self._lacks(standing)) if standing.open else (),
            places=tuple(self._place(*one, costs) for one in self._places.get(change.key, ()) if one[2].live),
            needs=tuple(self._needed(change)),
            needed_by=tuple(self._needing(change)),
            unresolved=change.unresolved,
        )

    def _lacks(self, standing: Standing) -> Iterator[Kept]:
        change, layouts = standing.change, self._configured.layouts
        for name, pipeline in layouts.landed.pipelines.items():
            lands = pipeline.manager == "dependent" or change.connection in pipeline.lands
            if lands and layouts.landed.takes_part(name, change.project, change.branch):
                world = self._world(pipeline)
                said = [*lacking(world, standing, entering=True), *rulings(world, standing)]
                yield Kept(name, tuple(dict.fromkeys(said)))

    def _world(self, pipeline: Pipeline) -> World:
        return World(
            tenant=self._tenant,
            pipeline=pipeline,
            layouts=self._configured.layouts,
            standings=self._standings,
            now_ms=self._site.context.now_ms(),
        )

    def _place(
        self,
        pipeline: PipelineShape,
        queue: QueueShape,
        item: ItemShape,
        costs: Mapping[tuple[str, str], tuple[int, int]],
    ) -> Place:
        line = [one for head in queue.heads for one in head if one.live]
        position = next(n for n, one in enumerate(line) if one.id == item.id)
        gates = pipeline.manager == "dependent"
        before = line[:position] if gates else []
        known = [one.remaining_time for one in (*before, item)]
        left = max((ms for ms in known if ms is not None), default=None) if None not in known else None
        some = costs.get((item.refs[0].project_canonical, pipeline.name))
        return Place(
            pipeline=pipeline.name,
            queue=queue.name,
            item=item.id,
            position=position + 1,
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
        """Yield what it needs, level by level, each once."""
        seen, level = {change.key}, [change]
        for depth in range(1, DEPTH_MAX + 1):
            keys = dict.fromkeys(key for one in level for key in one.needs if key not in seen)
            seen.update(keys)
            level = [self._standings[key].change for key in keys if key in self._standings]
            yield from (self._neighbour(key, depth) for key in keys)

    def _needing(self, change: Change) -> Iterator[Neighbour]:
        found = sorted(key for key, one in self._standings.items() if one.open and change.key in one.change.needs)
        yield from (self._neighbour(key, 1) for key in found[:OTHERS_MAX])

    def _neighbour(self, key: str, depth: int) -> Neighbour:
        """Only what is of the tenant's own projects is told of."""
        known = self._standings.get(key)
        if known is None or self._configured.tenant.find(known.change.project) is None:
            return Neighbour(key=key, state="unknown", depth=depth)
        pipelines = tuple(dict.fromkeys(one[0].name for one in self._places.get(key, ())))
        return Neighbour(
            key=key, state=state_of(known), ref=ref_shape(known.change, known), pipelines=pipelines, depth=depth
        )


def state_of(standing: Standing) -> str:
    return "landed" if standing.landed else "open" if standing.open else "closed"


def _said(standing: Standing, words: Iterable[Word]) -> tuple[Said, ...]:
    return tuple(Said(word.who, word.commit == standing.change.commit, word.since_ms) for word in words)


def _items(status: StatusShape) -> Iterator[tuple[PipelineShape, QueueShape, ItemShape]]:
    for pipeline in status.pipelines:
        for queue in pipeline.change_queues:
            yield from ((pipeline, queue, item) for head in queue.heads for item in head)


def _basis(item: ItemShape, before: list[ItemShape], window: int, *, known: bool) -> str:
    """Return what an estimate rests on, or why there is none."""
    if not item.active:
        return f"its jobs begin once it is among the first {window} of its queue"
    if not item.jobs:
        return "its jobs are not known yet"
    new = [job.name for one in (*before, item) for job in one.jobs if job.result is None and job.estimated_time is None]
    if not known:
        names = ", ".join(dict.fromkeys(new)) or "a job that takes longer than it usually does"
        return f"nobody knows how long it takes: {names}"
    ahead = f", and of the {len(before)} ahead of it" if before else ""
    return f"the medians of the last successful builds of its jobs{ahead}; nothing that fails ahead is counted in"
