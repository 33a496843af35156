"""Define the history of ended buildsets: the recorder writes it once, and the pages query it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from headgate.base.errors import HeadgateError
from headgate.gate.state.returns import Course, FileComment
from headgate.map.records import Finished, HandAction
from headgate.ports.statistics import Flakiness, Span, Throughput, ThroughputOverTime

LIMIT_MAX = 1_000
"""Limit on the rows in one answer."""
NUMBER_MAX_DIGITS = 15
"""Limit on the digits in the number of a change; anything longer is a name."""
LOOKED_AT_MAX = 20_000
"""Limit on the rows that one answer sums up."""


class HistoryUnavailable(HeadgateError, OSError):
    """Report that the history cannot be read or written now; existing records are not lost."""


class HistoryRefused(HeadgateError, ValueError):
    """Report that the database rejects a record and always will."""


class PastRef(msgspec.Struct, frozen=True):
    """Describe the change, or the update of a ref, that a buildset was for."""

    project: str
    """Canonical name."""
    branch: str | None
    change: str | int | None
    """Topic or number of the change; null for the update of a ref."""
    patchset: str | None
    """The proposed commit."""
    ref: str
    oldrev: str | None
    newrev: str | None
    """New commit of an updated ref; null for a change."""
    ref_url: str | None = None
    author: str = ""
    """Added by Headgate, like the following fields: author of the change, as git or the forge names them."""
    proposers: tuple[str, ...] = ()
    """People who pushed this patchset, as far as the server reports them."""
    approvers: tuple[str, ...] = ()
    """People who approved it under their own names."""


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a file or URL that a build published, as the data that it returned names it."""

    name: str
    url: str
    metadata: dict[str, Any] = {}  # as the job returned it


class Provided(msgspec.Struct, frozen=True):
    name: str


class PastCourse(msgspec.Struct, frozen=True, kw_only=True):
    """Describe what a build waited for, and what it received."""

    needs: tuple[str, ...] = ()
    """The jobs that it depends on."""
    semaphores: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    """Its nodes, with their labels; known once it has ended."""
    had_time: str | None = None
    """Time at which it had received its nodes."""
    paused_time: str | None = None
    resumed_time: str | None = None


class InBuildset(msgspec.Struct, frozen=True):
    uuid: str
    refs: tuple[PastRef, ...] = ()


class PastBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one build: one attempt at a job. Times are `YYYY-MM-DDTHH:MM:SS`, UTC."""

    id: int = msgspec.field(name="_id")
    """Number of the build in the order of recording; for one that is not recorded yet, the time of its request or, once
    its buildset has ended, of that end, milliseconds since the epoch."""
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
    """Added by Headgate, for a build under way: seconds that similar builds took recently."""
    voting: bool = True
    log_url: str | None = None
    log_missing: str | msgspec.UnsetType = msgspec.UNSET
    """Added by Headgate, in the answer for one ended build: a message about the logs that are not stored."""
    nodeset: str | None = None
    error_detail: str | None = None
    image: str | None = None
    """Added by Headgate: image in which its programs ran, by name and digest."""
    final: bool = True
    """False if the build was retried, or if its buildset was replaced by another one."""
    attempt: int = 1
    """Added by Headgate: number of this attempt, from 1."""
    course: PastCourse | msgspec.UnsetType = msgspec.UNSET
    """Added by Headgate; absent in lists of builds."""
    comments: Mapping[str, tuple[FileComment, ...]] | msgspec.UnsetType = msgspec.UNSET
    """Path of a file -> comments on its lines, if the query asks for them; the API serves them separately."""
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
    """Always "triggered"."""
    description: str


class PastBuildset(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one attempt to test an item. It has no result while it is running."""

    id: int = msgspec.field(name="_id")
    """Number of the buildset in the order of recording; for one that is not recorded yet, the time at which it was
    enqueued or ended, milliseconds since the epoch."""
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
    """Added by Headgate. False if the item was tested again on another base."""
    user_id: str | None = None
    """Always null: the list of manual actions shows who enqueued it."""
    parameters: dict[str, Any] | None = None
    """Always null."""
    builds: tuple[PastBuild, ...] | msgspec.UnsetType = msgspec.UNSET
    """Absent in lists, and where there are none."""
    events: tuple[SetEvent, ...] | msgspec.UnsetType = msgspec.UNSET
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
    """Builds with a result of their own: they passed or failed."""
    failed: int
    trees: int
    """Number of different states of the code on which it ran, as far as they are known."""
    flaky: int
    """Trees on which it failed and passed later."""
    retried: int
    """Attempts that ended without a result and were repeated."""
    seconds: float
    """Total time of its builds."""
    seconds_lost: float
    """Part of `seconds` that was spent on builds whose results were not used: they were retried, or their buildset was
    replaced by another one."""


