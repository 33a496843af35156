"""Record the image reports of ended items for the launcher, which uploads the images."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from headgate.base.ids import derived
from headgate.config.assembly.inheritance import canonical
from headgate.config.layout import Layout
from headgate.gate.actions import Action, Record
from headgate.gate.imagework import body_of, images_of, said_of_images
from headgate.gate.model import Item
from headgate.gate.report import kind_of
from headgate.gate.returns.shape import ReturnedArtifact
from headgate.gate.world import World
from headgate.map.inventory.images import ImageFile, ImageReport
from headgate.map.places import Map
from headgate.services.configuration import Configuration
from headgate.store.types import Op

log = logging.getLogger("headgate.images")

FILES_MAX = 50
"""Limit of files of one item."""


def image_ops(map: Map, configuration: Configuration, actions: Sequence[Action], world: World) -> Iterator[list[Op]]:
    """Yield operations that record the image reports of the items that a turn ends; repeating them changes nothing."""
    for action in actions:
        if isinstance(action, Record) and action.item.live and not action.item.epilogue:
            report = _report(action, configuration.layouts.landed, world)
            if report is not None:
                yield [map.images.reports(report.id).record.put(report)]


def _report(ended: Record, layout: Layout, world: World) -> ImageReport | None:
    """Return the item's report on images, by the reporters of its result; None if there is none."""
    item, body = ended.item, body_of(ended.item.change)
    if item.buildset is None or ended.refused:
        return None
    verdict = said_of_images(world.pipeline, kind_of(ended.result, world))
    files = tuple(_files(item, layout))[:FILES_MAX] if verdict.built and ended.result == "SUCCESS" else ()
    upload = body.image_upload_uuid if body is not None and verdict.validated is not None else ""
    if not files and not upload:
        return None
    return ImageReport(
        # The id is derived, so a turn that is decided again writes the same report.
        id=derived("images", world.tenant, world.pipeline.name, item.id, item.buildset.id),
        tenant=world.tenant,
        pipeline=world.pipeline.name,
        files=files,
        upload=upload,
        validated=verdict.validated,
        at_ms=world.now_ms,
    )


def _files(item: Item, layout: Layout) -> Iterator[ImageFile]:
    """Yield the files that are images; others are mentioned in the scheduler's log."""
    for job, build, number, artifact in images_of(item):
        stanza = layout.singles["image"].get(job.image_build_name)
        source = layout.tenant.find(stanza.source.project) if stanza is not None else None
        if stanza is None or source is None or stanza.body.get("type") != "zuul":
            log.warning("build %s: %s is not an image that jobs build", build.id, job.image_build_name)
            continue
        yield ImageFile(
            image=canonical(stanza),
            name=stanza.name,
            project=stanza.source.project,
            connection=source.connection,
            branch=stanza.source.branch,
            build=build.id,
            number=number,
            format=_metadata(artifact, "format"),
            url=artifact.url,
            sha256=_metadata(artifact, "sha256").lower(),
            md5=_metadata(artifact, "md5sum").lower(),
        )


def _metadata(artifact: ReturnedArtifact, key: str) -> str:
    value: Any = (artifact.metadata or {}).get(key)
    return value if isinstance(value, str) else ""
