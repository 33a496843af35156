"""Describe builds and buildsets for the API: the running ones, those that ended, and where their logs are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from headgate.config.model import FrozenJob
from headgate.gate.builds.report import artifacts, error_of
from headgate.gate.state.model import Build, Item
from headgate.gate.state.returns import joined
from headgate.map.records import Finished, FinishedBuild
from headgate.ports import history
from headgate.rest import HttpRequest
from headgate.services.autohold import held_builds, hold_requests
from headgate.web.itemshapes import past_ref
from headgate.web.site import Site

MANIFEST = "zuul-manifest.json"
"""Name of the artifact that lists a build's files; clients of Zuul's API look for it."""
Values = Mapping[str, Collection[str | bool]]


@dataclass(frozen=True, slots=True)
class Builds:
    """Describe builds of one tenant for one request."""

    site: Site
    tenant: str
    origin: str
    """Address of the pages as the client uses it; without a trailing slash."""

    @classmethod
    def of(cls, site: Site, tenant: str, request: HttpRequest) -> Builds:
        """Return the builds of a tenant. Raise 404."""
        site.tenant(tenant)
        return cls(site, tenant, site.settings.root or str(request.base_url).rstrip("/"))

    # --- several

    async def builds(self, query: history.HistoryQuery) -> list[history.PastBuild]:
        """Return the running builds, then those of the history."""
        held, live = self.held(), [b for b in await self._live() if _fits(query, b.id, _facts_of_build(b), b.result)]
        # A running build has not ended in any period.
        live = live if query.ended_ms == (None, None) else []
        past = await self.site.history.builds(self.tenant, _beyond(query, len(live)))
        # The recorder may have written a build before the mirror shows that it left: it must not be listed twice.
        known = {build.uuid for build in live}
        found = [*live[query.skip :], *(build for build in past if build.uuid not in known)][: query.limit]
        return [self.shown(replace(build, held=build.uuid in held, course=msgspec.UNSET)) for build in found]

    async def buildsets(self, query: history.HistoryQuery) -> list[history.PastBuildset]:
        """Return the running buildsets, then those of the history."""
        live = [s for s in await self._live_sets() if _fits(query, s.id, _facts_of_set(s), s.result)]
        past = await self.site.history.buildsets(self.tenant, _beyond(query, len(live)))
        known = {found.uuid for found in live}
        return [*live[query.skip :], *(one for one in past if one.uuid not in known)][: query.limit]

    # --- one

    async def build(self, uuid: str) -> history.PastBuild | None:
        found = next((b for b in await self._live() if b.uuid == uuid), None)
        found = found or await self.site.history.build(self.tenant, uuid)
        if found is None:
            return None
        ended = found.result is not None and found.start_time
        # The id becomes a part of a path, so any other characters are not passed on.
        lost = await self.site.logs.missing(uuid) if ended and uuid.isalnum() and uuid.isascii() else ""
        return self.shown(replace(found, held=uuid in self.held(), log_missing=lost or msgspec.UNSET))

    async def buildset(self, uuid: str) -> history.PastBuildset | None:
        """Return the buildset with its builds and its events."""
        found = next((s for s in await self._live_sets() if s.uuid == uuid), None)
        if found is not None:
            builds = tuple(b for b in await self._live() if b.buildset.uuid == uuid)
        else:
            found = await self.site.history.buildset(self.tenant, uuid)
            builds = (found.builds or ()) if found is not None else ()
        if found is None:
            return None
        events = (_triggered(found),) if found.event_timestamp else msgspec.UNSET
        return replace(found, builds=tuple(map(self.shown, builds)) or msgspec.UNSET, events=events)

    def held(self) -> set[str]:
        """Return the ids of the tenant's builds whose machines are held now."""
        requests = hold_requests(self.site.context.map, self.site.context.mirror)
        return {one.build for one in held_builds(request for request in requests if request.tenant == self.tenant)}

    # --- how they are shown

    def shown(self, build: history.PastBuild) -> history.PastBuild:
        """Return the build with its log URL, an artifact that lists its files, and absolute artifact URLs; a relative
        URL is resolved against the log URL. A build that never began has no log.
        """
        if build.log_url and build.log_url.endswith(f"/t/{quote(self.tenant)}/logs/{build.uuid}/"):
            # The recorded URL has the address that the pages had at that time, which may have changed since.
            build = replace(build, log_url=None)
        base = build.log_url or f"/t/{self.tenant}/logs/{build.uuid}"
        found = tuple(replace(one, url=joined(base, one.url)) for one in build.artifacts)
        public = self.site.context.log_url(self.tenant, build.uuid) if build.result is not None else ""
        if (build.log_url or not build.start_time) and build.log_url != public:
            log_url = build.log_url if not build.log_url or build.log_url.endswith("/") else f"{build.log_url}/"
            return replace(build, artifacts=found, log_url=log_url)
        at_store = self.site.context.settings.logs_root and build.result is not None
        url = public if at_store else f"{self.origin}/t/{quote(self.tenant)}/logs/{build.uuid}/"
        if not any(one.metadata.get("type") == "zuul_manifest" for one in found):
            found += (history.Artifact("Zuul Manifest", url + MANIFEST, {"type": "zuul_manifest"}),)
        return replace(build, artifacts=found, log_url=url)

    # --- what is under way

    async def _live(self) -> list[history.PastBuild]:
        """Return the builds in the queues and those that are not recorded yet, latest first."""
        shown = {job.uuid: job for _, item in await self.site.items(self.tenant) for job in item.jobs}
        found = []
        for pipeline, item, build in self.site.status.builds(self.tenant):
            assert item.buildset is not None, "every build belongs to a buildset"
            job, frozen, refs = shown.get(build.id), job_of(item, build), self._refs(item)
            began = job.start_time if job else None
            found.append(
                history.PastBuild(
                    # The history numbers builds when it records them; until then, a time keeps the latest one first.
                    id=build.requested_ms or item.enqueued_ms,
                    uuid=build.id,
                    job_name=frozen.name if frozen else build.job,
                    result=build.result,
                    final=False,
                    attempt=build.attempt,
                    voting=build.voting,
                    execute_time=history.time_text(build.requested_ms),
                    start_time=history.time_text(int(began * 1000)) if began else None,
                    end_time=history.time_text(build.end_ms),
                    duration=round(build.end_ms / 1000 - began, 3) if began and build.end_ms else None,
                    estimated_time=job.estimated_time if job else None,
                    error_detail=error_of(build) or None,
                    image=build.image or None,
                    log_url=build.log_url or None,
                    nodeset=frozen.nodeset.name or None if frozen else None,
                    course=_course(frozen, build),
                    artifacts=msgspec.convert(artifacts(build), tuple[history.Artifact, ...]),
                    ref=refs[0],
                    pipeline=pipeline,
                    event_id=item.event,
                    event_timestamp=history.time_text(item.enqueued_ms),
                    queue_item_uuid=item.id,
                    buildset=history.InBuildset(item.buildset.id, refs),
                )
            )
        for ended in self.site.leaving(self.tenant):
            found += [self._leaving(ended, build) for build in ended.builds]
        return sorted(found, key=lambda build: -build.id)

    def _leaving(self, ended: Finished, build: FinishedBuild) -> history.PastBuild:
        refs = tuple(past_ref(change, None) for change in (ended.change, *ended.others))
        return history.PastBuild(
            id=ended.ended_ms,
            uuid=build.uuid,
            job_name=build.job_name,
            result=build.result,
            final=build.final,
            attempt=build.attempt,
            voting=build.voting,
            execute_time=history.time_text(build.requested_ms),
            start_time=history.time_text(build.start_ms),
            end_time=history.time_text(build.end_ms),
            duration=(build.end_ms - build.start_ms) / 1000 if build.end_ms and build.start_ms else None,
            error_detail=build.error or None,
            image=build.image or None,
            log_url=build.log_url or None,
            nodeset=build.nodeset or None,
            course=history.course_of(build.needs, build.semaphores, build.course),
            artifacts=msgspec.convert(msgspec.to_builtins(build.artifacts), tuple[history.Artifact, ...]),
            provides=tuple(history.Provided(name) for name in build.provides),
            ref=refs[0],
            pipeline=ended.pipeline,
            event_id=ended.event,
            event_timestamp=history.time_text(ended.enqueued_ms),
            queue_item_uuid=ended.item,
            buildset=history.InBuildset(ended.buildset, refs),
        )

    async def _live_sets(self) -> list[history.PastBuildset]:
        """Return the buildsets in the queues and those that are not recorded yet, latest first."""
        status, found = self.site.status, dict[str, history.PastBuildset]()
        began = {job.uuid: job.start_time for _, item in await self.site.items(self.tenant) for job in item.jobs}
        for pipeline in self.site.tenant(self.tenant).layouts.landed.pipelines:
            for _, item in status.state(self.tenant, pipeline).state.items():
                if item.buildset is not None and item.live:
                    found[item.buildset.id] = self._set(pipeline, item, began)
        for ended in self.site.leaving(self.tenant):
            if ended.result:
                found[ended.buildset] = _ended(ended)
        return sorted(found.values(), key=lambda one: -one.id)

    def _set(self, pipeline: str, item: Item, began: Mapping[str | None, float | None]) -> history.PastBuildset:
        """Return the buildset of an item; `began` maps builds to their start, in seconds since the epoch."""
        assert item.buildset is not None, "the caller has checked it"
        starts = [began.get(build.id) for build in item.buildset.builds.values()]
        return history.PastBuildset(
            id=item.enqueued_ms,
            uuid=item.buildset.id,
            result=None,
            message=None,
            pipeline=pipeline,
            event_id=item.event,
            event_timestamp=history.time_text(item.enqueued_ms),
            queue_item_uuid=item.id,
            first_build_start_time=history.time_text(int(min(filter(None, starts), default=0) * 1000)),
            refs=self._refs(item),
            final=False,
        )

    def _refs(self, item: Item) -> tuple[history.PastRef, ...]:
        known = self.site.status.change_states(self.tenant).now()
        return tuple(past_ref(change, known.get(change.key)) for change in item.circle)


