"""The records of the places that are not the gate's own values."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.config.operator.model import Protection
from headgate.gate.change import Change
from headgate.gate.course import NO_COURSE, Course
from headgate.gate.returns.shape import FileComment, ReturnedArtifact
from headgate.gate.waiter import Waiter
from headgate.gate.work import Managed


class Empty(msgspec.Struct, frozen=True):
    """Hold nothing: the existence of the entry is the information."""


class Raw(msgspec.Struct, frozen=True):
    """Hold text or bytes that are not a record."""


class RepositoryProblem(msgspec.Struct, frozen=True):
    """Describe, for people, what is wrong with one repository and since when (milliseconds since the epoch, UTC)."""

    since_ms: int
    text: str


class OwnMachine(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a machine that the file of one executor lists, which lends it to builds."""

    name: str
    labels: tuple[str, ...] = ()
    address: str = ""
    user: str = ""
    build: str = ""
    """The one that has it."""
    held: bool = False
    """Whether it is given to nobody, as a build that failed is held."""


class ComponentFacts(msgspec.Struct, frozen=True):
    """Describe a component by what it announces; what does not apply to its kind is empty."""

    zone: str = ""
    unzoned: bool = False
    """Whether it also does the work of no zone."""
    labels: tuple[str, ...] = ()
    """What its machines can be asked for."""
    places: int = 0
    """How much it does at once."""
    accepting: bool = True
    why: str = ""
    """Why it accepts nothing now."""
    url: str = ""
    """Where it listens."""
    lacks: tuple[str, ...] = ()
    """What of its confinement this machine cannot give."""
    troubles: dict[str, RepositoryProblem] = {}
    """project -> why work on it waits."""
    containers: bool = False
    """Whether jobs can run in images there."""
    machines: tuple[OwnMachine, ...] = ()
    """Those of an executor's file; none: every node is its own machine."""


FACTS = ComponentFacts()


class ComponentRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    hostname: str
    kind: str
    state: str = "running"
    """running | paused | stopping"""
    version: str = ""
    pid: int = 0
    formats: int = 1
    """The newest format of records it knows."""
    data: ComponentFacts = FACTS


class Formats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record in which format records are written."""

    number: int
    next: int = 0
    """What it is to be, while a scheduler looks whether all know it; who does not, does not join.  0: no other."""


class FleetSecret(msgspec.Struct, frozen=True):
    """Hold a secret that every process with access to the store knows, and no job."""

    secret: str


class Login(msgspec.Struct, frozen=True):
    """Record a person who logged in to the pages, under the sha256 of the secret in their browser, and until when."""

    authenticator: str
    """The `[auth NAME]`; with its issuer and the client: of another one the login is none."""
    issuer: str
    client: str
    who: str
    claims: dict[str, Any]  # JSON
    since_ms: int
    until_ms: int


class DesiredState(msgspec.Struct, frozen=True):
    """Record what people want a component to do."""

    state: str
    """paused | stopped"""


class OutboxWish(msgspec.Struct, frozen=True):
    """Record what people want done with the reports that wait for one connection."""

    do: str
    """retry: at once | drop"""


class Quarantined(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record something that was set aside because handling it raised an error repeatedly.

    Retried, an event goes to the end of its queue once more, and what stands still is begun again at once.
    """

    kind: str
    """event | change | record | report | work: a part of the scheduler that stands still, such as a pipeline"""
    what: str
    """It, in words."""
    error: str
    since_ms: int
    tries: int = 1
    tenant: str = ""
    """The tenant concerned; empty if it is no single tenant."""
    queue: str = ""
    """Where it goes when it is retried; empty: nowhere."""
    body: str = ""
    """Where its body goes then; it lies beside this record until then."""


class CacheEntry(msgspec.Struct, frozen=True):
    key: str
    data_uuid: str


class BranchCache(msgspec.Struct, frozen=True):
    """Map project and ref to the commit last seen at the connection."""

    projects: dict[str, dict[str, str]]


class RepositoryProblems(msgspec.Struct, frozen=True):
    """Map each project whose repository has a problem to that problem."""

    projects: dict[str, RepositoryProblem]


class ConfigBranch(msgspec.Struct, frozen=True):
    """Record that the configuration files of one branch were read at `commit`, and at which `paths`."""

    commit: str
    paths: tuple[str, ...]
    digest: str
    """Digest of the files, as in the layout record."""
    ltime: int
    """The files were read after this version of the ltime entry; later readings take precedence."""
    default: bool = False
    """The default branch of its repository: who defines a name first on it, did it first."""


class ConfigRead(msgspec.Struct, frozen=True):
    """Record that the configuration of a project was read, and is read again after pushes, or that it could not be
    read."""

    way: str
    """Digest of what was asked for; empty: it could not be read."""
    ltime: int
    """The version of the ltime entry, as for a branch."""


