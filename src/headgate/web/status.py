"""Describe the current status in the shapes of the API, from the mirror alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from urllib.parse import quote

from msgspec.structs import replace

from headgate import __version__
from headgate.config.dynamic import TenantLayouts
from headgate.config.layout import branch_of
from headgate.config.operator.model import Tenant
from headgate.gate.state.model import Build, Item
from headgate.map.places import PipelineDir
from headgate.map.projects import layout_at
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.map.state import KnownItem, LoadedState, load
from headgate.map.tree import unescape
from headgate.recipes.codec import readable
from headgate.recipes.mirror import Mirror
from headgate.recipes.mirrorpart import MirrorPart
from headgate.services.context import Context
from headgate.services.orders import state_of
from headgate.services.scheduler.changestates import ChangeStates
from headgate.web import shapes
from headgate.web.itemshapes import Estimating, Moment, NoEstimates, PipelineShaper, awaited
from headgate.web.problems import parted, problems_of, strayed

NO_ESTIMATES = NoEstimates()


class Configured(Protocol):
    """Declare a tenant with its current configuration."""

    @property
    def tenant(self) -> Tenant: ...
    @property
    def layouts(self) -> TenantLayouts: ...
    @property
    def loaded(self) -> asyncio.Event: ...


@dataclass(slots=True)
class PipelineView:
    """View one pipeline; its records are decoded again only after they have changed."""

    place: PipelineDir
    mirror: Mirror
    shaper: PipelineShaper
    _part: MirrorPart = field(init=False)
    _seen: int = -1
    _loaded: LoadedState = field(init=False)
    _items: dict[str, KnownItem] = field(default_factory=dict)
    """Id of an item -> the item as decoded last."""

    def __post_init__(self) -> None:
        self._part = self.mirror.part(self.place.path)

    def state(self) -> LoadedState:
        # The counter is of this pipeline alone, so changes of other
        # pipelines do not cause its records to be decoded again.
        if self._seen != self._part.moves:
            self._loaded = load(self.place, self.mirror.under(self.place.path), self._items)
            self._seen = self._part.moves
        return self._loaded


@dataclass(slots=True)
class Status:
    """Compute statuses. `tenants` have the configuration; everything else comes from the mirror."""

    context: Context
    tenants: Mapping[str, Configured]
    _views: dict[str, PipelineView] = field(default_factory=dict)
    """Path of a pipeline -> its view."""
    _known: dict[tuple[str, ...], ChangeStates] = field(default_factory=dict)
    """Connections -> the states of their changes."""

    def of(self, tenant: str, estimates: Estimating = NO_ESTIMATES) -> shapes.StatusShape:
        """Return the status of an existing tenant, without values that change with time; see `timed`."""
        configured = self.tenants[tenant]
        mirror, own = self.context.mirror, self.context.map.events.tenant(tenant)
        builds = (o.request for queue in self.context.zones() for o in queue.open(mirror))
        now = Moment(
            {request.id: request for request in builds if request.state == "running"},
            awaited(self.context),
            self.change_states(tenant).now(),
            estimates,
            estimates.edition(),
            page_root(self.context, tenant),
        )
        layout = layout_at(self.context.map.layout(tenant).record, mirror)
        return shapes.StatusShape(
            zuul_version=__version__,
            state=self._change_state(tenant, loaded=configured.loaded.is_set()),
            trigger_event_queue=shapes.Length(own.trigger.stream.length(mirror)),
            management_event_queue=shapes.Length(own.management.stream.length(mirror)),
            connection_event_queues={
                name: shapes.Length(self.context.map.events.connection(name).events.stream.length(mirror))
                for name in sorted({project.connection for project in configured.tenant.projects})
            },
            last_reconfigured=layout.at_ms if layout else None,
            pipelines=tuple(self._pipeline(tenant, name, now) for name in configured.layouts.landed.pipelines),
            problems=tuple(self._problems(configured)),
        )

    def change_states(self, tenant: str) -> ChangeStates:
        """Return the states of all changes of a tenant's connections; other tenants may share these connections."""
        # Sorted, so that tenants with the same connections share an entry.
        names = tuple(sorted({project.connection for project in self.tenants[tenant].tenant.projects}))
        if names not in self._known:
            self._known[names] = ChangeStates(self.context.map, self.context.mirror, names)
        return self._known[names]

    def _change_state(self, tenant: str, *, loaded: bool) -> shapes.StateShape:
        found = state_of(self.context, tenant)
        return shapes.StateShape(
            trigger_queue_discarding=found.trigger_queue_discarding,
            trigger_queue_paused=found.trigger_queue_paused,
            result_queue_paused=found.result_queue_paused,
            reason=found.reason or None,
            info=found.info or None,
            loaded=loaded,
            closings=tuple(
                shapes.ClosingShape(pipeline=c.pipeline, queue=c.queue, reason=c.reason, who=c.who, since=c.since_ms)
                for c in found.closings
            ),
        )

    def _problems(self, configured: Configured) -> Iterator[shapes.ProblemShape]:
        pipelines = configured.layouts.landed.pipelines
        states = {name: self.state(configured.tenant.name, name).state for name in pipelines}
        yield from parted((name, state.parted) for name, state in states.items())
        yield from strayed((name, state.strayed) for name, state in states.items())
        yield from problems_of(self.context, configured.tenant, configured.layouts)

    def state(self, tenant: str, pipeline: str) -> LoadedState:
        return self._view(tenant, pipeline).state()

    def _view(self, tenant: str, pipeline: str) -> PipelineView:
        place = self.context.map.tenant(tenant).pipeline(pipeline)
        found = self._views.get(place.path)
        if found is None:
            found = PipelineView(place, self.context.mirror, PipelineShaper(tenant, pipeline))
            self._views[place.path] = found
        return found

    def builds(self, tenant: str) -> Iterator[tuple[str, Item, Build]]:
        """Yield (pipeline, item, build) of every build in the queues."""
        for pipeline in self.tenants[tenant].layouts.landed.pipelines:
            for _, item in self.state(tenant, pipeline).state.items():
                own = item.buildset.builds if item.buildset is not None else {}
                carried = {one.build.job: one.build for one in item.carried} if item.buildset is not None else {}
                # Builds that survive a reset are carried until the new buildset
                # has taken them over; from then on, the buildset's state counts.
                for build in {**carried, **own}.values():
                    yield pipeline, item, build

    def _pipeline(self, tenant: str, name: str, now: Moment) -> shapes.PipelineShape:
        configured = self.tenants[tenant]
        pipeline = configured.layouts.landed.pipelines[name]
        events, mirror = self.context.map.events.tenant(tenant).pipelines(name), self.context.mirror
        view = self._view(tenant, name)
        state, damaged = view.state()
        word = "error" if damaged else "disabled" if state.disabled else "normal"
        closings = state_of(self.context, tenant).closings
        closing = next((c for c in closings if not c.queue and c.pipeline in ("", name)), None)
        branches = partial(branch_of, configured.layouts.landed)
        return shapes.PipelineShape(
            name=name,
            description=pipeline.description,
            state=word,
            closed=closing.why if closing else "",
            manager=pipeline.manager,
            triggers=tuple(
                shapes.TriggerShape(t.connection, configured.tenant.driver(t.connection)) for t in pipeline.triggers
            ),
            trigger_events=events.trigger.stream.length(mirror),
            result_events=events.result.stream.length(mirror),
            management_events=events.management.stream.length(mirror),
            change_queues=view.shaper.queues(state.queues, now, closings, branches),
        )

    def components(self) -> dict[str, list[shapes.ComponentShape]]:
        """Map each kind to its components."""
        found: dict[str, list[shapes.ComponentShape]] = {}
        place, mirror = self.context.map.components, self.context.mirror
        queues = (*self.context.zones(), self.context.merges)
        held = Counter(o.request.owner.component for queue in queues for o in queue.open(mirror) if o.locked)
        for path, record in self.context.members(place.path).items():
            data = record.data
            accepting = record.state == "running" and data.accepting
            shown = shapes.ComponentShape(
                hostname=record.hostname,
                state=record.state,
                version=record.version,
                name=place.relative(path),
                pid=record.pid,
                accepting=accepting,
                why=data.why,
                zone=data.zone,
                running=held[path],
                places=data.places,
                lacks=data.lacks,
                containers=data.containers,
            )
            found.setdefault(record.kind, []).append(shown)
        return found

    def semaphores(self, tenant: str) -> list[shapes.SemaphoreShape]:
        configured = self.tenants[tenant]
        limits = configured.layouts.landed.semaphores
        held: dict[str, list[shapes.HolderShape]] = {name: [] for name in limits}
        others = Counter[str]()
        place = self.context.map.semaphores(tenant)
        shared = self.context.map.global_semaphores
        for part in (place, shared):
            for entry in self.context.mirror.under(part.path):
                name = unescape(part.relative(entry.path))
                record = readable(entry, SemaphoreRecord)
                if record is None or (part is shared and name not in configured.tenant.semaphores):
                    continue
                # Holders of a global semaphore in other tenants are only counted, as their builds may be private.
                own = [one for one in record.holders if part is place or one.tenant == tenant]
                held.setdefault(name, []).extend(map(self._holder, own))
                others[name] += len(record.holders) - len(own)
        return [
            shapes.SemaphoreShape(
                name,
                name in configured.tenant.semaphores,
                limits.get(name, configured.tenant.semaphores.get(name, 1)),
                shapes.HoldersShape(len(holders) + others[name], tuple(holders), others[name]),
            )
            for name, holders in held.items()
        ]

    def _holder(self, one: SemaphoreHolder) -> shapes.HolderShape:
        # A holder with a build may also be one of its playbooks.
        found = self.context.build_request(one.build) if one.build else None
        ending = found is not None and found.request.wanted == "cancel"
        return shapes.HolderShape(one.buildset, one.job, ending)


