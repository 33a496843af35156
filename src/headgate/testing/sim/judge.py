"""Check the invariants after every commit, and the final state once all is quiet."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from headgate.gate.builds.report import CARRIED
from headgate.gate.state.change import Change, ChangeState
from headgate.map.check import check
from headgate.map.places import Map, semaphore_of
from headgate.map.records import Finished, FinishedBuild, HandAction, SemaphoreRecord
from headgate.ports.history import HistoryUnavailable, Passed
from headgate.recipes.codec import decode
from headgate.recipes.requestforms import Request
from headgate.store.memory import MemoryBackend
from headgate.store.types import At, Delete, Entry, Op
from headgate.testing.backends import WrappedBackend
from headgate.testing.sim.worlds import EVIL, SHARED, UNSERVED, InvariantBroken, SimWorld

SEMAPHORE, SEMAPHORE_MAX = "one", 2
UNAPPROVED = re.compile("is not approved|needs 2 approvals|is vetoed")


AWAY = 0.1
"""Chance that the history cannot be read."""


@dataclass(slots=True)
class Notes:
    """Keep the history of a simulated gate."""

    finished: dict[str, Finished] = field(default_factory=dict)
    """Buildset -> its outcome, of those that no other replaced."""
    builds: set[str] = field(default_factory=set)
    """All build attempts that were reported."""
    released: dict[tuple[str, str], set[tuple[str, tuple[int, ...]]]] = field(default_factory=dict)
    """Ref and commit -> item, and when its builds began, for all its runs in the pipeline of tags. The end of a run may
    be reported twice, when its turn is cut.
    """

    passed_on: dict[str, FinishedBuild] = field(default_factory=dict)
    """Inputs -> a build that passed on them."""
    reused: int = 0
    """Number of builds that others stood for."""
    carried: int = 0
    """Number of builds that were carried over a reset and counted."""
    chance: random.Random = field(default_factory=lambda: random.Random("history"))

    async def record(self, finished: Finished) -> None:
        self.builds.update(build.uuid for build in finished.builds)
        self.reused += sum(build.error.startswith("reused build") for build in finished.builds)
        self.carried += sum(CARRIED in build.error for build in finished.builds)
        self.passed_on |= {one.inputs: one for one in finished.builds if one.inputs}
        # Buildsets that others replaced have no outcome of their own.
        if not finished.result or not finished.final:
            return
        self.finished[finished.buildset] = finished
        if finished.pipeline == "release":
            change = finished.change
            began = tuple(build.start_ms for build in finished.builds)
            self.released.setdefault((change.ref, change.commit), set()).add((finished.item, began))

    async def passed(self, tenant: str, inputs: Sequence[str]) -> dict[str, Passed]:
        """Return reusable builds after a delay; sometimes the history is unavailable."""
        await asyncio.sleep(self.chance.random())
        if self.chance.random() < AWAY:
            raise HistoryUnavailable("the database is unavailable")
        found = {one: self.passed_on[one] for one in inputs if one in self.passed_on}
        return {
            one: Passed(uuid=b.uuid, start_ms=b.start_ms, end_ms=b.end_ms, returned=b.returned)
            for one, b in found.items()
        }

    async def keep(self, action: HandAction) -> None:
        """Do nothing: nobody acts by hand in a simulated gate."""

    def finished_in(self, pipeline: str) -> Iterator[Finished]:
        return (finished for finished in self.finished.values() if finished.pipeline == pipeline)


COMMITS_MAX, CIRCLE_DELAY_S = 8_000, 1.0
"""Limit on the commits of one world, of which the largest floods use a third; and the delay of each commit beyond it,
since simulated time does not pass for a process that writes without a pause.
"""


class StoreJudge(WrappedBackend):
    """Hold the one store of all processes, and check it after every commit."""

    def __init__(self, store: MemoryBackend, world: SimWorld, notes: Notes) -> None:
        super().__init__(store)
        self._tree, self._world, self._notes = store.tree, world, notes
        self._map = Map()
        self._pipelines = {name: self._map.tenant(t).pipeline(name) for name, t in world.pipelines.items()}
        self._requests = self._map.executor.unzoned.requests.path + "/"
        self._locks = self._map.executor.unzoned.locks.path
        self._queues = self._map.tenant("t").pipeline("gate").path + "/queue/"
        shared = len(set(world.pipelines.values())) > 1
        self._semaphore = semaphore_of(self._map, "t", SEMAPHORE, shared=shared)
        self._items = self._map.tenant("t").pipeline("gate").path + "/item/"
        self._epilogues: set[str] = set()
        """Items of the gate that exist for the jobs that run once a change has landed."""
        self._queued: dict[str, int] = {}
        """Item of the gate -> its position among all that were ever queued."""
        self._builds: dict[str, str] = {}
        """Build that is to run -> its request; both are paths."""
        self.turns_are_atomic = True
        """Whether each turn is one commit, so that no other state exists between decisions that it makes together."""
        self.commits = 0

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        written = await self.inner.commit(checks, ops)
        self.commits += 1
        if self.commits > COMMITS_MAX:
            self._world.broken = self._world.broken or InvariantBroken(
                f"more than {COMMITS_MAX:,} commits: it goes in circles"
            )
            await asyncio.sleep(CIRCLE_DELAY_S)  # a process that writes without a pause would stop the clock
        try:
            self._judge(ops, written)
        except InvariantBroken as broken:
            # Noted and not raised: the process that happens to commit is not the one to blame, and would retry.
            self._world.broken = self._world.broken or broken
        return written

    def _judge(  # noqa: C901 - one law after the other
        self, ops: Sequence[Op], written: Sequence[Entry | None]
    ) -> None:
        """Check only the entries that the commit changed."""
        suspects = list[str]()
        for op, entry in zip(ops, written, strict=True):
            if entry is None:
                suspects += [op.path] if isinstance(op, Delete) and op.path in self._builds else []
            elif entry.path.startswith(self._requests):
                suspects.append(self._build_of(entry))
                # Between the commits of one turn, the number may be too large for a moment.
                if self.turns_are_atomic:
                    self._check_running_holders()
            elif entry.path.startswith(self._queues):
                for item in self._pipelines["gate"].queue("any").record.decode(entry.value).items:
                    self._queued.setdefault(item, len(self._queued))
            elif entry.path.startswith(self._items) and "/" not in (item := entry.path.removeprefix(self._items)):
                if self._pipelines["gate"].item("any").record.decode(entry.value).epilogue:
                    self._epilogues.add(item)
                if self.turns_are_atomic:
                    suspects += [build for build in self._builds if build.startswith(f"{entry.path}/")]
            elif entry.path == self._semaphore.path:
                self._check_holders(entry)
        self._no_build_for_an_abandoned_base(suspects)

    def _check_holders(self, semaphore: Entry) -> None:
        if len(self._semaphore.decode(semaphore.value).holders) > SEMAPHORE_MAX:
            raise InvariantBroken(f"{semaphore.value!r}: more than {SEMAPHORE_MAX}")

    def _check_running_holders(self) -> None:
        """Raise InvariantBroken if more builds run that need the semaphore than may hold it, whatever its record
        says."""
        requests = [decode(entry.value, Request) for entry in self._tree.under(self._requests.rstrip("/"))]
        needing = [one for one in requests if SEMAPHORE in one.meta.get("semaphores", "").split()]
        # The processes of a cancelled build run until its executor has answered.
        run = [one for one in needing if one.wanted != "cancel" or f"{self._locks}/{one.id}" in self._tree.entries]
        if len(run) > SEMAPHORE_MAX:
            raise InvariantBroken(f"{len(run)} builds run that need {SEMAPHORE}: {[one.meta['change'] for one in run]}")

    def _build_of(self, request: Entry) -> str:
        """Return the path of the record of the build that a request is for, and remember which request asks for it."""
        record = decode(request.value, Request)
        meta = record.meta
        buildset = self._pipelines[meta["pipeline"]].item(meta["item"]).buildset(meta["buildset"])
        build = buildset.job(meta["job"]).build(record.id).record.path
        self._builds[build] = request.path
        return build

    def _no_build_for_an_abandoned_base(self, builds: Sequence[str]) -> None:
        entries = self._tree.entries
        for build in builds:
            entry = entries.get(self._builds[build])
            if entry is None:
                continue
            request = decode(entry.value, Request)
            what = f"{request.meta['job']} of {request.meta['change']}"
            if request.wanted != "run" or build in entries:
                continue
            if not self._goes_on(request):
                raise InvariantBroken(f"{what} is to run for a buildset that no longer exists")
            state = build.partition("/job/")[0] + "/repo_state"
            if state not in entries:
                raise InvariantBroken(f"{what} is to run on the state of a buildset that no longer exists")

    def _goes_on(self, request: Request) -> bool:
        """Return whether the build's item knows it, as carried over from an earlier base or in one of its buildsets."""
        item = self._pipelines[request.meta["pipeline"]].item(request.meta["item"])
        entry = self._tree.entries.get(item.record.path)
        carried = item.record.decode(entry.value).carried if entry is not None else ()
        id, below = request.id, self._tree.under(item.path)
        return any(one.build.id == id for one in carried) or any(one.path.endswith(f"/build/{id}") for one in below)

    # --- at the end

    def left(self) -> list[str]:
        """Return all work that has not ended, waits or runs; empty: all is quiet."""
        return (
            self._endless(self._world.open.values())
            or self._tags_without_an_end()
            or self._unanswered()
            or self._waiting()
            or self._held()
        )

    def _held(self) -> list[str]:
        """Return the semaphore places that are taken although nothing runs."""
        entry = self._tree.entries.get(self._semaphore.path)
        holders = self._semaphore.decode(entry.value).holders if entry is not None else ()
        return [f"{one.pipeline} holds {SEMAPHORE} for {one.job}" for one in holders]

    def unserved(self) -> list[str]:
        """Return the honest changes that have not ended."""
        return self._endless(s for s in self._world.open.values() if s.change.project != EVIL)

    def _endless(self, change_states: Iterable[ChangeState]) -> list[str]:
        ends = {(f.pipeline, c.key, c.commit) for f in self._notes.finished.values() for c in _changes(f)}
        among = list(change_states)
        wanted = [("check", change_state) for change_state in among if self._is_checked(change_state)]
        wanted += [("gate", change_state) for change_state in among if self._is_ready(change_state)]
        endless = [(p, s.change.key, s.change.commit) for p, s in wanted]
        return [" ".join(end) for end in endless if end not in ends]

    def _is_checked(self, change_state: ChangeState) -> bool:
        tenant = self._world.pipelines.get("check")
        if self._world.moving:  # it may be proposed while there is none
            return False
        return tenant == "t" or (tenant is not None and change_state.change.project in (SHARED, EVIL))

    def _is_ready(self, change_state: ChangeState) -> bool:
        """Return whether the change, and every open change that it needs, has the approvals it waits for. A change that
        needs an abandoned one stays out."""
        needed, left = {change_state.change.key}, [change_state]
        landed = {change.key for change in self._world.landed}
        while left:
            one = left.pop()
            if not self._world.is_approved(one) or set(one.change.needs) - landed - self._world.open.keys():
                return False
            fresh = [key for key in one.change.needs if key in self._world.open and key not in needed]
            needed.update(fresh)
            left += (self._world.open[key] for key in fresh)
        return True

    def _waiting(self) -> list[str]:
        map = self._map
        busy = [map.events.path, map.history.queue.path, map.merger.path, map.executor.path, map.results.path]
        busy += [map.reports("bus").queue.path, map.cache.connection("bus").occasions.begun.path]
        busy += [f"{pipeline.path}/item" for pipeline in self._pipelines.values()]
        for name in self._world.gone:
            busy += [self._pipelines[name].path, map.events.tenant("t").pipelines(name).path]
        # Locks of components and the order to close a gate outlive all work.
        stays = ("election", map.events.tenant("t").state.path)
        return [e.path for path in busy for e in self._tree.under(path) if not any(one in e.path for one in stays)]

    def verify(self) -> None:  # noqa: C901 - one law after the other
        """Check the end of a run. Raise InvariantBroken."""
        landed = [change.key for change in self._world.landed]
        if len(set(landed)) < len(landed):
            raise InvariantBroken(f"landed twice: {landed}")
        parts = self._parts()
        epilogues = [f for f in self._notes.finished_in("gate") if f.item in self._epilogues]
        after = [c.key for f in epilogues if {b.result for b in f.builds} - {"CANCELED"} for c in _changes(f)]
        if self._world.announced and sorted(after) != sorted(key for key in landed if key not in parts):
            raise InvariantBroken(f"landed {sorted(landed)}, but the jobs after that ran for {sorted(after)}")
        good = [f for f in self._notes.finished_in("gate") if f.result == "SUCCESS" and f.item not in self._epilogues]
        reported = parts | {change.key: f for f in good for change in _changes(f)}
        if set(reported) != set(landed):
            raise InvariantBroken(f"landed {sorted(landed)} but told {sorted(reported)}")
        reasonless = [f.change.key for f in self._notes.finished.values() if f.result != "SUCCESS" and not f.message]
        if reasonless:
            raise InvariantBroken(f"rejected without a reason: {reasonless}")
        ended = [f.message for f in self._notes.finished.values() if f.result != "DEQUEUED"]
        if any(UNSERVED in message and "RETRY_LIMIT" not in message for message in ended):
            raise InvariantBroken("rejected because the executor of a paused build was lost")
        self._each_tag_once()
        if wrong := self._world.posts.wrong(self._notes.finished_in("orders")):
            raise InvariantBroken(wrong)
        for finished in self._notes.finished_in("gate"):
            self._no_fault_of_others(finished, set(landed))
        for of in self._lines():
            places = [self._queued[reported[change.key].item] for change in of]
            if places != sorted(places):
                raise InvariantBroken(f"landed in another order than they were queued in: {landed} {places}")
        if lost := {path.rpartition("/")[2] for path in self._builds} - self._notes.builds:
            raise InvariantBroken(f"builds that the history does not know: {sorted(lost)}")
        held = self._tree.entries.get(self._semaphore.path)
        record = self._semaphore.decode(held.value) if held is not None else SemaphoreRecord(())
        pipelines = {one.pipeline for one in record.holders} | {one.pipeline for one in record.waiters}
        if pipelines & self._world.gone:
            raise InvariantBroken(f"held or waited for by a pipeline that nobody has: {record}")
        aside = [entry.value for entry in self._tree.under(self._map.quarantine.path)]
        if aside:
            raise InvariantBroken(f"set aside: {aside}")
        findings = check(self._tree.under(self._map.path))
        if findings.unknown or findings.undecodable:
            raise InvariantBroken(f"off the map: {findings.unknown} {findings.undecodable}")

    def _lines(self) -> list[list[Change]]:
        """Return the landed changes in lists, each of projects that share a queue whatever people do."""
        landed = self._world.landed
        if not self._world.moving:
            return [landed]
        return [[one for one in landed if one.project == project] for project in {one.project for one in landed}]

    def _parts(self) -> dict[str, Finished]:
        """Return the changes that landed without the rest of their circle: key -> the report that says so.  Raise
        InvariantBroken when no report says so, or when nothing had kept the rest from landing."""
        alarms = [f for f in self._notes.finished_in("gate") if "ALARM" in f.message]
        for key, commit in self._world.owed.items():
            reported = any(f"- {key} has not landed." in f.message for f in alarms)
            now = self._world.open.get(key)
            could = now is not None and now.is_approved and now.change.commit == commit and not self._world.foreign
            if not reported or could:
                raise InvariantBroken(
                    f"{key} has not landed, but what goes together with it has; told: {reported}, could: {could}"
                )
        found = {c.key: f for f in alarms for c in _changes(f) if f"- {c.key} has landed as" in f.message}
        return found

    def _unanswered(self) -> list[str]:
        return self._world.posts.unanswered(self._notes.finished_in("orders"))

    def _tags_without_an_end(self) -> list[str]:
        last = dict(self._world.tagged) if "release" in self._pipelines else {}
        return [f"{ref} {commit}" for ref, commit in last.items() if (ref, commit) not in self._notes.released]

    def _each_tag_once(self) -> None:
        """Raise InvariantBroken unless each tag that was pushed started exactly one item; one that was moved before
        anybody looked may have started none."""
        if "release" not in self._pipelines:
            return
        last = dict(self._world.tagged)
        for ref, commit in self._world.tagged:
            ran = self._notes.released.get((ref, commit), set())
            if len(ran) > 1 or (last[ref] == commit and not ran):
                raise InvariantBroken(f"{ref} at {commit} was to start one item, and started {len(ran)}")

    def _no_fault_of_others(self, finished: Finished, landed: set[str]) -> None:
        if finished.result != "FAILURE" or finished.change.needs or UNAPPROVED.search(finished.message):
            return
        on = {commit for build in finished.builds for commit in self._world.failed.get(build.uuid, ())}
        beneath = {key for commit, key in self._world.proposed.items() if commit in on} - {finished.change.key}
        if not beneath <= landed:
            raise InvariantBroken(f"{finished.change.key} was rejected for {sorted(beneath - landed)}")


def _changes(finished: Finished) -> tuple[Change, ...]:
    return (finished.change, *finished.others)