class SystemConf(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the tenant file as last accepted."""

    text: str
    path: str
    digest: str
    refused: str = ""
    """Why the file as it was read since was not taken up; empty: it was."""
    refused_ms: int = 0
    """When that was."""


class ZoneLabels(msgspec.Struct, frozen=True):
    """List the labels that machines of the zone have or had. Jobs with these labels wait for the zone's executors
    even if none is running."""

    labels: tuple[str, ...]


class HeldConfiguration(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record a branch's configuration that is not in force because of its errors."""

    commit: str
    digest: str
    """Digest of its configuration files."""
    since_ms: int


class LayoutRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record which configuration a tenant runs with. Another uuid means another configuration."""

    uuid: str
    tenant: str
    at_ms: int
    ltime: int
    """The version of the ltime entry at the latest reading that the layout includes."""
    branches: dict[str, dict[str, str]]
    """project -> branch -> digest of its configuration files."""
    held: dict[str, dict[str, HeldConfiguration]] = {}
    """project -> branch -> what was pushed there since; what `branches` says is in force until that is mended."""
    protections: dict[str, Protection] = {}
    """project -> what its forge said of its branches, where that decides which of `branches` take part."""


class SemaphoreHolder(msgspec.Struct, frozen=True):
    pipeline: str
    buildset: str
    job: str
    build: str = ""
    """A playbook of this build holds it; otherwise the job does."""
    tenant: str = ""
    """The tenant of the pipeline, for a semaphore that tenants share."""


class SemaphoreRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    holders: tuple[SemaphoreHolder, ...]
    waiters: tuple[Waiter, ...] = ()


class ProposedFiles(msgspec.Struct, frozen=True):
    """Map project, branch and path to the text of configuration that a chain of changes proposes."""

    files: dict[str, dict[str, dict[str, str]]]


class Reconfigure(msgspec.Struct, frozen=True, tag="reconfigure"):
    """Request a new layout because configuration files of these branches changed."""

    projects: dict[str, tuple[str, ...]]
    """project -> branches; no branches: all of them."""


class ForPipeline(msgspec.Struct, frozen=True, tag="pipeline"):
    """Order something of one pipeline for a person. `result` is where the outcome goes; it is empty if nobody waits."""

    pipeline: str
    work: Managed
    result: str = ""


class Reread(msgspec.Struct, frozen=True, tag="reread"):
    """Order, for a person, that the configuration of these projects is read again; with no project named, of all of
    the tenant's."""

    projects: tuple[str, ...]
    result: str = ""
    """Where the outcome is told, empty when nobody waits."""


Management = Reconfigure | Reread | ForPipeline


class ManagementResult(msgspec.Struct, frozen=True):
    done: bool
    text: str = ""


class FinishedBuild(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record one finished attempt at one job."""

    uuid: str
    job_name: str
    result: str
    voting: bool = True
    start_ms: int = 0
    end_ms: int = 0
    log_url: str = ""
    error: str = ""
    nodeset: str = ""
    artifacts: tuple[ReturnedArtifact, ...] = ()
    provides: tuple[str, ...] = ()
    final: bool = True
    """False: it was tried again, or its buildset gave way to another one."""
    attempt: int = 1
    work: str = ""
    """An id that is equal for the same job on the same code, for a build that passed; empty if unknown."""
    image: str = ""
    """What its programs ran in, by name and digest."""
    inputs: str = ""
    """The digest of all that it was given; empty: it stands for no other build."""
    returned: dict[str, Any] = {}
    """The data returned by a build that may be reused, as JSON."""
    asked_ms: int = 0
    """When it was begun: what it depends on had ended, and it had its semaphores."""
    needs: tuple[str, ...] = ()
    """The jobs that it depends on."""
    semaphores: tuple[str, ...] = ()
    course: Course = NO_COURSE
    comments: dict[str, tuple[FileComment, ...]] = {}
    """Path -> what it says of lines of that file."""


class Finished(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record a finished buildset for the history, or finished builds of one that continues."""

    buildset: str
    tenant: str
    pipeline: str
    change: Change
    event: str
    result: str
    """Empty: it goes on."""
    message: str
    enqueued_ms: int
    ended_ms: int
    builds: tuple[FinishedBuild, ...] = ()
    item: str = ""
    others: tuple[Change, ...] = ()
    """The rest of a circle, which was tested as one with the change."""
    final: bool = True
    """False: the item is tested anew, on something else."""
    tree: str = ""
    """The same for the same state of the code; empty: it is not known."""
    proposers: tuple[str, ...] = ()
    """The people who pushed the change, as far as the server tells."""
    approvers: tuple[str, ...] = ()
    """The people who approved it under their own names."""

    @classmethod
    def of_format(cls, number: int, plain: bytes) -> Finished:
        """Decode a record of an older format, which may hold whatever artifacts a job returned. Raise ValueError."""
        try:
            return msgspec.json.decode(plain, type=cls)
        except msgspec.ValidationError:
            loose = msgspec.json.decode(plain, type=_Loose)
            builds = tuple({n: v for n, v in build.items() if n != "artifacts"} for build in loose.builds)
            return msgspec.convert(msgspec.json.decode(plain, type=dict[str, object]) | {"builds": builds}, cls)


class _Loose(msgspec.Struct, frozen=True):
    """Hold what is read of a buildset in an earlier form."""

    builds: tuple[dict[str, object], ...] = ()


DONE = "done"
"""How what was done by hand ended, unless it did not."""


class HandAction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record what a person did. The record is written in one commit with the request, and again with the outcome."""

    id: str
    verb: str
    """enqueue, dequeue, promote, reconfigure …: the permission it needs, or the word of the command"""
    who: str
    """The user of the token's claims; `token` for whoever brings the operator's."""
    authenticator: str = ""
    """The `[auth NAME]` that knows the user; empty for the operator's token."""
    origin: str
    """The address it came from."""
    at_ms: int
    tenant: str = ""
    """Empty: of the whole system."""
    subject: str = ""
    """What it was done to, for people."""
    reason: str = ""
    """The reason that the person gave."""
    details: dict[str, Any] = {}
    """What else was asked, JSON."""
    outcome: str = ""
    """done, or why it was not; empty: not known (yet)."""
