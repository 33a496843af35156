"""Choose the upload from which machines are created, the uploads to keep, and the artifacts to upload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from headgate.config.machines import FlatImage, FlatLabel, FlatProvider
from headgate.map.inventory.images import UNDER_WAY, ImageArtifact, ImageUpload
from headgate.map.inventory.nodes import NodeRequest
from headgate.map.places import Map
from headgate.map.tree import Address, Undecodable
from headgate.recipes.mirror import Mirror
from headgate.store.types import At

R = TypeVar("R")
UPLOAD = "upload"
"""Key of the upload of the image in a machine's settings."""
ASK_AGAIN_S = 6 * 3600.0
"""Time after which the build of an image is requested again if it brought no image; `rebuild-age` if that is less."""


def read_all(mirror: Mirror, path: str, type: type[R]) -> Iterator[tuple[str, At, R]]:
    """Yield the name, the version and the record of each readable entry; the map's check reports the others."""
    for entry in mirror.under(path):
        if entry.path == path:
            # The directory itself may have an entry, which is not one of these records.
            continue
        try:
            found = Address(entry.path, type).decode(entry.value)
        except Undecodable:
            continue
        yield entry.path.rpartition("/")[2], At(entry.path, entry.version), found


def uploads(map: Map, mirror: Mirror) -> list[ImageUpload]:
    """Return all uploads, the oldest first."""
    found = [one for _, _, one in read_all(mirror, map.image_uploads.uploads.path, ImageUpload)]
    return sorted(found, key=lambda one: (one.made_ms, one.id))


def place_of(provider: FlatProvider, image: FlatImage) -> str:
    """Return the place of the image's uploads for this provider."""
    return "/".join((provider.connection, str(provider.settings.get("region", "")), image.digest))


def chosen(providers: Mapping[str, list[FlatProvider]], map: Map, mirror: Mirror) -> dict[str, list[FlatProvider]]:
    """Return the providers of each tenant, with labels that name the uploads that they currently use."""
    if not any(one.images for several in providers.values() for one in several):
        return dict(providers)
    newest = {(one.file.image, one.place): one for one in uploads(map, mirror) if one.usable}
    return {tenant: [_with(one, newest) for one in several] for tenant, several in providers.items()}


def _with(provider: FlatProvider, newest: Mapping[tuple[str, str], ImageUpload]) -> FlatProvider:
    built = {image.name: image for image in provider.images}
    labels = []
    for label in provider.labels:
        image = built.get(label.image.get("name", ""))
        found = newest.get((image.canonical, place_of(provider, image))) if image is not None else None
        labels.append(_made_of(label, found) if found is not None else label)
    return replace(provider, labels=tuple(labels))


def _made_of(label: FlatLabel, upload: ImageUpload) -> FlatLabel:
    return replace(label, image={**label.image, "image-id": upload.external_id, UPLOAD: upload.id})


def unmade(provider: FlatProvider, name: str) -> str:
    """Return a message if no machine of a label can be created because its image is missing; otherwise empty."""
    label = provider.label(name)
    if label is None or UPLOAD in label.image:
        return ""
    built = {image.name for image in provider.images}
    if label.image.get("name", "") not in built:
        return ""
    short = provider.name.rpartition("/")[2]
    return f"provider {short}: the image {label.image['name']} has no ready and validated upload there"


def fitted(request: NodeRequest, several: Sequence[FlatProvider], map: Map, mirror: Mirror) -> Sequence[FlatProvider]:
    """Return the providers that may serve a request. For a build that tests an upload, these are only providers that
    have it, with labels whose machines are created from exactly this upload, and without static machines."""
    if not request.upload:
        return several
    found = next((one for one in uploads(map, mirror) if one.id == request.upload), None)
    if found is None or found.state != "ready" or not found.external_id:
        return ()
    return [fit for one in several if (fit := _with_upload(one, found)) is not None]


def _with_upload(provider: FlatProvider, upload: ImageUpload) -> FlatProvider | None:
    own = [one for one in provider.images if one.canonical == upload.file.image]
    if not any(place_of(provider, one) == upload.place for one in own):
        return None
    names = {one.name for one in own}
    labels = (
        # With its own digest, the test gets no ready machines of the present image, and nobody else gets the test's
        # machines.
        replace(_made_of(label, upload), digest=f"{label.digest}-{upload.id}")
        if label.image.get("name") in names
        else label
        for label in provider.labels
    )
    return replace(provider, labels=tuple(labels))


