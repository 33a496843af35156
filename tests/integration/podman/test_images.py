"""Test images of a real podman: imported once under our name, compared by digest, and removed afterwards."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.adapters.nodes.clouds.podman.engine import IMAGE_NAME, Engine, PodmanImages
from headgate.ports.clouds import SYSTEM_TAG, UPLOAD_TAG, LaunchFailed, Sending, Sent, WantedImage
from tests.hostile.test_built_images import holes

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("podman") is None, reason="needs root and podman")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    place = tmp_path_factory.mktemp("p")
    found = [
        "podman", "--root", str(place / "store"), "--runroot", str(place / "run"), "--storage-driver", "vfs",
        "--cgroup-manager", "cgroupfs", "--events-backend", "none",
    ]  # fmt: skip
    yield found
    subprocess.run([*found, "rmi", "-a", "-f"], check=False, capture_output=True)


def archive(content: bytes = b"hello") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo("etc/motd")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def wanted(upload: str, content: bytes) -> WantedImage:
    tags = {SYSTEM_TAG: "9f0e", UPLOAD_TAG: upload, "team": "a b=c"}
    return WantedImage(upload, "debian", "tar", hashlib.sha256(content).hexdigest(), {}, {}, tags)


async def sent(images: PodmanImages, one: WantedImage, file: Path) -> Sent:
    while isinstance(found := await images.send(one, {}, file), Sending):
        await asyncio.wait(images.under_way, timeout=60)
    return found


@pytest.mark.long
async def test_an_image_is_imported_once_found_after_a_crash_listed_and_removed(
    words: list[str], tmp_path: Path
) -> None:
    content, file = archive(), tmp_path / "root.tar"
    file.write_bytes(content)
    images, one = PodmanImages(Engine(words)), wanted("u1", content)
    first = await images.send(one, {}, None)
    assert isinstance(first, Sending) and first.lacks_file
    assert await sent(images, one, file) == Sent(f"{IMAGE_NAME}:u1", {})
    again = PodmanImages(Engine(words))  # as after a crash
    assert await again.send(one, {}, None) == Sent(f"{IMAGE_NAME}:u1", {})
    [listed] = await again.listed({})
    assert listed.id == f"{IMAGE_NAME}:u1" and listed.tags == one.tags
    assert await again.withdraw(one, {}) and await again.listed({}) == []
    await again.discard({}, listed)  # it is gone, which is not an error


async def test_an_image_that_differs_from_the_sent_file_is_refused(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "root.tar"
    file.write_bytes(archive(b"something else"))
    images, one = PodmanImages(Engine(words)), wanted("u2", archive())
    with pytest.raises(LaunchFailed, match="another file than was sent"):
        await sent(images, one, file)
    assert await images.listed({}) == []


async def test_compressed_sparse_or_named_image_archives_are_refused(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "root.tar"
    images = PodmanImages(Engine(words))
    for content, why in ((gzip.compress(archive(bytes(10**7))), "not a plain archive"), (holes(10**9), "sparse")):
        file.write_bytes(content)
        with pytest.raises(LaunchFailed, match=why):
            await sent(images, wanted("u3", content), file)
    assert await images.listed({}) == []


@pytest.mark.long
async def test_an_interrupted_import_is_repeated(words: list[str], tmp_path: Path) -> None:
    content, file = archive(os.urandom(2**22)), tmp_path / "root.tar"
    file.write_bytes(content)
    images, one = PodmanImages(Engine(words)), wanted("u4", content)
    assert isinstance(await images.send(one, {}, file), Sending)
    await images.close()
    other = PodmanImages(Engine(words))
    assert await sent(other, one, file) == Sent(f"{IMAGE_NAME}:u4", {})
    assert len(await other.listed({})) == 1
    assert await other.withdraw(one, {})
