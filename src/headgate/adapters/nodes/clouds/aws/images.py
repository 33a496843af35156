"""AMIs that jobs build: their files go into a bucket, AWS imports them, and nothing stays that nobody needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.adapters.nodes.clouds.aws.api import Ec2
from headgate.adapters.nodes.clouds.aws.bucket import PREFIX, Bucket, BucketEntry, key_of
from headgate.adapters.nodes.clouds.aws.imports import (
    CALLS,
    COMPLETED,
    DELETED,
    DELETING,
    ImportCalls,
    ImportTask,
    calls_of,
    image_name,
    register,
    start,
    tasks_of,
)
from headgate.adapters.nodes.clouds.aws.launch import tag_pairs, token
from headgate.adapters.nodes.clouds.aws.query import AwsRefused, Told, listed, tags_of
from headgate.adapters.nodes.clouds.disks import check
from headgate.adapters.nodes.clouds.http import said, understood
from headgate.base.tasks import end
from headgate.ports.cloud import SYSTEM_TAG, CloudUnavailable, LaunchFailed, OverQuota, Resource, State
from headgate.ports.images import UPLOAD_TAG, Sending, Sent, WantedImage

IMAGE, TASK, SINCE, UNSEEN, SENDS, FULL, IMDS = "image", "task", "since", "unseen", "sends", "full", "imds"
SENDS_MAX = 3
"""How often a file is sent before that is a failed attempt."""
IMPORT_MAX_S = 300
"""For AWS to import a file, where the image says no import-timeout."""
FULL_MAX_S = 6 * 3600.0
"""For AWS to have room for one more import."""
SEEN_S = 600.0
"""What was made is listed a while afterwards; what is not after this long is no more."""
VALUES_MAX = 200
"""Of one filter."""
_NO_ROOM = ("ResourceCountExceeded", "ResourceCountLimitExceeded")
_IMPORTED = "import-"
"""How the names of AMIs begin that AWS itself names."""
_IMAGES, _SNAPSHOTS = ("DescribeImages", "imagesSet"), ("DescribeSnapshots", "snapshotSet")
_OBJECT, _IMPORT = "object", "import"
_DELETING = {
    IMAGE: ("DeregisterImage", "ImageId"),
    "snapshot": ("DeleteSnapshot", "SnapshotId"),
    _IMPORT: ("CancelImportTask", "ImportTaskId"),
}
"""Kind of resource -> the call that takes it away, and its argument."""


class ImportPlace(NamedTuple):
    """Say where an image is imported, and how."""

    ec2: Ec2
    bucket: Bucket
    calls: ImportCalls

    async def tasks(self, wanted: WantedImage) -> list[ImportTask]:
        """Return the imports of an upload."""
        return [one for one in await tasks_of(self.ec2, self.calls) if _is_of(one.tags, wanted)]


class AwsImages:
    """See `ports.images.ImageCloud`."""

    def __init__(
        self,
        at: Callable[[Mapping[str, object]], Ec2],
        bucket: Callable[[Mapping[str, object]], Bucket | None],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Use `at` and `bucket` to find the region and the bucket of a provider, and `now_s` as the clock."""
        self._at, self._bucket, self._now_s = at, bucket, now_s
        self._working: dict[str, asyncio.Task[None]] = {}
        """Upload -> the sending of its file."""

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        """Return what is being sent, or has not been taken up."""
        return list(self._working.values())

    async def close(self) -> None:
        """Send nothing more."""
        await end(*self._working.values())

    def _place(self, wanted: WantedImage) -> ImportPlace:
        """Raise LaunchFailed where an image can never be imported as it is said."""
        calls, bucket = calls_of(wanted), self._bucket(wanted.provider)
        if bucket is None:
            raise LaunchFailed("the provider names no bucket: say object-storage: {bucket-name: NAME}")
        return ImportPlace(self._at(wanted.provider), bucket, calls)

    @understood
    async def send(self, wanted: WantedImage, state: State, file: Path | None) -> Sending | Sent:
        """Send the file, have it imported, then have an AMI made of it: each is a step."""
        task = self._working.get(wanted.upload)
        if task is not None and not task.done():
            return Sending(state, "its file is on the way to the bucket")
        if task is not None:
            del self._working[wanted.upload]
            task.result()
        return await self._step(self._place(wanted), wanted, state, file)

    async def _step(self, place: ImportPlace, wanted: WantedImage, state: State, file: Path | None) -> Sending | Sent:
        if IMAGE in state or TASK not in state:
            image = next(iter(await _images(place.ec2, wanted, state)), None)
            if image is not None:
                return await self._made(place, wanted, _seen(state), image)
            if IMAGE in state:
                return self._unlisted(state, f"the image {state[IMAGE]}")
        tasks = await place.tasks(wanted)
        task = await _chosen(place, tasks, state)
        if task is not None:
            return await self._imported(place, wanted, _seen(state), task)
        if TASK in state:
            listed = any(one.id == state[TASK] for one in tasks)
            return self._unlisted(
                state, f"what the import {state[TASK]} made" if listed else f"the import {state[TASK]}"
            )
        if await place.bucket.has(key_of(wanted.tags), wanted.sha256):
            return await self._import(place, wanted, state, len(tasks))
        return await self._send(place.bucket, wanted, state, file)

    def _unlisted(self, state: State, what: str) -> Sending:
        first = state.get(UNSEEN, self._now)
        if self._now_s() - float(first) > SEEN_S:
            raise LaunchFailed(f"AWS does not list {what}: it is gone, or was never there")
        return Sending({**state, UNSEEN: first}, f"AWS does not list {what} yet")

    async def _send(self, bucket: Bucket, wanted: WantedImage, state: State, file: Path | None) -> Sending:
        if file is None:
            return Sending(state, "its file is needed", lacks_file=True)
        times = int(state.get(SENDS, 0))
        if times >= SENDS_MAX:
            raise LaunchFailed(f"the bucket {bucket.name} did not take the file, sent {times} times")
        await asyncio.to_thread(check, file, wanted.format)
        for one in await bucket.entries(key_of(wanted.tags)):  # of a launcher that is no more
            await bucket.remove(one)
        sending = bucket.send(wanted.tags, wanted.sha256, file)
        self._working[wanted.upload] = asyncio.ensure_future(sending)
        return Sending({**state, SENDS: str(times + 1)}, f"its file is on the way to the bucket {bucket.name}")

    async def _import(self, place: ImportPlace, wanted: WantedImage, state: State, before: int) -> Sending:
        """Have the object imported; `before`: how many imports of it there were, which all failed."""
        asked = start(wanted, place.calls, place.bucket.name, key_of(wanted.tags), token(f"{wanted.upload}-{before}"))
        try:
            told = await place.ec2.call(place.calls.start, asked)
        except (AwsRefused, OverQuota) as error:
            if isinstance(error, AwsRefused) and error.code not in _NO_ROOM:
                raise
            first = state.get(FULL, self._now)
            if self._now_s() - float(first) > FULL_MAX_S:
                raise
            return Sending({**state, FULL: first}, str(error))
        return Sending({**state, TASK: str(told["importTaskId"]), SINCE: self._now}, "AWS imports it")

    @property
    def _now(self) -> str:
        return str(int(self._now_s()))

    async def _imported(self, place: ImportPlace, wanted: WantedImage, state: State, task: ImportTask) -> Sending:
        if task.status == COMPLETED:
            return await self._take(place, wanted, state, task)
        state = {SINCE: self._now, **state, **({TASK: task.id} if task.is_alive else {})}
        limit_s = wanted.image.get("import-timeout", IMPORT_MAX_S)
        if limit_s and self._now_s() - float(state[SINCE]) > limit_s:
            await _cancel(place.ec2, task)
            text = f"AWS has not imported the file within {limit_s} s, its import-timeout"
            raise LaunchFailed(f"{text}; it said: {said(task.about) or task.status}")
        if task.status == DELETING:
            return Sending(state, "AWS ends an earlier import of it")
        return Sending(state, f"AWS imports it: {said(task.about) or task.status}")

    async def _take(self, place: ImportPlace, wanted: WantedImage, state: State, task: ImportTask) -> Sending:
        """Tag what was made, which AWS does not, and have an image of it."""
        made = [*([task.image] if task.image else []), *task.snapshots]
        await place.ec2.call("CreateTags", {"ResourceId": made, "Tag": tag_pairs(wanted.tags, UPLOAD_TAG)})
        state = {**state, TASK: task.id}
        if task.image:
            return Sending({**state, IMAGE: task.image}, "the image is there")
        try:
            told = await place.ec2.call("RegisterImage", register(wanted, task.snapshots[0]))
        except AwsRefused as error:
            if error.code != "InvalidAMIName.Duplicate":
                raise
            same = await _owned(place.ec2, _IMAGES, "name", [image_name(wanted)])
            if not same:
                raise CloudUnavailable(str(error)) from error
            told = dict(same[0])
        return Sending({**state, IMAGE: str(told["imageId"])}, "the image is registered")

    async def _made(self, place: ImportPlace, wanted: WantedImage, state: State, image: Told) -> Sending | Sent:
        id, standing = str(image["imageId"]), str(image.get("imageState"))
        state = {**state, IMAGE: id}
        if standing == "pending":
            return Sending(state, "AWS makes the image")
        if standing != "available":
            reason = (image.get("stateReason") or {}).get("message") or "it does not say why"
            await place.ec2.do("DeregisterImage", {"ImageId": id})
            raise LaunchFailed(f"AWS says: the image is {standing}: {said(str(reason))}")
        imds = wanted.image.get("imds-support")
        if imds and image.get("imdsSupport") != imds and state.get(IMDS) != id:  # an import takes no such argument
            await place.ec2.call("ModifyImageAttribute", {"ImageId": id, "ImdsSupport": {"Value": imds}})
            return Sending({**state, IMDS: id}, f"the image is set to IMDS {imds}")
        disks = [one.get("ebs") or {} for one in listed(image.get("blockDeviceMapping"))]
        keep = {id, *(str(disk["snapshotId"]) for disk in disks if disk.get("snapshotId"))}
        if not await self._clear(place, wanted, state, keep):
            return Sending(state, "what is not needed any more is taken away")
        return Sent(id, {IMAGE: id})

    @understood
    async def withdraw(self, wanted: WantedImage, state: State) -> bool:
        """Delete image, snapshots, imports and object, however far they are."""
        task = self._working.pop(wanted.upload, None)
        if task is not None:
            await end(task)
        try:
            place = self._place(wanted)
        except LaunchFailed:
            return True  # nothing was ever made
        return await self._clear(place, wanted, state, ())

    async def _clear(self, place: ImportPlace, wanted: WantedImage, state: State, keep: Collection[str]) -> bool:
        """Take away all of an upload but `keep`; return whether nothing was left."""
        ec2, tasks = place.ec2, await place.tasks(wanted)
        for task in tasks:
            if task.is_alive:
                await _cancel(ec2, task)
        ended = [task for task in tasks if task.status == COMPLETED]
        images = {str(one["imageId"]) for one in await _images(ec2, wanted, state)}
        made = {task.image for task in ended if task.image}
        images |= await _there(ec2, _IMAGES, made.difference(images, keep))
        tagged = await _owned(ec2, _SNAPSHOTS, f"tag:{UPLOAD_TAG}", [wanted.upload])
        snapshots = {str(one["snapshotId"]) for one in tagged if _is_of(tags_of(one), wanted)}
        made = {id for task in ended for id in task.snapshots}
        snapshots |= await _there(ec2, _SNAPSHOTS, made.difference(snapshots, keep))
        entries = await place.bucket.entries(key_of(wanted.tags))
        left = bool(entries) or any(task.status not in (COMPLETED, DELETED) for task in tasks)
        for id in sorted(images.difference(keep)):
            await ec2.do("DeregisterImage", {"ImageId": id})
            left = True
        if IMAGE in state and state[IMAGE] not in {*images, *keep}:  # it may not be listed yet
            left |= await ec2.do("DeregisterImage", {"ImageId": state[IMAGE]})
        for id in sorted(snapshots.difference(keep)):
            await ec2.do("DeleteSnapshot", {"SnapshotId": id})
            left = True
        for one in entries:
            await place.bucket.remove(one)
        return not left

    @understood
    async def listed(self, provider: Mapping[str, object]) -> list[Resource]:
        """Return what there is in the account, and in the provider's bucket, of uploads."""
        ec2, bucket = self._at(provider), self._bucket(provider)
        images = [one for one in await _owned(ec2, _IMAGES, "tag-key", [UPLOAD_TAG]) if _is_named(one)]
        snapshots = await _owned(ec2, _SNAPSHOTS, "tag-key", [UPLOAD_TAG])
        found = [Resource(str(one["imageId"]), IMAGE, tags_of(one), {}) for one in images]
        found += [Resource(str(one["snapshotId"]), "snapshot", tags_of(one), {}) for one in snapshots]
        known = {one.id for one in found}
        for calls in CALLS.values():
            tasks = await tasks_of(ec2, calls)
            found += [Resource(one.id, _IMPORT, one.tags, {}) for one in tasks if one.is_alive]
            found += await _untagged(ec2, [one for one in tasks if one.status == COMPLETED], known)
        if bucket is not None:
            entries = await bucket.entries(PREFIX)
            found += [Resource("?".join(filter(None, one)), _OBJECT, one.tags, {}) for one in entries]
        return found

    @understood
    async def discard(self, provider: Mapping[str, object], resource: Resource) -> None:
        """Delete it."""
        if resource.kind != _OBJECT:
            action, argument = _DELETING[resource.kind]
            await self._at(provider).do(action, {argument: resource.id})
        elif (bucket := self._bucket(provider)) is not None:
            key, _, sending = resource.id.partition("?")
            await bucket.remove(BucketEntry(key, sending))


