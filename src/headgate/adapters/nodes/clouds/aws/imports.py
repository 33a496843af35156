"""Make an AMI of a file in a bucket: give the arguments of the calls, and read the tasks in which AWS imports it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from headgate.adapters.nodes.clouds.aws.api import Ec2
from headgate.adapters.nodes.clouds.aws.launch import ROOT, tag_pairs
from headgate.adapters.nodes.clouds.aws.query import Arguments, AwsItem, listed, tags_of
from headgate.config.keys.nodes import AWS_IMPORTS
from headgate.ports.cloud import SYSTEM_TAG, LaunchFailed
from headgate.ports.images import UPLOAD_TAG, WantedImage

SNAPSHOT, IMAGE = "snapshot", "image"
COMPLETED, DELETING, DELETED = "completed", "deleting", "deleted"
"""Final states of a task; AWS also deletes tasks whose import failed."""
NAME_MAX = 128
_NO_NAME = re.compile(r"[^A-Za-z0-9()\[\] ./'@_-]")


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
        """Return whether AWS still works on it."""
        return self.status not in (COMPLETED, DELETING, DELETED)


def calls_of(wanted: WantedImage) -> ImportCalls | None:
    """Return the calls that import an image; None if its file is written into a snapshot. Raise LaunchFailed if it
    cannot be imported."""
    method = str(wanted.image.get("import-method") or SNAPSHOT)
    if method not in AWS_IMPORTS:
        known = ", ".join(AWS_IMPORTS)
        raise LaunchFailed(f"image {wanted.name}: import-method {method} is not known; known are {known}")
    if wanted.format not in AWS_IMPORTS[method]:
        taken = ", ".join(AWS_IMPORTS[method])
        raise LaunchFailed(f"image {wanted.name}: AWS imports no {wanted.format} by {method}; it takes {taken}")
    return CALLS.get(method)


def bucket_name(provider: Mapping[str, object]) -> str:
    """Return the bucket of a provider; empty if it names none."""
    found = provider.get("object-storage")
    return str(found.get("bucket-name") or "") if isinstance(found, Mapping) else ""


def image_name(wanted: WantedImage) -> str:
    """Return the name of an upload's AMI, which no other one in the account can have."""
    # The name is cut, never the upload's id, which makes it unique.
    return f"{_NO_NAME.sub('-', wanted.name)[: NAME_MAX - len(wanted.upload) - 1]}-{wanted.upload}"


def start(wanted: WantedImage, calls: ImportCalls, bucket: str, key: str, token: str) -> Arguments:
    """Return the arguments of the call that imports an object; calls with the same `token` import it once."""
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
    """Return Headgate's import tasks that run, or ended in the last days: AWS cannot filter them by tag."""
    found = [_task(one) for one in await ec2.every(calls.describe, calls.members)]
    return [one for one in found if SYSTEM_TAG in one.tags and UPLOAD_TAG in one.tags]


def _task(item: AwsItem) -> ImportTask:
    # ImportSnapshot nests what ImportImage has at the top.
    detail = item.get("snapshotTaskDetail") or item
    made = [detail, *listed(item.get("snapshotDetailSet"))]
    snapshots = tuple(str(part["snapshotId"]) for part in made if part.get("snapshotId"))
    words = " ".join(str(detail[name]) for name in ("statusMessage", "progress") if detail.get(name))
    about = words + ("%" if detail.get("progress") else "")
    image, status = str(item.get("imageId") or ""), str(detail.get("status") or "")
    return ImportTask(str(item["importTaskId"]), status, about, image, snapshots, tags_of(item))
