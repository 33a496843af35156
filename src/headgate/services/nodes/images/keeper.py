"""Upload images that jobs build to the places where machines are created from them, and delete unneeded ones.

All state is in the store and is written before a cloud is called, so that a successor can continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.base.ids import derived, fresh
from headgate.config.machines import FlatProvider
from headgate.gate.builds.imagework import Body, occasion
from headgate.gate.state.change import HEADS, Change, EventKind, TriggerEvent
from headgate.map.inventory import images
from headgate.map.records import BranchCache
from headgate.map.tree import unescape
from headgate.ports import clouds
from headgate.recipes import blob
from headgate.services.context import Context
from headgate.services.nodes.accounts import HUNT_S, CloudAccount, Errands, region_of
from headgate.services.nodes.images.choice import ImageUse, is_due, lacking, read_all, spots, surplus, uploads
from headgate.services.nodes.images.lifecycle import UploadLedger, UploadLife
from headgate.services.nodes.ledger import MachineLedger
from headgate.store.types import At, Op

log = logging.getLogger("headgate.images")

LOOK_S = 60.0
"""Longest interval between two checks."""
AGAIN = "again"
"""Replaces the event id when a person wants the upload tested again."""


async def image_event_ops(
    context: Context, kind: EventKind, id: str, tenant: str, file: images.ImageFile, body: Body
) -> list[Op]:
    """Return operations that make a tenant's pipelines build or test an image, at the head of the branch that defines
    it; none while that branch is unknown."""
    path = context.map.cache.connection(file.connection).branches.data.path
    stored = await blob.read(context.store, path)
    heads = msgspec.json.decode(stored, type=BranchCache).projects if stored else {}
    ref = f"{HEADS}{file.branch}"
    commit = heads.get(file.project, {}).get(ref, "")
    if not commit:
        return []
    about = occasion(kind.value, id, file.image, body)
    change = Change(file.connection, file.project, file.branch, commit=commit, ref=ref, occasion=about)
    event = TriggerEvent(kind, change, id, context.now_ms())
    return list(context.map.events.tenant(tenant).trigger.stream.append(event))


class ImageKeeper:
    """Keep images uploaded at the places where machines are created from them. Call `run` under the launcher's lock."""

    def __init__(
        self, context: Context, accounts: Mapping[str, CloudAccount], files: clouds.ImageFiles, guard: At
    ) -> None:
        self._context, self._accounts, self._files = context, accounts, files
        self._ledger = MachineLedger(context, guard)
        self._uploads = UploadLedger(self._ledger)
        self._life, self._errands = UploadLife(self._uploads, accounts, files), Errands()
        self._system = ""
        self._suspects: dict[tuple[str, str], frozenset[str]] = {}
        """Connection and part of its account -> our images that had no record at the last listing."""

    async def run(self, system: str) -> None:
        """Work until cancelled. `system` is the tag of all our resources. Raise GuardLost or StoreError."""
        self._system, map = system, self._context.map
        prefixes = (map.images.path, map.image_uploads.path, map.nodes.providers.path, map.nodes.made.path)
        try:
            with self._context.mirror.part(*prefixes) as part:
                while True:
                    moves = part.moves
                    await self._look()
                    ends_s = [one.back_s for one in self._accounts.values()]
                    await self._errands.wait(asyncio.ensure_future(part.moved(moves)), ends_s, LOOK_S)
        finally:
            await self._errands.end()

    # --- one check

    async def _look(self) -> None:
        self._errands.ended()
        map, mirror = self._context.map, self._context.mirror
        # Reports and orders come first, because they determine which uploads are missing or surplus.
        for _, at, report in list(read_all(mirror, map.images.reports.path, images.ImageReport)):
            await self._take_up(at, report)
        for id, at, order in list(read_all(mirror, map.images.orders.path, images.ImageOrder)):
            await self._obey(id, at, order)
        wanted = spots(self._providers())
        for spot, artifact in list(lacking(wanted, self._artifacts().values(), uploads(map, mirror))):
            await self._begin(spot, artifact)
        for one in self._surplus(wanted):
            await self._uploads.change(one.id, _superseded)
        for artifact in self._artifacts().values():
            await self._end(artifact)
        for one in uploads(map, mirror):
            if one.state == "ready" and (one.trial_event == AGAIN or (one.validated is None and not one.trial_event)):
                await self._ask_to_try(one)
        await self._ask_for_what_is_due(wanted)
        self._steps()
        self._hunt(wanted)

    def _surplus(self, wanted: Mapping[tuple[str, str], ImageUse]) -> list[images.ImageUpload]:
        """Return the uploads that are no longer needed."""
        return surplus(uploads(self._context.map, self._context.mirror), wanted)

    def _providers(self) -> dict[str, list[FlatProvider]]:
        root, found = self._context.map.nodes.providers.path, dict[str, list[FlatProvider]]()
        for tenant in self._context.mirror.names(root):
            under = read_all(self._context.mirror, f"{root}/{tenant}", FlatProvider)
            found[unescape(tenant)] = [one for _, _, one in under]
        return found

    def _artifacts(self) -> dict[str, images.ImageArtifact]:
        under = self._context.map.images.artifacts.path
        return {one.id: one for _, _, one in read_all(self._context.mirror, under, images.ImageArtifact)}

    async def _take_up(self, at: At, report: images.ImageReport) -> None:
        """Record artifacts of new files, or mark the tested upload; the same commit removes the report."""
        map = self._context.map
        gone = map.images.reports(report.id).record.delete()
        if report.upload:
            found = self._uploads.find(report.upload)
            # Only the upload's own tenant may report on it, or others could validate foreign images.
            if found is not None and found[0].tenant == report.tenant:
                upload = replace(found[0], validated=report.validated, why="" if report.validated else "a job failed")
                await self._ledger.commit(
                    [at, found[1]], [map.image_uploads.uploads(upload.id).record.put(upload), gone]
                )
                return
            await self._ledger.commit([at], [gone])
            return
        checks, ops = [at], list[Op]()
        for file in report.files:
            # The id is derived, so that a report that is processed again after a crash creates no second artifact.
            id = derived("image", report.tenant, file.build, str(file.number))
            place = map.images.artifacts(id).record
            if self._context.mirror.get(place.path) is None:
                validated, now_ms = report.validated is True, report.at_ms
                made = images.ImageArtifact(
                    id=id, tenant=report.tenant, file=file, validated=validated, made_ms=now_ms, since_ms=now_ms
                )
                checks.append(At(place.path, None))
                ops.append(place.put(made))
        await self._ledger.commit(checks, [*ops, gone])

    async def _obey(self, id: str, at: At, order: images.ImageOrder) -> None:
        """Carry out a person's order for an artifact or an upload."""
        gone, artifact = self._context.map.images.orders(id).record.delete(), self._artifacts().get(id)
        if artifact is not None and order.do == "delete":
            await self._change_artifact(artifact, replace(artifact, state="deleting"), at, gone)
            return
        found = self._uploads.find(id)
        if found is None:
            await self._ledger.commit([at], [gone])
            return
        upload, own = found
        of_upload = self._artifacts().get(upload.artifact)
        # The artifact comes first: if only the upload was deleted, the next check would find it missing and upload it
        # again.
        if order.do == "delete" and of_upload is not None:
            dropped = replace(of_upload, dropped=tuple(dict.fromkeys((*of_upload.dropped, upload.place))))
            await self._change_artifact(of_upload, dropped)
        wished = _ordered(upload, order.do)
        place = self._context.map.image_uploads.uploads(id).record
        wished = replace(wished, since_ms=self._context.now_ms()) if wished.state != upload.state else wished
        await self._ledger.commit([at, own], [place.put(wished), gone])

    async def _change_artifact(
        self, known: images.ImageArtifact, wished: images.ImageArtifact, at: At | None = None, *more: Op
    ) -> None:
        place = self._context.map.images.artifacts(known.id).record
        entry = self._context.mirror.get(place.path)
        if entry is not None and (wished != known or more):
            checks = [At(entry.path, entry.version), *([at] if at is not None else [])]
            await self._ledger.commit(checks, [place.put(replace(wished, since_ms=self._context.now_ms())), *more])

    async def _begin(self, spot: ImageUse, artifact: images.ImageArtifact) -> None:
        """Record an upload before its cloud is called."""
        id = fresh()
        definition = spot.image.image
        wrong = _unfit(artifact.file)
        # An upload that can never succeed is recorded as failed, so that people see the reason and it is not retried.
        upload = images.ImageUpload(
            id=id,
            artifact=artifact.id,
            file=artifact.file,
            tenant=artifact.tenant,
            connection=spot.provider.connection,
            region=region_of(spot.provider.settings),
            digest=spot.image.digest,
            image=definition,
            provider=spot.provider.settings,
            tags={**_texts(definition.get("tags", {})), clouds.SYSTEM_TAG: self._system, clouds.UPLOAD_TAG: id},
            retain=spot.image.retain,
            state="failed" if wrong else "pending",
            why=wrong,
            validated=True if artifact.validated else None,
            made_ms=artifact.made_ms,
            since_ms=self._context.now_ms(),
        )
        place = self._context.map.image_uploads.uploads(id).record
        of = self._context.map.images.artifacts(artifact.id).record
        entry = self._context.mirror.get(of.path)
        if entry is not None:
            await self._ledger.commit([At(entry.path, entry.version)], [place.put(upload)])

    async def _end(self, artifact: images.ImageArtifact) -> None:
        """Delete the uploads of an artifact that is being deleted. Delete the record of an artifact without uploads if
        it is being deleted or outdated."""
        own = [one for one in uploads(self._context.map, self._context.mirror) if one.artifact == artifact.id]
        if artifact.state == "deleting":
            for one in own:
                await self._uploads.change(one.id, lambda known: replace(known, state="deleting"))
        newer = any(
            (one.file.image, one.file.format) == (artifact.file.image, artifact.file.format)
            and (one.made_ms, one.id) > (artifact.made_ms, artifact.id)
            for one in self._artifacts().values()
        )
        if not own and (artifact.state == "deleting" or newer):
            place = self._context.map.images.artifacts(artifact.id).record
            entry = self._context.mirror.get(place.path)
            if entry is not None:
                await self._ledger.commit([At(entry.path, entry.version)], [place.delete()])

    # --- orders for jobs

    async def _ask_to_try(self, one: images.ImageUpload) -> None:
        """Start the tests of the upload in the tenant that built it."""
        id = fresh()
        body = Body((one.file.name,), one.id)
        ops = await image_event_ops(self._context, EventKind.IMAGE_VALIDATE, id, one.tenant, one.file, body)
        found = self._uploads.find(one.id)
        # If the record has changed while the branch's head was read, the next check tries again.
        if not ops or found is None or found[0] != one:
            return
        place = self._context.map.image_uploads.uploads(one.id).record
        await self._ledger.commit([found[1]], [place.put(replace(one, trial_event=id)), *ops])

    async def _ask_for_what_is_due(self, wanted: Mapping[tuple[str, str], ImageUse]) -> None:
        """Request builds of images that are missing or too old according to their configuration."""
        now_ms, map = self._context.now_ms(), self._context.map
        due = {spot.image.canonical: spot.image for spot in wanted.values() if spot.image.rebuild_age_s}
        for name, image in due.items():
            made = [one.made_ms for one in self._artifacts().values() if one.file.image == name]
            place = map.images.requests(name).record
            entry = self._context.mirror.get(place.path)
            requested_ms = place.decode(entry.value).at_ms if entry is not None else None
            age_s = (now_ms - max(made)) / 1000 if made else None
            # The request is recorded with its events, so that it is not repeated at each check until an image arrives.
            if not is_due(age_s, image, (now_ms - requested_ms) / 1000 if requested_ms is not None else None):
                continue
            file = images.ImageFile(
                image=name, name=image.name, project=image.project, connection=image.connection, branch=image.branch,
                build="", format=image.format, url="",
            )  # fmt: skip
            body = Body((image.name,))
            # One tenant builds the image for all tenants that use it.
            for tenant in sorted(t for t, several in self._providers().items() if _has(several, name)):
                ops = await image_event_ops(self._context, EventKind.IMAGE_BUILD, fresh(), tenant, file, body)
                check = At(place.path, entry.version if entry is not None else None)
                if ops and await self._ledger.commit([check], [place.put(images.ImageRequest(now_ms)), *ops]):
                    break

    # --- lengthy work

    def _steps(self) -> None:
        """Start the next step of every due upload; keep the files that these need."""
        found = uploads(self._context.map, self._context.mirror)
        ending = [one for one in found if one.state == "deleting" or (one.state == "failed" and one.dirty)]
        moving = [*ending, *(one for one in found if one.state in images.UNDER_WAY)]
        # Files are large, so only those of uploads in progress stay on disk.
        self._files.keep(frozenset(one.file.sha256 for one in found if one.state in images.UNDER_WAY))
        known = {f"upload {one.id}" for one in found}
        self._errands.forget(lambda key: key.startswith("upload ") and key not in known)
        for one in moving:
            self._errands.begin(f"upload {one.id}", one.connection, partial(self._life.step, one.id))

    def _hunt(self, wanted: Mapping[tuple[str, str], ImageUse]) -> None:
        """List the images in each account, and each bucket, that may contain some."""
        found = {(s.provider.connection, _part(s.provider.settings)): s.provider.settings for s in wanted.values()}
        for one in uploads(self._context.map, self._context.mirror):
            found.setdefault((one.connection, _part(one.provider)), one.provider)
        for (connection, part), provider in found.items():
            if connection in self._accounts:
                work = partial(self._hunted, connection, part, provider)
                self._errands.begin(f"hunt {connection} {part}", connection, work)

    async def _hunted(self, connection: str, part: str, provider: Mapping[str, Any]) -> float:
        """Delete our images that had no record at two listings. Return the interval until the next hunt, in seconds."""
        account = self._accounts[connection]
        cloud = clouds.images_of(account.cloud)
        if cloud is None:
            return HUNT_S
        try:
            listed = await account.ask(lambda: cloud.listed(provider))
            # Determined by path, so that an upload with a damaged record is still known and its image stays.
            known = {entry.path.rpartition("/")[2] for entry in self._context.mirror.under(self._root)}
            ours = [
                one
                for one in listed
                if one.tags.get(clouds.SYSTEM_TAG) == self._system and clouds.UPLOAD_TAG in one.tags
            ]
            # The listing may be older than the records and still show an image that was just deleted; hence two
            # listings.
            lost = {one.id: one for one in ours if one.tags[clouds.UPLOAD_TAG] not in known}
            again = self._suspects.get((connection, part), frozenset())
            self._suspects[connection, part] = frozenset(lost)
            for one in (lost[id] for id in sorted(lost.keys() & again)):
                await _discard(account, cloud, provider, one)
        except (clouds.CloudUnavailable, clouds.LaunchFailed, clouds.OverQuota) as error:
            log.warning("connection %s: its images cannot be listed: %s", connection, error)
        return HUNT_S

    @property
    def _root(self) -> str:
        return self._context.map.image_uploads.uploads.path


