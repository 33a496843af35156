"""Show images and their uploads, and accept requests to build, validate, upload and delete them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from headgate.base.ids import fresh
from headgate.config.machines import FlatProvider
from headgate.config.parse import Stanza
from headgate.gate.builds.imagework import Body
from headgate.gate.state.change import EventKind
from headgate.map.inventory.images import ImageArtifact, ImageFile, ImageOrder, ImageUpload
from headgate.map.inventory.nodes import MadeNode
from headgate.ports.history import time_text
from headgate.rest import HTTPException, HttpRequest, NotFoundException, delete, get, post
from headgate.services.nodes.images.choice import UPLOAD as UPLOADED
from headgate.services.nodes.images.choice import place_of, read_all, spots, uploads
from headgate.services.nodes.images.keeper import image_event_ops
from headgate.services.nodes.machines.records import providers, seen
from headgate.store.types import Op
from headgate.web.routes.actions import Hand, plain
from headgate.web.site import Site, must_be_permitted

BUILD, UPLOAD, VALIDATE = "build-image", "upload-image", "validate-image-upload"
DELETE_ARTIFACT, DELETE_UPLOAD = "delete-image-build-artifact", "delete-image-upload"
"""Permissions to delete artifacts and uploads of images."""


class UploadShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the upload of an image artifact to one cloud."""

    uuid: str
    canonical_name: str
    artifact_uuid: str
    endpoint_name: str
    external_id: str | None
    timestamp: str
    validated: bool
    build_uuid: str
    state: str
    """pending | uploading | ready | failed | deleting"""
    state_time: str
    is_locked: bool = False
    lock_holder: str | None = None
    why: str | None = None
    """What the upload waits for, or why it failed. Headgate only."""
    providers: tuple[str, ...] = ()
    """Canonical names of the tenant's providers that make machines from it. Headgate only."""
    machines: int = 0
    """Number of existing machines that were made from it; for an image of another tenant, only those of this tenant.
    Headgate only."""


class ArtifactShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describe an image artifact: one image file that a build made."""

    uuid: str
    canonical_name: str
    build_tenant: bool
    """Whether this tenant built it."""
    build_uuid: str
    format: str
    md5sum: str | None
    sha256: str | None
    url: str
    timestamp: str
    validated: bool
    state: str
    """ready | deleting"""
    state_time: str
    is_locked: bool = False
    lock_holder: str | None = None
    uploads: tuple[UploadShape, ...]


class ImageShape(msgspec.Struct, frozen=True):
    """Describe an image that machines start from."""

    name: str
    canonical_name: str
    project_canonical_name: str
    branch: str
    type: str
    """zuul | cloud"""
    build_artifacts: tuple[ArtifactShape, ...] | msgspec.UnsetType = msgspec.UNSET
    """The artifacts of an image that jobs build, newest first."""


@get("/api/tenant/{tenant:str}/images")
async def images(site: Site, tenant: str) -> list[ImageShape]:
    """Return the images that the configuration defines, ordered by name, with their artifacts and uploads."""
    known = sorted(site.tenant(tenant).layouts.landed.singles["image"].items())
    found = artifacts_by_image(site, tenant)
    return [_image(stanza, found) for _, stanza in known]


def _image(stanza: Stanza, found: dict[str, list[ArtifactShape]]) -> ImageShape:
    name, type = canonical_of(stanza), stanza.body.get("type", "zuul")
    built = tuple(found.get(name, ())) if type == "zuul" else msgspec.UNSET
    return ImageShape(stanza.name, name, stanza.source.project, stanza.source.branch, type, built)


def canonical_of(stanza: Stanza) -> str:
    """Return the name of an image that is unique in the entire system."""
    return f"{quote(stanza.source.project, safe='')}/{stanza.name}"


def artifacts_by_image(site: Site, tenant: str) -> dict[str, list[ArtifactShape]]:
    """Map images to artifacts, newest first: those that the tenant built, and those that its providers can use."""
    map, mirror = site.context.map, site.context.mirror
    known = providers(map, mirror).get(tenant, [])
    own, stored = spots({tenant: known}), uploads(map, mirror)
    # Without uploads, no machine can come from one, so do not read the machines.
    uses = _Uses(tenant, _serving(known), list(seen(map, mirror).nodes.values()) if stored else [])
    found: dict[str, list[ArtifactShape]] = {}
    every = [one for _, _, one in read_all(mirror, map.images.artifacts.path, ImageArtifact)]
    for artifact in sorted(every, key=lambda one: (one.made_ms, one.id), reverse=True):
        mine = artifact.tenant == tenant
        # Of an image that another tenant built, show only the uploads that this tenant's own providers can use.
        shown = [one for one in stored if one.artifact == artifact.id and (mine or (one.file.image, one.place) in own)]
        if mine or shown:
            found.setdefault(artifact.file.image, []).append(_artifact(artifact, shown, uses, mine=mine))
    return found


class _Uses(NamedTuple):
    """Map the uploads of one tenant to the providers and machines that use them."""

    tenant: str
    providers: Mapping[tuple[str, str], Sequence[str]]
    """(image, place) -> the tenant's providers in that place."""
    nodes: Sequence[MadeNode]

    def machines(self, upload: ImageUpload) -> int:
        """Return the number of machines made from an upload that the tenant may see."""
        of = [one for one in self.nodes if one.settings.get("image", {}).get(UPLOADED) == upload.id]
        # Slots share one machine, which must count only once.
        return sum(not one.main and self.tenant in (upload.tenant, one.tenant) for one in of)


