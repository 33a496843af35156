"""Test features of images on AWS: slow or refused imports, files in parts, delayed lists."""

from __future__ import annotations

import asyncio
import hashlib
import os
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from headgate.adapters.nodes.clouds.aws import uploads as buckets
from headgate.adapters.nodes.clouds.aws.api import AwsKeySource
from headgate.adapters.nodes.clouds.aws.driver import Aws
from headgate.adapters.nodes.clouds.aws.images import FULL_MAX_S, SEEN_S, AwsImages
from headgate.adapters.nodes.clouds.aws.uploads import BLOCK_BYTES, BucketEntry
from headgate.map.places import Map
from headgate.ports.clouds import (
    NODE_TAG,
    SYSTEM_TAG,
    UPLOAD_TAG,
    CloudUnavailable,
    LaunchFailed,
    MachineSpec,
    OverQuota,
    Sending,
    Sent,
    WantedImage,
)
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.nodes.accounts import CloudAccount
from headgate.services.nodes.images.keeper import ImageKeeper
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import At
from headgate.testing.clock import DEADLINE_S
from headgate.testing.clouds.aws import ACCESS, REGION, SECRET, call, error
from headgate.testing.clouds.awsimages import AwsImagesGround, aws_images_ground, tags_in
from headgate.testing.clouds.ground import driving
from headgate.testing.servers.faults import Fault, FaultAnswer, Pass, ReceivedRequest, answers, lost, unheard

CONTENT = b"a disk" * 1000
METHODS = pytest.mark.parametrize("method", ["snapshot", "image"])


@pytest.fixture
async def ground(s3_server: str) -> AsyncIterator[AwsImagesGround]:
    async with aws_images_ground(s3_server) as found:
        yield found


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def images(ground: AwsImagesGround, clock: Clock) -> AsyncIterator[AwsImages]:
    driver = Aws("cloudy", AwsKeySource(access=ACCESS, secret=SECRET), ground.faults.url, {}, clock)
    yield driver.images
    await driver.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(CONTENT)
    return path


def wanted(ground: AwsImagesGround, content: bytes = CONTENT, **image: Any) -> WantedImage:
    """Return an image; `said`: its settings in the provider."""
    id = str(uuid.uuid4())
    tags = {SYSTEM_TAG: "ours", UPLOAD_TAG: id, "team": "blue & green <"}
    image = {name.replace("_", "-"): value for name, value in image.items()}
    format = image.get("image-format", "raw")
    return WantedImage(id, "debian", format, hashlib.sha256(content).hexdigest(), image, ground.provider, tags)


def calls(*names: str) -> Callable[[ReceivedRequest], bool]:
    return lambda received: call(received) in names


def arguments(ground: AwsImagesGround, name: str) -> list[dict[str, str]]:
    """Return the parameters of each such call."""
    made = [received.body.decode() for received in ground.faults.requests if call(received) == name]
    return [{key: values[0] for key, values in parse_qs(one, keep_blank_values=True).items()} for one in made]


async def sent(images: AwsImages, one: WantedImage, file: Path, state: dict[str, str] | None = None) -> Sent:
    """Continue until the image exists, whichever answers are lost."""
    state = state or {}
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                step = await images.send(one, state, file)
            except CloudUnavailable:
                continue
            state = dict(step.state)
            if isinstance(step, Sent):
                return step
            if images.under_way:
                await asyncio.wait(images.under_way)


async def until(images: AwsImages, one: WantedImage, file: Path, key: str) -> dict[str, str]:
    """Continue until the state has a key."""
    state: dict[str, str] = {}
    async with asyncio.timeout(DEADLINE_S):
        while key not in state:
            state = dict((await images.send(one, state, file)).state)
            if images.under_way:
                await asyncio.wait(images.under_way)
    return state


async def gone(images: AwsImages, one: WantedImage, state: dict[str, str] | None = None) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await images.withdraw(one, state or {}):
            pass


