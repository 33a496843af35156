"""Images that jobs build: how they are uploaded to a cloud, and deleted there.  A driver that can do this has it as
`images`.

As for machines, a driver keeps nothing between calls except the transfer under way; what it has begun is in `state`,
which is stored before the next call, and in the tags of what it made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headgate.ports.cloud import Resource, State

UPLOAD_TAG = "zuul_upload_uuid"
"""Tag on everything that a driver makes for one upload: the upload's uuid."""


class NoFile(Exception):
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
    """Every key of the image in its provider, with defaults and inheritance worked out."""
    provider: Mapping[str, Any]
    """The other keys of the provider and its sections (`region`, …)."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags for everything that is made, SYSTEM_TAG and UPLOAD_TAG among them."""


@dataclass(frozen=True, slots=True)
class Sending:
    """Report that the upload is not complete yet."""

    state: State
    """State to store before the next call."""
    why: str
    """Reason for waiting, for people."""
    lacks_file: bool = False
    """Whether the next call needs the file."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Report that the upload is complete and verified."""

    external_id: str
    """Image from which machines are made: their `image-id`."""
    state: State


class ImageCloud(Protocol):
    """Upload images to one account or engine. Every method raises `ports.cloud.CloudUnavailable`."""

    async def send(self, wanted: WantedImage, state: State, file: Path | None) -> Sending | Sent:
        """Take the next step, without waiting for what takes long; `file` stays until the image is there.  Raise
        `ports.cloud.LaunchFailed` for what counts as an attempt.

        With an empty state, the driver looks by its tag for what an earlier call began without an answer: it continues
        with what is complete, and deletes the rest.
        """
        ...

    async def withdraw(self, wanted: WantedImage, state: State) -> bool:
        """Request the deletion of everything made for the upload; return True once nothing is left.  Raise
        `ports.cloud.LaunchFailed` if the cloud refuses, as it does while machines use the image."""
        ...

    async def listed(self, provider: Mapping[str, Any]) -> list[Resource]:
        """Return every image of the account that has tags.  Raise CloudUnavailable if the list is incomplete."""
        ...

    async def discard(self, provider: Mapping[str, Any], resource: Resource) -> None:
        """Request the deletion of an image that nobody needs; it is no error if it does not exist.  Raise
        `ports.cloud.LaunchFailed`."""
        ...


class ImageFiles(Protocol):
    """Keep files of images on this machine for as long as they are being uploaded."""

    def have(self, sha256: str) -> Path | None:
        """Return the file, if it is here and whole."""
        ...

    async def fetch(self, url: str, sha256: str) -> Path:
        """Return the file, once it is here and has this digest.  Raise NoFile."""
        ...

    def keep(self, digests: frozenset[str]) -> None:
        """Remove all files except those with these digests."""
        ...


def images_of(cloud: object) -> ImageCloud | None:
    """Return the part of a cloud's driver that uploads images, or None if the cloud takes none."""
    found: ImageCloud | None = getattr(cloud, "images", None)
    return found
