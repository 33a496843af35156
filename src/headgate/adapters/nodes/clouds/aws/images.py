"""Make AMIs from files that jobs build, through a bucket or a snapshot; everything except the AMI is deleted then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

from headgate.adapters.nodes.clouds.aws import imports
from headgate.adapters.nodes.clouds.aws.api import Ec2
from headgate.adapters.nodes.clouds.aws.launch import tag_pairs, token
from headgate.adapters.nodes.clouds.aws.query import AwsItem, AwsRefused, listed
from headgate.adapters.nodes.clouds.aws.uploads import Blocks, Bucket, BucketEntry, key_of
from headgate.adapters.nodes.clouds.http import one_line, understood
from headgate.adapters.nodes.clouds.imagefiles import check_disk
from headgate.base.tasks import end
from headgate.ports import clouds

TASK, WRITTEN, SINCE, UNSEEN, SENDS, FULL, IMDS = "task", "written", "since", "unseen", "sends", "full", "imds"
SENDS_MAX = 3
"""Attempts to send a file before the upload fails."""
IMPORT_MAX_S = 300
"""Time limit of an import if the image has no import-timeout."""
FULL_MAX_S = 6 * 3600.0
"""Time limit for waiting while AWS refuses further imports."""
SEEN_S = 600.0
"""Time within which a new resource must appear in lists; after that, a missing resource no longer exists."""
_NO_ROOM = ("ResourceCountExceeded", "ResourceCountLimitExceeded")


class AwsImages:
    """Upload images to AWS; see `ports.clouds.ImageCloud`."""

    def __init__(
        self,
        at: Callable[[Mapping[str, object]], Ec2],
        bucket: Callable[[Mapping[str, object]], Bucket | None],
        blocks: Callable[[Mapping[str, object]], Blocks],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Create a client. `at`, `bucket` and `blocks` return EC2, the bucket and EBS of a provider; the clock is
        `now_s`."""
        self._at, self._bucket, self._blocks, self._now_s = at, bucket, blocks, now_s
        self._working: dict[str, asyncio.Task[None]] = {}
        """Upload -> the task that sends its file."""

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        """Return the tasks of uploads that run, or whose result was not read yet."""
        return list(self._working.values())

    async def close(self) -> None:
        """Stop sending."""
        await end(*self._working.values())

    def _place(self, wanted: clouds.WantedImage) -> imports.ImportPlace:
        """Return where and how to import the image. Raise LaunchFailed if it can never be imported with its
        settings."""
        provider, calls = wanted.provider, imports.calls_of(wanted)
        bucket = self._bucket(provider) if calls is not None else None
        if calls is not None and bucket is None:
            raise clouds.LaunchFailed("the provider names no bucket: set object-storage: {bucket-name: NAME}")
        return imports.ImportPlace(self._at(provider), self._blocks(provider), bucket, calls)

    @understood
    async def send(
        self, wanted: clouds.WantedImage, state: clouds.State, file: Path | None
    ) -> clouds.Sending | clouds.Sent:
        """Take the next step: send the file, import it, or make an AMI of it."""
        task = self._working.get(wanted.upload)
        if task is not None and not task.done():
            return clouds.Sending(state, "its file is being sent to AWS")
        if task is not None:
            del self._working[wanted.upload]
            # Raises the error of the task; the next call of `send` starts from the beginning.
            task.result()
            state = {**state, WRITTEN: self._now}
        return await self._step(self._place(wanted), wanted, state, file)

    async def _step(
        self, place: imports.ImportPlace, wanted: clouds.WantedImage, state: clouds.State, file: Path | None
    ) -> clouds.Sending | clouds.Sent:
        # Images are not listed while an import runs, because there can be none.
        if imports.IMAGE in state or TASK not in state:
            image = next(iter(await imports.made_of(place.ec2, wanted, state.get(imports.IMAGE, ""))), None)
            if image is not None:
                return await self._made(place, wanted, _seen(state), image)
            if imports.IMAGE in state:
                return self._unlisted(state, f"the image {state[imports.IMAGE]}")
        if place.bucket is None or place.calls is None:
            return await self._written(place, wanted, state, file)
        tasks = await place.tasks(wanted)
        task = await _chosen(place, tasks, state)
        if task is not None:
            return await self._imported(place, wanted, _seen(state), task)
        if TASK in state:
            listed = any(task.id == state[TASK] for task in tasks)
            return self._unlisted(
                state, f"the result of the import {state[TASK]}" if listed else f"the import {state[TASK]}"
            )
        if await place.bucket.has(key_of(wanted.tags), wanted.sha256):
            return await self._import(place.ec2, place.bucket, place.calls, wanted, state, len(tasks))
        if file is None:
            return clouds.Sending(state, "its file is needed", lacks_file=True)
        state = await _to_be_sent(wanted, state, file, f"the bucket {place.bucket.name}")
        for entry in await place.entries(wanted):  # left by a launcher that has ended
            await place.bucket.remove(entry)
        # The state does not record that the file is being sent, so after a crash, the next launcher sends it again.
        self._begin(wanted, place.bucket.send(wanted.tags, wanted.sha256, file))
        return clouds.Sending(state, f"its file is being sent to the bucket {place.bucket.name}")

    def _begin(self, wanted: clouds.WantedImage, work: Coroutine[object, object, None]) -> None:
        self._working[wanted.upload] = asyncio.ensure_future(work)

    async def _written(
        self, place: imports.ImportPlace, wanted: clouds.WantedImage, state: clouds.State, file: Path | None
    ) -> clouds.Sending:
        """Write the file into a snapshot, and make an image of it. An incomplete snapshot does not show which blocks
        are missing, so another one is written, and the old one is removed with the other leftovers."""
        snapshots = {str(one["snapshotId"]): one for one in await place.snapshots(wanted)}
        complete = next((id for id, one in snapshots.items() if one.get("status") == imports.COMPLETED), None)
        if complete is not None:
            return await self._register(place.ec2, wanted, _seen(state), complete)
        # WRITTEN is set only after the task ended without an error, so the snapshot has all blocks, although AWS may
        # still be storing them.
        if WRITTEN in state and imports.SNAPSHOT in state:
            return self._stored(wanted, state, snapshots.get(state[imports.SNAPSHOT]))
        if file is None:
            return clouds.Sending(state, "its file is needed", lacks_file=True)
        state = await _to_be_sent(wanted, state, file, "EBS")
        id = await place.blocks.start(file.stat().st_size, wanted.tags, imports.image_name(wanted))
        self._begin(wanted, place.blocks.write(id, wanted.sha256, file))
        return clouds.Sending({**state, imports.SNAPSHOT: id}, f"its file is being written into the snapshot {id}")

    def _stored(self, wanted: clouds.WantedImage, state: clouds.State, snapshot: AwsItem | None) -> clouds.Sending:
        if snapshot is None:
            return self._unlisted(state, f"the snapshot {state[imports.SNAPSHOT]}")
        if snapshot.get("status") != "pending":
            reason = one_line(str(snapshot.get("statusMessage") or "it gives no reason"))
            raise clouds.LaunchFailed(f"AWS says: the snapshot is {snapshot.get('status')}: {reason}")
        limit_s = wanted.image.get("import-timeout", IMPORT_MAX_S)
        if limit_s and self._now_s() - float(state[WRITTEN]) > limit_s:
            raise clouds.LaunchFailed(f"AWS has not stored the snapshot within {limit_s} s, its import-timeout")
        return clouds.Sending(_seen(state), "AWS stores the snapshot")

    def _unlisted(self, state: clouds.State, name: str) -> clouds.Sending:
        first = state.get(UNSEEN, self._now)
        if self._now_s() - float(first) > SEEN_S:
            raise clouds.LaunchFailed(f"AWS does not list {name}: it no longer exists, or never did")
        return clouds.Sending({**state, UNSEEN: first}, f"AWS does not list {name} yet")

    async def _import(
        self,
        ec2: Ec2,
        bucket: Bucket,
        calls: imports.ImportCalls,
        wanted: clouds.WantedImage,
        state: clouds.State,
        before: int,
    ) -> clouds.Sending:
        """Start an import of the object; `before`: number of earlier imports, which all failed."""
        arguments = imports.start(wanted, calls, bucket.name, key_of(wanted.tags), token(f"{wanted.upload}-{before}"))
        try:
            answer = await ec2.call(calls.start, arguments)
        except (AwsRefused, clouds.OverQuota) as error:
            # An account can run only a few imports at a time, so a refusal for lack of capacity means waiting, and does
            # not count as an attempt.
            if isinstance(error, AwsRefused) and error.code not in _NO_ROOM:
                raise
            first = state.get(FULL, self._now)
            if self._now_s() - float(first) > FULL_MAX_S:
                raise
            return clouds.Sending({**state, FULL: first}, str(error))
        return clouds.Sending({**state, TASK: str(answer["importTaskId"]), SINCE: self._now}, "AWS imports it")

    @property
    def _now(self) -> str:
        return str(int(self._now_s()))

    async def _imported(
        self, place: imports.ImportPlace, wanted: clouds.WantedImage, state: clouds.State, task: imports.ImportTask
    ) -> clouds.Sending:
        if task.status == imports.COMPLETED:
            return await self._take(place, wanted, state, task)
        # An import that was found by its tag after a crash has no SINCE, so its time starts now.
        state = {SINCE: self._now, **state, **({TASK: task.id} if task.is_alive else {})}
        limit_s = wanted.image.get("import-timeout", IMPORT_MAX_S)
        if limit_s and self._now_s() - float(state[SINCE]) > limit_s:
            await imports.cancel(place.ec2, task)
            text = f"AWS has not imported the file within {limit_s} s, its import-timeout"
            raise clouds.LaunchFailed(f"{text}; its last status: {one_line(task.about) or task.status}")
        if task.status == imports.DELETING:
            return clouds.Sending(state, "AWS ends an earlier import of it")
        return clouds.Sending(state, f"AWS imports it: {one_line(task.about) or task.status}")

    async def _take(
        self, place: imports.ImportPlace, wanted: clouds.WantedImage, state: clouds.State, task: imports.ImportTask
    ) -> clouds.Sending:
        """Tag the results of the import, because AWS does not, and make an image of them."""
        made = [*([task.image] if task.image else []), *task.snapshots]
        await place.ec2.call("CreateTags", {"ResourceId": made, "Tag": tag_pairs(wanted.tags, clouds.UPLOAD_TAG)})
        state = {**state, TASK: task.id}
        if task.image:
            return clouds.Sending({**state, imports.IMAGE: task.image}, "the image exists")
        return await self._register(place.ec2, wanted, state, task.snapshots[0])

    async def _register(
        self, ec2: Ec2, wanted: clouds.WantedImage, state: clouds.State, snapshot: str
    ) -> clouds.Sending:
        try:
            image = await ec2.call("RegisterImage", imports.register(wanted, snapshot))
        except AwsRefused as error:
            if error.code != "InvalidAMIName.Duplicate":
                raise
            # The name contains the upload, so an earlier call, whose response was lost, registered this image.
            same = await imports.owned(ec2, imports.IMAGES, "name", [imports.image_name(wanted)])
            if not same:
                raise clouds.CloudUnavailable(str(error)) from error
            image = dict(same[0])
        return clouds.Sending({**state, imports.IMAGE: str(image["imageId"])}, "the image is registered")

    async def _made(
        self, place: imports.ImportPlace, wanted: clouds.WantedImage, state: clouds.State, image: AwsItem
    ) -> clouds.Sending | clouds.Sent:
        id, reported = str(image["imageId"]), str(image.get("imageState"))
        state = {**state, imports.IMAGE: id}
        if reported == "pending":
            return clouds.Sending(state, "AWS makes the image")
        if reported != "available":
            reason = (image.get("stateReason") or {}).get("message") or "it gives no reason"
            # Otherwise its name would block every further attempt of this upload.
            await place.ec2.do("DeregisterImage", {"ImageId": id})
            raise clouds.LaunchFailed(f"AWS says: the image is {reported}: {one_line(str(reason))}")
        imds = wanted.image.get("imds-support")
        # Set afterwards, because imports have no argument for it.
        if imds and image.get("imdsSupport") != imds and state.get(IMDS) != id:
            await place.ec2.call("ModifyImageAttribute", {"ImageId": id, "ImdsSupport": {"Value": imds}})
            return clouds.Sending({**state, IMDS: id}, f"the image is set to IMDS {imds}")
        disks = [one.get("ebs") or {} for one in listed(image.get("blockDeviceMapping"))]
        # The image needs its snapshots; all other resources of the upload are no longer needed, and cost money.
        keep = {id, *(str(disk["snapshotId"]) for disk in disks if disk.get("snapshotId"))}
        if not await imports.cleared(place, wanted, state, keep):
            return clouds.Sending(state, "leftovers of the upload are being deleted")
        return clouds.Sent(id, {imports.IMAGE: id})

    @understood
    async def withdraw(self, wanted: clouds.WantedImage, state: clouds.State) -> bool:
        """Delete the image, snapshots, imports and object of the upload, whatever their state; return True once nothing
        is left."""
        task = self._working.pop(wanted.upload, None)
        if task is not None:
            await end(task)
        try:
            place = self._place(wanted)
        except clouds.LaunchFailed:
            return True  # nothing was ever made
        return await imports.cleared(place, wanted, state, ())

    @understood
    async def listed(self, provider: Mapping[str, object]) -> list[clouds.Resource]:
        """Return all resources of uploads in the account and in the provider's bucket."""
        return await imports.every_trace(self._at(provider), self._bucket(provider))

    @understood
    async def discard(self, provider: Mapping[str, object], resource: clouds.Resource) -> None:
        """Delete a resource of an upload."""
        if resource.kind != imports.OBJECT:
            action, argument = imports.DELETING_CALLS[resource.kind]
            await self._at(provider).do(action, {argument: resource.id})
        elif (bucket := self._bucket(provider)) is not None:
            key, _, sending = resource.id.partition("?")
            await bucket.remove(BucketEntry(key, sending))


