"""Imitate how EC2 makes images from files in a bucket.

Moto has no imports, and only the records of AMIs. The files are in moto's S3. Requests and answers are checked against
botocore's model of the service.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headgate.adapters.nodes.clouds.aws.api import AwsKeySource
from headgate.adapters.nodes.clouds.aws.driver import Aws
from headgate.ports.clouds import SYSTEM_TAG
from headgate.testing.clouds.aws import ACCESS, ACCOUNT, REGION, SECRET, call
from headgate.testing.clouds.awscalls import Arguments, EbsCalls, Ec2Calls, Ec2Refusal, Record, Tree, refusal
from headgate.testing.logstores import bucket
from headgate.testing.servers.faults import FaultAnswer, Faults, Pass, ReceivedRequest

OTHERS = "210987654321"
"""Another AWS account."""
PAGE = 25
_NAME = re.compile(r"[A-Za-z0-9()\[\] ./'@_-]{3,128}")


@dataclass
class ImportRecord:
    """Remember one import."""

    image: bool
    """Whether an image is imported, rather than a snapshot alone."""
    answer: Record
    source: tuple[str, str]
    """Bucket and key."""
    looks: int
    """Number of reads that show the import as running before it ends."""
    arguments: Arguments
    """Parameters of the request."""


@dataclass
class AwsImports:
    """Hold the images and snapshots that one account sees in one region."""

    stored: Callable[[str, str], bytes | None]
    """Returns the content of an object; None: there is none."""
    looks: int = 1
    """Number of reads that show an import as running."""
    refuses: str = ""
    """Reason for which AWS refuses each file that it imports; empty: it accepts them."""
    late: int = 0
    """Number of lists in which a new image or import is missing."""
    images: dict[str, Record] = field(default_factory=dict)
    snapshots: dict[str, Record] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    """Snapshot -> the digest of the file that it was made from."""
    tasks: dict[str, ImportRecord] = field(default_factory=dict)
    _tokens: dict[str, str] = field(default_factory=dict)
    _hidden: dict[str, int] = field(default_factory=dict)
    _calls: Ec2Calls = field(default_factory=Ec2Calls)

    def __post_init__(self) -> None:
        self.ebs = EbsCalls(self)

    async def __call__(self, request: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        """Answer calls about images; None: the call is for moto."""
        if (answer := self.ebs.answer(request)) is not None:
            return answer
        action = call(request) if request.method == "POST" and request.path == "/" else ""
        does = self._does().get(action)
        if does is None:
            return None
        kind = {"content-type": "text/xml;charset=UTF-8"}
        try:
            return FaultAnswer(200, self._calls.answer(action, does(self._calls.arguments(action, request.body))), kind)
        except Ec2Refusal as error:
            return FaultAnswer(error.status, refusal(error), kind)

    def _does(self) -> dict[str, Callable[[Arguments], Record]]:
        return {
            "ImportSnapshot": lambda arguments: self._import(arguments, image=False),
            "ImportImage": lambda arguments: self._import(arguments, image=True),
            "DescribeImportSnapshotTasks": lambda arguments: self._describe_tasks(arguments, image=False),
            "DescribeImportImageTasks": lambda arguments: self._describe_tasks(arguments, image=True),
            "CancelImportTask": self._cancel,
            "RegisterImage": self._register,
            "DeregisterImage": self._deregister,
            "ModifyImageAttribute": self._modify,
            "DeleteSnapshot": self._delete_snapshot,
            "CreateTags": self._tag,
            "DescribeImages": lambda arguments: self._describe(arguments, self.images, "Images", "ImageId"),
            "DescribeSnapshots": self._describe_snapshots,
        }

    # --- imports

    def _import(self, arguments: Arguments, image: bool) -> Record:
        # AWS repeats its answer for a repeated token.
        known = self.tasks.get(self._tokens.get(arguments.get("ClientToken", ""), ""))
        if known is not None:
            if known.arguments != arguments:
                raise Ec2Refusal("IdempotentParameterMismatch", "The client token was used with other parameters.")
            return known.answer
        (source,) = arguments["DiskContainers"] if image else (arguments["DiskContainer"],)
        if source["Format"] not in ("RAW", "VHD", "VMDK", *(("OVA", "VHDX") if image else ())):
            raise Ec2Refusal("InvalidParameter", f"The format {source['Format']} is not supported.")
        if image and arguments.get("Architecture") not in ("x86_64", "i386", "arm64"):
            raise Ec2Refusal("InvalidParameter", f"Unknown architecture {arguments.get('Architecture')}")
        place = source["UserBucket"]["S3Bucket"], source["UserBucket"]["S3Key"]
        if self.stored(*place) is None:
            raise Ec2Refusal("InvalidParameter", "The given S3 object is not valid or not accessible.")
        id = f"import-{'ami' if image else 'snap'}-{uuid.uuid4().hex[:17]}"
        tags = _tags(arguments, "import-image-task" if image else "import-snapshot-task")
        reported = {"Status": "active", "StatusMessage": "pending", "Progress": "0"}
        answer: Record = {"ImportTaskId": id, "Description": arguments["Description"], "Tags": tags}
        answer |= reported if image else {"SnapshotTaskDetail": {**reported, "Format": source["Format"]}}
        self.tasks[id] = ImportRecord(image, answer, place, self.looks, arguments)
        self._tokens[arguments["ClientToken"]] = id
        self._hidden[id] = self.late
        return answer

    def _describe_tasks(self, arguments: Arguments, image: bool) -> Record:
        if arguments.get("Filters"):
            raise Ec2Refusal("InvalidParameterValue", "The filter is not one that is documented.")
        # Pages of one list must fit together, so time passes only between lists.
        if "NextToken" not in arguments:
            for id, task in self.tasks.items():
                self._goes_on(id, task)
        found = [task.answer for id, task in self.tasks.items() if task.image == image and self._is_seen(id, arguments)]
        return _page(arguments, found, "ImportImageTasks" if image else "ImportSnapshotTasks")

    def _goes_on(self, id: str, task: ImportRecord) -> None:
        detail = task.answer if task.image else task.answer["SnapshotTaskDetail"]
        task.looks -= 1
        if detail["Status"] == "deleting" and task.looks < 0:
            detail["Status"] = "deleted"
        if detail["Status"] != "active" or task.looks >= 0:
            return
        content = self.stored(*task.source)
        wrong = self.refuses or ("" if content is not None else "The object is not there any more")
        if content is None or wrong:
            # AWS has no status for a failed import: it deletes the task and says why in the message.
            detail |= {"Status": "deleted", "StatusMessage": f"ClientError: {wrong}"}
            return
        # Without tags, as in AWS, which tags the task alone.
        snapshot = self.has_snapshot(content)
        detail["Status"] = "completed"
        if not task.image:
            detail["SnapshotId"] = snapshot
            return
        task.answer["SnapshotDetails"] = [{"SnapshotId": snapshot, "DeviceName": "/dev/sda1"}]
        mapping = [{"DeviceName": "/dev/sda1", "Ebs": {"SnapshotId": snapshot}}]
        architecture = task.arguments["Architecture"]
        made = self.has_image(Name=id, BlockDeviceMappings=mapping, Architecture=architecture, EnaSupport=True)
        task.answer["ImageId"] = made

    def _cancel(self, arguments: Arguments) -> Record:
        task = self.tasks.get(arguments["ImportTaskId"])
        if task is None:
            raise Ec2Refusal("InvalidConversionTaskId.Malformed", "The task is not there.")
        detail = task.answer if task.image else task.answer["SnapshotTaskDetail"]
        if detail["Status"] != "active":
            raise Ec2Refusal("IncorrectState", f"The task is {detail['Status']} and cannot be cancelled.")
        detail["Status"], task.looks = "deleting", 1
        return {"ImportTaskId": arguments["ImportTaskId"], "PreviousState": "active", "State": "deleting"}

    # --- images and snapshots

    def has_snapshot(self, content: bytes, owner: str = ACCOUNT, **fields: Tree) -> str:
        """Add a snapshot made from a file; return its id."""
        id = f"snap-{uuid.uuid4().hex[:17]}"
        self.snapshots[id] = {"SnapshotId": id, "OwnerId": owner, "State": "completed", "Tags": [], **fields}
        self.contents[id] = hashlib.sha256(content).hexdigest()
        return id

    def has_image(self, owner: str = ACCOUNT, **fields: Tree) -> str:
        """Add an image; return its id."""
        id = f"ami-{uuid.uuid4().hex[:17]}"
        self.images[id] = {"ImageId": id, "OwnerId": owner, "State": "available", "Tags": [], **fields}
        self._hidden[id] = self.late
        return id

    def _register(self, arguments: Arguments) -> Record:
        if not _NAME.fullmatch(arguments["Name"]):
            raise Ec2Refusal("InvalidAMIName.Malformed", "AMI names must be between 3 and 128 characters long, and …")
        if any(one["Name"] == arguments["Name"] and one["OwnerId"] == ACCOUNT for one in self.images.values()):
            raise Ec2Refusal("InvalidAMIName.Duplicate", f"AMI name {arguments['Name']} is already in use by AMI …")
        if arguments.get("ImdsSupport") and arguments.get("VirtualizationType") != "hvm":
            raise Ec2Refusal("InvalidParameterCombination", "IMDS support needs hvm")
        roots = [
            one["Ebs"] for one in arguments["BlockDeviceMappings"] if one["DeviceName"] == arguments["RootDeviceName"]
        ]
        if len(roots) != 1 or roots[0].get("SnapshotId") not in self.snapshots:
            raise Ec2Refusal("InvalidSnapshot.NotFound", "The snapshot of the root device does not exist.")
        if self.snapshots[roots[0]["SnapshotId"]]["State"] != "completed":
            raise Ec2Refusal("IncorrectState", "The snapshot is not completed.")
        fields = {n: v for n, v in arguments.items() if n not in ("TagSpecifications", "DryRun")}
        return {"ImageId": self.has_image(**{**fields, "Tags": _tags(arguments, "image")})}

    def _own(self, of: Mapping[str, Record], id: str, kind: str) -> Record:
        """Return the image or snapshot, which must exist and belong to the account. Raise Ec2Refusal."""
        if id not in of:
            raise Ec2Refusal(f"Invalid{kind}.NotFound", f"The {kind} '{id}' does not exist.")
        if of[id]["OwnerId"] != ACCOUNT:
            raise Ec2Refusal("AuthFailure", f"Not authorized for {kind} {id}", 403)
        return of[id]

    def _deregister(self, arguments: Arguments) -> Record:
        del self.images[self._own(self.images, arguments["ImageId"], "AMIID")["ImageId"]]
        return {"Return": True}

    def _modify(self, arguments: Arguments) -> Record:
        image = self._own(self.images, arguments["ImageId"], "AMIID")
        if set(arguments) != {"ImageId", "ImdsSupport"} or arguments["ImdsSupport"] != {"Value": "v2.0"}:
            raise Ec2Refusal("InvalidParameterValue", "It is set to v2.0, and to nothing else.")
        image["ImdsSupport"] = "v2.0"
        return {}

    def _delete_snapshot(self, arguments: Arguments) -> Record:
        one = self._own(self.snapshots, arguments["SnapshotId"], "Snapshot")
        # AWS refuses to delete a snapshot while an image uses it.
        for image in self.images.values():
            if any(disk["Ebs"].get("SnapshotId") == one["SnapshotId"] for disk in image["BlockDeviceMappings"]):
                text = f"The snapshot {one['SnapshotId']} is currently in use by {image['ImageId']}"
                raise Ec2Refusal("InvalidSnapshot.InUse", text)
        del self.snapshots[one["SnapshotId"]]
        return {}

    def _tag(self, arguments: Arguments) -> Record:
        ids = arguments["Resources"]
        found = [
            self._own(self.images, id, "AMIID") if id.startswith("ami-") else self._own(self.snapshots, id, "Snapshot")
            for id in ids
        ]
        for one in found:
            names = {tag["Key"] for tag in arguments["Tags"]}
            one["Tags"] = [*(tag for tag in one["Tags"] if tag["Key"] not in names), *_fit(arguments["Tags"])]
        return {}

    def _describe_snapshots(self, arguments: Arguments) -> Record:
        self.ebs.goes_on()
        return self._describe(arguments, self.snapshots, "Snapshots", "SnapshotId")

    def _describe(self, arguments: Arguments, every: Mapping[str, Record], members: str, id: str) -> Record:
        # Without owners, AWS also lists what others share, with any tags that they like.
        owners = arguments.get("Owners") or arguments.get("OwnerIds") or [ACCOUNT, OTHERS]
        found = [one for one in every.values() if one["OwnerId"] in [o.replace("self", ACCOUNT) for o in owners]]
        if chosen := arguments.get(f"{id}s"):
            found = [self._own(every, one, id) for one in chosen]
        for filter in arguments.get("Filters", []):
            found = [one for one in found if _fits(one, filter["Name"], filter["Values"], id)]
        return _page(arguments, [one for one in found if self._is_seen(one[id], arguments)], members)

    def _is_seen(self, id: str, arguments: Arguments) -> bool:
        """Return whether lists already contain the object."""
        left = self._hidden.get(id, 0)
        # The pages of one list count as one look.
        if "NextToken" not in arguments:
            self._hidden[id] = left - 1
        return left <= 0


class AwsImagesGround:
    """Provide a region with a bucket, for images."""

    def __init__(self, faults: Faults, name: str) -> None:
        from moto.backends import get_backend

        self.faults, self.bucket = faults, name
        self.provider = {"region": REGION, "object-storage": {"bucket-name": name}}
        self._stored = get_backend("s3")[ACCOUNT]["aws"]
        self.ec2 = AwsImports(self._content)

    def _content(self, name: str, key: str) -> bytes | None:
        found = self._stored.buckets[name].keys.get(key) if name in self._stored.buckets else None
        return None if found is None else bytes(found.value)

    def driver(self) -> Aws:
        """Return a driver without any state."""
        return Aws("cloudy", AwsKeySource(access=ACCESS, secret=SECRET), self.faults.url, env={})

    def objects(self) -> dict[str, dict[str, str]]:
        """Return the objects in the bucket, complete or in parts -> their tags."""
        # An unfinished upload costs money, too.
        bucket = self._stored.buckets[self.bucket]
        complete = {key: self._stored.tagger.get_tag_dict_for_resource(one.arn) for key, one in bucket.keys.items()}
        return complete | {f"{one.key_name}?{id}": dict(one.tags or {}) for id, one in bucket.multiparts.items()}

    def ours(self, system: str = "ours") -> dict[str, tuple[Mapping[str, str], str]]:
        """Return the resources that cost money: id -> its tags, and the content's digest for an image. An image and its
        snapshots count as one if they have the same tags."""
        found: dict[str, tuple[Mapping[str, str], str]] = {id: (tags, "") for id, tags in self.objects().items()}
        tags = {id: tags_in(one) for id, one in (self.ec2.snapshots | self.ec2.images).items()}
        used = set[str]()
        for id, image in self.ec2.images.items():
            (snapshot,) = (disk["Ebs"]["SnapshotId"] for disk in image["BlockDeviceMappings"])
            used |= {snapshot} if tags.get(snapshot) == tags[id] else set()
            found[id] = tags[id], self.ec2.contents.get(snapshot, "")
        found |= {id: (tags[id], "") for id in self.ec2.snapshots if id not in used}
        for id, task in self.ec2.tasks.items():
            if task.answer.get("SnapshotTaskDetail", task.answer)["Status"] not in ("completed", "deleted"):
                found[id] = tags_in(task.answer), ""
        return {id: one for id, one in found.items() if one[0].get(SYSTEM_TAG, system) == system}


@asynccontextmanager
async def aws_images_ground(server: str) -> AsyncIterator[AwsImagesGround]:
    """Provide the model, and moto's S3, behind a proxy."""
    async with Faults(server).serving() as faults:
        ground = AwsImagesGround(faults, bucket(server, f"images-{uuid.uuid4().hex}").bucket)
        faults.behave(ground.ec2)
        yield ground


