"""Post messages, and process them, from programs of your own: `Queues` and `SyncQueues`, `job`, `Worker`, `tried`."""

from headgate.ports.messages import PostRefused, QueueFull, QueueGone, SourceDown
from headgate.queue.posting import PostOptions, Queues, ScheduleOptions, SyncQueues
from headgate.queue.testing import Tried, tried
from headgate.queue.working import JobFunction, Worker, job
from headgate.queueing import Message, Reject, RetryLater, StopWorker, TimeLimit
from headgate.services.queueing.calling import JobExit, Stuck

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
