"""Test features of Glance: a slow store, limits, error messages, digests, and files sent in pieces."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.nodes.clouds.openstack.api import OpenStack
from headgate.adapters.nodes.clouds.openstack.images import PIECE_BYTES, SAVING_MAX_S, GlanceImages
from headgate.ports.clouds import SYSTEM_TAG, CloudUnavailable, LaunchFailed, Sending, Sent, WantedImage
from headgate.testing.clock import DEADLINE_S
from headgate.testing.clouds.glance import Glance, disk
from headgate.testing.clouds.ground import driving
from headgate.testing.clouds.openstack import OpenStackGround, openstack_ground
from headgate.testing.servers.faults import FaultAnswer, Pass, ReceivedRequest, answers, lost, unheard

from .glanced import glance, ground, images
from .glanced import wanted as of_id

__all__ = ["glance", "ground", "images"]
CONTENT = disk(b"debian")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(CONTENT)
    return path


def wanted(content: bytes = CONTENT, format: str = "qcow2", **tags: str) -> WantedImage:
    return of_id(content, format, str(uuid.uuid4()), **tags)


def ours(glance: Glance) -> list[dict[str, Any]]:
    return [one for one in glance.images.values() if one.get(SYSTEM_TAG) == "ours"]


def sends(received: ReceivedRequest) -> bool:
    return received.method == "PUT"


def creates(received: ReceivedRequest) -> bool:
    return received.method == "POST" and received.path == "/image/v2/images"


async def sent(images: GlanceImages, one: WantedImage, file: Path) -> Sent:
    """Continue until the image exists, whichever answers are lost."""
    state: dict[str, str] = {}
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


async def test_an_uploaded_image_is_private_tagged_and_unaltered(
    images: GlanceImages, glance: Glance, file: Path
) -> None:
    one = wanted(team="blue")
    upload = await sent(images, one, file)
    [there] = ours(glance)
    assert upload.external_id == there["id"] and there["status"] == "active"
    assert there["os_hash_value"] == hashlib.sha512(CONTENT).hexdigest()
    assert (there["disk_format"], there["container_format"], there["visibility"]) == ("qcow2", "bare", "private")
    assert one.tags.items() <= there.items() and one.upload in there["name"]


async def test_a_slow_store_is_waited_for_and_nothing_is_sent_again(
    ground: OpenStackGround, images: GlanceImages, glance: Glance, file: Path
) -> None:
    glance.slow = 3
    upload = await sent(images, wanted(), file)
    assert [one["id"] for one in ours(glance)] == [upload.external_id] and ground.faults.count(sends) == 1


async def test_an_image_that_glance_never_finishes_storing_is_deleted(ground: OpenStackGround, glance: Glance) -> None:
    now_s, one = 0.0, wanted()
    images = GlanceImages(lambda provider: cloud, lambda: now_s)
    async with driving(ground) as driver:
        cloud: OpenStack = driver._at(one.provider)  # type: ignore[attr-defined]
        glance.add(status="saving", visibility="private", **one.tags)
        step = await images.send(one, {}, None)
        assert isinstance(step, Sending) and not step.lacks_file
        now_s = SAVING_MAX_S + 1
        with pytest.raises(LaunchFailed, match="not stored the image within 60 minutes"):
            await images.send(one, step.state, None)
    assert ours(glance) == []


async def test_of_two_images_left_by_lost_answers_one_stays(
    ground: OpenStackGround, images: GlanceImages, glance: Glance, file: Path
) -> None:
    one, late = wanted(), list[Pass]()

    async def delayed(received: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        late.append(go_on)
        return None

    ground.faults.once(delayed, creates)
    with pytest.raises(CloudUnavailable):
        await images.send(one, {}, None)
    await images.send(one, {}, None)
    await late[0]()
    assert len(ours(glance)) == 2
    upload = await sent(images, one, file)
    assert [there["id"] for there in ours(glance)] == [upload.external_id]


@pytest.mark.parametrize("fault", [lost, unheard])
async def test_a_file_whose_sending_broke_off_is_sent_again(
    ground: OpenStackGround, images: GlanceImages, glance: Glance, file: Path, fault: Any
) -> None:
    ground.faults.once(fault, sends)
    upload = await sent(images, wanted(), file)
    assert [there["id"] for there in ours(glance)] == [upload.external_id]
    assert ground.faults.count(sends) == (1 if fault is lost else 2)


async def test_a_file_that_is_not_accepted_is_sent_three_times(
    ground: OpenStackGround, images: GlanceImages, file: Path
) -> None:
    ground.faults.always(unheard, sends)
    with pytest.raises(LaunchFailed, match="sent 3 times"):
        await sent(images, wanted(), file)
    assert ground.faults.count(sends) == 3


async def test_refusals_of_glance_are_reported_in_its_words(images: GlanceImages, glance: Glance, file: Path) -> None:
    glance.size_max = 10
    one = wanted()
    with pytest.raises(
        LaunchFailed, match=r"stacky \(image\) returned status 413: The size of the data is more than 10 bytes"
    ):
        await sent(images, one, file)
    [there] = ours(glance)
    there["protected"] = True
    with pytest.raises(LaunchFailed, match="is protected and cannot be deleted"):
        await images.withdraw(one, {})
    there["protected"] = False
    assert not await images.withdraw(one, {}) and await images.withdraw(one, {}) and ours(glance) == []


async def test_a_page_instead_of_an_error_also_counts_as_a_refusal(
    ground: OpenStackGround, images: GlanceImages, file: Path
) -> None:
    ground.faults.always(answers(413, b"<html>too large</html>", {"content-type": "text/html"}), sends)
    with pytest.raises(LaunchFailed, match="returned status 413"):
        await sent(images, wanted(), file)


async def test_an_image_that_glance_stored_incorrectly_is_deleted(
    images: GlanceImages, glance: Glance, file: Path
) -> None:
    glance.changes = b"rot"
    with pytest.raises(LaunchFailed, match="another file than was sent: its sha512 is"):
        await sent(images, wanted(), file)
    assert ours(glance) == []


@pytest.mark.parametrize("algorithm", ["sha256", "", "unheard-of"])
async def test_any_digest_that_glance_has_is_compared(
    images: GlanceImages, glance: Glance, file: Path, algorithm: str
) -> None:
    """Another release stored it, and it is found after a crash: the file is read again."""
    for content in (CONTENT, CONTENT + b"rot"):
        one = wanted()
        value = hashlib.sha256(content).hexdigest() if algorithm == "sha256" else "0" if algorithm else None
        old = hashlib.md5(content).hexdigest() if algorithm != "sha256" else "0"
        digests = {"checksum": old, "os_hash_algo": algorithm or None, "os_hash_value": value}
        id = glance.add(status="active", visibility="private", **digests, **one.tags)
        first = await images.send(one, {}, None)
        assert isinstance(first, Sending) and first.lacks_file
        if content == CONTENT:
            assert (await sent(images, one, file)).external_id == id
        else:
            with pytest.raises(LaunchFailed, match="another file than was sent"):
                await sent(images, one, file)
    assert len(ours(glance)) == 1


@pytest.mark.parametrize("reported", ["killed", "deactivated"])
async def test_a_dead_image_is_removed_and_reported(
    images: GlanceImages, glance: Glance, file: Path, reported: str
) -> None:
    one = wanted()
    glance.add(status=reported, visibility="private", **one.tags)
    with pytest.raises(LaunchFailed, match=f"the image is {reported}"):
        await sent(images, one, file)
    assert ours(glance) == []


async def test_a_file_is_sent_in_pieces_with_its_length_and_again_with_a_new_token(
    ground: OpenStackGround, images: GlanceImages, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = disk(bytes(3 * PIECE_BYTES))
    file.write_bytes(content)
    seen = list[int]()
    send = OpenStack.send

    async def watched(self: OpenStack, path: str, size: int, pieces: Any) -> None:
        async def each() -> AsyncIterator[bytes]:
            async for piece in pieces():
                seen.append(len(piece))
                yield piece

        ground.services.valid.clear()  # the token of the previous login
        await send(self, path, size, each)  # type: ignore[arg-type]

    monkeypatch.setattr(OpenStack, "send", watched)
    await sent(images, wanted(content), file)
    assert max(seen) == PIECE_BYTES and ground.faults.count(sends) == 2
    last = next(one for one in reversed(ground.faults.requests) if sends(one))
    headers = {name.lower(): value for name, value in last.headers.items()}
    assert headers["content-length"] == str(len(content)) == str(len(last.body))
    assert "transfer-encoding" not in headers


async def test_an_upload_is_withdrawn_while_it_is_sent(
    ground: OpenStackGround, images: GlanceImages, glance: Glance, file: Path
) -> None:
    reached, never = asyncio.Event(), asyncio.Event()

    async def stuck(received: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        reached.set()
        await never.wait()
        return None

    ground.faults.once(stuck, sends)
    one = wanted()
    state = (await images.send(one, {}, file)).state
    await images.send(one, state, file)
    await reached.wait()
    assert not await images.withdraw(one, state)
    assert images.under_way == [] and await images.withdraw(one, state) and ours(glance) == []
    never.set()


async def test_a_machine_is_made_of_the_image_of_an_upload(nova_server: str, file: Path) -> None:
    """Nova has a separate Glance here, without this image: only the request to it is checked."""
    async with openstack_ground(nova_server) as ground, driving(ground) as driver:
        upload = await sent(driver.images, wanted(), file)  # type: ignore[attr-defined]
        with pytest.raises(LaunchFailed, match="Can not find requested image"):
            await driver.advance(ground.wanted(str(uuid.uuid4()), image={"image-id": upload.external_id}), {})
        [server] = [json.loads(one.body)["server"] for one in ground.faults.requests if ground.makes(one)]
        assert server["imageRef"] == upload.external_id
