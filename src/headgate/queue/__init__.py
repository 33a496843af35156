"""Post messages, and process them, from programs of your own: `Queues` and `SyncQueues`, `job`, `Worker`, `tried`."""

from importlib import import_module
from typing import TYPE_CHECKING

from headgate.ports.messages import PostRefused, QueueFull, QueueGone, SourceDown
from headgate.queue.workers.calls import JobExit, Stuck
from headgate.queueing import Message, Reject, RetryLater, StopWorker, TimeLimit

if TYPE_CHECKING:
    from headgate.queue.client import PostOptions, Queues, ScheduleOptions, SyncQueues
    from headgate.queue.leaseworker import JobFunction, Tried, Worker, job, tried

__all__ = [
    "JobExit",
    "JobFunction",
    "Message",
    "PostOptions",
    "PostRefused",
    "QueueFull",
    "QueueGone",
    "Queues",
    "Reject",
    "RetryLater",
    "ScheduleOptions",
    "SourceDown",
    "StopWorker",
    "Stuck",
    "SyncQueues",
    "TimeLimit",
    "Tried",
    "Worker",
    "job",
    "tried",
]
_CLIENT = {
    "client": ("PostOptions", "Queues", "ScheduleOptions", "SyncQueues"),
    "leaseworker": ("JobFunction", "Tried", "Worker", "job", "tried"),
}
"""Module -> the names in it that need aiohttp. They load on first use, because the gate's pages use other modules
of this package without aiohttp."""


def __getattr__(name: str) -> object:
    """Load a name of the client on first use. Raise AttributeError."""
    for module, names in _CLIENT.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