async def _chosen(place: ImportPlace, tasks: Sequence[ImportTask], state: State) -> ImportTask | None:
    """Return the import to go on with: one that is whole, else one that is under way; None: there is none, or what
    the one that is known made is not listed.  Raise LaunchFailed where that one came to nothing."""
    known = next((one for one in tasks if one.id == state.get(TASK)), None)
    if known is not None and known.status == DELETED:
        raise LaunchFailed(f"AWS has not imported the file: {said(known.about) or 'it does not say why'}")
    ended = [one for one in tasks if one.status == COMPLETED]
    there = await _there(place.ec2, _IMAGES, {one.image for one in ended if one.image})
    there |= await _there(place.ec2, _SNAPSHOTS, {id for one in ended if not one.image for id in one.snapshots})
    for one in ended:
        made = {one.image} if one.image else set(one.snapshots)
        if made and made <= there:
            return one
    if known is not None and known.status == COMPLETED:
        return None
    going = [one for one in tasks if one.status not in (COMPLETED, DELETED)]
    return min(going, key=lambda one: not one.is_alive, default=None)


def _seen(state: State) -> State:
    return {name: value for name, value in state.items() if name != UNSEEN}


async def _cancel(ec2: Ec2, task: ImportTask) -> None:
    try:
        await ec2.do("CancelImportTask", {"ImportTaskId": task.id})
    except AwsRefused:
        return  # it has ended meanwhile, or goes on to its end: what it makes is found then


