"""Define the state of a pipeline: queues of items, each with one buildset, its job graph and builds.  Frozen values.

A turn examines every item, and most items have not changed, so properties that depend on one object are cached in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.model import ConfigError, FrozenGraph, FrozenJob
from headgate.gate.state.change import Change, Deferred, Landed, OutsideRefusal, Parted, Strayed, Successor
from headgate.gate.state.management import ByHand
from headgate.gate.state.returns import NO_COURSE, NOTHING, Course, Returned, Sealed, Unfit, checked
from headgate.gate.state.works import RepoState

FINAL_GOOD = frozenset({"SUCCESS", "SKIPPED"})
FAIL_FAST = "fail-fast"
"""Reason recorded for a build that was stopped or never started because another one failed."""


class Phase(StrEnum):
    """Name how far the speculative merge of a buildset is."""

    WAITING = "waiting"
    RUNNING = "running"
    MERGED = "merged"
    CONFLICT = "conflict"
    """The item's own change does not merge."""
    BLOCKED = "blocked"
    """A change ahead does not merge. The item of that change reports it, and this item starts again without it."""


# `dict=True` gives cached properties a place for their values.
class Build(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """Represent the current attempt at one job.  It has ended when it has a result."""

    id: str
    job: str
    """Id of the job, which usually is its name."""
    attempt: int = 1
    result: str | None = None
    voting: bool = True
    error: str = ""
    requested_ms: int = msgspec.field(name="asked_ms", default=0)
    start_ms: int = 0
    end_ms: int = 0
    log_url: str = ""
    data: dict[str, object] = {}
    """Data that the job returned and that later jobs may read, in the format that `gate.state.returns` defines."""
    secret: Sealed | None = None
    """Secret data that it returned, which only the jobs that depend on it receive."""
    given: tuple[dict[str, object], ...] = ()
    """Artifacts of changes ahead that the job requires."""
    paused: bool = False
    """Whether it has paused, so that the jobs that depend on it may start."""
    resumed: bool = False
    """Whether the paused build was asked to continue, because the jobs that it waited for have ended."""
    pre_fail: bool = False  # whether it is known to fail although it still runs
    work: str = ""
    """Digest that is equal for the same job on the same code (`gate.builds.reuse`); empty if unknown."""
    image: str = ""
    """Image in which its programs ran, by name and digest."""
    inputs: str = ""
    """Digest of all its inputs (`gate.builds.reuse`); empty if unknown, or if its result must not be reused."""
    narrow: bool = False
    """Whether its executor confirms that it was given only the repositories that its job names."""
    excerpt: str = ""
    """The lines of its log that show why it failed."""
    origin: str = ""
    """Id of the earlier buildset of its item for which it was begun; empty if that is the current one."""
    course: Course = NO_COURSE

    @property
    def failed(self) -> bool:
        return self.voting and (self.pre_fail or (self.result is not None and self.result not in FINAL_GOOD))

    @cached_property
    def returned(self) -> Returned:
        """Return those parts of the job's data that Headgate reads."""
        return checked(self.data) if self.data else NOTHING

    @classmethod
    def of_format(cls, number: int, plain: bytes) -> Build:
        """Return a build from the store. Older versions stored whatever a job returned: invalid data is dropped, and
        turns a success into a failure. Raise ValueError."""
        found = msgspec.json.decode(plain, type=cls)
        try:
            checked(found.data)
        except Unfit as unfit:
            result = "FAILURE" if found.result == "SUCCESS" else found.result
            why = found.error or f"the data that the job returned is invalid: {unfit}"
            return replace(found, result=result, error=why if result else "", data={}, log_url="")
        return found


class Carried(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a build of an earlier base that continues until its job's inputs on the new base are known."""

    build: Build
    name: str
    """The name of its job, which the new base may define differently."""
    nodeset: str = ""
    provides: tuple[str, ...] = ()
    semaphores: tuple[str, ...] = ()
    """The semaphores that it holds while it runs."""
    since_ms: int = 0  # time at which its base was given up


class BuildSet(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """Represent one attempt to test an item on one speculative base.  A new base gets a new buildset with a new id."""

    id: str
    ahead: str | None = None
    """Id of the buildset directly ahead, which is expected to land; None if it is based on the head of the branch."""
    merge: Phase = Phase.WAITING
    error: str = ""
    blame: str = ""
    """Id of the item whose change did not merge."""
    state: RepoState | None = None
    proposed: dict[str, dict[str, dict[str, str]]] = {}
    """Configuration the chain proposes: project -> branch -> path -> text."""
    graph: FrozenGraph | None = None
    builds: Mapping[str, Build] = {}
    """Job id -> current attempt, for every job that was started or skipped."""
    config_errors: tuple[ConfigError, ...] = ()
    warnings: tuple[str, ...] = ()
    landing: bool = False
    """Whether its landing was requested and the answer is awaited."""
    landing_error: str = ""
    waits: tuple[str, ...] = ()
    """Semaphores without a free place that a ready job waits for."""
    again: Mapping[str, int] = {}
    """Job id -> number of its first attempt, for jobs that somebody requested to rerun."""

    @property
    def jobs(self) -> tuple[FrozenJob, ...]:
        return self.graph.jobs if self.graph else ()

    @cached_property
    def job_failed(self) -> bool:
        return any(build.failed for build in self.builds.values())

    @cached_property
    def failing(self) -> bool:
        """Return whether it is already known that this buildset cannot land."""
        return self.merge is Phase.CONFLICT or bool(self.config_errors) or bool(self.landing_error) or self.job_failed

    @cached_property
    def complete(self) -> bool:
        """Return whether running jobs can no longer change the result."""
        if self.merge is Phase.CONFLICT or self.config_errors or self.landing_error:
            return True
        if self.graph is None:
            return False
        builds = self.builds
        return all((build := builds.get(job.id)) is not None and build.result is not None for job in self.jobs)

    @cached_property
    def begun(self) -> bool:
        """Return whether every job has started and none is paused, so that on this base only results advance it."""
        graph = self.graph
        if graph is None or graph.fail_fast or self.merge is not Phase.MERGED or self.config_errors:
            return False
        return len(self.builds) == len(graph.jobs) and not self.paused

    @cached_property
    def paused(self) -> tuple[Build, ...]:
        """Return the paused builds that were not yet asked to continue."""
        return tuple(b for b in self.builds.values() if b.result is None and b.paused and not b.resumed)

    @cached_property
    def semaphores(self) -> tuple[tuple[str, str, str], ...]:
        """Return (semaphore, buildset it is held for, job) of every unfinished build, except for semaphores that the
        executor takes."""
        of = {b.job: b.origin or self.id for b in self.builds.values() if b.result is None}
        return tuple((name, of[job.id], job.id) for job in self.jobs if job.id in of for name in job.semaphores_first)


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent what is tested and lands together: a change, or a circle of changes that need each other."""

    id: str
    change: Change
    """The first of its changes, in the order of merging."""
    live: bool = True
    """False: the item exists only because the item behind needs it; it is never reported and never landed."""
    event: str = ""
    """Id of the event that brought it."""
    enqueued_ms: int = 0
    resets: int = 0
    """Number of times it was started on a base, which makes the id of each buildset unique."""
    started: bool = False
    """Whether the start was reported to the pipeline's reporters."""
    exempt: bool = False
    """Whether somebody with the permission enqueued this patchset manually, so that it need not meet the
    requirements."""
    epilogue: bool = False
    """Whether it only runs the reporter jobs of a change that has left its queue; their result is not reported."""
    problem: str = msgspec.field(name="trouble", default="")
    """Why it cannot land for a reason other than its jobs: a needed change is failing or gone."""
    successor: Successor | None = None
    buildset: BuildSet | None = None
    held_ms: int = 0
    """`since_ms` of the closing that it waits for, once that wait has been reported; 0: none."""
    by_hand: ByHand | None = None
    """The manual request that enqueued this ref; None if there was none."""
    others: tuple[Change, ...] = ()
    """The rest of a circle, in the order of merging."""
    spared: tuple[str, ...] = ()
    """The keys of the changes of a circle to which `exempt` applies."""
    landed: tuple[Landed, ...] = ()
    """The changes of a circle of several repositories that have landed while the others have not."""
    carried: tuple[Carried, ...] = ()
    earlier: Mapping[str, RepoState] = {}
    """Earlier buildset -> its repository state, while one of its builds continues (`origins`)."""
    displaced: Mapping[str, tuple[str, ...] | None] = {}
    """Key of a change -> paths that only its merge changes, because the branch has renamed files that it changes; None
    if they cannot be listed."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return all changes that are tested together, in the order of merging."""
        return (self.change, *self.others)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(change.key for change in self.changes)

    @property
    def left(self) -> tuple[Change, ...]:
        """Return its changes that have not landed yet."""
        done = {one.change.key for one in self.landed}
        return tuple(change for change in self.changes if change.key not in done)

    @property
    def circle(self) -> tuple[Change, ...]:
        """Return all changes of its circle: first those that have already landed, then the others."""
        return (*(one.change for one in self.landed), *self.left) if self.landed else self.changes

    def of(self, key: str) -> Change | None:
        """Return its change with this key, or None if it has none."""
        return next((change for change in self.changes if change.key == key), None)

    def files(self, change: Change) -> tuple[str, ...] | None:
        """Return the paths that one of its changes or the merge of it changes; None if they are unknown."""
        displaced = self.displaced.get(change.key, ())
        return None if change.files is None or displaced is None else (*change.files, *displaced)

    def exempts(self, change: Change) -> bool:
        return self.exempt and (not self.spared or change.key in self.spared)

    @property
    def under_way(self) -> tuple[Build, ...]:
        """Return all builds without a result, including carried ones, whose reuse is not yet decided."""
        own = self.buildset.builds.values() if self.buildset is not None else ()
        every = {build.id: build for build in (*(one.build for one in self.carried), *own)}
        return tuple(build for build in every.values() if build.result is None)

    @property
    def origins(self) -> set[str]:
        """Return the ids of the earlier buildsets that still have a running build."""
        return {build.origin for build in self.under_way if build.origin}

    def subjects(self, job: FrozenJob) -> tuple[Change, ...]:
        """Return the changes of the item that a job is for."""
        return tuple(self.changes[number] for number in job.refs) or (self.change,)

    def named(self, change: Change, *words: str) -> str:
        """Return an id, derived from `words`, for an action that concerns one of its changes."""
        return derived(self.id, *words, *((change.key,) if self.others or self.landed else ()))

    @property
    def failing(self) -> bool:
        return bool(self.problem) or (self.buildset is not None and self.buildset.failing)


class Unfollowed(msgspec.Struct, frozen=True):
    """Represent landed configuration of one project that the layout does not include yet."""

    connection: str
    branches: Mapping[str, str]
    """branch -> digest of its files (`config.operator.model.content_of`)"""


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one queue of changes that are tested on top of each other, head first."""

    id: str
    name: str
    items: tuple[Item, ...] = ()
    window: int = 20
    """Number of items, from the head, that are processed; 0 for all."""
    landed: tuple[str, ...] = ()
    """Buildsets that landed and on which items of the queue are still based."""
    landed_keys: tuple[str, ...] = ()
    """Keys of changes that landed from this queue and that its items need; the queue knows them before the connection
    reports them."""
    landed_as: tuple[str, ...] = ()
    """Commits that recent landings from this queue made heads of branches; any other head comes from somebody else's
    push."""
    unfollowed: Mapping[str, Unfollowed] = {}
    """project -> configuration that landed from this queue and that the layout does not include yet."""
    dynamic: bool = False
    """Whether the queue was created for one change or one ordering key of occasions; it is removed when empty."""


class Remains(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Store the settings that are needed after a pipeline's configuration is removed. The members are those of
    `config.model.Pipeline`, except for `reporters` and `reports`."""

    manager: str
    reporters: tuple[str, ...] = ()
    """Connections to which the ends of items are reported."""
    reports: dict[str, tuple[Any, ...]] = {}
    """Connection -> its settings for these reports, for its driver.  JSON."""
    posts: tuple[str, ...] = ()
    lands: tuple[str, ...] = ()
    drivers: dict[str, str] = {}
    require_approved: tuple[str, ...] = ()
    require: dict[str, dict[str, Any]] = {}
    reject: dict[str, dict[str, Any]] = {}
    success_message: str = "Build succeeded."
    failure_message: str = "Build failed."
    dequeue_message: str = "Build canceled."
    footer_message: str = ""
    precedence: int = 200
    post_review: bool = False


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the complete state of a pipeline."""

    queues: tuple[Queue, ...] = ()
    failures: int = 0
    """Consecutive failures, for `disable-after-consecutive-failures`."""
    disabled: bool = False
    deferred: tuple[Deferred, ...] = ()
    """The last patchsets that were refused until what they need has landed."""
    remains: Remains | None = None
    """Settings that are needed if the pipeline is removed; stored while there are queues."""
    parted: tuple[Parted, ...] = ()
    """Alarms about circles of several repositories of which only a part has landed."""
    strayed: tuple[Strayed, ...] = ()
    """Alarms about changes that landed with an untested tree, until somebody acknowledges them."""
    refusals: tuple[OutsideRefusal, ...] = ()
    """The most recent refusals of changes that could not be enqueued."""

    @property
    def alarms(self) -> tuple[Parted | Strayed, ...]:
        """Return all alarms, which require a person's attention."""
        return *self.parted, *self.strayed

    @property
    def is_idle(self) -> bool:
        """Return whether nothing here depends on the state of any change."""
        return not (self.deferred or self.parted or self.strayed or self.refusals or any(self.items()))

    def items(self) -> Iterator[tuple[Queue, Item]]:
        for queue in self.queues:
            for item in queue.items:
                yield queue, item

    @property
    def live_keys(self) -> frozenset[str]:
        """Return the keys of all changes in live items, for callers that look up many of them."""
        return frozenset(key for _, item in self.items() if item.live for key in item.keys)

    def find(self, key: str) -> tuple[Queue, Item] | None:
        """Return the live item that holds the change with this key, and its queue; None if there is none."""
        return next(((q, i) for q, i in self.items() if i.live and i.of(key) is not None), None)


def with_item(queue: Queue, item: Item) -> Queue:
    return replace(queue, items=tuple(item if i.id == item.id else i for i in queue.items))


def with_queue(state: State, queue: Queue) -> State:
    """Return the state in which `queue` replaces the queue with its id or is added; an empty dynamic one is removed."""
    if queue.dynamic and not queue.items:
        return replace(state, queues=tuple(q for q in state.queues if q.id != queue.id))
    if any(q.id == queue.id for q in state.queues):
        return replace(state, queues=tuple(queue if q.id == queue.id else q for q in state.queues))
    return replace(state, queues=(*state.queues, queue))
