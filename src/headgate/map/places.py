"""Declare the places of the gate; their paths follow the seed map byte for byte.

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
        "Heads of every branch as last seen; pushes made meanwhile are found by comparing.",
        by="scheduler",
        node="sharded",
        under="cache/connection/<connection>/branches/lock",
    )
    lock = place(
        records.Empty,
        "Who writes the branches: whoever leads the connection, for as long.",
        by="scheduler",
        node="lock",
    )


class ConnectionCache(Dir):
    """Hold what is known about the changes and branches of a connection."""

    branches = below(Branches)
    cache = place(
        records.CacheEntry,
        "One entry a change, named by the sha256 of its key; it names the data.",
        by="scheduler",
        node="keyed",
    )
    protection = each(BranchRules, key="project", doc="What the forge says of branches.", seed=False)
    refs = each(ProjectRefs, key="project", doc="Tags and other refs that are no branches.", seed=False)
    data = place(
        ChangeState,
        "The change itself: patchset, message, files, whether it is open, approved, landed.",
        by="scheduler",
        node="keyed",
    )
    occasions = below(OccasionPlaces, seed=False)
    problems = place(
        records.RepositoryProblems,
        "Repositories that cannot be read, or that have refs nobody can act on.",
        by="scheduler",
        seed=False,
        name="troubles",
    )
    limits = place(
        AccountLimits,
        "Until when accounts at the forge may ask nothing, or little: one process was told, and all heed it.",
        by="scheduler, merger, executor, web",
        seed=False,
    )


class Caches(Dir):
    """Hold caches of outside facts."""

    connection = each(ConnectionCache, key="connection")


class Cleanup(Dir):
    """Hold the locks that let only one scheduler at a time clean up."""

    build_requests = place(
        records.Empty, "Sweep of build requests.", by="scheduler", node="lock", name="build_requests"
    )
    connection = place(
        records.Empty, "Sweep of what is known of connections that are gone.", by="scheduler", node="lock"
    )
    general = place(records.Empty, "Everything else.", by="scheduler", node="lock")
    merge_requests = place(
        records.Empty, "Sweep of merge requests.", by="scheduler", node="lock", name="merge_requests"
    )
    node_request = place(
        records.Empty, "Sweep of answers to requests for machines.", by="scheduler", node="lock", name="node_request"
    )
    sempahores = place(
        records.Empty,
        "Sweep of semaphore holders that are gone. Spelt so in the contract.",
        by="scheduler",
        node="lock",
    )


class Components(Dir):
    """Hold one entry per process, for as long as it lives."""

    executor = place(records.ComponentRecord, "Runs builds.", by="executor", node="ephemeral sequence")
    launcher = place(
        records.ComponentRecord, "Claims machines for builds.", by="launcher", node="ephemeral sequence", seed=False
    )
    fingergw = place(records.ComponentRecord, "Serves logs over finger.", by="fingergw", node="ephemeral sequence")
    merger = place(records.ComponentRecord, "Does git work.", by="merger", node="ephemeral sequence")
    scheduler = place(records.ComponentRecord, "Decides.", by="scheduler", node="ephemeral sequence")
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
        queues.TenantState, "What people closed or paused, and why; absent: nothing.", by="web, cli", seed=False
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
    """Hold everything that waits to be handled."""

    connection = each(ConnectionEvents, key="connection")
    tenant = each(TenantEvents, key="tenant")


class ZoneRequests(queues.BuildRequests):
    """Hold build requests for the executors of one zone."""

    labels = place(records.ZoneLabels, "What the zone's machines can be asked for.", by="executor, web")


class ExecutorRequests(Dir):
    """Hold the requests for executors, by zone."""

    unzoned = below(queues.BuildRequests)
    zones = each(ZoneRequests, key="zone")


class LayoutPlace(Dir):
    """Hold the layout of one tenant."""

    record = place(records.LayoutRecord, "Which configuration is in effect.", by="scheduler", node="sharded", own=True)


class Results(Dir):
    """Hold results that a process waits for."""

    management = place(
        records.ManagementResult,
        "Outcome of one management event; goes with whoever waits.",
        by="scheduler, web, cli",
        node="ephemeral keyed",
    )


class SchedulerPlace(Dir):
    """Hold the elections among schedulers."""

    timer_election = place(records.Empty, "Who fires the timers.", by="scheduler", node="lock", name="timer-election")
    stats_election = place(
        records.Empty,
        "Who reports figures of the whole: one of those whose figures can be read.",
        by="scheduler, web",
        node="lock",
        name="stats-election",
    )


class SemaphorePlace(Dir):
    """Hold the holders of one semaphore."""

    record = place(
        records.SemaphoreRecord,
        "Who holds it (pipeline, buildset, job, and the build if one of its playbooks does), and who waits for one.",
        by="scheduler, executor",
        own=True,
    )


class TenantSemaphores(Dir):
    """Hold the semaphores of one tenant."""

    semaphore = each(SemaphorePlace, key="semaphore", bare=True)


class SharedSemaphores(Dir):
    """Hold the semaphores that tenants share; other programs keep theirs here, too."""

    semaphore = each(SemaphorePlace, key="semaphore", bare=True)


class System(Dir):
    """Hold configuration that is not a tenant's."""

    conf = place(
        records.SystemConf,
        "The tenant file, as every process runs with it.",
        by="scheduler",
        node="sharded",
        under="system/conf-lock",
    )
    requests = below(queues.SystemQueue, name="asked", seed=False, taken_under="system/asked/election")
    conf_lock = place(
        records.Empty, "Held while the tenant file is taken up.", by="scheduler", node="lock", name="conf-lock"
    )
    fleet = place(
        records.FleetSecret, "What requests between processes are signed with.", by="web, executor", seed=False
    )
    formats = place(
        records.Formats,
        "In which format records are written: the newest that every component knows. Absent: the first.",
        by="scheduler",
        seed=False,
    )


