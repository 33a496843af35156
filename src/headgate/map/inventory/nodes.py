"""Declare machines for builds: requests, claims and answers, and machines that are made on demand."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.config.machines import FlatProvider
from headgate.gate.state.returns import Sealed
from headgate.inventory.leases import PRECEDENCE
from headgate.inventory.model import HOST_KEY
from headgate.map.tree import Dir, each, place

FREE = ("ready", "building", "requested")
"""States in which a machine can be given to a request, the preferred one first."""
ARRIVING = ("registering", "rebuilding")
"""States of static machines that may not answer yet."""
ENDING = ("used", "failed", "outdated")
"""States of machines that are about to be removed."""


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
    """Lower numbers are served first."""
    requested_ms: int = msgspec.field(name="asked_ms", default=0)
    machine: str = ""
    """Uuid of the object that started the item."""
    upload: str = ""
    """The image upload that the build validates: its nodes are made from exactly this upload."""
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
    """Properties of the machine when it was claimed: with them it can be reached even after the object is deleted."""
    provider: dict[str, str] = {}
    """Properties of the machine's provider at that time."""
    state: str = "claimed"
    """claimed | ready | cleaning"""

    def now(self, state: str, host_key: str = "") -> NodeClaim:
        """Return the claim in another state, with the given `host_key` unless `properties` already has one."""
        known = {HOST_KEY: host_key} if host_key else {}
        return replace(self, state=state, properties={**known, **self.properties})


class NodeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer a request with the Ansible variables (JSON) for connecting to its nodes, or with the reason why there are
    none."""

    request: str
    hosts: dict[str, dict[str, Any]] = {}
    error: str = ""
    resources: dict[str, dict[str, Any]] = {}
    """Node -> its entry in `zuul.resources`, which jobs see; nodes that are not hosts have one, too. JSON."""
    secrets: dict[str, Sealed] = {}
    """Node -> secrets that only its build may read."""


class MadeNode(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record a machine, from before the first call to its cloud until nothing of it is left there."""

    id: str
    provider: str
    """Canonical name of the provider."""
    connection: str
    label: str
    """The provider's name of the label; the build may have used an alias."""
    state: str = "requested"
    """requested | building | ready | in-use | used | failed | outdated | hold. A static machine is also
    registering, until it answers, and rebuilding, after each build. A machine with slots is slot-host instead of
    ready and in-use."""
    settings: dict[str, Any] = msgspec.field(name="said", default_factory=dict)
    """Settings that the machine is made from: label, image, flavor, and the other keys of the provider. They are stored
    here, as they may be removed from the configuration."""
    digest: str = ""
    tags: dict[str, str] = {}
    uses: dict[str, float] = {}
    """Amounts of its account's quota that the machine uses."""
    driver: dict[str, str] = {}
    """Progress of the machine, in the driver's own form."""
    why: str = ""
    """Why the machine waits, or why it failed."""
    tenant: str = ""
    """The tenant that it was made for."""
    project: str = ""
    request: str = ""
    """The request that the machine belongs to; empty if none."""
    node: str = ""
    """Name of the machine in the request's nodeset."""
    build: str = ""
    requested_ms: int = msgspec.field(name="asked_ms", default=0)
    since_ms: int = 0
    """Time at which the machine reached this state."""
    begun_ms: int = 0
    """Time of the first request to the cloud for the machine."""
    served: int = 0
    """Number of builds that have used the machine."""
    external_id: str = ""
    host: dict[str, Any] | None = None
    """Ansible variables of the machine once it exists; None if it is not a host."""
    about: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    secrets: Sealed | None = None
    comment: str = ""
    """Why the machine is held."""
    until_ms: int = 0
    """End of the hold; 0: it has none, and a person must release the machine."""
    fixed: bool = False
    """Whether the machine is static: Headgate neither makes nor removes it."""
    slot: int | None = None
    """Number of this slot of a machine that serves several builds concurrently; None: not a slot."""
    slots: int = 0
    """Number of builds that the machine serves concurrently. No build gets the machine itself: builds get its slots,
    each of which has a record of its own."""
    opened: int = 0
    """Number of the machine's slots that were ever recorded."""
    main: str = ""
    """The machine that a slot is part of."""
    share: dict[str, float] = {}
    """The share of the machine's resources that a slot uses, which counts for its tenant."""