def upload_checks(labels: Iterable[FlatLabel], map: Map, mirror: Mirror) -> list[At] | None:
    """Return checks that the images of new machines exist; None if one of them no longer exists."""
    found: dict[str, At] = {}
    for id in (label.image[UPLOAD] for label in labels if UPLOAD in label.image):
        place = map.image_uploads.uploads(id).record
        entry = mirror.get(place.path)
        # The commit that records the machine checks this record, so that the image cannot be deleted in between.
        if entry is None or place.decode(entry.value).state != "ready":
            return None
        found[id] = At(entry.path, entry.version)
    return list(found.values())


class ImageUse(NamedTuple):
    """Name a place where an image is wanted."""

    provider: FlatProvider
    image: FlatImage

    @property
    def place(self) -> str:
        """Return its name."""
        return place_of(self.provider, self.image)


def spots(providers: Mapping[str, Sequence[FlatProvider]]) -> dict[tuple[str, str], ImageUse]:
    """Return where tenants want images: (image, place) -> the use with the largest number of uploads to keep."""
    found: dict[tuple[str, str], ImageUse] = {}
    for provider in (one for several in providers.values() for one in several):
        for image in provider.images:
            spot = ImageUse(provider, image)
            known = found.get((image.canonical, spot.place))
            # Tenants may want different numbers; the largest serves them all.
            if known is None or known.image.retain < image.retain:
                found[image.canonical, spot.place] = spot
    return found


def lacking(
    wanted: Mapping[tuple[str, str], ImageUse], artifacts: Iterable[ImageArtifact], uploads: Iterable[ImageUpload]
) -> Iterator[tuple[ImageUse, ImageArtifact]]:
    """Yield the newest artifact of each image that is wanted at a place and has no upload there yet."""
    uploaded = {(one.artifact, one.place) for one in uploads}
    newest: dict[tuple[str, str], ImageArtifact] = {}
    for one in sorted(artifacts, key=lambda one: (one.made_ms, one.id)):
        if one.state == "ready":
            newest[one.file.image, one.file.format] = one
    for (image, place), spot in sorted(wanted.items()):
        artifact = newest.get((image, spot.image.format))
        # If a person deleted it from this place (`dropped`), another upload would undo that.
        if artifact is not None and (artifact.id, place) not in uploaded and place not in artifact.dropped:
            yield spot, artifact


def surplus(uploads: Iterable[ImageUpload], wanted: Mapping[tuple[str, str], ImageUse]) -> list[ImageUpload]:
    """Return the uploads to delete. For each image and place, keep the newest validated uploads, the same number of
    newer ones that are not validated, and all newer ones in progress.

    If no tenant wants the image any longer, keep all until somebody deletes them, because an image may only be missing
    temporarily.
    """
    of: dict[tuple[str, str], list[ImageUpload]] = {}
    for one in uploads:
        of.setdefault((one.file.image, one.place), []).append(one)
    gone = list[ImageUpload]()
    for key, several in of.items():
        if key in wanted:
            gone += _surplus(sorted(several, key=lambda one: (one.made_ms, one.id), reverse=True), wanted[key])
    return gone


def _surplus(several: Sequence[ImageUpload], spot: ImageUse) -> Iterator[ImageUpload]:
    """Yield the uploads to delete; `several` are those of one image at one place, the newest first."""
    # Even with 0, the newest one is kept, or no machine could be created.
    most = max(1, spot.image.retain)
    validated, others = 0, 0
    for one in several:
        if one.state == "deleting":
            continue
        if one.usable:
            validated += 1
            if validated > most:
                yield one
        # It is newer than all validated ones and still in progress, so it may become the current one.
        elif validated < most and one.state in UNDER_WAY:
            continue
        else:
            others += 1
            # Either enough newer ones are validated, or too many newer ones wait for validation.
            if validated >= most or others > most:
                yield one


def is_due(age_s: float | None, image: FlatImage, requested_s: float | None) -> bool:
    """Return whether a build of the image must be requested.  `age_s`: age of the newest one, None if there is none;
    `requested_s`: time since the last request."""
    # A build that brings no image must not be requested again at every check.
    if not image.rebuild_age_s or (requested_s is not None and requested_s < min(image.rebuild_age_s, ASK_AGAIN_S)):
        return False
    return age_s is None or age_s >= image.rebuild_age_s