@pytest.mark.long
async def test_an_image_has_its_providers_settings_and_machines_use_it(
    ground: AwsImagesGround, images: AwsImages, file: Path
) -> None:
    settings = {"architecture": "arm64", "ena_support": False, "imds_support": "v2.0"}
    one = wanted(ground, **settings, volume_size=20, volume_type="gp3", iops=4000, throughput=250)
    upload = await sent(images, replace(one, name="dé/bian: 12"), file)
    there = ground.ec2.images[upload.external_id]
    disk = there["BlockDeviceMappings"][0]["Ebs"]
    assert (there["Architecture"], there["EnaSupport"], there["ImdsSupport"]) == ("arm64", False, "v2.0")
    assert (disk["VolumeSize"], disk["VolumeType"], disk["Iops"], disk["Throughput"]) == (20, "gp3", 4000, 250)
    assert there["Name"] == f"d-/bian- 12-{one.upload}" and tags_in(there) == one.tags
    assert tags_in(ground.ec2.snapshots[disk["SnapshotId"]]) == one.tags
    assert set(ground.ours()) == {upload.external_id} and ground.ec2.contents[disk["SnapshotId"]] == one.sha256
    spec = MachineSpec(
        "node",
        {"name": "n"},
        {"image-id": upload.external_id},
        {"instance-type": "t3.micro"},
        one.provider,
        {NODE_TAG: "n"},
    )
    async with driving(ground) as driver:  # type: ignore[arg-type]
        state = (await driver.advance(spec, {})).state
        ground.faults.always(error(400, "Unsupported", "not here"), calls("RunInstances"))
        with pytest.raises(LaunchFailed, match="not here"):
            await driver.advance(spec, state)
    assert arguments(ground, "RunInstances")[0]["ImageId"] == upload.external_id


async def test_an_imported_image_is_tagged_and_set_as_its_provider_says(
    ground: AwsImagesGround, images: AwsImages, file: Path
) -> None:
    one = wanted(ground, import_method="image", architecture="arm64", imds_support="v2.0")
    upload = await sent(images, one, file)
    there = ground.ec2.images[upload.external_id]
    assert (there["Architecture"], there["ImdsSupport"], tags_in(there)) == ("arm64", "v2.0", one.tags)
    assert set(ground.ours()) == {upload.external_id} and upload.state == {"image": upload.external_id}
    assert len(arguments(ground, "ModifyImageAttribute")) == 1 and not arguments(ground, "RegisterImage")


