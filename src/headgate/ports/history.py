"""Define the history of what ended: the recorder writes it once, and the pages query it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from headgate.gate.course import Course
from headgate.gate.returns.shape import FileComment
from headgate.map.records import Finished, HandAction
from headgate.ports.flakiness import Flakiness, Span
from headgate.ports.throughput import Throughput, ThroughputOverTime

LIMIT_MAX = 1_000
"""Limit of rows in one answer."""
NUMBER_MAX_DIGITS = 15
"""Limit of digits in the number of a change; anything longer is a name."""
LOOKED_AT_MAX = 20_000
"""Limit of rows that one answer sums up."""


class HistoryUnavailable(OSError):
    """Report that the history cannot be read or written now; what was recorded is still there."""


class HistoryRefused(ValueError):
    """Report that the database rejects a record and always will."""


class PastRef(msgspec.Struct, frozen=True):
    """Describe the change, or the update of a ref, that a buildset was for."""

    project: str
    """Canonical name."""
    branch: str | None
    change: str | int | None
    """Its topic, or its number."""
    patchset: str | None
    """The proposed commit."""
    ref: str
    oldrev: str | None
    newrev: str | None
    """Of the update of a ref; null for a change."""
    ref_url: str | None = None
    author: str = ""
    """Ours, as those that follow: who wrote it, name and address."""
    proposers: tuple[str, ...] = ()
    """Who pushed this patchset, as far as the server tells."""
    approvers: tuple[str, ...] = ()
    """Who approved it under their own names."""


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe something that a build left, as the data it returned names it."""

    name: str
    url: str
    metadata: dict[str, Any] = {}  # as the job returned it


class Provided(msgspec.Struct, frozen=True):
    name: str


class PastCourse(msgspec.Struct, frozen=True, kw_only=True):
    """Describe what a build waited for, and what it had."""

    needs: tuple[str, ...] = ()
    """The jobs that it depends on."""
    semaphores: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    """Its nodes, with their labels; known once it has ended."""
    had_time: str | None = None
    """When it had them."""
    paused_time: str | None = None
    resumed_time: str | None = None


class InBuildset(msgspec.Struct, frozen=True):
    uuid: str
    refs: tuple[PastRef, ...] = ()


class PastBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one build: one attempt at a job. Times are `YYYY-MM-DDTHH:MM:SS`, UTC."""

    id: int = msgspec.field(name="_id")
    """Counts builds as they are recorded; of one that is not yet, when it was asked for, milliseconds since the
    epoch."""
    uuid: str
    job_name: str
    result: str | None
    held: bool = False
    execute_time: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    duration: float | None = None
    """Seconds."""
    estimated_time: float | None = None
    """Ours, of a build under way: seconds that builds like it took lately."""
    voting: bool = True
    log_url: str | None = None
    log_missing: str | UnsetType = UNSET
    """Ours, of a build that is asked for by itself and has ended: what of its logs is not kept, for people."""
    nodeset: str | None = None
    error_detail: str | None = None
    image: str | None = None
    """Ours: what its programs ran in, by name and digest."""
    final: bool = True
    """False: it was tried again, or its buildset gave way to another one."""
    attempt: int = 1
    """Ours."""
    course: PastCourse | UnsetType = UNSET
    """Ours; absent in lists of builds."""
    comments: Mapping[str, tuple[FileComment, ...]] | UnsetType = UNSET
    """By the path of the file, where a question asks for them; the API tells them apart."""
    artifacts: tuple[Artifact, ...] = ()
    provides: tuple[Provided, ...] = ()
    ref: PastRef
    pipeline: str
    event_id: str | None = None
    event_timestamp: str | None = None
    queue_item_uuid: str | None = None
    buildset: InBuildset


class SetEvent(msgspec.Struct, frozen=True):
    """Describe something that happened to a buildset."""

    event_time: str
    event_type: str
    """triggered"""
    description: str


class PastBuildset(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one attempt to test an item. It has no result while it is running."""

    id: int = msgspec.field(name="_id")
    """As of a build."""
    uuid: str
    result: str | None
    message: str | None
    pipeline: str
    event_id: str | None = None
    event_timestamp: str | None = None
    queue_item_uuid: str | None = None
    first_build_start_time: str | None = None
    last_build_end_time: str | None = None
    refs: tuple[PastRef, ...]
    final: bool = True
    """Ours.  False: the item was tested anew, on something else."""
    user_id: str | None = None
    """Always null: who enqueued it is told among what was done by hand."""
    parameters: dict[str, Any] | None = None
    """Always null."""
    builds: tuple[PastBuild, ...] | UnsetType = UNSET
    """Absent in lists, and where there are none."""
    events: tuple[SetEvent, ...] | UnsetType = UNSET
    """Absent in lists."""


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a build whose result may be reused."""

    uuid: str
    start_ms: int
    end_ms: int
    log_url: str = ""
    returned: dict[str, Any] = {}
    """JSON."""


class JobHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Summarise the latest builds of one job in one project."""

    project: str
    job_name: str
    builds: int
    """That passed or failed by themselves."""
    failed: int
    trees: int
    """Different states of the code that it was run on, as far as that is known."""
    flaky: int
    """Trees on which it failed, and passed later."""
    retried: int
    """Attempts that did not get to a result, and were made again."""
    seconds: float
    """All of its builds together."""
    seconds_lost: float
    """Of these, of builds that counted for nothing: tried again, or of a buildset that gave way to another."""


