"""Declare the images that jobs build: their files, their uploads, and orders for them."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.map.tree import Dir, each, place

UNDER_WAY = ("pending", "uploading")
"""States of uploads that are not complete yet."""


class ImageFile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Describe a file that a build returned as an image."""

    image: str
    """Canonical name of the image."""
    name: str
    project: str
    """Canonical name of the project that defines the image."""
    connection: str
    branch: str
    build: str
    number: int = 0
    """Position of the file among the artifacts of its build."""
    format: str
    url: str
    sha256: str = ""
    md5: str = ""


class ImageReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record a pipeline's report about images."""

    id: str
    tenant: str
    pipeline: str
    files: tuple[ImageFile, ...] = ()
    """The files that were built."""
    upload: str = ""
    """The upload that the build validated; empty for a build that made files."""
    validated: bool | None = None
    """Whether the report declares the files, or the upload, valid."""
    at_ms: int = 0


class ImageArtifact(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record an image artifact: one image file that a build made."""

    id: str
    tenant: str
    """The tenant that built it."""
    file: ImageFile
    state: str = "ready"
    """ready | deleting"""
    validated: bool = False
    """Whether the artifact's pipeline validated it, so that its uploads need no validation."""
    made_ms: int = 0
    since_ms: int = 0
    """Time at which the artifact reached this state."""
    dropped: tuple[str, ...] = ()
    """Places from which somebody deleted the upload of the artifact: it is not uploaded there again automatically."""


class ImageUpload(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record an image at one place in one cloud, from before the upload begins until nothing of it is left there."""

    id: str
    artifact: str
    file: ImageFile
    tenant: str
    connection: str
    """The connection of the cloud."""
    region: str = ""
    digest: str = ""
    """Digest of the provider's settings for the image; providers with equal settings share the upload."""
    image: dict[str, Any] = {}
    """The provider's settings for the image, a copy that survives their removal from the configuration."""
    provider: dict[str, Any] = {}
    tags: dict[str, str] = {}
    retain: int = 2
    state: str = "pending"
    """pending | uploading | ready | failed | deleting"""
    validated: bool | None = None
    """Whether the validation accepted the upload; None: it has not ended."""
    trial_event: str = msgspec.field(name="asked", default="")
    """The event that requests the validation of the upload."""
    external_id: str = ""
    driver: dict[str, str] = {}
    """Progress of the upload, in the driver's own form."""
    why: str = ""
    """Why the upload waits, or why it failed."""
    tries: int = 0
    dirty: bool = False
    """Whether anything of the upload may exist in the cloud."""
    made_ms: int = 0
    """Time at which the artifact was made."""
    since_ms: int = 0

    @property
    def usable(self) -> bool:
        """Return whether machines may be made from it."""
        return self.state == "ready" and self.validated is True and bool(self.external_id)

    @property
    def place(self) -> str:
        """Return the place of the upload; of the uploads at one place, the newest is used."""
        return "/".join((self.connection, self.region, self.digest))


class ImageOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record a person's order for an artifact or an upload."""

    do: str
    """delete | validate | upload"""
    by: str = ""


class ImageRequest(msgspec.Struct, frozen=True):
    """Record when a build of an image that was due was last requested."""

    at_ms: int


class ImageReportPlace(Dir):
    """Hold one report."""

    record = place(
        ImageReport,
        "A pipeline's report about images; deleted once it is processed.",
        by="scheduler, launcher",
        own=True,
    )


class ArtifactPlace(Dir):
    """Hold one artifact."""

    record = place(
        ImageArtifact,
        "An image that a build made; deleted once nothing of it is left in any cloud.",
        by="launcher",
        own=True,
    )


class UploadPlace(Dir):
    """Hold one upload."""

    record = place(
        ImageUpload,
        "An image in one cloud, written before the upload begins; deleted once nothing of it is left there.",
        by="launcher",
        own=True,
    )


class ImageOrderPlace(Dir):
    """Hold the order for one artifact or upload."""

    record = place(ImageOrder, "What a person has requested for it.", by="web, launcher", own=True)


class ImageRequestPlace(Dir):
    """Hold the latest request for a build of one image, by its canonical name."""

    record = place(ImageRequest, "When a build that was due was last requested.", by="launcher", own=True)


class Images(Dir):
    """Hold the images that jobs build."""

    artifacts = each(ArtifactPlace, key="artifact uuid")
    requests = each(ImageRequestPlace, key="image", seed=False, name="asked")
    orders = each(ImageOrderPlace, key="artifact or upload uuid", seed=False)
    reports = each(ImageReportPlace, key="report", seed=False)


class ImageUploads(Dir):
    """Hold the uploads of images."""

    uploads = each(UploadPlace, key="upload uuid")
