"""Look up past results of patchsets in the history, and which builds succeeded on which inputs.

A turn that needs an answer continues without it; the pipeline takes another turn when the answer arrives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from headgate.base.ids import derived
from headgate.base.tasks import end
from headgate.config.model import FrozenGraph, FrozenJob, Pipeline
from headgate.gate.builds.graph import NOTHING_PROVIDED
from headgate.gate.builds.reuse import NOTHING
from headgate.gate.state.change import Change
from headgate.gate.state.model import Build, BuildSet
from headgate.gate.state.returns import Unfit, checked
from headgate.gate.state.world import Beside, Sought
from headgate.map.keys import KeyStorage
from headgate.map.records import Finished, FinishedBuild
from headgate.ports.history import HistoryQuery, HistoryUnavailable, Passed, PastBuild
from headgate.services.context import Context
from headgate.store.types import Unavailable

log = logging.getLogger("headgate.pipeline")

PASSED_RECENT_MAX = 2_000
"""Limit on the searched buildsets that are not in the history yet, when looking for builds that passed."""
SLACK_MS = 60_000
"""Greatest assumed difference between the clocks of two machines."""
RECENT_MAX = 500
"""Limit on the searched buildsets that are not in the history yet, when looking for a patchset's last test."""
TRY_AGAIN_S = 5.0
"""Pause before another attempt when the history cannot be read."""


class PassedBuilds:
    """Look up reusable builds of one pipeline in one process. If the history cannot be read, all builds are run."""

    def __init__(self, context: Context, tenant: str, stir: Callable[[], None]) -> None:
        """Create it for a tenant; `stir` causes a turn, and is called when answers arrive."""
        self._context, self._tenant, self._stir = context, tenant, stir
        self._wanted: dict[Sought, None] = {}
        self._answers: dict[Sought, Build] = {}
        self._asking: dict[Sought, asyncio.Future[None]] = {}
        self.answered = 0
        """Number of times that answers arrived."""

    @property
    def asking(self) -> tuple[asyncio.Future[None], ...]:
        """Return the running lookups; only the caller ends them."""
        return tuple(self._asking.values())

    def of(self, sought: Sought) -> Build | None:
        """Return a build that succeeded on the same inputs; see `Beside.passed`."""
        self._wanted[sought] = None
        return self._answers.get(sought)

    def look(self) -> None:
        """Start, between turns, the lookups that the last turn requested, and forget other answers."""
        self._answers = {one: found for one, found in self._answers.items() if one in self._wanted}
        fresh = [one for one in self._wanted if one not in self._answers and one not in self._asking]
        if fresh:
            task = asyncio.ensure_future(self._ask(fresh))
            self._asking |= dict.fromkeys(fresh, task)
        self._wanted = {}

    async def _ask(self, fresh: list[Sought]) -> None:
        try:
            found = await self._found(fresh)
        finally:
            for one in fresh:
                del self._asking[one]
        self._answers |= {one: found.get(one, NOTHING) for one in fresh}
        self.answered += 1
        self._stir()

    async def _found(self, fresh: list[Sought]) -> dict[Sought, Build]:
        # Recent builds are searched first: in the opposite order, one that moves into the history could be missed.
        known = self._recent({one.inputs for one in fresh})
        try:
            if (history := self._context.history) is not None:
                left = [one.inputs for one in fresh if one.inputs not in known]
                known |= await history.passed(self._tenant, left) if left else {}
            made_ms = await self._made_ms({key for one in fresh if one.inputs in known for key in one.keys})
        except (HistoryUnavailable, Unavailable) as error:
            log.warning("earlier successful builds cannot be looked up, so all builds are run: %s", error)
            # An empty answer counts as NOTHING for each: an unavailable history costs extra builds, but never
            # correctness.
            return {}
        passed_before = {one: known[one.inputs] for one in fresh if one.inputs in known}
        builds = {one: _build(passed) for one, passed in passed_before.items() if self._counts(one, passed, made_ms)}
        return {one: build for one, build in builds.items() if build is not None}

    def _recent(self, wanted: set[str]) -> dict[str, Passed]:
        waiting = self._context.map.history.stream.waiting(self._context.mirror, limit=PASSED_RECENT_MAX)
        ended = (one.event for one in waiting)
        builds = (build for one in ended if one.tenant == self._tenant for build in one.builds)
        return {build.inputs: _passed(build) for build in builds if build.inputs in wanted and build.inputs}

    async def _made_ms(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int | None]:
        """Return the time at which the newest key of each project was created; None if it has none."""
        found: dict[tuple[str, str], int | None] = {}
        for connection, project in keys:
            place = KeyStorage().connection(connection).project(project.partition("/")[2]).secrets
            entry = await self._context.store.get(place.path)
            pairs = place.decode(entry.value).pairs if entry is not None else ()
            found[connection, project] = max((pair.created_ms for pair in pairs), default=None)
        return found

    def _counts(self, sought: Sought, passed: Passed, made_ms: dict[tuple[str, str], int | None]) -> bool:
        """Return whether the build is newer than the keys of the job's secrets, and its log and artifacts still
        exist."""
        # Without the log, people could not examine the result.
        retention_ms = self._context.settings.logs_retention_ms
        if retention_ms and passed.end_ms < self._context.now_ms() - retention_ms:
            return False
        made = [made_ms[key] for key in sought.keys]
        # A project without keys has lost the key with which the secret was encrypted, so no build counts.
        return all(at is not None and at + SLACK_MS < passed.start_ms for at in made)


