"""Define the records of providers and their labels and images, with all inherited settings."""

from __future__ import annotations

from typing import Any

import msgspec


class FlatLabel(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold a provider's label, with inherited settings and defaults applied."""

    name: str
    label: dict[str, Any]
    image: dict[str, Any]
    flavor: dict[str, Any]
    min_ready: int = 0
    max_nodes: int = -1
    """Largest number of machines of this label that the tenant may have; -1 for no limit."""
    digest: str = ""
    """Digest of all settings that affect a machine; a machine with another digest is outdated."""
    also: tuple[str, ...] = ()
    """Aliases of some of its static machines."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names by which jobs may request it."""
        return self.name, *self.label.get("aliases", ()), *self.also

    @property
    def slots(self) -> int:
        """Return how many builds one of its machines runs concurrently."""
        return int(self.label.get("slots") or 1)


STATIC = "static"
"""Driver of existing machines, which are listed in the configuration and neither created nor deleted."""


class FlatImage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an image that jobs build, with the settings of a provider."""

    name: str
    canonical: str
    project: str
    """Canonical name of the project that defines it."""
    connection: str
    """Connection of that project."""
    branch: str
    format: str
    """Format of the files that are uploaded to the provider."""
    image: dict[str, Any] = {}
    """Settings of the image, with inherited settings and defaults applied."""
    digest: str = ""
    """Digest of the upload; providers of one connection with equal digests share the upload."""
    retain: int = 2
    """Number of builds to keep."""
    rebuild_age_s: int = 0
    """Age in seconds at which the image is rebuilt automatically; 0 for never."""


class FlatProvider(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one source of machines."""

    name: str
    """Canonical name; two tenants that use it use the same provider."""
    connection: str
    driver: str
    labels: tuple[FlatLabel, ...]
    # The stored name is the former one, because versions run side by side during an upgrade.
    settings: dict[str, Any] = msgspec.field(name="said", default_factory=dict)
    """Other keys of the provider and its sections."""
    limits: dict[str, float] = {}
    launch_attempts: int = 3
    launch_timeout_s: int = 0
    """Largest duration of a launch, in seconds; 0 for no limit."""
    images: tuple[FlatImage, ...] = ()
    """Images that jobs build."""
    hosts: tuple[dict[str, Any], ...] = ()
    """Machines of a provider with the driver `static`, each as the configuration lists it."""
    projects: tuple[str, ...] = ()
    """Canonical names of the projects that define it: its own and those of its sections."""

    @property
    def is_static(self) -> bool:
        """Return whether its machines exist already and are only listed."""
        return self.driver == STATIC

    def label(self, name: str) -> FlatLabel | None:
        """Return the label of this name, or the first with this alias."""
        return next(iter(self.serving(name)), None)

    def serving(self, name: str) -> list[FlatLabel]:
        """Return the labels whose machines serve this name: first the label of that name, then those with the alias."""
        return sorted((one for one in self.labels if name in one.names), key=lambda one: one.name != name)
