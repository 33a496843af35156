"""Machines that are made when they are needed: what the driver of a cloud, a cluster or a container engine does.

A driver keeps nothing between calls.  What it has begun is in `state`, which the launcher stores before it calls again,
and in the tags of what it made: whoever comes next, after a crash or a lost answer, finds it by them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

SYSTEM_TAG = "zuul_system_id"
"""Tag on everything that a driver makes: the installation that it belongs to."""
NODE_TAG = "zuul_node_uuid"
"""Tag on everything that a driver makes for one node: the node's uuid."""
TERM_TAG = "zuul_term_id"
"""Tag with the term of the launcher that had the resource made. An installation knows all of its own terms; a copy of
its store knows none that began after the copy was taken."""

State = Mapping[str, str]
"""Progress in making one node, in the driver's own terms; empty at the beginning."""
Amounts = Mapping[str, float]
"""Kind of resource (`instances`, `cores`, `ram` in MiB, `pods`, …) -> amount of it."""


class LaunchFailed(Exception):
    """Report that this node cannot be made, which counts as an attempt, or that this resource cannot be deleted. The
    text gives the reason, with the cloud's own words."""


class OverQuota(Exception):
    """Report that the cloud currently has no capacity; the text says for what. It does not count as an attempt."""


class CloudUnavailable(Exception):
    """Report that the cloud did not answer, or asks to be called later. What was requested may or may not have
    happened."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        """Say what happened in `text`; `after_s`: seconds after which the cloud may be called again, if it says so,
        else 0."""
        super().__init__(text)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """Specify one node to be made."""

    node: str
    """Uuid of the node: at most one machine is ever made for it."""
    label: Mapping[str, Any]
    """Every key of the label in its provider, with defaults and inheritance worked out; `name` is among them."""
    image: Mapping[str, Any]
    flavor: Mapping[str, Any]
    provider: Mapping[str, Any]
    """The other keys of the provider and its sections (`region`, …)."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags for everything that is made, SYSTEM_TAG and NODE_TAG among them."""


@dataclass(frozen=True, slots=True)
class MachinePending:
    """Report that the machine does not exist yet."""

    state: State
    """State to store before the next call."""
    why: str
    """Reason for waiting, for people: `the instance is pending`."""


@dataclass(frozen=True, slots=True)
class Made:
    """Report that the machine exists. Scanning its host keys shows whether it can be reached yet."""

    external_id: str
    state: State
    host: Mapping[str, Any] | None
    """Ansible's variables: `ansible_host`, `ansible_port`, `ansible_user`, `ansible_connection`, …; None if what was
    made is not a host (a namespace)."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Values that jobs see as `nodepool`: `az`, `cloud`, `region`, `host_id`, `interface_ip`, `public_ipv4`, …"""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """Values that jobs see under the node's name in `zuul.resources`."""
    secrets: Mapping[str, Any] = field(default_factory=dict)
    """Secrets that only the node's build may read (a token); they are sealed before they are stored."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Describe a resource in the account, made by Headgate or not."""

    id: str
    kind: str
    """`instance`, `volume`, `namespace`, …, in the driver's own terms."""
    tags: Mapping[str, str]
    uses: Amounts


class Cloud(Protocol):
    """Drive one account or cluster, as one connection names it. Every method raises CloudUnavailable."""

    async def uses(self, wanted: MachineSpec) -> Amounts:
        """Return the amounts that one such node uses.  Raise LaunchFailed for an unknown flavor, image, …"""
        ...

    async def advance(self, wanted: MachineSpec, state: State) -> MachinePending | Made:
        """Take the next step, without waiting for what takes long.  Raise LaunchFailed, OverQuota.

        With an empty state, the driver looks by its tag for what an earlier call began without an answer, and continues
        with it.
        """
        ...

    async def remove(self, wanted: MachineSpec, state: State) -> bool:
        """Request the deletion of everything made for the node, including what only its tag identifies; return True
        once nothing is left.

        Raise LaunchFailed if the cloud refuses a deletion: CloudUnavailable would make other nodes wait for it.
        """
        ...

    async def resources(self, provider: Mapping[str, Any]) -> list[Resource]:
        """Return everything in the account that costs, with its tags; all pages of it.

        Raise CloudUnavailable if the list is incomplete: what it lacks would count as deleted.
        """
        ...

    async def delete(self, provider: Mapping[str, Any], resource: Resource) -> None:
        """Request the deletion of a resource that nobody needs; it is no error if it does not exist.  Raise
        LaunchFailed if the cloud refuses."""
        ...

    async def limits(self, provider: Mapping[str, Any]) -> Amounts:
        """Return the amounts that the account may use at once, of the kinds that have a limit."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class MachineListing(Protocol):
    """Restrict machines that projects list: the operator may say which of them are used."""

    def refusal(self, projects: Collection[str], host: Mapping[str, Any]) -> str:
        """Return why a machine that these projects list is not used; empty if it is."""
