"""Define the records that are not derived from values of the gate."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.config.operator.model import Protection
from headgate.gate.state.change import Change
from headgate.gate.state.management import Managed
from headgate.gate.state.returns import NO_COURSE, Course, FileComment, ReturnedArtifact
from headgate.gate.state.world import Waiter


class Empty(msgspec.Struct, frozen=True):
    """Hold nothing: the existence of the entry is the information."""


class Raw(msgspec.Struct, frozen=True):
    """Hold text or bytes that are not a record."""


class RepositoryProblem(msgspec.Struct, frozen=True):
    """Describe the problem of one repository, and when it began (milliseconds since the epoch)."""

    since_ms: int
    text: str


class OwnMachine(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a machine that one executor's file lists, and that the executor lends to builds."""

    name: str
    labels: tuple[str, ...] = ()
    address: str = ""
    user: str = ""
    build: str = ""
    """Uuid of the build that uses the machine; empty if it is free."""
    held: bool = False
    """Whether the machine is held after a failed build, so that no build gets it."""


class ComponentFacts(msgspec.Struct, frozen=True):
    """Describe what a component announces; fields that do not apply to its kind are empty."""

    zone: str = ""
    unzoned: bool = False
    """Whether the component also accepts work without a zone."""
    labels: tuple[str, ...] = ()
    """Labels that the component's machines serve."""
    places: int = 0
    """Limit on the requests that the component processes concurrently."""
    accepting: bool = True
    why: str = ""
    """Why the component does not accept work at the moment."""
    url: str = ""
    """Address at which the component listens."""
    lacks: tuple[str, ...] = ()
    """Parts of the confinement of jobs that this machine cannot provide."""
    problems: dict[str, RepositoryProblem] = msgspec.field(name="troubles", default_factory=dict)
    """Project -> the problem because of which its work waits."""
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


RESETTING = 1_000_000
"""Next format of a store that is being reset: no component knows it, so that none can join."""


class Formats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record the format in which records are written."""

    number: int
    next: int = 0
    """The format to change to, while a scheduler checks that all components know it; a component that does not know it
    cannot join. 0: no change is planned."""


class FleetSecret(msgspec.Struct, frozen=True):
    """Hold a secret that every process with access to the store knows, but no job."""

    secret: str


class Login(msgspec.Struct, frozen=True):
    """Record the login session of a person on the pages, under the sha256 of the secret in their browser."""

    authenticator: str
    """The `[auth NAME]` of the login. The login is void once that section names another issuer or client."""
    issuer: str
    client: str
    who: str
    claims: dict[str, Any]  # JSON
    since_ms: int
    until_ms: int


class DesiredState(msgspec.Struct, frozen=True):
    """Record the state that people request of a component."""

    state: str
    """paused | stopped"""


class OutboxCommand(msgspec.Struct, frozen=True):
    """Record a person's order for the reports that wait for one connection."""

    do: str
    """retry (immediately) | drop"""


