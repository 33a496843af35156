"""Declare the queues of events, orders and requests for work, and the locks of their consumers."""

from __future__ import annotations

from functools import cached_property

import msgspec

from headgate.gate.state.autohold import HoldRequest
from headgate.gate.state.change import TriggerEvent
from headgate.gate.state.works import Answer, BuildSpec, MergerAnswer, MergerWork
from headgate.gate.state.world import Closing
from headgate.map.connections import HintsQueue, PublishedObjectsPlace
from headgate.map.outbox import OutboxMessages, PublishedEvents
from headgate.map.records import (
    Empty,
    Finished,
    ForPipeline,
    HandAction,
    Management,
    OutboxCommand,
    Quarantined,
    Raw,
    RepositoryProblem,
)
from headgate.map.tree import Dir, below, each, place, union
from headgate.recipes.requestforms import Request, RequestPlaces
from headgate.recipes.stream import Stream, StreamEntry


class TriggerLock(Dir):
    """Lock the trigger events of one tenant."""

    lock = place(Empty, "Held while trigger events are forwarded to pipelines.", by="scheduler", node="lock", own=True)


class ManagementLock(Dir):
    """Lock the management events of one tenant."""

    lock = place(Empty, "Held while management events are processed.", by="scheduler", node="lock", own=True)


class EventLocks(Dir):
    """Lock the event queues of a tenant for their consumer."""

    trigger = each(TriggerLock, key="tenant")
    management = each(ManagementLock, key="tenant")


class PipelineLock(Dir):
    """Lock one pipeline."""

    lock = place(
        Empty,
        "Held by the scheduler that runs the pipeline; every turn's commit checks it.",
        by="scheduler",
        node="lock",
        own=True,
    )


class PipelineLocks(Dir):
    """Lock the pipelines of one tenant."""

    pipeline = each(PipelineLock, key="pipeline", bare=True)


class TenantLock(Dir):
    """Hold the locks of one tenant."""

    lock = place(
        Empty,
        "Held while the configuration in force is changed; reading does not need it.",
        by="scheduler",
        node="lock",
        own=True,
    )


class Locks(Dir):
    """Hold the locks of tenants, pipelines and event queues."""

    events = below(EventLocks)
    pipeline = each(PipelineLocks, key="tenant", doc="Locks of pipelines.")
    tenant = each(TenantLock, key="tenant", doc="Locks of the configuration of tenants.")


class TenantState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record what people have paused in a tenant; without the record, nothing is paused."""

    trigger_queue_discarding: bool = False
    """Whether events are discarded. Landed configuration still takes effect."""
    trigger_queue_paused: bool = False
    """Whether events wait, and start nothing until the pause ends."""
    result_queue_paused: bool = False
    """Whether answers of mergers and executors wait until the pause ends."""
    reason: str = ""
    info: str = ""
    """Message of the operator for users."""
    closings: tuple[Closing, ...] = ()
    """Pipelines and queues from which nothing lands."""


class ReadAnew(msgspec.Struct, frozen=True, omit_defaults=True, tag="anew"):
    """Request, on a person's order, to read the tenant file again."""

    result: str = ""
    """Path at which a process waits for the outcome; empty if none waits."""
    full: bool = False
    """Whether to read the configuration of every project again, too."""


class HoldPlace(Dir):
    """Hold one autohold."""

    record = place(
        HoldRequest,
        "The builds to hold, and those that are held: executors and launchers release all machines that it does not "
        "name.",
        by="web, executor, scheduler",
        own=True,
    )


class ConnectionQueue(Dir):
    """Queue the events of a connection, before they are forwarded to tenants."""

    queue = place(StreamEntry, "The order of events; each names its body.", by="scheduler, web", node="sequence")
    data = place(TriggerEvent, "Bodies of events.", by="scheduler, web", node="keyed")
    hints = below(HintsQueue, seed=False)
    election = place(
        Empty,
        "Elects the scheduler that forwards the events to tenants; other programs have it next to `events`.",
        by="scheduler",
        node="lock",
    )

    @cached_property
    def stream(self) -> Stream[TriggerEvent]:
        return Stream(self.queue.path, self.data.path, TriggerEvent)


class ManagementQueue(Dir):
    """Queue the requests of people and of reconfigurations to a tenant."""

    queue = place(StreamEntry, "The order of events; each names its body.", by="web, cli, scheduler", node="sequence")
    data = place(union(Management), "Bodies of events.", by="web, cli, scheduler", node="keyed")

    @cached_property
    def stream(self) -> Stream[Management]:
        return Stream(self.queue.path, self.data.path, union(Management))


class SystemQueue(Dir):
    """Queue the requests of people to the entire installation."""

    queue = place(StreamEntry, "The order of requests; each names its body.", by="web, cli, scheduler", node="sequence")
    data = place(ReadAnew, "Bodies of requests.", by="web, cli, scheduler", node="keyed")
    election = place(Empty, "Elects the scheduler that handles them.", by="scheduler", node="lock")

    @cached_property
    def stream(self) -> Stream[ReadAnew]:
        return Stream(self.queue.path, self.data.path, ReadAnew)


class TriggerQueue(Dir):
    """Queue the trigger events of a tenant or a pipeline."""

    queue = place(StreamEntry, "The order of events; each names its body.", by="scheduler, web", node="sequence")
    data = place(TriggerEvent, "Bodies of events.", by="scheduler, web", node="keyed")

    @cached_property
    def stream(self) -> Stream[TriggerEvent]:
        return Stream(self.queue.path, self.data.path, TriggerEvent)


