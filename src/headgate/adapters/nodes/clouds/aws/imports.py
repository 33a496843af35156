"""Import a file that was sent as an AMI, and find every resource that imports have left in the account."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from headgate.adapters.nodes.clouds.aws.api import Ec2
from headgate.adapters.nodes.clouds.aws.launch import ROOT, tag_pairs
from headgate.adapters.nodes.clouds.aws.query import Arguments, AwsItem, AwsRefused, listed, tags_of
from headgate.adapters.nodes.clouds.aws.uploads import KEY_PREFIX, Blocks, Bucket, BucketEntry, key_of
from headgate.base.hints import expected, with_hint
from headgate.config.keys.nodes import AWS_IMPORTS
from headgate.ports.clouds import SYSTEM_TAG, UPLOAD_TAG, LaunchFailed, Resource, WantedImage

SNAPSHOT, IMAGE = "snapshot", "image"
COMPLETED, DELETING, DELETED = "completed", "deleting", "deleted"
"""Final states of a task; AWS also deletes tasks whose import failed."""
NAME_MAX = 128
_NO_NAME = re.compile(r"[^A-Za-z0-9()\[\] ./'@_-]")
OBJECT, IMPORT = "object", "import"
"""Kinds of resources besides images and snapshots."""
VALUES_MAX = 200
"""Limit on the values of one filter."""
IMAGES, SNAPSHOTS = ("DescribeImages", "imagesSet"), ("DescribeSnapshots", "snapshotSet")
"""Calls that list resources, each with the element of the response that contains them."""
DELETING_CALLS = {
    IMAGE: ("DeregisterImage", "ImageId"),
    SNAPSHOT: ("DeleteSnapshot", "SnapshotId"),
    IMPORT: ("CancelImportTask", "ImportTaskId"),
}
"""Kind of resource -> the call that deletes it, and the argument with its id."""
_IMPORTED = "import-"
"""Prefix of the names that AWS itself gives to AMIs."""


class ImportCalls(NamedTuple):
    """Name the calls of one way to import a file."""

    start: str
    describe: str
    members: str
    resource: str
    """Resource type of the task, for its tags."""


CALLS = {
    SNAPSHOT: ImportCalls(
        "ImportSnapshot", "DescribeImportSnapshotTasks", "importSnapshotTaskSet", "import-snapshot-task"
    ),
    IMAGE: ImportCalls("ImportImage", "DescribeImportImageTasks", "importImageTaskSet", "import-image-task"),
}
"""`import-method` of an image -> the calls that import it."""


class ImportTask(NamedTuple):
    """Describe the state of one import."""

    id: str
    status: str
    about: str
    """AWS's message about the task."""
    image: str
    """Id of the image that was made; empty if there is none."""
    snapshots: tuple[str, ...]
    """Ids of the snapshots that were made."""
    tags: Mapping[str, str]

    @property
    def is_alive(self) -> bool:
        """Return whether AWS still works on the import."""
        return self.status not in (COMPLETED, DELETING, DELETED)


def calls_of(wanted: WantedImage) -> ImportCalls | None:
    """Return the calls that import an image; None if its file is written into a snapshot. Raise LaunchFailed if it
    cannot be imported."""
    method = str(wanted.image.get("import-method") or SNAPSHOT)
    if method not in AWS_IMPORTS:
        text = f"image {wanted.name}: import-method {method} is not known"
        raise LaunchFailed(with_hint(text, expected(AWS_IMPORTS)))
    if wanted.format not in AWS_IMPORTS[method]:
        taken = ", ".join(AWS_IMPORTS[method])
        raise LaunchFailed(f"image {wanted.name}: AWS imports no {wanted.format} by {method}; it takes {taken}")
    return CALLS.get(method)


def bucket_name(provider: Mapping[str, object]) -> str:
    """Return the bucket of a provider; empty if it names none."""
    found = provider.get("object-storage")
    return str(found.get("bucket-name") or "") if isinstance(found, Mapping) else ""


def image_name(wanted: WantedImage) -> str:
    """Return the name of an upload's AMI, which is unique in the account."""
    # Only the image's name is cut: the upload's id makes the result unique.
    return f"{_NO_NAME.sub('-', wanted.name)[: NAME_MAX - len(wanted.upload) - 1]}-{wanted.upload}"


def start(wanted: WantedImage, calls: ImportCalls, bucket: str, key: str, token: str) -> Arguments:
    """Return the arguments of the call that imports an object; several calls with the same `token` import it once."""
    source = {
        "Description": image_name(wanted),
        "Format": wanted.format.upper(),
        "UserBucket": {"S3Bucket": bucket, "S3Key": key},
    }
    arguments: dict[str, object] = {
        "ClientToken": token,
        "Description": image_name(wanted),
        "TagSpecification": [{"ResourceType": calls.resource, "Tag": tag_pairs(wanted.tags, UPLOAD_TAG)}],
    }
    if calls is CALLS[IMAGE]:
        return {**arguments, "Architecture": _architecture(wanted), "DiskContainer": [source]}
    return {**arguments, "DiskContainer": source}


