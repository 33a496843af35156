"""Declare queues of events, orders and requests for work, and the locks of those who process them."""

from __future__ import annotations

from functools import cached_property

import msgspec

from headgate.gate.builds.autohold import HoldRequest
from headgate.gate.state.change import TriggerEvent
from headgate.gate.state.surroundings import Closing
from headgate.gate.state.works import Answer, BuildSpec, MergerAnswer, MergerWork
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

    lock = place(Empty, "Held while trigger events are moved on to pipelines.", by="scheduler", node="lock", own=True)


class ManagementLock(Dir):
    """Lock the management events of one tenant."""

    lock = place(Empty, "Held while management events are acted on.", by="scheduler", node="lock", own=True)


class EventLocks(Dir):
    """Lock the event queues of a tenant for their consumer."""

    trigger = each(TriggerLock, key="tenant")
    management = each(ManagementLock, key="tenant")


class PipelineLock(Dir):
    """Lock one pipeline."""

    lock = place(
        Empty,
        "Held by the scheduler that runs the pipeline; the guard of every turn.",
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
        "Held while the configuration in effect changes; it is read without.",
        by="scheduler",
        node="lock",
        own=True,
    )


class Locks(Dir):
    """Hold the locks of tenants, pipelines and event queues."""

    events = below(EventLocks)
    pipeline = each(PipelineLocks, key="tenant", doc="Who runs the pipelines.")
    tenant = each(TenantLock, key="tenant", doc="Who changes, or takes up, a configuration.")


class TenantState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record what people have paused in a tenant; without the record, nothing is paused."""

    trigger_queue_discarding: bool = False
    """Events start nothing and are not kept for later. Landed configuration is applied all the same."""
    trigger_queue_paused: bool = False
    """Events are kept and start nothing until the pause ends."""
    result_queue_paused: bool = False
    """Answers of mergers and executors are kept and processed when the pause ends."""
    reason: str = ""
    info: str = ""
    """Notice for users, as the operator wrote it."""
    closings: tuple[Closing, ...] = ()
    """Pipelines and queues from which nothing lands."""


class ReadAnew(msgspec.Struct, frozen=True, omit_defaults=True, tag="anew"):
    """Request, on a person's order, that the tenant file is read again."""

    result: str = ""
    """Path at which somebody waits for the outcome; empty if nobody waits."""
    full: bool = False
    """Whether to read the configuration of every project again, too."""


class HoldPlace(Dir):
    """Hold one request to keep the machines of builds that fail."""

    record = place(
        HoldRequest,
        "Which builds are to be held, and which are: executors and launchers give back what it does not name.",
        by="web, executor, scheduler",
        own=True,
    )


class ConnectionQueue(Dir):
    """Queue what happened at a connection, before tenants receive it."""

    queue = place(StreamEntry, "The order of events; each names its body.", by="scheduler, web", node="sequence")
    data = place(TriggerEvent, "Bodies of events.", by="scheduler, web", node="keyed")
    hints = below(HintsQueue, seed=False)
    election = place(
        Empty,
        "Who moves the events on to the tenants; others have it beside `events`.",
        by="scheduler",
        node="lock",
    )

    @cached_property
    def stream(self) -> Stream[TriggerEvent]:
        return Stream(self.queue.path, self.data.path, TriggerEvent)


class ManagementQueue(Dir):
    """Queue what people and reconfigurations request of a tenant."""

    queue = place(StreamEntry, "The order of events; each names its body.", by="web, cli, scheduler", node="sequence")
    data = place(union(Management), "Bodies of events.", by="web, cli, scheduler", node="keyed")

    @cached_property
    def stream(self) -> Stream[Management]:
        return Stream(self.queue.path, self.data.path, union(Management))


class SystemQueue(Dir):
    """Queue what people request of the whole installation."""

    queue = place(
        StreamEntry, "The order of what is asked; each names its body.", by="web, cli, scheduler", node="sequence"
    )
    data = place(ReadAnew, "What is asked.", by="web, cli, scheduler", node="keyed")
    election = place(Empty, "Who does it.", by="scheduler", node="lock")

    @cached_property
    def stream(self) -> Stream[ReadAnew]:
        return Stream(self.queue.path, self.data.path, ReadAnew)


