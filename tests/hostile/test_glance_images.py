"""Test misleading images in Glance: files that name others, wrong tags, images that look like ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.nodes.clouds.openstack.images import GlanceImages
from headgate.ports.clouds import SYSTEM_TAG, UPLOAD_TAG, LaunchFailed, Sending, WantedImage
from headgate.testing.clouds.glance import Glance, disk
from headgate.testing.clouds.openstack import OpenStackGround
from tests.integration.clouds.glanced import glance, ground, images
from tests.integration.clouds.glanced import wanted as of_id

__all__ = ["glance", "ground", "images"]

TAGS = {SYSTEM_TAG: "ours", UPLOAD_TAG: "one"}


def wanted(content: bytes = b"", format: str = "qcow2", **tags: str) -> WantedImage:
    return of_id(content, format, "one", **tags)


@pytest.mark.parametrize(
    ("content", "format", "message"),
    [
        (disk(backing=112) + b"/etc/shadow", "qcow2", "backing file"),
        (disk(features=4), "qcow2", "data in another file"),
        (b"QFI\xfb", "qcow2", "the qcow2 file is incomplete"),
        (disk(), "raw", "is in the format qcow2, but its build returned the format raw"),
        (b"vhdxfile", "raw", "is in the format vhdx"),
        (bytes(512) + b"conectix".ljust(512, b"\0"), "raw", "is in the format vhd"),
        (b"# Disk DescriptorFile", "vhd", "not in the format vhd"),
        (b"", "vhdx", "not in the format vhdx"),
    ],
)
async def test_a_disk_that_is_another_or_names_a_file_of_the_cloud_is_not_sent(
    ground: OpenStackGround, images: GlanceImages, tmp_path: Path, content: bytes, format: str, message: str
) -> None:
    file, one = tmp_path / "image", wanted(content, format)
    file.write_bytes(content)
    first = await images.send(one, {}, None)
    with pytest.raises(LaunchFailed, match=message):
        await images.send(one, first.state, file)
    assert ground.faults.count(lambda received: received.method == "PUT") == 0


async def test_a_tag_says_nothing_that_glance_says_itself(images: GlanceImages, glance: Glance) -> None:
    for name, value in (("visibility", "public"), ("status", "active"), ("owner", "them"), ("id", "x")):
        with pytest.raises(LaunchFailed, match=f"{name} is the name of a field of Glance"):
            await images.send(wanted(**{name: value}), {}, None)
    assert not [one for one in glance.images.values() if one.get(SYSTEM_TAG)]


async def test_images_of_others_and_snapshots_of_machines_do_not_count_as_ours(
    images: GlanceImages, glance: Glance
) -> None:
    """Nova gives a snapshot the properties of the image that its server was made from."""
    theirs = [
        glance.add(status="active", visibility="public", **TAGS),
        glance.add(status="active", visibility="shared", **TAGS),
        glance.add(status="active", visibility="private", image_type="snapshot", **TAGS),
        glance.add(status="active", visibility="private", base_image_ref="x", **TAGS),
        glance.add(status="active", visibility="private", **{**TAGS, SYSTEM_TAG: "theirs"}),
    ]
    step = await images.send(wanted(), {}, None)
    assert isinstance(step, Sending) and step.state["image"] not in theirs
    [listed] = [one for one in await images.listed({"region": "RegionOne"}) if one.tags[SYSTEM_TAG] == "ours"]
    assert listed.id == step.state["image"]
    assert not await images.withdraw(wanted(), {}) and await images.withdraw(wanted(), {})
    assert set(theirs) <= set(glance.images)


async def test_a_file_that_changes_while_it_waits_is_not_uploaded(
    images: GlanceImages, glance: Glance, tmp_path: Path
) -> None:
    file, one = tmp_path / "image", wanted(disk(b"debian"))
    file.write_bytes(disk(b"another"))
    state = (await images.send(one, {}, None)).state
    state = (await images.send(one, state, file)).state
    [task] = images.under_way
    with pytest.raises(LaunchFailed, match="no longer has the digest that its build returned"):
        await task
    with pytest.raises(LaunchFailed, match="no longer has the digest that its build returned"):
        await images.send(one, state, file)
    assert not [there for there in glance.images.values() if there.get(SYSTEM_TAG)]