def job_of(item: Item, build: Build) -> FrozenJob | None:
    """Return the job of a build; None: the item has no job graph now, or its graph lacks the job."""
    graph = item.buildset.graph if item.buildset is not None else None
    return graph.by_id.get(build.job) if graph is not None else None


def _course(job: FrozenJob | None, build: Build) -> history.PastCourse:
    needs = tuple(one.name for one in job.dependencies) if job is not None else ()
    names = tuple(one.name for one in job.semaphores) if job is not None else ()
    return history.course_of(needs, names, build.course)


def _ended(ended: Finished) -> history.PastBuildset:
    starts = [build.start_ms for build in ended.builds if build.start_ms]
    return history.PastBuildset(
        id=ended.ended_ms,
        uuid=ended.buildset,
        result=ended.result,
        message=ended.message,
        pipeline=ended.pipeline,
        event_id=ended.event,
        event_timestamp=history.time_text(ended.enqueued_ms),
        queue_item_uuid=ended.item,
        first_build_start_time=history.time_text(min(starts, default=0)),
        last_build_end_time=history.time_text(
            max((build.end_ms for build in ended.builds), default=0) or ended.ended_ms
        ),
        refs=tuple(past_ref(change, None) for change in (ended.change, *ended.others)),
        final=ended.final,
    )