class TriggerQueue(Dir):
    """Queue what happened, for a tenant or a pipeline to handle."""

    queue = place(StreamEntry, "The order of events; each names its body.", by="scheduler, web", node="sequence")
    data = place(TriggerEvent, "Bodies of events.", by="scheduler, web", node="keyed")

    @cached_property
    def stream(self) -> Stream[TriggerEvent]:
        return Stream(self.queue.path, self.data.path, TriggerEvent)


class ManagedQueue(Dir):
    """Queue what people request of a pipeline."""

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
        Request, "What is asked; small.  Claimed by a lock of the same name.", by="scheduler, worker, web", node="keyed"
    )
    locks = place(Raw, "Held by the worker while it works; gone when it dies.", by="worker", node="ephemeral keyed")
    results = place(
        Raw, "The result is complete; the submitter watches this.", by="worker, scheduler, web", node="keyed"
    )
    waiters = place(Raw, "The submitter still wants the result.", by="scheduler, web", node="ephemeral keyed")

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
        "All a worker needs; read once it has claimed the request.",
        by="scheduler, executor",
        node="keyed sharded",
    )
    result_data = place(
        Raw,
        "What a build returned, when it is large: its event names it, and goes with it; or the outcome somebody waits "
        "for.",
        by="executor, scheduler",
        node="keyed sharded",
        name="result-data",
    )


class MergerRequests(RequestQueue):
    """Queue git work for mergers: merging, reading files, landing, reporting."""

    params = place(union(MergerWork), "What to do.", by="scheduler, merger, web", node="keyed sharded")
    result_data = place(
        union(MergerAnswer),
        "The result somebody waits for.",
        by="merger, scheduler, web",
        node="keyed sharded",
        name="result-data",
    )


class PublishedEventsQueue(Dir):
    """Queue events on their way to the message queues that publish them."""

    queue = place(StreamEntry, "Their order; each names its body.", by="scheduler, web", node="sequence", seed=False)
    data = place(PublishedEvents, "What is to be published.", by="scheduler, executor, web", node="keyed", seed=False)
    election = place(Empty, "Who publishes.", by="scheduler", node="lock", seed=False)
    objects = below(PublishedObjectsPlace, seed=False)

    @cached_property
    def stream(self) -> Stream[PublishedEvents]:
        return Stream(self.queue.path, self.data.path, PublishedEvents)


class ReportsQueue(Dir):
    """Queue the reports of pipelines to one connection: its outbox."""

    queue = place(StreamEntry, "Their order; each names its body.", by="scheduler, web", node="sequence", seed=False)
    data = place(OutboxMessages, "What is to be told, and how.", by="scheduler, web", node="keyed", seed=False)
    election = place(Empty, "Who tells it.", by="scheduler", node="lock", seed=False)
    problem = place(
        RepositoryProblem,
        "Why reports wait, and since when; nothing while they are taken.",
        by="scheduler",
        seed=False,
        name="trouble",
    )
    command = place(
        OutboxCommand,
        "What people want of what waits; the courier obeys.",
        name="wish",
        by="web, scheduler",
        seed=False,
    )

    @cached_property
    def stream(self) -> Stream[OutboxMessages]:
        return Stream(self.queue.path, self.data.path, OutboxMessages)


class History(Dir):
    """Queue ended buildsets and people's actions on their way into the history database."""

    queue = place(StreamEntry, "Their order; each names its body.", by="scheduler, web", node="sequence", seed=False)
    data = place(Finished, "What is to be recorded.", by="scheduler, web", node="keyed", seed=False)
    actions = place(StreamEntry, "What was done by hand, in order.", by="web, cli", node="sequence", seed=False)
    action_bodies = place(
        HandAction, "What it was, and how it ended.", by="web, cli", node="keyed", name="asked", seed=False
    )
    election = place(Empty, "Who records.", by="scheduler", node="lock", seed=False)

    @cached_property
    def stream(self) -> Stream[Finished]:
        return Stream(self.queue.path, self.data.path, Finished)

    @cached_property
    def by_hand(self) -> Stream[HandAction]:
        return Stream(self.actions.path, self.action_bodies.path, HandAction)


class QuarantinePlace(Dir):
    """Hold what was set aside because handling it raised an error: events, changes, damaged records, parts that
    stand still."""

    records = place(
        Quarantined,
        "What it is, and what it raised; retried or dropped by hand.",
        by="scheduler, web, merger",
        node="keyed",
    )
    bodies = place(Raw, "The event or the record itself, by the same name.", by="scheduler, web, merger", node="keyed")
