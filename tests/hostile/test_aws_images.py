"""Test misleading images on AWS: of other accounts, copies, wrong names and tags, foreign buckets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.adapters.nodes.clouds.aws.images import AwsImages
from headgate.ports.clouds import SYSTEM_TAG, UPLOAD_TAG, CloudUnavailable, LaunchFailed, Sending
from headgate.testing.clouds.aws import call
from headgate.testing.clouds.awsimages import OTHERS, AwsImagesGround
from headgate.testing.clouds.glance import disk
from headgate.testing.servers.faults import answers
from tests.integration.clouds.test_aws_images import CONTENT, arguments, clock, file, gone, ground, images, sent, wanted

__all__ = ["clock", "file", "ground", "images"]


@pytest.mark.long
@pytest.mark.parametrize("method", ["snapshot", "image", "ebs-direct"])
async def test_images_of_other_accounts_and_copies_are_neither_used_nor_deleted(
    ground: AwsImagesGround, images: AwsImages, file: Path, method: str
) -> None:
    """Another account shares images with our tags and name; somebody in ours copies one with its tags."""
    one = wanted(ground, import_method=method)
    tags = [{"Key": name, "Value": value} for name, value in one.tags.items()]
    ec2 = ground.ec2
    shared = ec2.has_snapshot(b"evil", OTHERS, Tags=tags)
    mapping = [{"DeviceName": "/dev/sda1", "Ebs": {"SnapshotId": shared}}]
    name = f"debian-{one.upload}"
    foreign = {
        ec2.has_image(OTHERS, Name=label, BlockDeviceMappings=mapping, Tags=tags) for label in (name, "import-ami")
    }
    other = [{"Key": SYSTEM_TAG, "Value": "theirs"}, {"Key": UPLOAD_TAG, "Value": one.upload}]
    mapping = [{"DeviceName": "/dev/sda1", "Ebs": {"SnapshotId": ec2.has_snapshot(b"their own", Tags=other)}}]
    theirs = {
        ec2.has_image(Name="import-ami-1", BlockDeviceMappings=mapping, Tags=other),
        ec2.has_image(Name="a copy", BlockDeviceMappings=mapping, Tags=tags),
    }
    upload = await sent(images, one, file)
    assert set(ec2.images) == {*foreign, *theirs, upload.external_id}
    listed = [found for found in await images.listed(one.provider) if found.tags[SYSTEM_TAG] == "ours"]
    assert not (foreign | {shared}) & {found.id for found in listed}, "the hunter would delete them"
    for state in ({"image": min(foreign)}, dict(upload.state)):
        try:
            await gone(images, one, state)
        except LaunchFailed as error:
            assert "AuthFailure" in str(
                error
            )  # whoever wrote that into the state: AWS does not permit it to us, either
    assert set(ec2.images) == foreign | theirs and shared in ec2.snapshots


@pytest.mark.long
async def test_a_bucket_that_is_no_name_is_never_called(ground: AwsImagesGround, images: AwsImages) -> None:
    one = wanted(ground)
    for name in ("evil.example/x", "a@evil.example", "a b", "A" * 4, "x", "..", "a?b", "-ab"):
        with pytest.raises(LaunchFailed, match="is not a valid bucket name"):
            await images.send(
                replace(one, provider={"region": "us-east-1", "object-storage": {"bucket-name": name}}), {}, None
            )
    for provider in ({"region": "evil.example/"}, {"region": ["us-east-1"]}, {"object-storage": "images"}):
        with pytest.raises(LaunchFailed):
            await images.send(replace(one, provider=provider), {}, None)
    assert ground.faults.requests == []


@pytest.mark.parametrize(
    ("content", "method", "format", "message"),
    [
        (CONTENT, "snapshot", "vhdx", "AWS imports no vhdx by snapshot; it takes raw, vhd, vmdk"),
        (CONTENT, "image", "qcow2", "AWS imports no qcow2 by image"),
        (CONTENT, "ebs-direct", "vmdk", "AWS imports no vmdk by ebs-direct; it takes raw"),
        (CONTENT, "magic", "raw", "import-method magic is not known"),
        (disk(), "snapshot", "raw", "the file is in the format qcow2, but its build returned the format raw"),
        (b"# Disk DescriptorFile\nRW 1 FLAT /etc/shadow", "snapshot", "vmdk", "the file is not in the format vmdk"),
        (bytes(512), "image", "ova", "the file is not in the format ova"),
        (b"", "snapshot", "raw", "the file is empty"),
    ],
)
async def test_a_file_that_aws_does_not_take_is_not_sent(
    ground: AwsImagesGround, images: AwsImages, file: Path, content: bytes, method: str, format: str, message: str
) -> None:
    file.write_bytes(content)
    one = wanted(ground, content, import_method=method, image_format=format)
    with pytest.raises(LaunchFailed, match=message):
        await sent(images, one, file)
    assert await images.withdraw(one, {}) and ground.objects() == {}
    assert not [received for received in ground.faults.requests if received.method == "PUT"]


@pytest.mark.long
async def test_tags_name_the_owner_of_an_image_whatever_else_they_contain(
    ground: AwsImagesGround, images: AwsImages, file: Path
) -> None:
    one = wanted(ground)
    many = {f"n{number}": "x" * 300 for number in range(60)}
    one = replace(one, tags={**many, "é": "\n", **one.tags})
    upload = await sent(images, one, file)
    (tags, _) = ground.ours()[upload.external_id]
    assert (tags[SYSTEM_TAG], tags[UPLOAD_TAG], len(tags)) == ("ours", one.upload, 45)
    one = wanted(ground)
    one = replace(one, tags={"aws:reserved": "x", **one.tags})
    with pytest.raises(LaunchFailed, match="aws:"):
        await sent(images, one, file)
    await gone(images, one)
    assert set(ground.ours()) == {upload.external_id}


@pytest.mark.long
async def test_an_object_that_differs_from_the_built_image_is_uploaded_again(
    ground: AwsImagesGround, images: AwsImages, file: Path
) -> None:
    """An object is at the upload's place, written without knowledge of the digest, or for another build."""
    one, bad = wanted(ground), wanted(ground, b"bad")
    path = file.with_name("bad")
    path.write_bytes(b"bad")
    evil = replace(bad, upload=one.upload, tags=one.tags)
    await images.send(evil, {}, path)
    await images.under_way[0]
    assert isinstance(step := await images.send(one, {}, None), Sending) and step.lacks_file
    upload = await sent(images, one, file)
    (disk,) = ground.ec2.images[upload.external_id]["BlockDeviceMappings"]
    assert ground.ec2.contents[disk["Ebs"]["SnapshotId"]] == one.sha256


@pytest.mark.long
@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
        b"<InitiateMultipartUploadResult/>",
        b"<a",
        b"\0",
        b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>",
    ],
)
async def test_an_answer_of_the_bucket_that_makes_no_sense_is_no_answer(
    ground: AwsImagesGround, images: AwsImages, file: Path, body: bytes
) -> None:
    """S3 answers 200 even before it knows that it cannot join all parts into one object."""
    one = wanted(ground)
    ground.faults.always(answers(200, body), lambda received: received.method == "POST" and received.path != "/")
    await images.send(one, {}, file)
    with pytest.raises(CloudUnavailable):
        while True:
            await images.send(one, {}, None)
            await asyncio.wait(images.under_way)
    ground.faults.mend()
    upload = await sent(images, one, file)
    assert set(ground.ours()) == {upload.external_id} and len(arguments(ground, "ImportSnapshot")) == 1
    assert not [request for request in ground.faults.requests if call(request) == "CancelImportTask"]