class ManagedQueue(Dir):
    """Queue the requests of people to a pipeline."""

    queue = place(StreamEntry, "The order of events; each names its body.", by="scheduler, web", node="sequence")
    data = place(ForPipeline, "Bodies of events.", by="scheduler, web", node="keyed")

    @cached_property
    def stream(self) -> Stream[ForPipeline]:
        return Stream(self.queue.path, self.data.path, ForPipeline)


class ResultQueue(Dir):
    """Queue the answers of mergers and executors."""

    queue = place(
        StreamEntry, "The order of events; each names its body.", by="merger, executor, scheduler, web", node="sequence"
    )
    data = place(union(Answer), "Bodies of events.", by="merger, executor, scheduler, web", node="keyed")

    @cached_property
    def stream(self) -> Stream[Answer]:
        return Stream(self.queue.path, self.data.path, union(Answer))


class RequestQueue(Dir):
    """Queue requests for work, with their answers where a process waits for them."""

    requests = place(
        Request, "A small request.  A lock of the same name claims it.", by="scheduler, worker, web", node="keyed"
    )
    locks = place(
        Raw,
        "Held by the worker while it works; it ends with the worker's session.",
        by="worker",
        node="ephemeral keyed",
    )
    results = place(
        Raw, "Exists once the result is complete; the submitter watches it.", by="worker, scheduler, web", node="keyed"
    )
    waiters = place(
        Raw, "Exists while the submitter waits for the result.", by="scheduler, web", node="ephemeral keyed"
    )

    @cached_property
    def places(self) -> RequestPlaces:
        return RequestPlaces(
            self.requests.path,
            self.locks.path,
            f"{self.path}/params",
            f"{self.path}/result-data",
            self.results.path,
            self.waiters.path,
        )


class BuildRequests(RequestQueue):
    """Queue builds for executors."""

    params = place(
        BuildSpec,
        "The details, which a worker reads once it has claimed the request.",
        by="scheduler, executor",
        node="keyed sharded",
    )
    result_data = place(
        Raw,
        "Large data that a build returned: its event names it, and it is deleted with the event; or the outcome that a "
        "process waits for.",
        by="executor, scheduler",
        node="keyed sharded",
        name="result-data",
    )


class MergerRequests(RequestQueue):
    """Queue git work for mergers: merging, reading files, landing, reporting."""

    params = place(union(MergerWork), "What to do.", by="scheduler, merger, web", node="keyed sharded")
    result_data = place(
        union(MergerAnswer),
        "The result that a process waits for.",
        by="merger, scheduler, web",
        node="keyed sharded",
        name="result-data",
    )


class PublishedEventsQueue(Dir):
    """Queue the events that wait to be posted to message queues."""

    queue = place(
        StreamEntry, "The order of events; each names its body.", by="scheduler, web", node="sequence", seed=False
    )
    data = place(PublishedEvents, "Events to publish.", by="scheduler, executor, web", node="keyed", seed=False)
    election = place(Empty, "Elects the scheduler that publishes.", by="scheduler", node="lock", seed=False)
    objects = below(PublishedObjectsPlace, seed=False)

    @cached_property
    def stream(self) -> Stream[PublishedEvents]:
        return Stream(self.queue.path, self.data.path, PublishedEvents)


class ReportsQueue(Dir):
    """Queue the reports of pipelines to one connection: its outbox."""

    queue = place(
        StreamEntry, "The order of reports; each names its body.", by="scheduler, web", node="sequence", seed=False
    )
    data = place(OutboxMessages, "Reports to deliver.", by="scheduler, web", node="keyed", seed=False)
    election = place(Empty, "Elects the scheduler that delivers.", by="scheduler", node="lock", seed=False)
    problem = place(
        RepositoryProblem,
        "Why and how long reports have waited; absent while they are being delivered.",
        by="scheduler",
        seed=False,
        name="trouble",
    )
    command = place(
        OutboxCommand,
        "A person's order for the waiting reports, which the courier carries out.",
        name="wish",
        by="web, scheduler",
        seed=False,
    )

    @cached_property
    def stream(self) -> Stream[OutboxMessages]:
        return Stream(self.queue.path, self.data.path, OutboxMessages)


class History(Dir):
    """Queue ended buildsets and manual actions that wait to be recorded in the history database."""

    queue = place(
        StreamEntry, "The order of buildsets; each names its body.", by="scheduler, web", node="sequence", seed=False
    )
    data = place(Finished, "Buildsets to record.", by="scheduler, web", node="keyed", seed=False)
    actions = place(StreamEntry, "The order of manual actions.", by="web, cli", node="sequence", seed=False)
    action_bodies = place(
        HandAction, "Manual actions and their outcomes.", by="web, cli", node="keyed", name="asked", seed=False
    )
    election = place(Empty, "Elects the scheduler that records.", by="scheduler", node="lock", seed=False)

    @cached_property
    def stream(self) -> Stream[Finished]:
        return Stream(self.queue.path, self.data.path, Finished)

    @cached_property
    def by_hand(self) -> Stream[HandAction]:
        return Stream(self.actions.path, self.action_bodies.path, HandAction)


class QuarantinePlace(Dir):
    """Hold the entries that were quarantined because handling them raised an error: events, changes, damaged records,
    stopped units of work."""

    records = place(
        Quarantined,
        "Description and error; people retry or drop it.",
        by="scheduler, web, merger",
        node="keyed",
    )
    bodies = place(
        Raw, "The event or the record itself, under the same name.", by="scheduler, web, merger", node="keyed"
    )
