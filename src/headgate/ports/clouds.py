"""Define the interfaces to clouds: machines that are made on demand and prepared for builds, and their images.

A driver keeps nothing between calls, except the running transfer of an image. It records what it has started in two
places: in `state`, which the launcher stores before the next call, and in the tags of the resources. After a crash or a
lost answer, the next caller finds the resources by their tags.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from headgate.base.errors import CloudError

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

UPLOAD_TAG = "zuul_upload_uuid"
"""Tag on everything that a driver makes for one upload: the upload's uuid."""

HOST_KEY_VARIABLE = "headgate_host_key"
"""Variable of a host: its public host keys, one on each line."""


class LaunchFailed(CloudError):
    """Report that this node cannot be made, which counts as an attempt, or that this resource cannot be deleted. The
    text gives the reason in the cloud's own words."""


class OverQuota(CloudError):
    """Report that the cloud currently has no capacity; the text says for what. It does not count as an attempt."""


class CloudUnavailable(CloudError):
    """Report that the cloud did not answer, or asks to be called later. The request may or may not have taken
    effect."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        """Describe the failure in `text`; `after_s`: seconds after which the cloud may be called again, if it says so,
        else 0."""
        super().__init__(text)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """Specify one node to be made."""

    node: str
    """Uuid of the node: at most one machine is ever made for it."""
    label: Mapping[str, Any]
    """Every key of the label in its provider, with defaults and inheritance resolved, including `name`."""
    image: Mapping[str, Any]
    flavor: Mapping[str, Any]
    provider: Mapping[str, Any]
    """The other keys of the provider and its sections (`region`, …)."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags for everything that is made, including SYSTEM_TAG and NODE_TAG."""


@dataclass(frozen=True, slots=True)
class MachinePending:
    """Report that the machine does not exist yet."""

    state: State
    """State to store before the next call."""
    why: str
    """Human-readable reason for waiting: `the instance is pending`."""


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
    """Drive the account or cluster of one connection. Every method raises CloudUnavailable."""

    async def uses(self, wanted: MachineSpec) -> Amounts:
        """Return the amounts that one such node uses.  Raise LaunchFailed for an unknown flavor, image, …"""
        ...

    async def advance(self, wanted: MachineSpec, state: State) -> MachinePending | Made:
        """Take the next step, without waiting for slow operations.  Raise LaunchFailed, OverQuota.

        With an empty state, the driver searches by tag for resources that an earlier call began to make without
        receiving an answer, and continues with them.
        """
        ...

    async def remove(self, wanted: MachineSpec, state: State) -> bool:
        """Request the deletion of everything made for the node, including what only its tag identifies; return True
        once nothing is left.

        Raise LaunchFailed if the cloud refuses a deletion: CloudUnavailable would make other nodes wait for it.
        """
        ...

    async def resources(self, provider: Mapping[str, Any]) -> list[Resource]:
        """Return every resource in the account that costs money, with its tags, from all pages of the list.

        Raise CloudUnavailable if the list is incomplete: missing resources would count as deleted.
        """
        ...

    async def delete(self, provider: Mapping[str, Any], resource: Resource) -> None:
        """Request the deletion of a resource that nobody needs; a resource that does not exist is no error.  Raise
        LaunchFailed if the cloud refuses."""
        ...

    async def limits(self, provider: Mapping[str, Any]) -> Amounts:
        """Return the limits of the account: kinds without a limit are absent."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class MachineListing(Protocol):
    """Restrict the machines that projects may list to those that the operator allows."""

    def refusal(self, projects: Collection[str], host: Mapping[str, Any]) -> str:
        """Return why a machine that these projects list is not used; empty if it is."""


class NoFile(CloudError):
    """Report that the file of an image is unavailable, or is not what its build announced; the text says why."""


@dataclass(frozen=True, slots=True)
class WantedImage:
    """Specify one upload to be made."""

    upload: str
    """Uuid of the upload: at most one image is ever made for it."""
    name: str
    format: str
    sha256: str
    """SHA-256 of the file, 64 hex digits."""
    image: Mapping[str, Any]
    """Every key of the image in its provider, with defaults and inheritance resolved."""
    provider: Mapping[str, Any]
    """The other keys of the provider and its sections (`region`, …)."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags for everything that is made, including SYSTEM_TAG and UPLOAD_TAG."""


@dataclass(frozen=True, slots=True)
class Sending:
    """Report that the upload is not complete yet."""

    state: State
    """State to store before the next call."""
    why: str
    """Human-readable reason for waiting."""
    lacks_file: bool = False
    """Whether the next call needs the file."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Report that the upload is complete and verified."""

    external_id: str
    """Id of the image in the cloud, from which machines are made: their `image-id`."""
    state: State


class ImageCloud(Protocol):
    """Upload images to one account or engine. Every method raises CloudUnavailable."""

    async def send(self, wanted: WantedImage, state: State, file: Path | None) -> Sending | Sent:
        """Take the next step, without waiting for slow operations; `file` stays until the upload is complete.  Raise
        LaunchFailed for a failure that counts as an attempt.

        With an empty state, the driver searches by tag for resources that an earlier call began to make without
        receiving an answer: it continues with complete ones, and deletes the rest.
        """
        ...

    async def withdraw(self, wanted: WantedImage, state: State) -> bool:
        """Request the deletion of everything made for the upload; return True once nothing is left.  Raise
        LaunchFailed if the cloud refuses, as it does while machines use the image."""
        ...

    async def listed(self, provider: Mapping[str, Any]) -> list[Resource]:
        """Return every image of the account that has tags.  Raise CloudUnavailable if the list is incomplete."""
        ...

    async def discard(self, provider: Mapping[str, Any], resource: Resource) -> None:
        """Request the deletion of an image that nobody needs; an image that does not exist is no error.  Raise
        LaunchFailed."""
        ...


class ImageFiles(Protocol):
    """Keep image files on this machine while they are being uploaded."""

    def have(self, sha256: str) -> Path | None:
        """Return the file if this machine has a complete copy."""
        ...

    async def fetch(self, url: str, sha256: str) -> Path:
        """Fetch the file if necessary, verify its digest, and return its path.  Raise NoFile."""
        ...

    def keep(self, digests: frozenset[str]) -> None:
        """Remove all files except those with these digests."""
        ...


def images_of(cloud: object) -> ImageCloud | None:
    """Return the part of a cloud's driver that uploads images, or None if it cannot upload any."""
    found: ImageCloud | None = getattr(cloud, "images", None)
    return found


class MachineUnusable(CloudError):
    """Report that the machine cannot be used now; the text says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Describe one machine that is allocated to one request."""

    name: str
    properties: Mapping[str, str]
    """Properties of the machine."""
    provider: Mapping[str, str]
    """Properties of its provider."""
    request: str


class Provider(Protocol):
    """Prepare and clean machines of one kind. Either may be called again for the same machine and request."""

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        """Prepare the machine and return the Ansible variables (JSON) with which a build reaches it. Raise
        MachineUnusable.

        If they contain HOST_KEY_VARIABLE, the machine must show that key from then on, even if the key was unknown
        before.
        """
        ...

    async def clean(self, machine: Machine) -> None:
        """Remove everything of the request from the machine. Raise MachineUnusable."""
        ...

    async def probe(self, machine: Machine) -> None:
        """Return once the machine has proved to be healthy, as the property `probe` of the machine or its provider
        says. No build uses the machine in the meantime.

        Raise MachineUnusable.
        """
        ...
