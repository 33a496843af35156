"""Choose the upload that machines are made from, which are kept, and which artifacts are wanted."""

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
"""Key, among a machine's settings, of the upload of its image."""
ASK_AGAIN_S = 6 * 3600.0
"""Time after which a build of an image that brought no image is requested again; the image's age if that is less."""


def read_all(mirror: Mirror, path: str, type: type[R]) -> Iterator[tuple[str, At, R]]:
    """Yield the name, the version and the record of each readable entry; the map's check reports the others."""
    for entry in mirror.under(path):
        if entry.path == path:
            # The directory itself may have an entry, which is none of these records.
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
    """Return the providers of each tenant, with labels that name the uploads that they use now."""
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
    """Return why no machine of a label can be made because its image is missing; empty if it can be made."""
    label = provider.label(name)
    if label is None or UPLOAD in label.image:
        return ""
    built = {image.name for image in provider.images}
    if label.image.get("name", "") not in built:
        return ""
    short = provider.name.rpartition("/")[2]
    return f"provider {short}: the image {label.image['name']} has no upload there that is ready and validated"


def fitted(request: NodeRequest, several: Sequence[FlatProvider], map: Map, mirror: Mirror) -> Sequence[FlatProvider]:
    """Return the providers as they apply to a request. A build that tries an upload sees only providers that have it,
    with labels of its image made from exactly this upload, and no static machines."""
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
        # A digest of its own keeps ready machines of the present image away from the trial, and the trial's machines
        # away from everybody else.
        replace(_made_of(label, upload), digest=f"{label.digest}-{upload.id}")
        if label.image.get("name") in names
        else label
        for label in provider.labels
    )
    return replace(provider, labels=tuple(labels))


def upload_checks(labels: Iterable[FlatLabel], map: Map, mirror: Mirror) -> list[At] | None:
    """Return checks that the images of new machines exist; None if one of them no longer does."""
    found: dict[str, At] = {}
    for id in (label.image[UPLOAD] for label in labels if UPLOAD in label.image):
        place = map.image_uploads.uploads(id).record
        entry = mirror.get(place.path)
        # The record is checked in the commit that records the machine, so an image cannot be deleted in between.
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
    """Return where tenants want images: (image, place) -> one of those who want it there."""
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
    """Yield the newest artifact of each image that is wanted at a place and not on its way there."""
    uploaded = {(one.artifact, one.place) for one in uploads}
    newest: dict[tuple[str, str], ImageArtifact] = {}
    for one in sorted(artifacts, key=lambda one: (one.made_ms, one.id)):
        if one.state == "ready":
            newest[one.file.image, one.file.format] = one
    for (image, place), spot in sorted(wanted.items()):
        artifact = newest.get((image, spot.image.format))
        # A person deleted it from this place (`dropped`); sending it again would undo that.
        if artifact is not None and (artifact.id, place) not in uploaded and place not in artifact.dropped:
            yield spot, artifact


def surplus(uploads: Iterable[ImageUpload], wanted: Mapping[tuple[str, str], ImageUse]) -> list[ImageUpload]:
    """Return the uploads to delete. Of each image and place, the newest validated ones stay, the same number of newer
    ones that are not validated, and all newer ones that are under way.

    When nobody wants the image any more, all stay until somebody deletes them, because an image that is gone for a
    moment may come back.
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
    # Even with 0, the newest one is kept, or no machine could be made.
    most = max(1, spot.image.retain)
    validated, others = 0, 0
    for one in several:
        if one.state == "deleting":
            continue
        if one.usable:
            validated += 1
            if validated > most:
                yield one
        # Newer than all validated ones and still on its way: nothing is known against it.
        elif validated < most and one.state in UNDER_WAY:
            continue
        else:
            others += 1
            # Either enough newer ones are validated, or too many newer ones wait to be.
            if validated >= most or others > most:
                yield one


def is_due(age_s: float | None, image: FlatImage, requested_s: float | None) -> bool:
    """Return whether a build of the image is to be asked for.  `age_s`: of the newest one; None: there is none;
    `asked_s`: since one was last asked for."""
    # A build that brings no image must not be requested at every look.
    if not image.rebuild_age_s or (requested_s is not None and requested_s < min(image.rebuild_age_s, ASK_AGAIN_S)):
        return False
    return age_s is None or age_s >= image.rebuild_age_s