def register(wanted: WantedImage, snapshot: str) -> Arguments:
    """Return the arguments of RegisterImage."""
    settings = wanted.image
    disk = {
        "SnapshotId": snapshot,
        "VolumeType": settings.get("volume-type") or "gp3",
        "VolumeSize": settings.get("volume-size"),
        "Iops": settings.get("iops"),
        "Throughput": settings.get("throughput"),
        "DeleteOnTermination": True,
    }
    return {
        "Name": image_name(wanted),
        "Description": image_name(wanted),
        "Architecture": _architecture(wanted),
        "VirtualizationType": "hvm",
        "EnaSupport": settings.get("ena-support") is not False,
        "ImdsSupport": settings.get("imds-support"),
        "RootDeviceName": ROOT,
        "BlockDeviceMapping": [{"DeviceName": ROOT, "Ebs": disk}],
        "TagSpecification": [{"ResourceType": "image", "Tag": tag_pairs(wanted.tags, UPLOAD_TAG)}],
    }


def _architecture(wanted: WantedImage) -> str:
    return str(wanted.image.get("architecture") or "x86_64")


async def tasks_of(ec2: Ec2, calls: ImportCalls) -> list[ImportTask]:
    """Return Headgate's import tasks that run, or ended in the last days. They are filtered here, because AWS cannot
    filter them by tag."""
    found = [_task(one) for one in await ec2.every(calls.describe, calls.members)]
    return [one for one in found if SYSTEM_TAG in one.tags and UPLOAD_TAG in one.tags]


def _task(item: AwsItem) -> ImportTask:
    # ImportSnapshot nests the details that ImportImage has at the top level.
    detail = item.get("snapshotTaskDetail") or item
    made = [detail, *listed(item.get("snapshotDetailSet"))]
    snapshots = tuple(str(part["snapshotId"]) for part in made if part.get("snapshotId"))
    words = " ".join(str(detail[name]) for name in ("statusMessage", "progress") if detail.get(name))
    about = words + ("%" if detail.get("progress") else "")
    image, status = str(item.get("imageId") or ""), str(detail.get("status") or "")
    return ImportTask(str(item["importTaskId"]), status, about, image, snapshots, tags_of(item))


class ImportPlace(NamedTuple):
    """Describe where and how an image is imported."""

    ec2: Ec2
    blocks: Blocks
    bucket: Bucket | None
    """Bucket that the file passes through; None if it is written into a snapshot directly."""
    calls: ImportCalls | None
    """Calls that import it; None if there are no import tasks."""

    async def tasks(self, wanted: WantedImage) -> list[ImportTask]:
        """Return the imports of an upload."""
        found = await tasks_of(self.ec2, self.calls) if self.calls is not None else []
        return [one for one in found if is_of(one.tags, wanted)]

    async def entries(self, wanted: WantedImage) -> list[BucketEntry]:
        """Return the objects of an upload."""
        return await self.bucket.entries(key_of(wanted.tags)) if self.bucket is not None else []

    async def snapshots(self, wanted: WantedImage) -> list[AwsItem]:
        """Return the snapshots of an upload that are tagged."""
        found = await owned(self.ec2, SNAPSHOTS, f"tag:{UPLOAD_TAG}", [wanted.upload])
        return [one for one in found if is_of(tags_of(one), wanted)]


async def cancel(ec2: Ec2, task: ImportTask) -> None:
    """Cancel an import."""
    try:
        await ec2.do("CancelImportTask", {"ImportTaskId": task.id})
    except AwsRefused:
        return  # it has ended or will end; a later call finds its results


async def owned(ec2: Ec2, kind: tuple[str, str], name: str, values: Sequence[str]) -> list[AwsItem]:
    """Return images or snapshots of this account only, because shared ones of other accounts could have any tags."""
    found = list[AwsItem]()
    for at in range(0, len(values), VALUES_MAX):
        filters = [{"Name": name, "Value": list(values[at : at + VALUES_MAX])}]
        # Disabled AMIs, too: the snapshots of one still cost money, and without this it would seem to be gone.
        disabled = {"IncludeDisabled": True} if kind == IMAGES else {}
        found += await ec2.every(*kind, {"Owner": ["self"], "Filter": filters, **disabled})
    return found


async def there_are(ec2: Ec2, kind: tuple[str, str], ids: Collection[str]) -> set[str]:
    """Return which of these images or snapshots exist."""
    name, key = ("image-id", "imageId") if kind == IMAGES else ("snapshot-id", "snapshotId")
    return {str(one[key]) for one in await owned(ec2, kind, name, sorted(ids))}