def tags_in(one: Arguments) -> dict[str, str]:
    """Return the tags of something."""
    return {tag["Key"]: tag["Value"] for tag in one["Tags"]}


def _fits(one: Arguments, name: str, values: list[str], id: str) -> bool:
    tags = {tag["Key"]: tag["Value"] for tag in one["Tags"]}
    if name.startswith("tag:"):
        return tags.get(name.removeprefix("tag:")) in values
    if name == "tag-key":
        return bool(set(tags) & set(values))
    known = {"image-id": "ImageId", "snapshot-id": "SnapshotId", "name": "Name"}
    if known.get(name) not in (id, "Name") or (name == "name" and id != "ImageId"):
        raise Ec2Refusal("InvalidParameterValue", f"The filter '{name}' is invalid")
    return one[known[name]] in values


def _tags(arguments: Arguments, kind: str) -> list[Record]:
    several = arguments.get("TagSpecifications", [])
    if any(one["ResourceType"] != kind for one in several):
        raise Ec2Refusal("InvalidParameterValue", f"'{several[0]['ResourceType']}' is not a valid taggable resource")
    return _fit([tag for one in several for tag in one["Tags"]])


def _fit(tags: list[Record]) -> list[Record]:
    names = [tag["Key"] for tag in tags]
    if len(tags) > 50 or len(set(names)) != len(names):
        raise Ec2Refusal("TagLimitExceeded", "More than 50 tags, or one of them twice")
    if any(
        name.startswith("aws:") or len(name) > 128 or len(tag["Value"]) > 256
        for name, tag in zip(names, tags, strict=True)
    ):
        raise Ec2Refusal("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
    return tags


def _page(arguments: Arguments, found: list[Record], members: str) -> Record:
    at = int(arguments.get("NextToken", "0"))
    more = {"NextToken": str(at + PAGE)} if len(found) > at + PAGE else {}
    return {members: found[at : at + PAGE], **more}
