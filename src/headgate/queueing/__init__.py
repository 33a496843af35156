"""Partitions, cursors, and what jobs of queue workers use.  Knows no store, no clock, no network."""

from headgate.queueing.lanes import Lane
from headgate.queueing.message import Failed, Message, Reject, RetryLater, StopWorker, TimeLimit, Vanished
from headgate.queueing.policy import Policy, Routing, RoutingRule

__all__ = [
    "Failed",
    "Lane",
    "Message",
    "Policy",
    "Reject",
    "RetryLater",
    "Routing",
    "RoutingRule",
    "StopWorker",
    "TimeLimit",
    "Vanished",
]