async def made_of(ec2: Ec2, wanted: WantedImage, first: str = "") -> list[AwsItem]:
    """Return the images of an upload, the one with the id `first` first."""
    found = await owned(ec2, IMAGES, f"tag:{UPLOAD_TAG}", [wanted.upload])
    images = [one for one in found if is_of(tags_of(one), wanted) and is_named(one)]
    return sorted(images, key=lambda one: (one["imageId"] != first, one["imageId"]))


def is_named(image: AwsItem) -> bool:
    """Return whether an image has the name that Headgate or an import gave it. Copies that people make have the same
    tags, but other names."""
    name = str(image.get("name") or "")
    return name.startswith(_IMPORTED) or name.endswith(tags_of(image).get(UPLOAD_TAG, name))


def is_of(tags: Mapping[str, str], wanted: WantedImage) -> bool:
    """Return whether a resource with these tags belongs to an upload."""
    return all(tags.get(name) == wanted.tags[name] for name in (SYSTEM_TAG, UPLOAD_TAG))


async def untagged(ec2: Ec2, ended: Sequence[ImportTask], known: Collection[str]) -> list[Resource]:
    """Return the results of ended imports that are not known yet, because they have no tags."""
    images = {one.image: one.tags for one in ended if one.image and one.image not in known}
    snapshots = {id: one.tags for one in ended for id in one.snapshots if id not in known}
    found = [Resource(id, IMAGE, images[id], {}) for id in await there_are(ec2, IMAGES, images)]
    existing = await there_are(ec2, SNAPSHOTS, snapshots)
    return found + [Resource(id, SNAPSHOT, snapshots[id], {}) for id in existing]


async def cleared(place: ImportPlace, wanted: WantedImage, known: Mapping[str, str], keep: Collection[str]) -> bool:
    """Delete all resources of an upload except `keep`; return whether there were none. `known`: kind -> resource that
    may not be listed yet."""
    ec2, tasks = place.ec2, await place.tasks(wanted)
    # Running imports are cancelled first, so that they make nothing new while their results are deleted.
    for task in tasks:
        if task.is_alive:
            await cancel(ec2, task)
    ended = [task for task in tasks if task.status == COMPLETED]
    images = {str(one["imageId"]) for one in await made_of(ec2, wanted)}
    fruit = {task.image for task in ended if task.image}
    images |= await there_are(ec2, IMAGES, fruit.difference(images, keep))
    snapshots = {str(one["snapshotId"]) for one in await place.snapshots(wanted)}
    fruit = {id for task in ended for id in task.snapshots}
    snapshots |= await there_are(ec2, SNAPSHOTS, fruit.difference(snapshots, keep))
    entries = await place.entries(wanted)
    # Everything that this call finds or deletes counts as left: only a call that finds nothing proves that there is
    # nothing.
    left = bool(entries) or any(task.status not in (COMPLETED, DELETED) for task in tasks)
    for kind, ids in ((IMAGE, images), (SNAPSHOT, snapshots)):  # AWS keeps a snapshot while an image uses it
        action, argument = DELETING_CALLS[kind]
        for id in sorted(ids.difference(keep)):
            await ec2.do(action, {argument: id})
            left = True
        # A new resource may be missing from the lists, but it can be deleted by its id.
        if kind in known and known[kind] not in {*ids, *keep}:
            left |= await ec2.do(action, {argument: known[kind]})
    if place.bucket is not None:
        for one in entries:
            await place.bucket.remove(one)
    return not left


async def every_trace(ec2: Ec2, bucket: Bucket | None) -> list[Resource]:
    """Return all resources of uploads in the account and in a bucket."""
    images = [one for one in await owned(ec2, IMAGES, "tag-key", [UPLOAD_TAG]) if is_named(one)]
    snapshots = await owned(ec2, SNAPSHOTS, "tag-key", [UPLOAD_TAG])
    found = [Resource(str(one["imageId"]), IMAGE, tags_of(one), {}) for one in images]
    found += [Resource(str(one["snapshotId"]), SNAPSHOT, tags_of(one), {}) for one in snapshots]
    known = {one.id for one in found}
    for calls in CALLS.values():
        tasks = await tasks_of(ec2, calls)
        found += [Resource(one.id, IMPORT, one.tags, {}) for one in tasks if one.is_alive]
        # If a launcher died before CreateTags, only the task connects its results with an upload.
        found += await untagged(ec2, [one for one in tasks if one.status == COMPLETED], known)
    if bucket is not None:
        entries = await bucket.entries(KEY_PREFIX)
        found += [Resource("?".join(filter(None, one)), OBJECT, one.tags, {}) for one in entries]
    return found
