"""The state of a pipeline: queues of items, each with one buildset, its job graph and builds.  Frozen values.

A turn looks at every item, and most are as they were: what only follows from a value is computed once for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from headgate.config.dynamic import Asked, Judgement
from headgate.config.model import ConfigError, FrozenGraph, FrozenJob, Pipeline
from headgate.gate.change import Change, Standing, Tell
from headgate.gate.closing import Closing
from headgate.gate.returned.shape import NOTHING, Returned, checked
from headgate.gate.returned.values import Unfit
from headgate.gate.waiter import Beside, Waiter
from headgate.gate.work import BuildSpec, LandRequest, MergeRequest, ReportRequest, RepoState

FINAL_GOOD = frozenset({"SUCCESS", "SKIPPED"})


class Phase(StrEnum):
    """How far the speculative merge of a buildset is."""

    WAITING = "waiting"
    RUNNING = "running"
    MERGED = "merged"
    CONFLICT = "conflict"
    """The item's own change does not merge."""
    BLOCKED = "blocked"
    """A change ahead does not merge: its own item says so, and ours starts anew without it."""


class Build(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """The current attempt at one job.  Ended when it has a result."""

    id: str
    job: str
    attempt: int = 1
    result: str | None = None
    voting: bool = True
    error: str = ""
    asked_ms: int = 0
    start_ms: int = 0
    end_ms: int = 0
    log_url: str = ""
    data: dict[str, object] = {}
    """What the job returned, and the jobs after it may read; of the shape of `gate.returned`."""
    given: tuple[dict[str, object], ...] = ()
    """Artifacts of changes ahead that the job requires."""
    paused: bool = False
    """It came to its pause: the jobs that depend on it may start."""
    resumed: bool = False
    """They have ended, and it was asked to go on."""
    pre_fail: bool = False  # it runs still, and will fail

    @property
    def failed(self) -> bool:
        return self.voting and (self.pre_fail or (self.result is not None and self.result not in FINAL_GOOD))

    @cached_property
    def returned(self) -> Returned:
        """What is read of the data."""
        return checked(self.data) if self.data else NOTHING

    @classmethod
    def of_format(cls, number: int, plain: bytes) -> Build:
        """As the store has it: an older version kept whatever a job returned.  Raises ValueError."""
        found = msgspec.json.decode(plain, type=cls)
        try:
            checked(found.data)
        except Unfit as unfit:
            result = "FAILURE" if found.result == "SUCCESS" else found.result
            why = found.error or f"what the job returned cannot be used: {unfit}"
            return replace(found, result=result, error=why if result else "", data={}, log_url="")
        return found


class BuildSet(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """One attempt to test an item on one speculative base.  A new base is a new buildset with a new id."""

    id: str
    ahead: str | None = None
    """Buildset directly beneath, believed to land; None: the head of the branch."""
    merge: Phase = Phase.WAITING
    error: str = ""
    blame: str = ""
    """Item whose change did not merge."""
    state: RepoState | None = None
    proposed: dict[str, dict[str, dict[str, str]]] = {}
    """Configuration the chain proposes: project -> branch -> path -> text."""
    graph: FrozenGraph | None = None
    builds: Mapping[str, Build] = {}
    """Job name -> current attempt, of every job that was started or skipped."""
    config_errors: tuple[ConfigError, ...] = ()
    warnings: tuple[str, ...] = ()
    landing: bool = False
    """Asked the forge to land it; waiting for the answer."""
    landing_error: str = ""
    waits: tuple[str, ...] = ()
    """Semaphores that a job of it is ready to take, without a place."""

    @property
    def jobs(self) -> tuple[FrozenJob, ...]:
        return self.graph.jobs if self.graph else ()

    @cached_property
    def job_failed(self) -> bool:
        return any(build.failed for build in self.builds.values())

    @cached_property
    def failing(self) -> bool:
        """Already known that this cannot land."""
        return self.merge is Phase.CONFLICT or bool(self.config_errors) or bool(self.landing_error) or self.job_failed

    @cached_property
    def complete(self) -> bool:
        """Nothing more will be learned from running jobs."""
        if self.merge is Phase.CONFLICT or self.config_errors or self.landing_error:
            return True
        if self.graph is None:
            return False
        builds = self.builds
        return all((build := builds.get(job.name)) is not None and build.result is not None for job in self.jobs)

    @cached_property
    def begun(self) -> bool:
        """Every job has, and none is at its pause: on this base only results move it on."""
        graph = self.graph
        if graph is None or graph.fail_fast or self.merge is not Phase.MERGED or self.config_errors:
            return False
        return len(self.builds) == len(graph.jobs) and not self.paused

    @cached_property
    def paused(self) -> tuple[Build, ...]:
        """Paused builds that were not yet asked to go on."""
        return tuple(b for b in self.builds.values() if b.result is None and b.paused and not b.resumed)

    @cached_property
    def semaphores(self) -> tuple[tuple[str, str], ...]:
        """(semaphore, job) of every build under way, but for those that its executor takes."""
        under_way = {b.job for b in self.builds.values() if b.result is None}
        return tuple((name, job.name) for job in self.jobs if job.name in under_way for name in job.semaphores_first)


class Successor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A newer patchset, to be enqueued if the one that is being landed does not land."""

    change: Change
    event: str
    by_hand: bool = False


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change in a queue."""

    id: str
    change: Change
    live: bool = True
    """False: there only for the sake of the item behind that needs it; never reported, never landed."""
    event: str = ""
    """Id of the event that brought it."""
    enqueued_ms: int = 0
    resets: int = 0
    """How often it was started on a base; makes each buildset id new."""
    started: bool = False
    """The start was reported to whom the pipeline names."""
    exempt: bool = False
    """Let in by hand, as this patchset, by somebody who may: it need not meet the requirements."""
    epilogue: bool = False
    """The change succeeded and left its queue; jobs of type reporter run for it, and nobody is told how they end."""
    trouble: str = ""
    """Why it cannot land although no job said so: a needed change is failing or gone."""
    successor: Successor | None = None
    buildset: BuildSet | None = None
    held_ms: int = 0
    """It passed, and people were told that it waits for what was closed at this moment to be opened."""

    @property
    def failing(self) -> bool:
        return bool(self.trouble) or (self.buildset is not None and self.buildset.failing)


class Unfollowed(msgspec.Struct, frozen=True):
    """Landed configuration of one project."""

    connection: str
    branches: Mapping[str, str]
    """branch -> digest of its files (`config.branches.content_of`)"""


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of changes that are tested on top of each other, head first."""

    id: str
    name: str
    items: tuple[Item, ...] = ()
    window: int = 20
    """How many from the head are worked on; 0 is all."""
    landed: tuple[str, ...] = ()
    """Buildsets that landed and that items here still rest on."""
    landed_keys: tuple[str, ...] = ()
    """Changes that landed from here and that items here need: known before their connection tells."""
    landed_as: tuple[str, ...] = ()
    """Commits that the last landings from here made heads: a head that somebody else moved is told by them."""
    unfollowed: Mapping[str, Unfollowed] = {}
    """project -> the configuration that landed from here, until the layout has followed it."""
    dynamic: bool = False
    """Made for one change; goes when empty."""


class Deferred(msgspec.Struct, frozen=True):
    """A patchset that was refused only because what it needs has not landed, and comes in once that has."""

    key: str
    commit: str
    event: str
    """Id of the event that brought it."""


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything a pipeline knows."""

    queues: tuple[Queue, ...] = ()
    failures: int = 0
    """Consecutive failures, for `disable-after-consecutive-failures`."""
    disabled: bool = False
    deferred: tuple[Deferred, ...] = ()
    """The last ones."""

    def items(self) -> Iterator[tuple[Queue, Item]]:
        for queue in self.queues:
            for item in queue.items:
                yield queue, item

    def find(self, key: str, *, live: bool = True) -> tuple[Queue, Item] | None:
        """The item of the change with this key."""
        return next(((q, i) for q, i in self.items() if i.change.key == key and (i.live or not live)), None)


class Layout(Protocol):
    """What the gate asks of a configuration (`config.layout.Layout` is one)."""

    @property
    def semaphores(self) -> Mapping[str, int]: ...
    @property
    def shared(self) -> Collection[str]:
        """Semaphores that other tenants use, too."""

    def freeze(
        self,
        pipeline: str,
        project: str,
        branch: str,
        ref: str = "",
        files: tuple[str, ...] | None = None,
        ahead: Any = None,  # a layout of the same kind
    ) -> FrozenGraph: ...
    def queue_of(self, project: str, branch: str, pipeline: str) -> str: ...
    def merge_mode(self, project: str, branch: str) -> str: ...
    def takes_part(self, pipeline: str, project: str, branch: str) -> bool: ...
    def touches_config(self, project: str, files: tuple[str, ...] | None, branch: str = "") -> bool: ...
    def config_paths(self, project: str) -> tuple[str, ...]: ...


class Layouts(Protocol):
    """The tenant's layout, and the one a proposed configuration would make."""

    @property
    def landed(self) -> Layout: ...
    def content(self, project: str) -> Mapping[str, str]:
        """branch -> digest of the configuration files the landed layout was made of."""

    def judged(self, asked: Asked) -> Judgement | None:
        """What a proposal comes to; None while that is looked at: a later turn asks again."""


@dataclass(frozen=True, slots=True)
class World:
    """What the gate may know besides its own state; the clock and all outside facts arrive here."""

    tenant: str
    pipeline: Pipeline
    layouts: Layouts
    standings: Mapping[str, Standing]
    """Change key -> what its connection knows of it."""
    now_ms: int
    root_url: str = ""
    """Of the web pages, without a trailing slash; links in reports."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Semaphore -> how many other pipelines hold of it."""
    disabled: bool = False
    """Too many failures in a row: results are told to the pipeline's `disabled` reporters alone."""
    dependencies_max: int | None = None
    """A change that needs more is not let in."""
    changes_max: int | None = None
    """Changes in the pipeline, those included that are there for the sake of others."""
    waiters: Mapping[str, tuple[Waiter, ...]] = field(default_factory=dict)
    """Semaphore -> who waits for a place, in this pipeline and in others; each goes before those with later tickets."""
    closings: tuple[Closing, ...] = ()
    """What people closed."""
    beside: Beside = field(default_factory=Beside)
    """The other pipelines of the tenant, and what this one has forgotten."""

    @property
    def dependent(self) -> bool:
        return self.pipeline.manager == "dependent"


def with_item(queue: Queue, item: Item) -> Queue:
    return replace(queue, items=tuple(item if i.id == item.id else i for i in queue.items))


def with_queue(state: State, queue: Queue) -> State:
    """`queue` put in place of the one with its id; an empty dynamic queue goes."""
    if queue.dynamic and not queue.items:
        return replace(state, queues=tuple(q for q in state.queues if q.id != queue.id))
    if any(q.id == queue.id for q in state.queues):
        return replace(state, queues=tuple(queue if q.id == queue.id else q for q in state.queues))
    return replace(state, queues=(*state.queues, queue))


class Faulty(Exception):
    """Deciding on this item raises; the cause says what."""

    def __init__(self, item: str) -> None:
        super().__init__(f"item {item} cannot be handled")
        self.item = item


@dataclass(frozen=True, slots=True)  # what a turn wants of the world; made durable in the commit that decided it
class Merge:
    id: str
    work: MergeRequest
    precedence: int


@dataclass(frozen=True, slots=True)
class Run:
    id: str
    spec: BuildSpec
    precedence: int


@dataclass(frozen=True, slots=True)
class Land:
    id: str
    work: LandRequest
    precedence: int


@dataclass(frozen=True, slots=True)
class Report:
    id: str
    work: ReportRequest
    precedence: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The build or merge with this id is no longer wanted."""

    id: str
    build: bool


@dataclass(frozen=True, slots=True)
class Resume:
    """The paused build with this id is to go on."""

    id: str


@dataclass(frozen=True, slots=True)
class Record:
    """The item left the queue with this result: history."""

    item: Item
    result: str
    message: str
    tested: bool = True
    """Does the result say anything of the change: were its jobs what decided?"""


@dataclass(frozen=True, slots=True)
class Supersede:
    """The change with this key is to leave the other pipeline."""

    pipeline: str
    key: str


Action = Merge | Run | Land | Report | Cancel | Resume | Record | Supersede | Tell