class Quarantined(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record an entry of the quarantine: something whose handling repeatedly raised an error.

    A retry puts an event back at the end of its queue, and restarts a work immediately.
    """

    kind: str
    """event | change | record | report | work (a unit of the scheduler, such as a pipeline, which is stopped)"""
    what: str
    """Human-readable description."""
    error: str
    since_ms: int
    tries: int = 1
    tenant: str = ""
    """The tenant; empty if it belongs to no single one."""
    queue: str = ""
    """Path of the queue to put the event into on a retry; empty if there is none."""
    body: str = ""
    """Path to write the body to on a retry; until then, the body is stored in the quarantine."""


class CacheEntry(msgspec.Struct, frozen=True):
    key: str
    data_uuid: str


class BranchCache(msgspec.Struct, frozen=True):
    """Map project and ref to the last known commit."""

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
    """The files were read after this version of the ltime entry; later reads take precedence."""
    default: bool = False
    """Whether this is the default branch of its repository: it has precedence if several branches define a name."""


class ConfigRead(msgspec.Struct, frozen=True):
    """Record that the configuration of a project was read, or that it could not be read."""

    way: str
    """Digest of the settings that determine what to read; empty if the configuration could not be read."""
    ltime: int
    """The version of the ltime entry, as for a branch."""


class SystemConf(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the tenant file that was accepted last."""

    text: str
    path: str
    digest: str
    refused: str = ""
    """Why the latest tenant file was refused; empty: it was accepted."""
    refused_ms: int = 0
    """Time of the refusal."""


class ZoneLabels(msgspec.Struct, frozen=True):
    """List the labels that machines of the zone have or had. Jobs with these labels wait for the zone's executors
    instead of failing, even if none is running."""

    labels: tuple[str, ...]


class HeldConfiguration(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record a branch's configuration that is not in force because of its errors."""

    commit: str
    digest: str
    """Digest of its configuration files."""
    since_ms: int


class LayoutRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record the configuration that is in force in a tenant. Each new configuration has a new uuid."""

    uuid: str
    tenant: str
    at_ms: int
    ltime: int
    """The version of the ltime entry at the latest read that the layout includes."""
    branches: dict[str, dict[str, str]]
    """Project -> branch -> digest of its configuration files."""
    held: dict[str, dict[str, HeldConfiguration]] = {}
    """Project -> branch -> newer configuration with errors. Until it is corrected, the one in `branches` stays in
    force."""
    protections: dict[str, Protection] = {}
    """Project -> protection of its branches at its forge, if that decides which of `branches` count."""


class SemaphoreHolder(msgspec.Struct, frozen=True):
    pipeline: str
    buildset: str
    job: str
    build: str = ""
    """The build whose playbook holds it, or that was cancelled and has not ended yet; empty: the job holds it."""
    tenant: str = ""
    """The tenant of the pipeline, for a global semaphore."""


class SemaphoreRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    holders: tuple[SemaphoreHolder, ...]
    waiters: tuple[Waiter, ...] = ()


class ProposedFiles(msgspec.Struct, frozen=True):
    """Map project, branch and path to the content of a configuration file that a chain of changes proposes."""

    files: dict[str, dict[str, dict[str, str]]]


class Reconfigure(msgspec.Struct, frozen=True, tag="reconfigure"):
    """Request a new layout because configuration files of these branches changed."""

    projects: dict[str, tuple[str, ...]]
    """Project -> branches; an empty tuple means all branches."""


class ForPipeline(msgspec.Struct, frozen=True, tag="pipeline"):
    """Request, on a person's order, work from one pipeline. `result` is the path for the outcome; empty if none
    waits."""

    pipeline: str
    work: Managed
    result: str = ""


class Reread(msgspec.Struct, frozen=True, tag="reread"):
    """Request, on a person's order, to read the configuration of these projects again; if empty, of all projects of
    the tenant."""

    projects: tuple[str, ...]
    result: str = ""
    """Path at which a process waits for the outcome; empty if none waits."""


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
    """False if the job was retried, or another buildset replaced this one."""
    attempt: int = 1
    work: str = ""
    """For a build that passed: an id that is equal for equal jobs on the same code; empty if unknown."""
    image: str = ""
    """Name and digest of the container image in which the build's programs ran."""
    inputs: str = ""
    """Digest of all inputs of the build; empty: its result is not reused."""
    returned: dict[str, Any] = {}
    """The data returned by a build that may be reused, as JSON."""
    requested_ms: int = msgspec.field(name="asked_ms", default=0)
    """Time at which the build was requested, once its dependencies had ended and it had its semaphores."""
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
    """The other changes of a circular dependency, which were tested together with the change."""
    final: bool = True
    """False if the item is tested again, on a different base."""
    tree: str = ""
    """An id that is equal for the same state of the code; empty if unknown."""
    proposers: tuple[str, ...] = ()
    """People who pushed the change, as far as the git server reports them."""
    approvers: tuple[str, ...] = ()
    """People who approved it under their own names."""

    @classmethod
    def of_format(cls, number: int, plain: bytes) -> Finished:
        """Decode a record of an older format, which may contain malformed artifacts of a job. Raise ValueError."""
        try:
            return msgspec.json.decode(plain, type=cls)
        except msgspec.ValidationError:
            # The rest of the record is valid, and losing a buildset from the history would be worse than losing its
            # artifacts.
            loose = msgspec.json.decode(plain, type=_Loose)
            builds = tuple({n: v for n, v in build.items() if n != "artifacts"} for build in loose.builds)
            return msgspec.convert(msgspec.json.decode(plain, type=dict[str, object]) | {"builds": builds}, cls)


class _Loose(msgspec.Struct, frozen=True):
    """Hold the part of a buildset of an older format that must be decoded loosely."""

    builds: tuple[dict[str, object], ...] = ()


DONE = "done"
"""Outcome of an action that succeeded."""


class HandAction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record a manual action. It is written in the same commit as the request, and again with the outcome."""

    id: str
    verb: str
    """enqueue, dequeue, promote, reconfigure …: the permission that the action needs, or the name of the command."""
    who: str
    """The user name in the token's claims; `token` for the operator's token."""
    authenticator: str = ""
    """The `[auth NAME]` that authenticates the user; empty for the operator's token."""
    origin: str
    """Network address of the client."""
    at_ms: int
    tenant: str = ""
    """The tenant; empty for the entire system."""
    subject: str = ""
    """What the action was performed on, in plain English."""
    reason: str = ""
    """The person's reason."""
    details: dict[str, Any] = {}
    """Further arguments of the action. JSON."""
    outcome: str = ""
    """`done`, or why the action failed; empty while unknown."""
