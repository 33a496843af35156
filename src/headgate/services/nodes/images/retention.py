"""Decide which uploads are kept, and which artifacts are wanted where. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headgate.config.machines import FlatImage, FlatProvider
from headgate.map.inventory.images import UNDER_WAY, ImageArtifact, ImageUpload
from headgate.services.nodes.images.choice import place_of


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


def is_due(age_s: float | None, image: FlatImage, asked_s: float | None) -> bool:
    """Return whether a build of the image is to be asked for.  `age_s`: of the newest one; None: there is none;
    `asked_s`: since one was last asked for."""
    # A build that brings no image must not be requested at every look.
    if not image.rebuild_age_s or (asked_s is not None and asked_s < min(image.rebuild_age_s, ASK_AGAIN_S)):
        return False
    return age_s is None or age_s >= image.rebuild_age_s


ASK_AGAIN_S = 6 * 3600.0
"""Time after which a build of an image that brought no image is requested again; the image's age if that is less."""