async def _owned(ec2: Ec2, what: tuple[str, str], name: str, values: Sequence[str]) -> list[Told]:
    """Return images or snapshots of this account alone: those of others that it may use can say anything."""
    found = list[Told]()
    for at in range(0, len(values), VALUES_MAX):
        filters = [{"Name": name, "Value": list(values[at : at + VALUES_MAX])}]
        disabled = {"IncludeDisabled": True} if what == _IMAGES else {}
        found += await ec2.every(*what, {"Owner": ["self"], "Filter": filters, **disabled})
    return found


async def _there(ec2: Ec2, what: tuple[str, str], ids: Collection[str]) -> set[str]:
    """Return which of the images or snapshots are there."""
    name, key = ("image-id", "imageId") if what == _IMAGES else ("snapshot-id", "snapshotId")
    return {str(one[key]) for one in await _owned(ec2, what, name, sorted(ids))}


async def _images(ec2: Ec2, wanted: WantedImage, state: State) -> list[Told]:
    """Return the images of an upload: the one that is known first."""
    found = await _owned(ec2, _IMAGES, f"tag:{UPLOAD_TAG}", [wanted.upload])
    mine = [one for one in found if _is_of(tags_of(one), wanted) and _is_named(one)]
    return sorted(mine, key=lambda one: (one["imageId"] != state.get(IMAGE), one["imageId"]))


def _is_named(image: Told) -> bool:
    """Return whether an image has the name that Headgate or an import gave it: copies have the same tags."""
    name = str(image.get("name") or "")
    return name.startswith(_IMPORTED) or name.endswith(tags_of(image).get(UPLOAD_TAG, name))


def _is_of(tags: Mapping[str, str], wanted: WantedImage) -> bool:
    return all(tags.get(name) == wanted.tags[name] for name in (SYSTEM_TAG, UPLOAD_TAG))


async def _untagged(ec2: Ec2, ended: Sequence[ImportTask], known: Collection[str]) -> list[Resource]:
    """Return what imports have made that nobody has tagged yet."""
    images = {one.image: one.tags for one in ended if one.image and one.image not in known}
    snapshots = {id: one.tags for one in ended for id in one.snapshots if id not in known}
    found = [Resource(id, IMAGE, images[id], {}) for id in await _there(ec2, _IMAGES, images)]
    there = await _there(ec2, _SNAPSHOTS, snapshots)
    return found + [Resource(id, "snapshot", snapshots[id], {}) for id in there]