async def _chosen(
    place: imports.ImportPlace, tasks: Sequence[imports.ImportTask], state: clouds.State
) -> imports.ImportTask | None:
    """Return the import to continue with: a complete one, otherwise a running one; None if there is none, or if the
    result of the known one is not listed yet. Raise LaunchFailed if the known one failed."""
    known = next((one for one in tasks if one.id == state.get(TASK)), None)
    if known is not None and known.status == imports.DELETED:
        raise clouds.LaunchFailed(f"AWS has not imported the file: {one_line(known.about) or 'it gives no reason'}")
    ended = [one for one in tasks if one.status == imports.COMPLETED]
    # AWS lists tasks for days, even if their results were deleted in the meantime, for example with a withdrawn upload.
    existing = await imports.there_are(place.ec2, imports.IMAGES, {one.image for one in ended if one.image})
    existing |= await imports.there_are(
        place.ec2, imports.SNAPSHOTS, {id for one in ended if not one.image for id in one.snapshots}
    )
    for one in ended:
        made = {one.image} if one.image else set(one.snapshots)
        if made and made <= existing:
            return one
    # Its result is not listed yet; meanwhile, no other task may replace it.
    if known is not None and known.status == imports.COMPLETED:
        return None
    going = [one for one in tasks if one.status not in (imports.COMPLETED, imports.DELETED)]
    return min(going, key=lambda one: not one.is_alive, default=None)


def _seen(state: clouds.State) -> clouds.State:
    return {name: value for name, value in state.items() if name != UNSEEN}


async def _to_be_sent(wanted: clouds.WantedImage, state: clouds.State, file: Path, where: str) -> clouds.State:
    """Count one more attempt to send the file, and return the new state. Raise LaunchFailed if the file does not match
    its format, or was sent too often."""
    times = int(state.get(SENDS, 0))
    if times >= SENDS_MAX:
        raise clouds.LaunchFailed(f"{where} did not accept the file, although it was sent {times} times")
    await asyncio.to_thread(check_disk, file, wanted.format)
    return {**state, SENDS: str(times + 1)}