def _triggered(found: history.PastBuildset) -> history.SetEvent:
    cause = f"by event {found.event_id}" if found.event_id else "by hand"
    text = f"Enqueued into pipeline {found.pipeline} {cause}"
    return history.SetEvent(found.event_timestamp or "", "triggered", text)


# --- apply queries to builds that are not in the history


def _beyond(query: history.HistoryQuery, live: int) -> history.HistoryQuery:
    """Return the history query for the rows that follow `live` rows of running builds."""
    return replace(query, skip=max(0, query.skip - live))


def _fits(query: history.HistoryQuery, number: int, facts: Values, result: str | None) -> bool:
    least, most = query.numbers
    if (least is not None and number < least) or (most is not None and number > most):
        return False
    if any(name in facts and not _named(name, wanted, facts[name]) for name, wanted in query.equal.items()):
        return False
    without = query.unequal.get("result", ())
    return not (without and (result is None or result in without)) and not any(
        set(facts.get(name, ())) & set(values) for name, values in query.unequal.items() if name != "result"
    )


def _named(name: str, wanted: Sequence[str | bool], have: Collection[str | bool]) -> bool:
    """Return whether one of the wanted values is present; where wildcards are permitted, `*` matches any string."""
    for one in wanted:
        if one in have:
            return True
        if name in history.WILD and isinstance(one, str) and "*" in one:
            fits = _fitting(one)
            if any(isinstance(value, str) and fits(value) for value in have):
                return True
    return False


def _fitting(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a string matches the pattern, whose `*` match any characters."""
    first, *rest = pattern.split("*")
    *middle, last = rest

    def fits(text: str) -> bool:
        if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
            return False
        # Leftmost matches suffice for `*`, so this is linear; an expression with several `.*` could backtrack.
        inner, at = text[len(first) : len(text) - len(last)], 0
        for part in middle:
            found = inner.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return True

    return fits


def _of_refs(refs: Iterable[history.PastRef]) -> Iterator[tuple[str, set[str | bool]]]:
    known = list(refs)
    for name in ("project", "branch", "patchset", "ref"):
        yield name, {value for ref in known if (value := getattr(ref, name)) is not None}
    yield "change", {str(ref.change) for ref in known if ref.change is not None}
    yield "newrev", {ref.newrev or ref.patchset or "" for ref in known}


def _facts_of_build(build: history.PastBuild) -> dict[str, set[str | bool]]:
    return {
        **dict(_of_refs(build.buildset.refs)),
        "pipeline": {build.pipeline},
        "queue_item_uuid": {build.queue_item_uuid or ""},
        "uuid": {build.uuid},
        "job_name": {build.job_name},
        "result": {build.result or ""},
        "nodeset": {build.nodeset or ""},
        "voting": {build.voting},
        "final": {build.final},
        "complete": {build.result is not None},
    }


def _facts_of_set(found: history.PastBuildset) -> dict[str, set[str | bool]]:
    return {
        **dict(_of_refs(found.refs)),
        "pipeline": {found.pipeline},
        "queue_item_uuid": {found.queue_item_uuid or ""},
        "uuid": {found.uuid},
        "result": {found.result or ""},
        "final": {found.final},
        "complete": {found.result is not None},
    }
