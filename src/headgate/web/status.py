"""What is going on now, in the shape of the API (gating-behaviour §15.1), from the mirror alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate import __version__
from headgate.gate.graph import waiting_for
from headgate.gate.model import Build, Item, Phase, Queue, State
from headgate.gate.report import failing_reasons
from headgate.map.tree import Undecodable, unescape
from headgate.recipes.requests import Request
from headgate.services.context import Context
from headgate.services.scheduler.keeping import load
from headgate.services.scheduler.scheduler import Scheduler


@dataclass(slots=True)
class Status:
    """`scheduler` knows the configuration; everything else is read from the store."""

    context: Context
    scheduler: Scheduler
    _states: dict[str, tuple[tuple[int, ...], State]] = field(default_factory=dict)
    """Pipeline path -> versions of its entries, and the state they say."""

    def tenants(self) -> list[str]:
        return list(self.scheduler.tenants)

    def of(self, tenant: str) -> dict[str, Any] | None:
        """JSON; None for a tenant that is not."""
        runner = self.scheduler.tenants.get(tenant)
        if runner is None:
            return None
        mirror, events = self.context.mirror, self.context.map.events
        own = events.tenant(tenant)
        running = {o.request.id: o.request for o in self.context.builds.open(mirror) if o.request.state == "running"}
        layout = mirror.get(self.context.map.layout(tenant).record.path)
        record = self.context.map.layout(tenant).record.decode(layout.value) if layout else None
        return {
            "zuul_version": __version__,
            "state": "running" if runner.loaded.is_set() else "loading",
            "trigger_event_queue": {"length": own.trigger.stream.length(mirror)},
            "management_event_queue": {"length": own.management.stream.length(mirror)},
            "connection_event_queues": {},
            "last_reconfigured": record.at_ms if record else None,
            "pipelines": [self._pipeline(tenant, name, running) for name in runner.layouts.landed.pipelines],
        }

    def state(self, tenant: str, pipeline: str) -> State:
        """Raises Undecodable."""
        place = self.context.map.tenant(tenant).pipeline(pipeline)
        entries = self.context.mirror.under(place.path)
        versions = tuple(entry.version for entry in entries)
        known = self._states.get(place.path)
        if known is None or known[0] != versions:
            known = self._states[place.path] = (versions, load(place, entries))
        return known[1]

    def _pipeline(self, tenant: str, name: str, running: Mapping[str, Request]) -> dict[str, Any]:
        pipeline = self.scheduler.tenants[tenant].layouts.landed.pipelines[name]
        events = self.context.map.events.tenant(tenant).pipelines(name)
        try:
            state, word = self.state(tenant, name), "normal"
        except Undecodable:
            state, word = State(), "error"
        mirror = self.context.mirror
        return {
            "name": name,
            "description": pipeline.description,
            "state": word,
            "manager": pipeline.manager,
            "triggers": [{"name": t.connection, "driver": "git"} for t in pipeline.triggers],
            "trigger_events": events.trigger.stream.length(mirror),
            "result_events": events.result.stream.length(mirror),
            "management_events": events.management.stream.length(mirror),
            "change_queues": [self._queue(queue, name, running) for queue in state.queues],
        }

    def _queue(self, queue: Queue, pipeline: str, running: Mapping[str, Request]) -> dict[str, Any]:
        heads: list[list[dict[str, Any]]] = []
        ahead_of = self._ahead(queue)
        for position, item in enumerate(queue.items):
            active = queue.window == 0 or position < queue.window
            shown = self._item(item, queue, ahead_of, pipeline, active, running)
            if not heads or (shown["item_ahead"] is None and item.live):
                heads.append([])
            heads[-1].append(shown)
        return {"name": queue.name, "branch": None, "window": queue.window, "heads": heads}

    @staticmethod
    def _ahead(queue: Queue) -> dict[str, str]:
        """Item -> the item it is tested on top of."""
        of_buildset = {item.buildset.id: item.id for item in queue.items if item.buildset is not None}
        found = {}
        for item in queue.items:
            below = item.buildset.ahead if item.buildset is not None else None
            if below in of_buildset:
                found[item.id] = of_buildset[below]
        return found

    def _item(
        self,
        item: Item,
        queue: Queue,
        ahead_of: Mapping[str, str],
        pipeline: str,
        active: bool,
        running: Mapping[str, Request],
    ) -> dict[str, Any]:
        change = item.change
        _, _, name = change.project.partition("/")
        jobs = self._jobs(item, pipeline, running)
        return {
            "id": item.id,
            "active": active,
            "live": item.live,
            "refs": [
                {
                    "id": change.id,
                    "ref": change.ref,
                    "url": change.url or None,
                    "project": name,
                    "project_canonical": change.project,
                    "branch": change.branch,
                    "topic": change.topic,
                    "subject": change.message.splitlines()[0] if change.message else "",
                    "owner": change.owner,
                }
            ],
            "zuul_ref": item.buildset.id if item.buildset else None,
            "item_ahead": ahead_of.get(item.id),
            "items_behind": [behind for behind, ahead in ahead_of.items() if ahead == item.id],
            "failing_reasons": failing_reasons(item),
            "phase": _phase(item),
            "enqueue_time": item.enqueued_ms,
            "remaining_time": None,
            "jobs": jobs,
        }

    def _jobs(self, item: Item, pipeline: str, running: Mapping[str, Request]) -> list[dict[str, Any]]:
        buildset = item.buildset
        shown = []
        for job in buildset.jobs if buildset else ():
            assert buildset is not None, "jobs come of a buildset"
            build = buildset.builds.get(job.name)
            request = running.get(build.id) if build else None
            waits = waiting_for(job, buildset) if build is None else ""
            shown.append(
                {
                    "name": job.name,
                    "dependencies": [d.name for d in job.dependencies],
                    "voting": job.voting,
                    "pipeline": pipeline,
                    "waiting_status": waits or (None if build else "semaphores or the merge"),
                    **self._build(build, request),
                }
            )
        return shown

    def _build(self, build: Build | None, request: Request | None) -> dict[str, Any]:
        now_ms = self.context.now_ms()
        start_ms = (build.start_ms if build else 0) or (int(request.owner.get("start_ms", 0)) if request else 0)
        end_ms = build.end_ms if build else 0
        return {
            "uuid": build.id if build else None,
            "url": f"build/{build.id}" if build else None,
            "report_url": (build.log_url or f"build/{build.id}") if build else None,
            "result": build.result if build else None,
            "error": build.error if build else "",
            "tries": build.attempt if build else 0,
            "queued": build is not None and build.result is None and request is None,
            "running": request is not None,
            "start_time": start_ms / 1000 if start_ms else None,
            "end_time": end_ms / 1000 if end_ms else None,
            "elapsed_time": (end_ms or now_ms) - start_ms if start_ms else None,
            "remaining_time": None,
            "estimated_time": None,
            "canceled": build is not None and build.result == "CANCELED",
            "paused": False,
            "pre_fail": False,
            "retry": False,
        }

    def components(self) -> dict[str, list[dict[str, Any]]]:
        """kind -> processes of it."""
        found: dict[str, list[dict[str, Any]]] = {}
        place = self.context.map.components
        for entry in self.context.mirror.under(place.path):
            record = place.scheduler.decode(entry.value)
            shown = {"hostname": record.hostname, "state": record.state, "version": record.version, "pid": record.pid}
            found.setdefault(record.kind, []).append(shown)
        return found

    def semaphores(self, tenant: str) -> list[dict[str, Any]]:
        limits = self.scheduler.tenants[tenant].layouts.landed.semaphores
        held: dict[str, list[dict[str, str]]] = {name: [] for name in limits}
        place = self.context.map.semaphores(tenant)
        for entry in self.context.mirror.under(place.path):
            name = unescape(entry.path.removeprefix(place.path + "/"))
            for holder in place.semaphore(name).record.decode(entry.value).holders:
                held.setdefault(name, []).append({"buildset_uuid": holder.buildset, "job_name": holder.job})
        return [
            {
                "name": name,
                "global": False,
                "max": limits.get(name, 1),
                "holders": {"count": len(holders), "this_tenant": holders, "other_tenants": 0},
            }
            for name, holders in held.items()
        ]


def _phase(item: Item) -> str:
    """One word for what the item waits for; empty when its jobs say it."""
    buildset = item.buildset
    if buildset is None:
        return "waiting for its turn"
    if buildset.landing:
        return "landing"
    if buildset.merge is Phase.RUNNING:
        return "merging"
    return "" if buildset.jobs else str(buildset.merge)
