"""Define partitions, progress, policies and messages: rules of queue workers, without store, clock or network."""

from headgate.queueing.message import Failed, Message, Reject, RetryLater, StopWorker, TimeLimit, Vanished
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.policy import Policy, Routing, RoutingRule

__all__ = [
    "Failed",
    "Message",
    "Policy",
    "QueuePartition",
    "Reject",
    "RetryLater",
    "Routing",
    "RoutingRule",
    "StopWorker",
    "TimeLimit",
    "Vanished",
]