def _passed(build: FinishedBuild) -> Passed:
    return Passed(
        uuid=build.uuid,
        start_ms=build.start_ms,
        end_ms=build.end_ms,
        log_url=build.log_url,
        returned=build.returned,
    )


def _build(passed: Passed) -> Build | None:
    """Return the build, or None if this version does not accept its data."""
    try:
        checked(passed.returned)
    except Unfit as unfit:
        log.warning("build %s cannot be reused: %s", passed.uuid, unfit)
        return None
    return Build(passed.uuid, "", result="SUCCESS", log_url=passed.log_url, data=msgspec.to_builtins(passed.returned))


class _EndedBuild(NamedTuple):
    """Describe an ended build, from the history or about to be written there."""

    id: str
    job: str
    result: str
    provides: tuple[str, ...]
    artifacts: tuple[object, ...]
    log_url: str
    work: str


class PipelinePast:
    """Look up past results for one pipeline in one process."""

    def __init__(self, context: Context, tenant: str, pipeline: str, stir: Callable[[], None]) -> None:
        """Create a view of past results; `stir` causes a turn."""
        self._context, self._tenant, self._pipeline, self._stir = context, tenant, pipeline, stir
        self._wanted: dict[str, Change] = {}
        self._answers: dict[str, BuildSet] = {}
        self._asking: dict[str, asyncio.Future[None]] = {}
        self._passed = PassedBuilds(context, tenant, stir)
        self._answered = 0
        self.away = False
        """Whether the last attempt to read the history failed."""

    async def __aenter__(self) -> PipelinePast:
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(*self._asking.values(), *self._passed.asking)

    @property
    def answered(self) -> int:
        """Return a counter of answers and of changes in the availability of the history."""
        return self._answered + self._passed.answered

    def beside(self, pipelines: Mapping[str, Pipeline], trusted: Mapping[str, str]) -> Beside:
        """Return the surroundings of a pipeline, with functions that look up past results."""
        return Beside(pipelines, self.of, self._passed.of, self.away, trusted)

    def of(self, change: Change) -> BuildSet | None:
        """Return the last buildset of the change, or None while it is being looked up."""
        # Without a history there is never an answer, and an item must not wait for one.
        if self._context.history is None:
            return NOTHING_PROVIDED
        self._wanted[f"{change.key} {change.commit}"] = change
        return self._answers.get(f"{change.key} {change.commit}")

    def look(self) -> None:
        """Start, between turns, the lookups that the last turn requested, and forget other answers."""
        self._passed.look()
        self._answers = {key: found for key, found in self._answers.items() if key in self._wanted}
        for key, change in self._wanted.items():
            if key not in self._answers and key not in self._asking:
                self._asking[key] = asyncio.ensure_future(self._ask(key, change))
        self._wanted = {}

    async def _ask(self, key: str, change: Change) -> None:
        try:
            # A buildset that has just ended is not in the history yet, but still in the queue for it.
            builds = self._recent(change)
            while builds is None:
                try:
                    builds = await self._recorded(change)
                except HistoryUnavailable as error:
                    log.warning("%s: the last result of %s cannot be looked up: %s", self._pipeline, change.id, error)
                    self._heard(away=True)
                    await asyncio.sleep(TRY_AGAIN_S)
            self._answers[key] = _buildset(key, builds)
        # In any case, or this patchset would never be looked up again.
        finally:
            del self._asking[key]
        self._heard(away=False)

    def _heard(self, *, away: bool) -> None:
        # Only the first failure causes a turn, which may have to report that an item waits for the history.
        if not (away and self.away):
            self._answered += 1
            self.away = away
            self._stir()

    def _recent(self, change: Change) -> list[_EndedBuild] | None:
        """Return the builds that are about to be written to the history, or None if there are none."""
        waiting = self._context.map.history.stream.waiting(self._context.mirror, limit=RECENT_MAX)
        found = [one.event for one in waiting if self._is_of(one.event, change)]
        if not found:
            return None
        # The queue may have several records of one patchset; the newest counts.
        return [
            _EndedBuild(
                b.uuid,
                b.job_name,
                b.result,
                b.provides,
                tuple(map(msgspec.to_builtins, b.artifacts)),
                b.log_url,
                b.work,
            )
            for b in found[-1].builds
            if b.final
        ]

    def _is_of(self, one: Finished, change: Change) -> bool:
        # Records without a result, or of a dequeued item, are not a test result.
        matches = (one.tenant, one.pipeline) == (self._tenant, self._pipeline) and one.result not in ("", "DEQUEUED")
        same = ((of.key, of.commit) == (change.key, change.commit) for of in (one.change, *one.others))
        return matches and any(same)

    async def _recorded(self, change: Change) -> list[_EndedBuild]:
        history = self._context.history
        assert history is not None, "`of` starts no lookup without a history"
        query = HistoryQuery(
            {
                "project": (change.project,),
                "branch": (change.branch,),
                "change": (change.name,),
                "patchset": (change.commit,),
                "pipeline": (self._pipeline,),
            },
            # A dequeued patchset has no test result from that time.
            {"result": ("DEQUEUED",)},
            limit=1,
        )
        for found in await history.buildsets(self._tenant, query):
            buildset = await history.buildset(self._tenant, found.uuid)
            works = await history.works(self._tenant, found.uuid)
            builds = buildset.builds or () if buildset is not None else ()
            return [_ended_build(build, works.get(build.uuid, "")) for build in builds if build.final]
        return []


def _ended_build(build: PastBuild, work: str) -> _EndedBuild:
    artifacts, provides = tuple(map(msgspec.to_builtins, build.artifacts)), tuple(p.name for p in build.provides)
    return _EndedBuild(build.uuid, build.job_name, build.result or "", provides, artifacts, build.log_url or "", work)


def _buildset(key: str, found: list[_EndedBuild]) -> BuildSet:
    """Return the buildset with those parts that other jobs use."""
    jobs = tuple(FrozenJob(name=one.job, provides=one.provides) for one in found)
    builds = {
        one.job: Build(one.id, one.job, result=one.result, data=_data(one), log_url=one.log_url, work=one.work)
        for one in found
    }
    return BuildSet(derived("past", key), graph=FrozenGraph(jobs), builds=builds)


def _data(one: _EndedBuild) -> dict[str, object]:
    """Return the build's data without artifacts that an older version accepted and this one would reject."""
    data: dict[str, object] = {"zuul": {"artifacts": list(one.artifacts)}}
    try:
        checked(data)
    except Unfit as unfit:
        log.warning("artifacts of build %s are omitted: %s", one.id, unfit)
        return {}
    return data