class ResetCost(msgspec.Struct, frozen=True, kw_only=True):
    """State what resets cost one project in one pipeline: changes tested again because of what was ahead of them."""

    project: str
    pipeline: str
    buildsets: int
    resets: int
    """Buildsets that were replaced by others."""
    builds_lost: int
    """Builds of these buildsets that had begun."""
    seconds: float
    seconds_lost: float


WILD = frozenset({"project", "pipeline", "branch", "job_name"})
"""Names in whose values `*` matches any string."""


class HistoryQuery(msgspec.Struct, frozen=True):
    """Select rows, latest first. Values of one name are alternatives; for names in `WILD`, `*` matches any string."""

    equal: Mapping[str, Sequence[str | bool]] = {}
    """Keys: project pipeline branch change patchset ref newrev queue_item_uuid uuid job_name result nodeset voting
    final complete"""
    unequal: Mapping[str, Sequence[str | bool]] = {}
    limit: int = 50
    skip: int = 0
    numbers: tuple[int | None, int | None] = (None, None)
    """Smallest and greatest `_id`; None for no bound. If either is given, rows are sorted by `_id`, greatest first, so
    that a client that continues from the last row misses none."""
    ended_ms: tuple[int | None, int | None] = (None, None)
    """For builds: earliest and latest time of their end, milliseconds since the epoch; None for no bound."""
    comments: bool = False
    """For builds: whether to include their comments on lines of files."""


def named(change: str | None) -> str | int | None:
    """Return the name of a change in the form of the API: as an integer if it is a number."""
    # `007` and digits of other scripts are names: converted to a number and back, they would change.
    plain = change is not None and change.isascii() and change.isdecimal() and len(change) <= NUMBER_MAX_DIGITS
    return int(change) if plain and change is not None and str(int(change)) == change else change


def time_text(at_ms: int | None) -> str | None:
    """Return the time in UTC as `YYYY-MM-DDTHH:MM:SS`, or None if there is none (yet)."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") if at_ms else None


def course_of(needs: tuple[str, ...], semaphores: tuple[str, ...], course: Course) -> PastCourse:
    """Return the waits of a build and the nodes that it received, in the form of the API."""
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
        """Record a manual action durably; a second record of it adds its outcome.  Raise HistoryUnavailable."""
        ...


class HistoryKeeper(Protocol):
    async def forget(self, before_ms: int, *, dry: bool = False) -> int:
        """Delete buildsets that ended, and manual actions that happened, before `before_ms`; `dry`: only count the
        buildsets. Return the number of buildsets. A buildset that is still running stays. Raise HistoryUnavailable."""
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
        """Return the manual actions, latest first; for an empty `tenant`, those that concern no tenant in
        particular."""
        ...

    async def job_health(self, tenant: str, question: HistoryQuery, since_ms: int) -> list[JobHealth]:
        """Return the health of jobs in the latest builds since `since_ms`, the flakiest jobs first; `equal` of the
        question chooses builds."""
        ...

    async def reset_costs(self, tenant: str, question: HistoryQuery, since_ms: int) -> list[ResetCost]:
        """Return the cost of resets in the latest buildsets since `since_ms`, the most expensive first; `equal` of the
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
        """Return job name -> digest of what the build of a buildset worked on (`FinishedBuild.work`), if it is
        known."""
        ...

    async def passed(self, tenant: str, inputs: Sequence[str]) -> dict[str, Passed]:
        """Return digest of inputs (`FinishedBuild.inputs`) -> latest known build that succeeded on them."""
        ...

    async def durations_ms(self, tenant: str, job: str, project: str, branch: str, *, limit: int) -> list[int]:
        """Return the durations in milliseconds of the latest successful builds of a job for a branch, or, if there are
        none, for any branch or project."""
        ...
