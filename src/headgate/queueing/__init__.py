"""Lanes, progress, policies and the messages that jobs receive: rules of queue workers, without store, clock or
network."""

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