@pytest.mark.long
async def test_a_file_is_sent_in_parts_that_are_repeated_and_every_request_is_signed(
    ground: AwsImagesGround, images: AwsImages, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 5 * 2**20  # S3 accepts no smaller one
    monkeypatch.setattr(buckets, "PART_BYTES", size)
    content = os.urandom(size) + bytes(size) + b"the rest"
    file.write_bytes(content)
    slow = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
    for fault in (answers(503, slow, {"retry-after": "0"}), lost, unheard):
        ground.faults.once(fault, lambda received: "partNumber=2" in received.path)
    seen = dict[str, dict[str, str]]()

    async def watched(received: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        seen.update(ground.objects())
        return await go_on()

    ground.faults.always(watched, calls("ImportSnapshot"))
    one = wanted(ground, content)
    await sent(images, one, file)
    key = f"headgate/ours/{one.upload}"
    assert seen == {key: {SYSTEM_TAG: "ours", UPLOAD_TAG: one.upload}}, "S3 takes no & in a tag"
    parts = [request for request in ground.faults.requests if "partNumber" in request.path]
    assert [parse_qs(urlsplit(request.path).query)["partNumber"] for request in parts] == [["1"], *[["2"]] * 4, ["3"]]
    assert max(len(request.body) for request in ground.faults.requests) == size
    for request in ground.faults.requests:
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert headers["authorization"] == signature(ground, request, headers), request.path


def signature(ground: AwsImagesGround, received: ReceivedRequest, headers: Mapping[str, str]) -> str:
    """Return the request that Amazon's own client sends."""
    names = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    request = AWSRequest(received.method, ground.faults.url + received.path, data=received.body)
    for name in names:
        request.headers[name] = headers[name]
    request.context["timestamp"] = headers["x-amz-date"]
    is_s3, is_ebs = received.path.startswith(f"/{ground.bucket}/"), received.path.startswith("/snapshots")
    kind, service = (S3SigV4Auth, "s3") if is_s3 else (SigV4Auth, "ebs" if is_ebs else "ec2")
    signer = kind(Credentials(ACCESS, SECRET), service, REGION)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    credential = f"Credential={ACCESS}/{signer.credential_scope(request)}, SignedHeaders={';'.join(sorted(names))}"
    return f"AWS4-HMAC-SHA256 {credential}, Signature={signer.signature(text, request)}"


@pytest.mark.long
@pytest.mark.parametrize("method", ["snapshot", "image", "ebs-direct"])
@pytest.mark.parametrize("fault", [lost, unheard])
async def test_no_call_whose_answer_is_lost_makes_anything_twice(
    ground: AwsImagesGround, images: AwsImages, file: Path, fault: Fault, method: str
) -> None:
    met = set[tuple[str, str]]()

    def first(received: ReceivedRequest) -> bool:
        path = urlsplit(received.path)
        kind = (
            call(received) if received.path == "/" else received.method + path.path[:13],
            path.query.partition("=")[0],
        )
        return kind not in met and not met.add(kind)  # type: ignore[func-returns-value]

    ground.faults.always(fault, first)
    one = wanted(ground, import_method=method, imds_support="v2.0")
    upload = await sent(images, one, file)
    assert set(ground.ours()) == {upload.external_id} and len(ground.ec2.tasks) == (method != "ebs-direct")
    assert len(met) >= (7 if method == "ebs-direct" else 12)
    state = dict(upload.state)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if await images.withdraw(one, state):
                    break
            except CloudUnavailable:
                continue
    assert ground.ours() == {} and ground.ec2.snapshots == {} and ground.objects() == {}


@pytest.mark.long
@METHODS
async def test_a_refused_import_is_reported_in_the_words_of_aws_and_retried(
    ground: AwsImagesGround, images: AwsImages, file: Path, method: str
) -> None:
    one = wanted(ground, import_method=method)
    ground.ec2.refuses = "Disk validation failed [Unsupported Disk Format]"
    for _ in range(2):
        with pytest.raises(LaunchFailed, match=r"ClientError: Disk validation failed \[Unsupported Disk Format\]"):
            await sent(images, one, file)
    role = "The service role vmimport provided does not exist or does not have sufficient permissions"
    starts = ("ImportSnapshot", "ImportImage")
    ground.faults.once(error(400, "InvalidParameter", role), calls(*starts))
    with pytest.raises(LaunchFailed, match=role):
        await sent(images, one, file)
    assert set(ground.ours()) == {f"headgate/ours/{one.upload}"}, "it need not be sent again"
    ground.ec2.refuses = ""
    upload = await sent(images, one, file)
    assert set(ground.ours()) == {upload.external_id} and len(ground.ec2.tasks) == 3
    assert len([received for received in ground.faults.requests if "partNumber" in received.path]) == 1
    await gone(images, one, dict(upload.state))
    assert ground.ours() == {}


async def test_an_import_that_takes_too_long_is_cancelled_and_its_late_fruit_is_taken(
    ground: AwsImagesGround, images: AwsImages, file: Path, clock: Clock
) -> None:
    one = wanted(ground, import_timeout=600)
    ground.ec2.looks = 10**6
    state = await until(images, one, file, "task")
    clock.now_s += 599
    waiting = await images.send(one, state, None)
    assert isinstance(waiting, Sending) and waiting.why == "AWS imports it: pending 0%"
    clock.now_s += 2
    with pytest.raises(
        LaunchFailed, match="not imported the file within 600 s, its import-timeout; its last status: pending 0%"
    ):
        await images.send(one, state, None)
    assert [task.answer["SnapshotTaskDetail"]["Status"] for task in ground.ec2.tasks.values()] == ["deleting"]
    waiting = await images.send(one, {}, None)
    assert isinstance(waiting, Sending) and "task" not in waiting.state, "it is gone: not one more failed attempt"
    state = await until(images, one, file, "task")
    assert len(ground.ec2.tasks) == 2
    clock.now_s += 601
    ground.faults.once(error(400, "IncorrectState", "it is about to be completed"), calls("CancelImportTask"))
    with pytest.raises(LaunchFailed, match="import-timeout"):
        await images.send(one, state, None)
    for task in ground.ec2.tasks.values():
        task.looks = 0
    upload = await sent(images, one, file)
    assert set(ground.ours()) == {upload.external_id} and len(ground.ec2.tasks) == 2
    assert not isinstance(await images.send(wanted(ground, import_timeout=0), {}, None), Sent)


async def test_where_there_is_no_room_for_an_import_it_waits_and_says_so(
    ground: AwsImagesGround, images: AwsImages, file: Path, clock: Clock
) -> None:
    one = wanted(ground)
    full = error(400, "ResourceCountExceeded", "You have reached the limit on the number of concurrent imports")
    ground.faults.always(full, calls("ImportSnapshot"))
    state = await until(images, one, file, "full")
    waiting = await images.send(one, state, None)
    assert isinstance(waiting, Sending) and "number of concurrent imports" in waiting.why
    clock.now_s += FULL_MAX_S + 1
    with pytest.raises(LaunchFailed, match="number of concurrent imports"):
        await images.send(one, state, None)
    ground.faults.mend()
    assert set(ground.ours()) != {(await sent(images, one, file, state)).external_id} == set(ground.ours())


@pytest.mark.long
@METHODS
async def test_imports_and_images_that_are_listed_late_are_awaited_for_a_limited_time(
    ground: AwsImagesGround, images: AwsImages, file: Path, clock: Clock, method: str
) -> None:
    ground.ec2.late = 4
    ground.faults.once(lost, calls("ImportSnapshot", "ImportImage"))
    one = wanted(ground, import_method=method)
    upload = await sent(images, one, file)
    assert set(ground.ours()) == {upload.external_id} and len(ground.ec2.tasks) == 1
    ground.ec2.late = 10**6
    for key in ("task", "image") if method == "snapshot" else ("task",):
        one = wanted(ground, import_method=method)
        ground.ec2.late = 10**6 if key == "task" else 0
        state = await until(images, one, file, "task")
        if key == "image":
            ground.ec2.late = 10**6
            while key not in state:
                state = dict((await images.send(one, state, file)).state)
        waiting = await images.send(one, state, None)
        assert isinstance(waiting, Sending) and waiting.why.endswith(f"{state[key]} yet")
        clock.now_s += SEEN_S + 1
        with pytest.raises(
            LaunchFailed, match=f"AWS does not list the (import|image) {state[key]}: it no longer exists"
        ):
            await images.send(one, waiting.state, None)
        if key == "image":
            await gone(images, one, state)
            assert state["image"] not in ground.ec2.images, "it was asked to go though it is in no list"


async def test_a_file_that_changes_is_not_stored_and_one_that_is_not_accepted_is_sent_three_times(
    ground: AwsImagesGround, images: AwsImages, file: Path
) -> None:
    one = wanted(ground, b"another")
    with pytest.raises(LaunchFailed, match="no longer has the digest that its build returned"):
        await sent(images, one, file)
    assert ground.objects() == {}
    one = wanted(ground)
    ground.faults.always(unheard, lambda received: "partNumber" in received.path)
    with pytest.raises(
        LaunchFailed, match=f"the bucket {ground.bucket} did not accept the file, although it was sent 3 times"
    ):
        await sent(images, one, file)
    assert len(ground.objects()) == 1, "of each earlier one nothing is left"
    await gone(images, one)
    assert ground.objects() == {}


async def test_a_file_is_written_into_a_snapshot_but_for_its_empty_blocks(
    ground: AwsImagesGround, images: AwsImages, file: Path, clock: Clock
) -> None:
    content = b"a" * BLOCK_BYTES + bytes(20 * BLOCK_BYTES) + b"the rest"
    file.write_bytes(content)
    throttled = answers(400, b"{}", {"x-amzn-errortype": "RequestThrottledException:http://x/", "retry-after": "0"})
    for fault in (throttled, answers(500, b"<html>"), lost, unheard):
        ground.faults.once(fault, lambda received: "/blocks/21" in received.path)
    ground.ec2.ebs.slow = 10**6
    one = wanted(ground, content, import_method="ebs-direct", import_timeout=60, imds_support="v2.0")
    one = replace(one, provider={"region": REGION})
    state = await until(images, one, file, "snapshot")
    state = dict((await images.send(one, state, None)).state)
    assert [request.path.rpartition("/")[2] for request in ground.faults.requests if request.method == "PUT"] == [
        "0",
        *["21"] * 5,
    ]
    for request in ground.faults.requests:
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert headers["authorization"] == signature(ground, request, headers), request.path
    clock.now_s += 59
    waiting = await images.send(one, state, None)
    assert isinstance(waiting, Sending) and waiting.why == "AWS stores the snapshot"
    clock.now_s += 2
    with pytest.raises(LaunchFailed, match="not stored the snapshot within 60 s"):
        await images.send(one, state, None)
    ground.ec2.ebs.slow = 0
    upload = await sent(images, one, file)
    (disk,) = ground.ec2.images[upload.external_id]["BlockDeviceMappings"]
    assert set(ground.ours()) == {upload.external_id} and len(ground.ec2.snapshots) == 1
    assert ground.ec2.contents[disk["Ebs"]["SnapshotId"]] == one.sha256
    assert ground.ec2.images[upload.external_id]["ImdsSupport"] == "v2.0" and ground.objects() == {}


async def test_an_unfinished_snapshot_is_written_again_and_a_failed_one_has_a_reason(
    ground: AwsImagesGround, images: AwsImages, file: Path
) -> None:
    one = wanted(ground, b"another", import_method="ebs-direct")
    with pytest.raises(LaunchFailed, match="no longer has the digest that its build returned"):
        await sent(images, one, file)
    assert [found["State"] for found in ground.ec2.snapshots.values()] == ["pending"]
    (left,) = [found for found in await images.listed(one.provider) if found.tags.get(UPLOAD_TAG) == one.upload]
    file.write_bytes(b"another")
    upload = await sent(images, one, file)
    assert set(ground.ours()) == {upload.external_id} and left.id not in ground.ec2.snapshots, "nor what was not ended"
    one = wanted(ground, b"another", import_method="ebs-direct")
    state = await until(images, one, file, "snapshot")
    ground.ec2.snapshots[state["snapshot"]] |= {"State": "error", "StateMessage": "it was not written to for an hour"}
    with pytest.raises(LaunchFailed, match="the snapshot is error: it was not written to for an hour"):
        await images.send(one, state, None)
    refused = answers(402, b'{"Message": "Too many"}', {"x-amzn-errortype": "ConcurrentLimitExceededException"})
    ground.faults.once(refused, lambda received: received.path == "/snapshots")
    with pytest.raises(OverQuota, match="AWS EBS says ConcurrentLimitExceeded: Too many"):
        await images.send(one, {}, file)
    upload = await sent(images, one, file)
    await gone(images, one, dict(upload.state))
    assert one.upload not in str(ground.ours())


async def test_an_upload_is_withdrawn_while_it_is_sent_or_imported(
    ground: AwsImagesGround, images: AwsImages, file: Path
) -> None:
    reached, never = asyncio.Event(), asyncio.Event()

    async def stuck(received: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        reached.set()
        await never.wait()
        return None

    ground.faults.once(stuck, lambda received: "partNumber" in received.path)
    one = wanted(ground)
    state = (await images.send(one, {}, file)).state
    await reached.wait()
    assert not await images.withdraw(one, state)
    never.set()
    await gone(images, one, dict(state))
    assert images.under_way == [] and ground.ours() == {}
    ground.ec2.looks = 10**6
    one = wanted(ground, import_method="image")
    state = await until(images, one, file, "task")
    await gone(images, one, state)
    assert ground.ours() == {} and [task.answer["Status"] for task in ground.ec2.tasks.values()] == ["deleted"]


@pytest.mark.long
async def test_images_in_use_are_reported_and_unused_imports_are_found(
    ground: AwsImagesGround, images: AwsImages, file: Path
) -> None:
    one = wanted(ground)
    upload = await sent(images, one, file)
    mapping = ground.ec2.images[upload.external_id]["BlockDeviceMappings"]
    other = ground.ec2.has_image(Name="somebody's", BlockDeviceMappings=mapping)
    with pytest.raises(LaunchFailed, match=f"is currently in use by {other}"):
        await gone(images, one, dict(upload.state))
    del ground.ec2.images[other]
    await gone(images, one, dict(upload.state))
    for method, is_withdrawn in ((method, is_so) for method in ("snapshot", "image") for is_so in (True, False)):
        one = wanted(ground, import_method=method)
        state = await until(images, one, file, "task")
        ground.faults.always(error(403, "UnauthorizedOperation", "You may not."), calls("CreateTags"))
        with pytest.raises(LaunchFailed, match="You may not"):
            while True:
                state = dict((await images.send(one, state, file)).state)
        ground.faults.mend()
        ours = [found for found in await images.listed(one.provider) if found.tags.get(UPLOAD_TAG) == one.upload]
        assert sorted({found.kind for found in ours}) == ["image", "object", "snapshot"][method == "snapshot" :]
        for found in sorted(ours, key=lambda found: found.id) if not is_withdrawn else ():
            await images.discard(one.provider, found)
        if is_withdrawn:
            await gone(images, one)
        assert ground.ours() == {}


async def test_leftovers_of_all_kinds_are_deleted_at_the_second_check_and_each_fails_alone(
    ground: AwsImagesGround, images: AwsImages, file: Path
) -> None:
    ground.ec2.looks = 10**6
    one, other = wanted(ground), wanted(ground, import_method="ebs-direct")
    await until(images, one, file, "task")
    await until(images, other, file, "snapshot")
    tags = [{"Key": name, "Value": value} for name, value in one.tags.items()]
    own, used = (ground.ec2.has_snapshot(b"", Tags=tags) for _ in range(2))
    for name, snapshot, labels in ((f"debian-{one.upload}", own, tags), ("somebody's", used, [])):
        mapping = [{"DeviceName": "/dev/sda1", "Ebs": {"SnapshotId": snapshot}}]
        stays = ground.ec2.has_image(Name=name, BlockDeviceMappings=mapping, Tags=labels)
    before = set(ground.ours())
    assert len(before) == 6, "an object, an import, two snapshots, an image, and that of somebody else"
    async with driving(ground) as driver:  # type: ignore[arg-type]
        store = Store(MemoryBackend())
        context = Context(store, Mirror(store, Map().path), lambda: 0)
        accounts = {"cloudy": CloudAccount("cloudy", driver, 0)}
        keeper = ImageKeeper(context, accounts, None, At("/lock", None))  # type: ignore[arg-type]
        for system in ("theirs", "theirs", "ours"):
            keeper._system = system
            await keeper._hunted("cloudy", REGION, ground.provider)
            assert set(ground.ours()) == before
        await keeper._hunted("cloudy", REGION, ground.provider)
        ending = {
            id for id, task in ground.ec2.tasks.items() if task.answer["SnapshotTaskDetail"]["Status"] == "deleting"
        }
        assert len(ending) == 1 and set(ground.ours()) == {stays, used, *ending}


async def test_a_bucket_that_is_elsewhere_missing_or_foreign_is_reported(
    ground: AwsImagesGround, images: AwsImages, file: Path
) -> None:
    one = wanted(ground)
    moved = b"<Error><Code>PermanentRedirect</Code><Message>use the endpoint</Message></Error>"
    ground.faults.once(answers(301, moved), lambda received: received.method == "HEAD")
    ground.faults.once(answers(403), lambda received: received.method == "HEAD")
    for text in ("is not in the region us-east-1", "does not let Headgate read the bucket"):
        with pytest.raises(LaunchFailed, match=text):
            await images.send(one, {}, None)
    ground.faults.always(answers(301, moved), lambda received: received.method == "GET")
    assert await images.withdraw(one, {}), "nothing can have been sent there"
    ground.faults.mend()
    missing = replace(one, provider={"region": REGION, "object-storage": {"bucket-name": f"no-{uuid.uuid4().hex}"}})
    with pytest.raises(LaunchFailed, match="NoSuchBucket"):
        await sent(images, missing, file)
    assert await images.withdraw(missing, {})
    for provider in ({"region": REGION}, {"region": REGION, "object-storage": {"bucket-name": None}}):
        with pytest.raises(LaunchFailed, match="names no bucket"):
            await images.send(replace(one, provider=provider), {}, None)
        assert await images.withdraw(replace(one, provider=provider), {}), "nothing was ever made"


async def test_all_pages_of_a_bucket_are_read(ground: AwsImagesGround, images: AwsImages) -> None:
    async def paged(received: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(received.path).query).items()}
        if "list-type" in query:
            more = query.get("continuation-token") != "t/2="
            one = f"<Contents><Key>headgate/a/{1 if more else 2}</Key></Contents>"
            mark = "<NextContinuationToken>t/2=</NextContinuationToken>"
        else:
            more = (query.get("key-marker"), query.get("upload-id-marker")) != ("k&", "u")
            one = f"<Upload><Key>headgate/b/c/3</Key><UploadId>{4 if more else 5}</UploadId></Upload>"
            mark = "<NextKeyMarker>k&amp;</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>"
        text = f"<IsTruncated>{str(more).lower()}</IsTruncated>{mark if more else ''}{one}"
        return FaultAnswer(200, f'<R xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{text}</R>'.encode(), {})

    ground.faults.always(paged, lambda received: received.method == "GET")
    found = {one.id: one.tags for one in await images.listed(ground.provider)}
    assert found == {
        "headgate/a/1": {SYSTEM_TAG: "a", UPLOAD_TAG: "1"},
        "headgate/a/2": {SYSTEM_TAG: "a", UPLOAD_TAG: "2"},
        "headgate/b/c/3?4": {SYSTEM_TAG: "b/c", UPLOAD_TAG: "3"},
        "headgate/b/c/3?5": {SYSTEM_TAG: "b/c", UPLOAD_TAG: "3"},
    }
    assert BucketEntry("headgate/b/c/3").tags == found["headgate/b/c/3?4"]


def test_a_bucket_is_a_host_of_s3_unless_its_name_has_dots_or_aws_is_elsewhere() -> None:
    at = "https://s3.eu-west-1.amazonaws.com/"
    assert buckets.bucket_address(at, "acme-images", is_path=False) == "https://acme-images.s3.eu-west-1.amazonaws.com/"
    assert buckets.bucket_address(at, "acme.images", is_path=False) == f"{at}acme.images/"
    assert buckets.bucket_address("http://127.0.0.1:5000/", "acme", is_path=True) == "http://127.0.0.1:5000/acme/"