async def _discard(
    account: CloudAccount, cloud: clouds.ImageCloud, provider: Mapping[str, object], one: clouds.Resource
) -> None:
    """Delete an image from the cloud. Raise CloudUnavailable; other failures do not stop other deletions."""
    log.warning("connection %s: %s %s has no record; deleting it", account.name, one.kind, one.id)
    try:
        await account.ask(partial(cloud.discard, provider, one))
    except (clouds.LaunchFailed, clouds.OverQuota) as error:
        log.warning("connection %s: %s %s cannot be deleted: %s", account.name, one.kind, one.id, error)


def _part(provider: Mapping[str, object]) -> str:
    """Return the part of an account that a provider's images pass through."""
    return f"{region_of(provider)} {provider.get('object-storage') or ''}".strip()


def _superseded(upload: images.ImageUpload) -> images.ImageUpload:
    return replace(upload, state="deleting", why="newer uploads replace it")


def _ordered(upload: images.ImageUpload, do: str) -> images.ImageUpload:
    """Return the upload with a person's order applied."""
    if do == "delete":
        return replace(upload, state="deleting", why="somebody deleted it")
    if do == "upload" and upload.state == "failed":
        return replace(upload, state="pending", tries=0, why="", driver={})
    if do == "validate" and upload.state == "ready":
        return replace(upload, trial_event=AGAIN)
    return upload


def _unfit(file: images.ImageFile) -> str:
    """Return why a file can never be uploaded; empty if it can be."""
    # The file is fetched from the job's URL; without its digest, anyone who can write there could replace the machines'
    # image.
    if len(file.sha256) != 64 or set(file.sha256) - set("0123456789abcdef"):
        return "its build did not return its sha256 (64 hex digits) in the metadata, so it cannot be verified"
    if not file.url:
        return "its build did not return its url"
    return ""


def _texts(tags: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in tags.items()}


def _has(providers: list[FlatProvider], image: str) -> bool:
    return any(one.canonical == image for provider in providers for one in provider.images)