class NodeWait(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record why a request has no machines yet."""

    request: str
    why: str = ""
    since_ms: int = 0
    """Time since which `why` has been the reason."""
    tried: tuple[str, ...] = ()
    """The failures so far, in order."""
    failed: dict[str, dict[str, int]] = {}
    """Name of a node -> provider -> number of failures there."""
    at: str = ""
    """The provider at which the request waits for quota."""
    room_ms: int = 0
    """Time since which the request has waited for quota."""
    held: int = 0
    """Largest number of machines that the request had, or could have had, while it waits for quota that others use."""
    held_ms: int = 0
    """Time since which that number has not grown."""
    gave: int = 0
    """Number of times that the request returned its machines."""
    again_ms: int = 0
    """Time at which the request tries again."""


class NodeOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record a person's order for a machine."""

    state: str
    """hold | used | outdated"""
    comment: str = ""
    until_ms: int = 0
    """Latest end of the hold, for releases that do not know `hold_s`."""
    by: str = ""
    hold_s: int = 0
    """Duration of the hold, which begins once no build uses the machine; 0: the hold ends at `until_ms`."""


class Installation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identify the resources of this installation in accounts that it shares with others."""

    id: str
    terms: tuple[str, ...] = ()
    """The terms of its launchers, newest last."""


class NodeAccount(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record an account in which machines were made. Launchers watch it until nothing of ours is left there, even after
    it was removed from the configuration."""

    connection: str
    region: str = ""
    settings: dict[str, Any] = msgspec.field(name="said", default_factory=dict)
    """Settings of a provider in this account, which the driver needs."""
    lacking_ms: int = 0
    """Time since which the launcher's settings lack the connection; 0: they have it."""
    strange: tuple[str, ...] = ()
    """Machines in the account that have our tag but are not in our store: another installation uses a copy of our
    store."""
    strange_ms: int = 0
    given_up: str = ""
    """The person who gave the account up."""


class ProviderPlace(Dir):
    """Hold one provider."""

    record = place(
        FlatProvider, "The provider with its settings from the tenant's configuration.", by="scheduler", own=True
    )


class TenantProviders(Dir):
    """Hold the providers of one tenant."""

    provider = each(ProviderPlace, key="provider", bare=True)


class MadePlace(Dir):
    """Hold one machine."""

    record = place(
        MadeNode,
        "A machine, written before the first request to its cloud; deleted once nothing of it is left there.",
        by="launcher",
        own=True,
    )


class WaitPlace(Dir):
    """Hold why one request waits."""

    record = place(NodeWait, "Why it waits, and what was tried.", by="launcher", own=True)


class OrderPlace(Dir):
    """Hold the order for one machine."""

    record = place(NodeOrder, "What a person has requested for it.", by="web, launcher", own=True)


class AccountPlace(Dir):
    """Hold one account in one region."""

    record = place(
        NodeAccount,
        "An account in which machines were made; deleted once no provider uses it and nothing of ours is left there.",
        by="launcher, web",
        own=True,
    )


class RequestPlace(Dir):
    """Hold one request."""

    record = place(
        NodeRequest,
        "Machines that a build needs; it ends with its executor, and then launchers clean and release the machines.",
        by="executor",
        node="ephemeral",
        own=True,
    )


class ClaimPlace(Dir):
    """Hold the claim of one machine."""

    record = place(NodeClaim, "The request for which the machine is claimed.", by="launcher", own=True)


class AnswerPlace(Dir):
    """Hold the answer to one request."""

    record = place(
        NodeAnswer, "How to connect to the nodes, or why there are none.", by="launcher, scheduler", own=True
    )


class Nodes(Dir):
    """Hold requests, claims and answers for machines of builds."""

    installation = place(
        Installation, "The tag of all our resources in clouds, and the terms of our launchers.", by="launcher"
    )
    accounts = each(AccountPlace, key="account")
    made = each(MadePlace, key="node uuid")
    orders = each(OrderPlace, key="node uuid")
    providers = each(TenantProviders, key="tenant", under="locks/tenant/<tenant>")
    waits = each(WaitPlace, key="request")
    answers = each(AnswerPlace, key="request")
    claims = each(ClaimPlace, key="machine uuid")
    requests = each(RequestPlace, key="request")