def _serving(several: Iterable[FlatProvider]) -> dict[tuple[str, str], list[str]]:
    """Map (image, place) to the canonical names of the providers that have the image there."""
    found: dict[tuple[str, str], list[str]] = {}
    for provider in several:
        for image in provider.images:
            found.setdefault((image.canonical, place_of(provider, image)), []).append(provider.name)
    return found


def _artifact(one: ImageArtifact, uploads: Iterable[ImageUpload], uses: _Uses, *, mine: bool) -> ArtifactShape:
    shown = tuple(_upload(upload, uses) for upload in uploads)
    return ArtifactShape(
        uuid=one.id,
        canonical_name=one.file.image,
        build_tenant=mine,
        build_uuid=one.file.build,
        format=one.file.format,
        md5sum=one.file.md5 or None,
        sha256=one.file.sha256 or None,
        url=one.file.url,
        timestamp=time_text(one.made_ms) or "",
        validated=one.validated or any(upload.validated for upload in shown),
        state=one.state,
        state_time=time_text(one.since_ms) or "",
        uploads=shown,
    )


def _upload(one: ImageUpload, uses: _Uses) -> UploadShape:
    return UploadShape(
        uuid=one.id,
        canonical_name=one.file.image,
        artifact_uuid=one.artifact,
        endpoint_name="/".join(filter(None, (one.connection, one.region))),
        external_id=one.external_id or None,
        timestamp=time_text(one.made_ms) or "",
        validated=one.validated is True,
        build_uuid=one.file.build,
        state=one.state,
        state_time=time_text(one.since_ms) or "",
        why=one.why or None,
        providers=tuple(uses.providers.get((one.file.image, one.place), ())),
        machines=uses.machines(one),
    )