def page_root(context: Context, tenant: str) -> str:
    """Return the prefix of the addresses of a tenant's pages; empty: the address of this server is not configured."""
    return f"{context.pages.url}/t/{quote(tenant, safe='')}/" if context.pages.url else ""


def timed(status: shapes.StatusShape, now_ms: int) -> shapes.StatusShape:
    """Add the values that change with time: how long jobs have run, and how long they may still run."""
    shown = ((p, tuple(timed_queue(queue, now_ms) for queue in p.change_queues)) for p in status.pipelines)
    return replace(status, pipelines=tuple(replace(pipeline, change_queues=queues) for pipeline, queues in shown))


def timed_queue(queue: shapes.QueueShape, now_ms: int) -> shapes.QueueShape:
    """Do as `timed` for one queue: no item has less time left than the one ahead of it."""
    left = dict[str | None, int | None]()

    def item(one: shapes.ItemShape) -> shapes.ItemShape:
        shown = timed_item(one, now_ms)
        own, ahead = shown.remaining_time, left.get(one.item_ahead)
        left[one.id] = own if own is None or ahead is None else max(own, ahead)
        return replace(shown, remaining_time=left[one.id])

    return replace(queue, heads=tuple(tuple(map(item, head)) for head in queue.heads))


def timed_item(item: shapes.ItemShape, now_ms: int) -> shapes.ItemShape:
    """Do as `timed` for one item, as if nothing were ahead of it."""

    def job(one: shapes.JobShape) -> shapes.JobShape:
        if not one.running or one.start_time is None:
            return one
        elapsed = max(0, now_ms - int(one.start_time * 1000))
        left = None if one.estimated_time is None else max(0, int(one.estimated_time * 1000) - elapsed)
        return replace(one, elapsed_time=elapsed, remaining_time=left)

    jobs = tuple(job(j) for j in item.jobs)
    return replace(item, jobs=jobs, remaining_time=remaining_ms(jobs))


def remaining_ms(jobs: tuple[shapes.JobShape, ...]) -> int | None:
    """Return the milliseconds until the last job of an item ends, if jobs that have not begun take as long as
    estimated; None: there is no estimate."""
    ends: dict[str, int] = {}
    # In a frozen graph, dependencies precede the jobs that depend on them; one that does not counts as 0.
    for job in jobs:
        if job.result is not None:
            ends[job.name] = 0
        elif job.remaining_time is not None:
            ends[job.name] = job.remaining_time
        elif job.estimated_time is not None and not job.running:
            ends[job.name] = int(job.estimated_time * 1000) + max((ends.get(d, 0) for d in job.dependencies), default=0)
        else:
            return None
    return max(ends.values(), default=None)
