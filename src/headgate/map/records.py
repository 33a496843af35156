"""Define the records that are not values of the gate."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.config.operator.model import Protection
from headgate.gate.state.change import Change
from headgate.gate.state.returns import NO_COURSE, Course, FileComment, ReturnedArtifact
from headgate.gate.state.surroundings import Waiter
from headgate.gate.state.works import Managed


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
    """Uuid of the build that uses the machine; empty if it is free."""
    held: bool = False
    """Whether the machine is held after a failed build, so that no build gets it."""


class ComponentFacts(msgspec.Struct, frozen=True):
    """Describe a component by what it announces; what does not apply to its kind is empty."""

    zone: str = ""
    unzoned: bool = False
    """Whether the component also takes work that names no zone."""
    labels: tuple[str, ...] = ()
    """Labels that the component's machines serve."""
    places: int = 0
    """Number of pieces of work that the component does at a time."""
    accepting: bool = True
    why: str = ""
    """Why the component accepts no work at present."""
    url: str = ""
    """Address at which the component listens."""
    lacks: tuple[str, ...] = ()
    """Parts of the jobs' confinement that this machine cannot provide."""
    problems: dict[str, RepositoryProblem] = msgspec.field(name="troubles", default_factory=dict)
    """Project -> the problem that makes work on it wait."""
    containers: bool = False
    """Whether the component can run jobs in container images."""
    machines: tuple[OwnMachine, ...] = ()
    """Machines that an executor's file lists; empty: every node is a machine of its own."""


FACTS = ComponentFacts()


class ComponentRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    hostname: str
    kind: str
    state: str = "running"
    """running | paused | stopping"""
    version: str = ""
    pid: int = 0
    formats: int = 1
    """The newest format of records that the component knows."""
    data: ComponentFacts = FACTS


class Formats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record in which format records are written."""

    number: int
    next: int = 0
    """The format to change to, while a scheduler checks that all components know it; a component that does not know it
    cannot join. 0: no change is planned."""


class FleetSecret(msgspec.Struct, frozen=True):
    """Hold a secret that every process with access to the store knows, and no job."""

    secret: str


class Login(msgspec.Struct, frozen=True):
    """Record a person who logged in to the pages, under the sha256 of the secret in their browser, and until when."""

    authenticator: str
    """The `[auth NAME]` of the login. The login is void once that section names another issuer or client."""
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


class OutboxCommand(msgspec.Struct, frozen=True):
    """Record what people want done with the reports that wait for one connection."""

    do: str
    """retry (try again at once) | drop"""


class Quarantined(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record something that was set aside because handling it raised an error repeatedly.

    Retried, an event goes to the end of its queue once more, and what stands still is begun again at once.
    """

    kind: str
    """event | change | record | report | work: a part of the scheduler that stands still, such as a pipeline"""
    what: str
    """Description for people."""
    error: str
    since_ms: int
    tries: int = 1
    tenant: str = ""
    """The tenant concerned; empty if there is no single one."""
    queue: str = ""
    """Path of the queue that gets the event on a retry; empty if none."""
    body: str = ""
    """Path that gets the body on a retry; until then the body lies beside this record."""


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
    """Whether this is the default branch of its repository, which precedes the others when several define a name."""


class ConfigRead(msgspec.Struct, frozen=True):
    """Record that the configuration of a project was read, and is read again after pushes, or that it could not be
    read."""

    way: str
    """Digest of what the reading was to cover; empty if the configuration could not be read."""
    ltime: int
    """The version of the ltime entry, as for a branch."""


class SystemConf(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the tenant file as last accepted."""

    text: str
    path: str
    digest: str
    refused: str = ""
    """Why the file as last read was not accepted; empty: it was."""
    refused_ms: int = 0
    """Time of the refusal."""


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
    """Project -> branch -> configuration pushed there since. What `branches` names stays in force until it is
    mended."""
    protections: dict[str, Protection] = {}
    """Project -> protection of its branches at its forge, where that decides which of `branches` take part."""


class SemaphoreHolder(msgspec.Struct, frozen=True):
    pipeline: str
    buildset: str
    job: str
    build: str = ""
    """The build whose playbook holds it, or that was cancelled and has not ended yet; empty: the job holds it."""
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
    """Project -> branches; an empty tuple means all branches."""


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
    """Path at which somebody waits for the outcome; empty if nobody waits."""


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
    """False if the job was tried again, or another buildset replaced this one."""
    attempt: int = 1
    work: str = ""
    """For a build that passed, an id that is equal for the same job on the same code; empty if unknown."""
    image: str = ""
    """Name and digest of the container image in which the build's programs ran."""
    inputs: str = ""
    """Digest of all inputs of the build; empty: its result is not reused."""
    returned: dict[str, Any] = {}
    """The data returned by a build that may be reused, as JSON."""
    asked_ms: int = 0
    """Time at which the build was requested: its dependencies had ended, and it had its semaphores."""
    needs: tuple[str, ...] = ()
    """The jobs that it depends on."""
    semaphores: tuple[str, ...] = ()
    course: Course = NO_COURSE
    comments: dict[str, tuple[FileComment, ...]] = {}
    """Path of a file -> comments of the build on its lines."""


class Finished(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record a finished buildset for the history, or finished builds of one that continues."""

    buildset: str
    tenant: str
    pipeline: str
    change: Change
    event: str
    result: str
    """Result of the buildset; empty while it continues."""
    message: str
    enqueued_ms: int
    ended_ms: int
    builds: tuple[FinishedBuild, ...] = ()
    item: str = ""
    others: tuple[Change, ...] = ()
    """The other changes of a dependency cycle, which were tested together with the change."""
    final: bool = True
    """False if the item is tested again, on a different base."""
    tree: str = ""
    """An id that is equal for the same state of the code; empty if unknown."""
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
            # The rest of the record is good, and losing a buildset from the history would be worse than losing its
            # artifacts.
            loose = msgspec.json.decode(plain, type=_Loose)
            builds = tuple({n: v for n, v in build.items() if n != "artifacts"} for build in loose.builds)
            return msgspec.convert(msgspec.json.decode(plain, type=dict[str, object]) | {"builds": builds}, cls)


class _Loose(msgspec.Struct, frozen=True):
    """Hold the part of a buildset in an earlier form that is read."""

    builds: tuple[dict[str, object], ...] = ()


DONE = "done"
"""Outcome of an action that succeeded."""


class HandAction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record what a person did. The record is written in one commit with the request, and again with the outcome."""

    id: str
    verb: str
    """enqueue, dequeue, promote, reconfigure …: the permission that the action needs, or the name of the command"""
    who: str
    """The user that the token's claims name; `token` for the operator's token."""
    authenticator: str = ""
    """The `[auth NAME]` that authenticates the user; empty for the operator's token."""
    origin: str
    """The address that the request came from."""
    at_ms: int
    tenant: str = ""
    """The tenant concerned; empty for the whole system."""
    subject: str = ""
    """Object of the action, for people."""
    reason: str = ""
    """The reason that the person gave."""
    details: dict[str, Any] = {}
    """Further arguments of the action. JSON."""
    outcome: str = ""
    """`done`, or why the action failed; empty while unknown."""
