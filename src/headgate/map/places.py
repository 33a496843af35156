"""Declare the places of the gate; their paths match the seed map byte for byte.

`seed=False` marks additions to that map; `own=True` declares the value of the directory itself.
"""

from __future__ import annotations

from headgate.config.model import FrozenJob
from headgate.gate.state.change import ChangeState
from headgate.gate.state.model import Build
from headgate.gate.state.works import BuildSpec, RepoState
from headgate.map import queues, records
from headgate.map.connections import AccountLimits, OccasionPlaces
from headgate.map.forms import BUILDSET, ITEM, PIPELINE, QUEUE
from headgate.map.inventory.images import Images, ImageUploads
from headgate.map.inventory.nodes import Nodes
from headgate.map.projects import BranchRules, ConfigPlace, ProjectRefs
from headgate.map.tree import Address, Dir, below, each, place

ROOT = "/zuul"


class Branches(Dir):
    """Hold the branches of the projects of a connection."""

    data = place(
        records.BranchCache,
        "The last known head of every branch; comparing them with the forge's finds pushes.",
        by="scheduler",
        node="sharded",
        under="cache/connection/<connection>/branches/lock",
    )
    lock = place(
        records.Empty,
        "Held by the scheduler that handles the connection, which writes the branches.",
        by="scheduler",
        node="lock",
    )


class ConnectionCache(Dir):
    """Hold the known state of the changes and branches of a connection."""

    branches = below(Branches)
    cache = place(
        records.CacheEntry,
        "One entry per change, named by the sha256 of its key; it names the data.",
        by="scheduler",
        node="keyed",
    )
    protection = each(BranchRules, key="project", doc="The forge's protection of branches.", seed=False)
    refs = each(ProjectRefs, key="project", doc="Tags and other refs that are not branches.", seed=False)
    data = place(
        ChangeState,
        "The state of a change: patchset, message, files, whether it is open, approved, landed.",
        by="scheduler",
        node="keyed",
    )
    occasions = below(OccasionPlaces, seed=False)
    problems = place(
        records.RepositoryProblems,
        "Repositories that cannot be read, or that have invalid refs.",
        by="scheduler",
        seed=False,
        name="troubles",
    )
    limits = place(
        AccountLimits,
        "Times until which accounts at the forge may send no or only few requests, as the forge told one process.",
        by="scheduler, merger, executor, web",
        seed=False,
    )


class Caches(Dir):
    """Hold caches of data from outside systems."""

    connection = each(ConnectionCache, key="connection")


class Cleanup(Dir):
    """Hold the locks that let only one scheduler at a time clean up."""

    build_requests = place(
        records.Empty, "Cleanup of build requests.", by="scheduler", node="lock", name="build_requests"
    )
    connection = place(records.Empty, "Cleanup of the records of removed connections.", by="scheduler", node="lock")
    general = place(records.Empty, "Cleanup of everything else.", by="scheduler", node="lock")
    merge_requests = place(
        records.Empty, "Cleanup of merge requests.", by="scheduler", node="lock", name="merge_requests"
    )
    node_request = place(
        records.Empty, "Cleanup of answers to requests for machines.", by="scheduler", node="lock", name="node_request"
    )
    sempahores = place(
        records.Empty,
        "Cleanup of semaphore holders that have ended. The misspelling is part of the contract.",
        by="scheduler",
        node="lock",
    )


class Components(Dir):
    """Hold one entry per component, while its process runs."""

    executor = place(records.ComponentRecord, "Runs builds.", by="executor", node="ephemeral sequence")
    launcher = place(
        records.ComponentRecord, "Claims machines for builds.", by="launcher", node="ephemeral sequence", seed=False
    )
    fingergw = place(records.ComponentRecord, "Serves logs over finger.", by="fingergw", node="ephemeral sequence")
    merger = place(records.ComponentRecord, "Does git work.", by="merger", node="ephemeral sequence")
    scheduler = place(records.ComponentRecord, "Runs pipelines.", by="scheduler", node="ephemeral sequence")
    web = place(records.ComponentRecord, "Serves pages and the API.", by="web", node="ephemeral sequence")


