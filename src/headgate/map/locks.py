"""Locks, each of which gives its holder the right to do one kind of work."""

from __future__ import annotations

from headgate.map.records import Empty
from headgate.map.tree import Dir, below, each, place


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
