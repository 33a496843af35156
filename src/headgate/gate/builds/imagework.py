"""Decide which jobs run for items about images, and which artifacts of their builds become images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from headgate.config.model import FrozenGraph, FrozenJob, Pipeline
from headgate.gate.rules.requirements import ZUUL
from headgate.gate.state.change import Change, Occasion
from headgate.gate.state.model import Build, Item
from headgate.gate.state.returns import ReturnedArtifact

KIND = "zuul_image"
"""`type` in the metadata of an artifact that is an image."""


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe the occasion of an item that builds or validates images; jobs get it as `zuul.trigger`."""

    image_names: tuple[str, ...] = ()
    image_upload_uuid: str = ""
    """Upload to validate, from which the item's nodes are made; empty if the item builds images."""


class ImageNews(NamedTuple):
    """Hold the settings of a pipeline's `zuul` reporter about images."""

    built: bool
    validated: bool | None
    """Whether images count as validated; None: it is not set."""


def occasion(event: str, id: str, image: str, body: Body) -> Occasion:
    """Return the occasion that starts an item: the trigger's event, a unique id, and the image's canonical name."""
    name = f"{event} of {', '.join(body.image_names)}"
    return Occasion(ZUUL, event, image, id, name, msgspec.json.encode(body).decode())


def body_of(change: Change) -> Body | None:
    """Return the body of an occasion about images; None for any other item."""
    found = change.occasion
    if found is None or found.connection != ZUUL:
        return None
    return msgspec.json.decode(found.body, type=Body)


def of_images(graph: FrozenGraph, change: Change) -> FrozenGraph:
    """Return the graph with only the jobs of the images that an item is about, and the jobs that these need."""
    body = body_of(change)
    if body is None:
        return graph
    wanted = [job for job in graph.jobs if job.image_build_name in body.image_names]
    known, retained = graph.by_id, set[str]()
    while wanted:
        job = wanted.pop()
        # Several jobs may have the same dependency.
        if job.id not in retained:
            retained.add(job.id)
            # A soft dependency only waits for a job that runs anyway.
            wanted += [known[one.name] for one in graph.needs(job) if one.name in known and not one.soft]
    jobs = tuple(_without(job, retained) for job in graph.jobs if job.id in retained)
    reporters = tuple(job for job in graph.reporters if job.image_build_name in body.image_names)
    return msgspec.structs.replace(graph, jobs=jobs, reporters=reporters)


def _without(job: FrozenJob, retained: set[str]) -> FrozenJob:
    """Return the job without its soft dependencies on jobs that are left out."""
    dependencies = tuple(one for one in job.dependencies if one.name in retained)
    return job if dependencies == job.dependencies else msgspec.structs.replace(job, dependencies=dependencies)


def image_news(pipeline: Pipeline, kind: str) -> ImageNews:
    """Return the settings of the `zuul` reporter of this kind. They are ignored in a pipeline that is not post-review:
    otherwise, the author of a change could choose the image of other people's machines."""
    hows: tuple[Any, ...] = pipeline.reports.get(kind, {}).get(ZUUL, ()) if pipeline.post_review else ()
    validated = [how["image-validated"] for how in hows if isinstance(how.get("image-validated"), bool)]
    built = any(how.get("image-built") is True for how in hows)
    return ImageNews(built, validated[-1] if validated else None)


def images_of(item: Item) -> Iterator[tuple[FrozenJob, Build, int, ReturnedArtifact]]:
    """Yield the artifacts of an item's builds that are images, each with its number within its build."""
    buildset = item.buildset
    for job in buildset.jobs if buildset is not None else ():
        build = buildset.builds.get(job.id) if buildset is not None else None
        # Only a passed build has an image that works.
        if not job.image_build_name or build is None or build.result != "SUCCESS":
            continue
        for number, one in enumerate(build.returned.artifacts or ()):
            if (one.metadata or {}).get("type") == KIND:
                yield job, build, number, one