class ConnectionEvents(Dir):
    """Hold the events of one connection."""

    events = below(queues.ConnectionQueue, taken_under="events/connection/<connection>/events/election")


class PipelineEvents(Dir):
    """Hold the three event queues of a pipeline."""

    management = below(queues.ManagedQueue)
    result = below(queues.ResultQueue)
    trigger = below(queues.TriggerQueue)


class TenantEvents(Dir):
    """Hold the event queues of a tenant, and what is paused in it."""

    state = place(
        queues.TenantState, "What people have closed or paused, and why; absent: nothing.", by="web, cli", seed=False
    )
    management = below(queues.ManagementQueue, taken_under="locks/events/management/<tenant>")
    trigger = below(queues.TriggerQueue, taken_under="locks/events/trigger/<tenant>")
    pipelines = each(
        PipelineEvents,
        key="pipeline",
        doc="The queues of every pipeline.",
        taken_under="locks/pipeline/<tenant>/<pipeline>",
    )


class Events(Dir):
    """Hold all event queues."""

    connection = each(ConnectionEvents, key="connection")
    tenant = each(TenantEvents, key="tenant")


class ZoneRequests(queues.BuildRequests):
    """Hold build requests for the executors of one zone."""

    labels = place(records.ZoneLabels, "The labels of the zone's machines.", by="executor, web")


class ExecutorRequests(Dir):
    """Hold the requests for executors, by zone."""

    unzoned = below(queues.BuildRequests)
    zones = each(ZoneRequests, key="zone")


class LayoutPlace(Dir):
    """Hold the layout of one tenant."""

    record = place(records.LayoutRecord, "The configuration in force.", by="scheduler", node="sharded", own=True)


class Results(Dir):
    """Hold results that a process waits for."""

    management = place(
        records.ManagementResult,
        "Outcome of one management event; deleted with the session of the process that waits for it.",
        by="scheduler, web, cli",
        node="ephemeral keyed",
    )


class SchedulerPlace(Dir):
    """Hold the elections among schedulers."""

    timer_election = place(
        records.Empty, "Elects the scheduler that fires timers.", by="scheduler", node="lock", name="timer-election"
    )
    stats_election = place(
        records.Empty,
        "Elects the process that reports the metrics of the entire system: one whose metrics can be read.",
        by="scheduler, web",
        node="lock",
        name="stats-election",
    )


class SemaphorePlace(Dir):
    """Hold the holders of one semaphore."""

    record = place(
        records.SemaphoreRecord,
        "The holders (pipeline, buildset, job, and build if one of its playbooks holds it), and the waiting builds.",
        by="scheduler, executor",
        own=True,
    )


class TenantSemaphores(Dir):
    """Hold the semaphores of one tenant."""

    semaphore = each(SemaphorePlace, key="semaphore", bare=True)


class SharedSemaphores(Dir):
    """Hold the global semaphores, which tenants share; other programs store theirs here, too."""

    semaphore = each(SemaphorePlace, key="semaphore", bare=True)


class System(Dir):
    """Hold configuration that belongs to no tenant."""

    conf = place(
        records.SystemConf,
        "The tenant file that all processes use.",
        by="scheduler",
        node="sharded",
        under="system/conf-lock",
    )
    requests = below(queues.SystemQueue, name="asked", seed=False, taken_under="system/asked/election")
    conf_lock = place(
        records.Empty, "Held while a new tenant file is put in force.", by="scheduler", node="lock", name="conf-lock"
    )
    fleet = place(
        records.FleetSecret, "The secret that signs requests between processes.", by="web, executor", seed=False
    )
    formats = place(
        records.Formats,
        "The format in which records are written: the newest that every component knows. Absent: the first.",
        by="scheduler, headgate store reset",
        seed=False,
    )


class BuildPlace(Dir):
    """Hold one build. Each job has one: the current attempt."""

    record = place(Build, "Result, times, returned data.", by="scheduler", own=True)
    parameters = place(
        BuildSpec,
        "A copy of the request that was sent to the executor, for display; other programs have it only in the request.",
        by="scheduler",
    )


class JobPlace(Dir):
    """Hold one job of a buildset."""

    record = place(FrozenJob, "The frozen job; it never changes.", by="scheduler", own=True)
    build = each(BuildPlace, key="build uuid")


