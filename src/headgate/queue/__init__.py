"""Post messages, and process them, from programs of your own: `Queues` and `SyncQueues`, `job`, `Worker`, `tried`."""

from headgate.ports.messages import PostRefused, QueueFull, QueueGone, SourceDown
from headgate.queue.posting import PostOptions, Queues, ScheduleOptions, SyncQueues
from headgate.queue.testing import Tried, tried
from headgate.queue.working import JobFunction, Worker, job
from headgate.queueing import Message, Reject, RetryLater, TimeLimit

__all__ = [
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
    "SyncQueues",
    "TimeLimit",
    "Tried",
    "Worker",
    "job",
    "tried",
]