class BuildPlace(Dir):
    """Hold one build. Each job has one: the current attempt."""

    record = place(Build, "Result, times, data returned.", by="scheduler", own=True)
    parameters = place(
        BuildSpec,
        "What the executor was told, kept for people to look at; other programs keep it only with the request.",
        by="scheduler",
    )


class JobPlace(Dir):
    """Hold one job of a buildset."""

    record = place(FrozenJob, "The job with all variants applied; never changes.", by="scheduler", own=True)
    build = each(BuildPlace, key="build uuid")


class BuildSetPlace(Dir):
    """Hold one buildset. Each item has one; a new base makes a new one."""

    record = place(BUILDSET.type, "Base, merge, job names, errors.", by="scheduler", own=True)
    repo_state = place(
        RepoState,
        "Commits of every repository, before and after the merge; one for all jobs (others had two nodes).",
        by="scheduler",
        node="sharded",
        name="repo_state",
    )
    proposed = place(
        records.ProposedFiles,
        "Configuration the chain proposes, as text; what it is frozen from after a restart.",
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

    record = place(QUEUE.type, "Items in order, the window, what landed beneath them.", by="scheduler", own=True)


class PipelineDir(Dir):
    """Hold one pipeline."""

    record = place(
        PIPELINE.type,
        "Queues in order; written only by who holds the pipeline's lock.",
        by="scheduler",
        node="sharded",
        own=True,
    )
    queue = each(QueuePlace, key="queue uuid", doc="Queues; items refer to none, queues to items.")
    item = each(ItemPlace, key="item uuid")


class TenantDir(Dir):
    """Hold one tenant."""

    pipeline = each(PipelineDir, key="pipeline", under="locks/pipeline/<tenant>/<pipeline>")


class Map(Dir):
    """Hold everything of the gate. Remove the whole tree to reset the system: open changes are found again in git."""

    def __init__(self, path: str = ROOT) -> None:
        super().__init__(path)

    cache = below(Caches)
    cleanup = below(Cleanup)
    components = below(Components)
    config = below(ConfigPlace)
    events = below(Events)
    executor = below(ExecutorRequests)
    history = below(queues.History, seed=False, taken_under="history/election")
    hold_requests = each(queues.HoldPlace, key="hold", doc="Builds that are kept when they fail.", seed=False)
    images = below(Images, seed=False)
    image_uploads = below(ImageUploads, name="image-uploads", seed=False)
    layout = each(LayoutPlace, key="tenant", under="locks/tenant/<tenant>")
    locks = below(queues.Locks)
    logins = place(
        records.Login,
        "Who is logged in to the pages, for every web; their browsers have the names.",
        by="web",
        node="keyed",
        seed=False,
    )
    ltime = place(
        records.Empty, "Written to learn the store's current version: what is read later is not older.", by="scheduler"
    )
    merger = below(queues.MergerRequests)
    nodepool = place(
        records.Empty,
        "Who answers requests for nodes; other programs have the election in a child `election`.",
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
        "What a component is to be, by its kind and name, where that is not running; goes with it.",
        name="wishes",
        by="web, cli, scheduler, merger, executor, launcher, fingergw",
        node="keyed",
        seed=False,
    )
    tenant = each(TenantDir, key="tenant")


def semaphore_of(map: Map, tenant: str, name: str, *, shared: bool) -> Address[records.SemaphoreRecord]:
    """Return the address of the record of a semaphore's holders; `shared`: all tenants that may use it share it."""
    place = map.global_semaphores if shared else map.semaphores(tenant)
    return place.semaphore(name).record
