"""Locks: who may do what."""

from __future__ import annotations

from headgate.map.records import Empty
from headgate.map.tree import Dir, below, each, place


class TriggerLock(Dir):
    """One tenant."""

    lock = place(Empty, "Held while trigger events are moved on to pipelines.", by="scheduler", node="lock", own=True)


class ManagementLock(Dir):
    """One tenant."""

    lock = place(Empty, "Held while management events are acted on.", by="scheduler", node="lock", own=True)


class EventLocks(Dir):
    """Who consumes the event queues of a tenant."""

    trigger = each(TriggerLock, key="tenant")
    management = each(ManagementLock, key="tenant")


class PipelineLock(Dir):
    """One pipeline."""

    lock = place(
        Empty,
        "Held by the scheduler that runs the pipeline; the guard of every turn.",
        by="scheduler",
        node="lock",
        own=True,
    )


class PipelineLocks(Dir):
    """The pipelines of one tenant."""

    pipeline = each(PipelineLock, key="pipeline", bare=True)


class TenantLock(Dir):
    """One tenant."""

    lock = place(
        Empty,
        "Held while the configuration in effect changes; it is read without.",
        by="scheduler",
        node="lock",
        own=True,
    )


class Locks(Dir):
    """Who may do what."""

    events = below(EventLocks)
    pipeline = each(PipelineLocks, key="tenant", doc="Who runs the pipelines.")
    tenant = each(TenantLock, key="tenant", doc="Who changes, or takes up, a configuration.")
