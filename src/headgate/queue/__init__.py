"""Post messages, and process them, from programs of your own: `Queues` and `SyncQueues`, `job`, `Worker`, `tried`."""

from headgate.ports.messages import PostRefused, QueueFull, QueueGone, SourceDown
from headgate.queue.client import PostOptions, Queues, ScheduleOptions, SyncQueues
from headgate.queue.leaseworker import JobFunction, Worker, job
from headgate.queue.testing import Tried, tried
from headgate.queueing import Message, Reject, RetryLater, StopWorker, TimeLimit
from headgate.services.queueing.calls import JobExit, Stuck

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
