"""Machines for builds: requests, claims and answers."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.gate.returns.secrets import Sealed
from headgate.inventory.leases import PRECEDENCE
from headgate.inventory.model import HOST_KEY
from headgate.map.inventory.machines import (
    AccountPlace,
    Installation,
    MadePlace,
    OrderPlace,
    TenantProviders,
    WaitPlace,
)
from headgate.map.tree import Dir, each, place


class NodeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request machines for a build, all of them or none."""

    id: str
    tenant: str
    project: str
    build: str
    job: str
    nodes: tuple[tuple[str, str], ...]
    """Name of each node and its label."""
    executor: str
    """Host of the executor that runs the build."""
    zone: str = ""
    """Zone of the executor: only machines in the partition of this name serve the request."""
    precedence: int = PRECEDENCE
    """Lower goes first."""
    asked_ms: int = 0
    machine: str = ""
    """Uuid of the object that started the item."""
    upload: str = ""
    """The image upload that the build tries: its nodes are made from exactly this upload."""
    pipeline: str = ""
    buildset: str = ""
    event: str = ""
    """The event that started the item."""


class NodeClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record that a machine is taken for a request."""

    machine: str
    """Uuid of the object."""
    partition: str
    request: str
    tenant: str
    project: str
    node: str
    label: str
    name: str
    """The name of the machine."""
    properties: dict[str, str] = msgspec.field(default_factory=dict, name="reach")
    """Properties that the machine had when it was claimed: they say how to reach it even after the object is
    deleted."""
    provider: dict[str, str] = {}
    """Properties that the machine's provider had then."""
    state: str = "claimed"
    """claimed | ready | cleaning"""

    def now(self, state: str, host_key: str = "") -> NodeClaim:
        """Return the claim in another state, with the learned `host_key` unless `properties` already has one."""
        known = {HOST_KEY: host_key} if host_key else {}
        return replace(self, state=state, properties={**known, **self.properties})


class NodeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer a request with the Ansible variables (JSON) that reach its nodes, or with the reason why there are
    none."""

    request: str
    hosts: dict[str, dict[str, Any]] = {}
    error: str = ""
    resources: dict[str, dict[str, Any]] = {}
    """Node -> its entry in `zuul.resources`, which jobs see; nodes that are not hosts have one, too. JSON."""
    secrets: dict[str, Sealed] = {}
    """Node -> secrets that only its build may read."""


class RequestPlace(Dir):
    """Hold one request."""

    record = place(
        NodeRequest,
        "Machines a build needs; gone with its executor, and then what was claimed for it is cleaned.",
        by="executor",
        node="ephemeral",
        own=True,
    )


class ClaimPlace(Dir):
    """Hold the claim of one machine."""

    record = place(NodeClaim, "For which request the machine is taken.", by="launcher", own=True)


class AnswerPlace(Dir):
    """Hold the answer to one request."""

    record = place(NodeAnswer, "How to reach the nodes, or why there are none.", by="launcher, scheduler", own=True)


class Nodes(Dir):
    """Hold requests, claims and answers for machines of builds."""

    installation = place(
        Installation, "The tag of everything that is ours in clouds, and the terms of our launchers.", by="launcher"
    )
    accounts = each(AccountPlace, key="account")
    made = each(MadePlace, key="node uuid")
    orders = each(OrderPlace, key="node uuid")
    providers = each(TenantProviders, key="tenant", under="locks/tenant/<tenant>")
    waits = each(WaitPlace, key="request")
    answers = each(AnswerPlace, key="request")
    claims = each(ClaimPlace, key="machine uuid")
    requests = each(RequestPlace, key="request")
