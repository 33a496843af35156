"""The records of the places that are not the gate's own values."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.config.operator.model import Protection
from headgate.gate.change import Change
from headgate.gate.returns.shape import ReturnedArtifact
from headgate.gate.waiter import Waiter
from headgate.gate.work import Managed


class Empty(msgspec.Struct, frozen=True):
    """Nothing: the entry itself says it."""


class Raw(msgspec.Struct, frozen=True):
    """Text or bytes that are no record."""


class RepositoryProblem(msgspec.Struct, frozen=True):
    """What is wrong with one repository, for people, and since when (milliseconds since the epoch, UTC)."""

    since_ms: int
    text: str


class ComponentFacts(msgspec.Struct, frozen=True):
    """What a component tells of itself; of what its kind does not have, nothing."""

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
    """In which format records are written."""

    number: int
    next: int = 0
    """What it is to be, while a scheduler looks whether all know it; who does not, does not join.  0: no other."""


class FleetSecret(msgspec.Struct, frozen=True):
    """Known to every process that reads the store, and to no job."""

    secret: str


class Login(msgspec.Struct, frozen=True):
    """Somebody who logged in to the pages, named by the sha256 of what their browser has, and until when."""

    authenticator: str
    """The `[auth NAME]`; with its issuer and the client: of another one the login is none."""
    issuer: str
    client: str
    who: str
    claims: dict[str, Any]  # JSON
    since_ms: int
    until_ms: int


class DesiredState(msgspec.Struct, frozen=True):
    """What people want of a component."""

    state: str
    """paused | stopped"""


class OutboxWish(msgspec.Struct, frozen=True):
    """What people want of the reports that wait for one connection."""

    do: str
    """retry: at once | drop"""


class Quarantined(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that was set aside because handling it raised, again and again.

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
    """Whose it is; empty: of no one tenant."""
    queue: str = ""
    """Where it goes when it is retried; empty: nowhere."""
    body: str = ""
    """Where its body goes then; it lies beside this record until then."""


class CacheEntry(msgspec.Struct, frozen=True):
    key: str
    data_uuid: str


class BranchCache(msgspec.Struct, frozen=True):
    """project -> ref -> commit, as last seen at the connection."""

    projects: dict[str, dict[str, str]]


class RepositoryProblems(msgspec.Struct, frozen=True):
    """project -> what is wrong with its repository now; of one that is well nothing."""

    projects: dict[str, RepositoryProblem]


class ConfigBranch(msgspec.Struct, frozen=True):
    """The configuration files of one branch were read at `commit`, looking at `paths`."""

    commit: str
    paths: tuple[str, ...]
    digest: str
    """Of the files, as in the layout record."""
    ltime: int
    """They were read after this version of the ltime entry; what was read later wins."""
    default: bool = False
    """The default branch of its repository: who defines a name first on it, did it first."""


class ConfigRead(msgspec.Struct, frozen=True):
    """The configuration of a project was read, and is read again when it is pushed to; or could not be read."""

    way: str
    """Digest of what was asked for; empty: it could not be read."""
    ltime: int
    """As of a branch."""


class SystemConf(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tenant file as last taken up."""

    text: str
    path: str
    digest: str
    refused: str = ""
    """Why the file as it was read since was not taken up; empty: it was."""
    refused_ms: int = 0
    """When that was."""


class ZoneLabels(msgspec.Struct, frozen=True):
    """Labels that machines of the zone have, or had: jobs with them wait for its executors, also when none is there."""

    labels: tuple[str, ...]


class HeldConfiguration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a branch has, and is not in force because of what is wrong with it."""

    commit: str
    digest: str
    """Of its configuration files."""
    since_ms: int


class LayoutRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which configuration a tenant runs with; another uuid is another configuration."""

    uuid: str
    tenant: str
    at_ms: int
    ltime: int
    """Of the latest reading of configuration it includes: the version of the ltime entry then."""
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
    """Whose pipeline it is, of a semaphore that tenants share."""


class SemaphoreRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    holders: tuple[SemaphoreHolder, ...]
    waiters: tuple[Waiter, ...] = ()


class ProposedFiles(msgspec.Struct, frozen=True):
    """project -> branch -> path -> text of the configuration a chain of changes proposes."""

    files: dict[str, dict[str, dict[str, str]]]


class Reconfigure(msgspec.Struct, frozen=True, tag="reconfigure"):
    """Configuration files of these branches changed."""

    projects: dict[str, tuple[str, ...]]
    """project -> branches; no branches: all of them."""


class ForPipeline(msgspec.Struct, frozen=True, tag="pipeline"):
    """By hand, for one pipeline; `result` is where the outcome is told, empty when nobody waits."""

    pipeline: str
    work: Managed
    result: str = ""


class Reread(msgspec.Struct, frozen=True, tag="reread"):
    """By hand: the configuration of these projects is to be read anew; of all of the tenant's when none is named."""

    projects: tuple[str, ...]
    result: str = ""
    """Where the outcome is told, empty when nobody waits."""


Management = Reconfigure | Reread | ForPipeline


class ManagementResult(msgspec.Struct, frozen=True):
    done: bool
    text: str = ""


class FinishedBuild(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One attempt at one job that ended."""

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
    """Of a build that passed: the same for the same job on the same code; empty: that is not known."""
    image: str = ""
    """What its programs ran in, by name and digest."""
    inputs: str = ""
    """The digest of all that it was given; empty: it stands for no other build."""
    returned: dict[str, Any] = {}
    """By a build that may stand for others.  JSON."""


class Finished(msgspec.Struct, frozen=True, omit_defaults=True):
    """A buildset that ended, for the history; or some builds that ended of one that goes on."""

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
    """Who pushed the change, as far as the server tells."""
    approvers: tuple[str, ...] = ()
    """Who approved it under their own names."""

    @classmethod
    def of_format(cls, number: int, plain: bytes) -> Finished:
        """As the store has it: an older version kept whatever artifacts a job returned.  Raises ValueError."""
        try:
            return msgspec.json.decode(plain, type=cls)
        except msgspec.ValidationError:
            loose = msgspec.json.decode(plain, type=_Loose)
            builds = tuple({n: v for n, v in build.items() if n != "artifacts"} for build in loose.builds)
            return msgspec.convert(msgspec.json.decode(plain, type=dict[str, object]) | {"builds": builds}, cls)


class _Loose(msgspec.Struct, frozen=True):
    """What is looked at of a buildset that is not of the form it is written in now."""

    builds: tuple[dict[str, object], ...] = ()


DONE = "done"
"""How what was done by hand ended, unless it did not."""


class HandAction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What somebody did by hand.  Written with what it asks for, in one commit, and again when it has ended."""

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
    """As who did it said."""
    details: dict[str, Any] = {}
    """What else was asked, JSON."""
    outcome: str = ""
    """done, or why it was not; empty: not known (yet)."""