@post("/api/tenant/{tenant:str}/image/{name:str}/build", status_code=200, opt={"permission": BUILD})
async def build_image(site: Site, request: HttpRequest, tenant: str, name: str) -> None:
    """Run the jobs that build an image, in the pipelines with the trigger `image-build`."""
    must_be_permitted(site, request, tenant, BUILD)
    layout = site.tenant(tenant).layouts.landed
    stanza = layout.singles["image"].get(name)
    if stanza is None:
        raise NotFoundException(f"Image not found in tenant: {name}")
    source = layout.tenant.find(stanza.source.project)
    if stanza.body.get("type") != "zuul" or source is None:
        raise HTTPException(f"jobs do not build the image {name}: its type is cloud", status_code=409)
    if not any("image-build" in one.events for p in layout.pipelines.values() for one in p.triggers):
        raise HTTPException("no pipeline has the trigger `zuul: {event: image-build}`", status_code=409)
    file = ImageFile(
        image=canonical_of(stanza), name=name, project=stanza.source.project, connection=source.connection,
        branch=stanza.source.branch, build="", format="", url="",
    )  # fmt: skip
    ops = await image_event_ops(site.context, EventKind.IMAGE_BUILD, fresh(), tenant, file, Body((name,)))
    if not ops:
        raise HTTPException(f"the branch {file.branch} of {file.project} is not known yet", status_code=409)

    async def work(besides: Sequence[Op]) -> None:
        await site.context.store.commit([], [*ops, *besides])

    await Hand(site, request, BUILD, tenant, name).does(work)


@delete("/api/tenant/{tenant:str}/image-build-artifact/{id:str}", opt={"permission": DELETE_ARTIFACT})
async def end_artifact(site: Site, request: HttpRequest, tenant: str, id: str) -> None:
    """Delete an artifact that the tenant built, and its uploads, once no machines made from them exist."""
    site.allow(request, tenant, DELETE_ARTIFACT)
    under = read_all(site.context.mirror, site.context.map.images.artifacts.path, ImageArtifact)
    if not any(one.id == id and one.tenant == tenant for _, _, one in under):
        raise NotFoundException(f"Image build artifact not found: tenant {tenant} has not built it")
    await _order(site, request, DELETE_ARTIFACT, tenant, id, "delete")


@delete("/api/tenant/{tenant:str}/image-upload/{id:str}", opt={"permission": DELETE_UPLOAD})
async def end_upload(site: Site, request: HttpRequest, tenant: str, id: str) -> None:
    """Delete an upload of an artifact that the tenant built, once no machines made from it exist; it is not uploaded
    again."""
    site.allow(request, tenant, DELETE_UPLOAD)
    _own_upload(site, tenant, id)
    await _order(site, request, DELETE_UPLOAD, tenant, id, "delete")


@post("/api/tenant/{tenant:str}/image-upload/{id:str}/validate", status_code=200, opt={"permission": VALIDATE})
async def validate_upload(site: Site, request: HttpRequest, tenant: str, id: str) -> None:
    """Run the jobs that validate an upload again."""
    must_be_permitted(site, request, tenant, VALIDATE)
    if _own_upload(site, tenant, id).state != "ready":
        raise HTTPException("Invalid upload state: only an upload that is ready can be validated", status_code=400)
    await _order(site, request, VALIDATE, tenant, id, "validate")


@post("/api/tenant/{tenant:str}/image-upload/{id:str}/upload", status_code=200, opt={"permission": UPLOAD})
async def upload_again(site: Site, request: HttpRequest, tenant: str, id: str) -> None:
    """Retry a failed upload."""
    must_be_permitted(site, request, tenant, UPLOAD)
    if _own_upload(site, tenant, id).state != "failed":
        raise HTTPException("Invalid upload state: only an upload that failed can be retried", status_code=400)
    await _order(site, request, UPLOAD, tenant, id, "upload")


def _own_upload(site: Site, tenant: str, id: str) -> ImageUpload:
    """Return an upload of an artifact that the tenant built.  Raise 404."""
    for one in uploads(site.context.map, site.context.mirror):
        if one.id == id and one.tenant == tenant:
            return one
    raise NotFoundException(f"Image upload not found: tenant {tenant} has not built its image")


async def _order(site: Site, request: HttpRequest, verb: str, tenant: str, id: str, do: str) -> None:
    bearer = site.access.bearer(request)
    place = site.context.map.images.orders(id).record
    order = ImageOrder(do, plain(bearer.name) if bearer is not None else "")

    async def work(besides: Sequence[Op]) -> None:
        await site.context.store.commit([], [place.put(order), *besides])

    await Hand(site, request, verb, tenant, id).does(work)


ROUTES = (images, build_image, end_artifact, end_upload, validate_upload, upload_again)