class ResetCost(msgspec.Struct, frozen=True, kw_only=True):
    """State what resets cost one project in one pipeline: changes tested again because of what was ahead of them."""

    project: str
    pipeline: str
    buildsets: int
    resets: int
    """Buildsets that gave way to others."""
    builds_lost: int
    """Of those, builds that had begun."""
    seconds: float
    seconds_lost: float


WILD = frozenset({"project", "pipeline", "branch", "job_name"})
"""Names in whose values `*` stands for any text."""


class HistoryQuery(msgspec.Struct, frozen=True):
    """Select rows, latest first. Values of one name are alternatives; in those of `WILD` a `*` stands for any text."""

    equal: Mapping[str, Sequence[str | bool]] = {}
    """Keys: project pipeline branch change patchset ref newrev queue_item_uuid uuid job_name result nodeset voting
    final complete"""
    unequal: Mapping[str, Sequence[str | bool]] = {}
    limit: int = 50
    skip: int = 0
    numbers: tuple[int | None, int | None] = (None, None)
    """The least and the greatest `_id`.  Where one is named, the greatest comes first: who goes on from the last row
    misses none."""
    ended_ms: tuple[int | None, int | None] = (None, None)
    """Of builds: when they ended, at the earliest and at the latest."""
    comments: bool = False
    """Of builds: with what they say of lines of files."""


def named(change: str | None) -> str | int | None:
    """Return what a change is called, as the API tells it: a number where it is one."""
    plain = change is not None and change.isascii() and change.isdecimal() and len(change) <= NUMBER_MAX_DIGITS
    return int(change) if plain and change is not None and str(int(change)) == change else change


def time_text(at_ms: int | None) -> str | None:
    """Return the time in UTC as `YYYY-MM-DDTHH:MM:SS`, or None if there is none (yet)."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") if at_ms else None


def course_of(needs: tuple[str, ...], semaphores: tuple[str, ...], course: Course) -> PastCourse:
    """Return what a build waited for and had, as the API tells it."""
    return PastCourse(
        needs=needs,
        semaphores=semaphores,
        machines=course.machines,
        had_time=time_text(course.had_ms),
        paused_time=time_text(course.paused_ms),
        resumed_time=time_text(course.resumed_ms),
    )


class HistoryWriter(Protocol):
    async def record(self, finished: Finished) -> None:
        """Record a buildset durably; recording the same one again changes nothing.  Raise HistoryUnavailable."""
        ...

    async def keep(self, action: HandAction) -> None:
        """Record an action by hand durably; recorded again with its outcome, it has one.  Raise HistoryUnavailable."""
        ...


class HistoryKeeper(Protocol):
    async def forget(self, before_ms: int, *, dry: bool = False) -> int:
        """Delete buildsets that ended before, and what was done by hand before; `dry`: only count them.  Return how
        many buildsets.  What goes on stays.  Raises HistoryUnavailable."""
        ...


class HistoryReader(Protocol):
    """Query the history. Every answer belongs to one tenant. Raise HistoryUnavailable."""

    async def builds(self, tenant: str, question: HistoryQuery) -> list[PastBuild]: ...
    async def build(self, tenant: str, uuid: str) -> PastBuild | None: ...
    async def buildsets(self, tenant: str, question: HistoryQuery) -> list[PastBuildset]: ...
    async def buildset(self, tenant: str, uuid: str) -> PastBuildset | None:
        """Return the buildset with its builds, or None if there is none."""
        ...

    async def actions(self, tenant: str, *, limit: int, skip: int = 0) -> list[HandAction]:
        """Return what was done by hand, latest first; for an empty `tenant`, what concerns no tenant in particular."""
        ...

    async def job_health(self, tenant: str, question: HistoryQuery, since_ms: int) -> list[JobHealth]:
        """Return the health of jobs in the latest builds since `since_ms`, the flakiest jobs first; `equal` of the
        question chooses builds."""
        ...

    async def reset_costs(self, tenant: str, question: HistoryQuery, since_ms: int) -> list[ResetCost]:
        """Return the cost of resets in the latest buildsets since `since_ms`, the dearest first; `equal` of the
        question chooses buildsets."""
        ...

    async def throughput(self, tenant: str, question: HistoryQuery, since_ms: int) -> list[Throughput]:
        """Return the throughput of the latest buildsets since `since_ms`, by project and pipeline, each alone and
        together; `equal` of the question chooses buildsets."""
        ...

    async def throughput_over_time(self, tenant: str, question: HistoryQuery, span: Span) -> ThroughputOverTime:
        """Return the throughput in each slot of the span, of the latest buildsets in it; `equal` of the question
        chooses buildsets."""
        ...

    async def flakiness(self, tenant: str, question: HistoryQuery, job: str, span: Span) -> Flakiness:
        """Return how flaky a job was over time, or with an empty name all jobs together, in the latest buildsets of the
        span; `equal` of the question chooses builds."""
        ...

    async def works(self, tenant: str, buildset: str) -> dict[str, str]:
        """Return what the builds of a buildset worked on (`FinishedBuild.work`), of those of which it is known."""
        ...

    async def passed(self, tenant: str, inputs: Sequence[str]) -> dict[str, Passed]:
        """Return, by what it was given (`FinishedBuild.inputs`), the latest build that succeeded and that is known."""
        ...

    async def durations_ms(self, tenant: str, job: str, project: str, branch: str, *, limit: int) -> list[int]:
        """Return how many milliseconds each of the latest successful builds of a job for a branch took; of those for
        any branch or project if there is none."""
        ...