class BuildSetPlace(Dir):
    """Hold one buildset. Each item has one; with a new base, the item gets a new one."""

    record = place(BUILDSET.type, "Base, merge, job names, errors.", by="scheduler", own=True)
    repo_state = place(
        RepoState,
        "Commits of every repository, before and after the merge, for all jobs (other programs had two nodes).",
        by="scheduler",
        node="sharded",
        name="repo_state",
    )
    proposed = place(
        records.ProposedFiles,
        "Configuration files that the chain of changes proposes, needed to freeze jobs after a restart.",
        by="scheduler",
        node="sharded",
        seed=False,
    )
    job = each(JobPlace, key="job name")


class ItemPlace(Dir):
    """Hold one item."""

    record = place(ITEM.type, "The change, and which buildset is current.", by="scheduler", own=True)
    buildset = each(BuildSetPlace, key="buildset uuid")


class QueuePlace(Dir):
    """Hold one queue."""

    record = place(QUEUE.type, "Items in order, the window, what has landed beneath them.", by="scheduler", own=True)


class PipelineDir(Dir):
    """Hold one pipeline."""

    record = place(
        PIPELINE.type,
        "Queues in order; written only by the holder of the pipeline's lock.",
        by="scheduler",
        node="sharded",
        own=True,
    )
    queue = each(QueuePlace, key="queue uuid", doc="Queues; they refer to items, but not vice versa.")
    item = each(ItemPlace, key="item uuid")


class TenantDir(Dir):
    """Hold one tenant."""

    pipeline = each(PipelineDir, key="pipeline", under="locks/pipeline/<tenant>/<pipeline>")


class Map(Dir):
    """Hold the entire state of the gate. To reset the system, delete this entire tree: open changes are read again from
    git."""

    def __init__(self, path: str = ROOT) -> None:
        super().__init__(path)

    cache = below(Caches)
    cleanup = below(Cleanup)
    components = below(Components)
    config = below(ConfigPlace)
    events = below(Events)
    executor = below(ExecutorRequests)
    history = below(queues.History, seed=False, taken_under="history/election")
    hold_requests = each(queues.HoldPlace, key="hold", doc="Autoholds.", seed=False)
    images = below(Images, seed=False)
    image_uploads = below(ImageUploads, name="image-uploads", seed=False)
    layout = each(LayoutPlace, key="tenant", under="locks/tenant/<tenant>")
    locks = below(queues.Locks)
    logins = place(
        records.Login,
        "Login sessions of the pages, for all web processes; each is named by the hash of the browser's cookie.",
        by="web",
        node="keyed",
        seed=False,
    )
    ltime = place(
        records.Empty, "Written to learn the store's current version: later reads are not older.", by="scheduler"
    )
    merger = below(queues.MergerRequests)
    nodepool = place(
        records.Empty,
        "Elects the launcher that answers requests for nodes; other programs use a child `election`.",
        by="launcher",
        node="lock",
    )
    nodes = below(Nodes, seed=False)
    published_events = below(queues.PublishedEventsQueue, name="notices", seed=False, taken_under="notices/election")
    quarantine = below(queues.QuarantinePlace, seed=False)
    reports = each(queues.ReportsQueue, key="connection", seed=False, taken_under="reports/<connection>/election")
    results = below(Results)
    scheduler = below(SchedulerPlace)
    global_semaphores = below(SharedSemaphores, name="global-semaphores", seed=False)
    semaphores = each(TenantSemaphores, key="tenant")
    system = below(System)
    desired_states = place(
        records.DesiredState,
        "The requested state of a component, by kind and name, unless it is running; deleted with the component.",
        name="wishes",
        by="web, cli, scheduler, merger, executor, launcher, fingergw",
        node="keyed",
        seed=False,
    )
    tenant = each(TenantDir, key="tenant")


def semaphore_of(map: Map, tenant: str, name: str, *, shared: bool) -> Address[records.SemaphoreRecord]:
    """Return the address of the record of a semaphore's holders; `shared`: it is a global semaphore."""
    place = map.global_semaphores if shared else map.semaphores(tenant)
    return place.semaphore(name).record
