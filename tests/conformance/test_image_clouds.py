"""Test what all drivers that take images have in common, with a crash between any two requests."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from headgate.adapters.nodes.clouds.aws.images import AwsImages
from headgate.adapters.nodes.clouds.openstack.images import GlanceImages
from headgate.adapters.nodes.clouds.podman.engine import Engine, PodmanImages, PodmanResult
from headgate.ports.clouds import SYSTEM_TAG, UPLOAD_TAG, Resource, Sending, WantedImage
from headgate.testing.clock import DEADLINE_S
from headgate.testing.clouds.awsimages import AwsImagesGround, aws_images_ground
from headgate.testing.clouds.glance import disk
from headgate.testing.clouds.openstack import OpenStackGround, glance_ground
from headgate.testing.servers.faults import FaultAnswer, Faults, Pass, ReceivedRequest
from tests.tiers import STRIDE

Images = AwsImages | GlanceImages | PodmanImages
THEIRS = {SYSTEM_TAG: "theirs", UPLOAD_TAG: "their-upload"}


@dataclass
class Halt:
    """Kill the process once a request is done, before its answer is seen."""

    number: int = 0
    """Number of the fatal request; 0: none."""
    calls: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def answered(self) -> None:
        self.calls += 1
        if self.calls == self.number:
            self.done.set()
            await self.go.wait()


class Ground(Protocol):
    """Provide an account that takes images, with an image of somebody else in it."""

    format: str
    content: bytes
    """Content of an image."""
    image: Mapping[str, str]
    """Settings of the image in its provider."""
    provider: Mapping[str, object]

    def driving(self, halt: Halt) -> Images:
        """Return a new driver, without any state."""
        ...

    async def everything(self) -> dict[str, tuple[Mapping[str, str], str]]:
        """Return everything of ours in the cloud: id -> its tags and the sha256 of its content; an image and its
        snapshot count as one."""
        ...

    async def theirs(self) -> bool:
        """Return whether the image of somebody else still exists."""
        ...


def _count(faults: Faults, halt: Halt) -> None:
    """Count a request, and crash if it is the fatal one."""

    async def counted(received: ReceivedRequest, go_on: Pass) -> FaultAnswer | None:
        result = await go_on()
        await halt.answered()
        return result

    faults.mend()
    faults.always(counted)


class GlanceGround:
    format, content = "qcow2", disk(b"debian")
    image: Mapping[str, str] = {}
    provider = {"region": "RegionOne"}  # noqa: RUF012

    def __init__(self, ground: OpenStackGround) -> None:
        self._ground, self._glance = ground, ground.services.glance
        self._theirs = self._glance.add(status="active", visibility="private", **THEIRS)

    def driving(self, halt: Halt) -> Images:
        _count(self._ground.faults, halt)
        return self._ground.driver().images

    async def everything(self) -> dict[str, tuple[Mapping[str, str], str]]:
        known = {hashlib.sha512(self.content).hexdigest(): hashlib.sha256(self.content).hexdigest()}
        ours = {id: one for id, one in self._glance.images.items() if one.get(SYSTEM_TAG) == "ours"}
        return {id: (one, known.get(one["os_hash_value"], "")) for id, one in ours.items()}

    async def theirs(self) -> bool:
        return self._theirs in self._glance.images


class AwsGround:
    format, content = "raw", b"debian" * 1000

    def __init__(self, ground: AwsImagesGround, method: str) -> None:
        self._ground, self.image, self.provider = ground, {"import-method": method}, ground.provider
        tags = [{"Key": name, "Value": value} for name, value in THEIRS.items()]
        snapshot = ground.ec2.has_snapshot(self.content, Tags=tags)
        mapping = [{"DeviceName": "/dev/sda1", "Ebs": {"SnapshotId": snapshot}}]
        self._theirs = ground.ec2.has_image(Name="x-their-upload", BlockDeviceMappings=mapping, Tags=tags)

    def driving(self, halt: Halt) -> Images:
        _count(self._ground.faults, halt)
        return self._ground.driver().images

    async def everything(self) -> dict[str, tuple[Mapping[str, str], str]]:
        found = self._ground.ours()
        if not found:
            self._ground.ec2.tasks.clear()  # as after a week
        return found

    async def theirs(self) -> bool:
        return self._theirs in self._ground.ours("theirs")


class PodmanGround:
    format = "tar"
    image: Mapping[str, str] = {}
    provider: Mapping[str, object] = {}

    def __init__(self, words: list[str], place: Path) -> None:
        self._words = words
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("etc/motd"))
        self.content = packed.getvalue()
        (place / "theirs.tar").write_bytes(self.content)
        changes = [f"--change=LABEL {tag}={value}" for tag, value in THEIRS.items()]
        subprocess.run([*words, "import", "-q", *changes, str(place / "theirs.tar"), "localhost/theirs"], check=True)

    def driving(self, halt: Halt) -> Images:
        class Halting(Engine):
            async def run(self, *words: str, stdin: bytes = b"", max_s: float = DEADLINE_S) -> PodmanResult:
                done = await super().run(*words, stdin=stdin, max_s=max_s)
                await halt.answered()
                return done

        return PodmanImages(Halting(self._words))

    async def everything(self) -> dict[str, tuple[Mapping[str, str], str]]:
        found = await Engine(self._words).listed("images", f"--filter=label={SYSTEM_TAG}=ours")
        several = await Engine(self._words).listed("image", "inspect", *(one["Id"] for one in found)) if found else []
        return {one["Id"]: (one["Labels"], one["RootFS"]["Layers"][0].removeprefix("sha256:")) for one in several}

    async def theirs(self) -> bool:
        return (await Engine(self._words).run("image", "exists", "localhost/theirs")).status == 0


@asynccontextmanager
async def _podman(place: Path) -> AsyncIterator[Ground]:
    if os.geteuid() != 0 or shutil.which("podman") is None:
        pytest.skip("needs root and podman")
    words = ["podman", "--root", str(place / "store"), "--runroot", str(place / "run"), "--storage-driver", "vfs"]
    words += ["--cgroup-manager", "cgroupfs", "--events-backend", "none"]
    try:
        yield PodmanGround(words, place)
    finally:
        await Engine(words).run("rmi", "-a", "-f")


@asynccontextmanager
async def _openstack(place: Path) -> AsyncIterator[Ground]:
    async with glance_ground() as found:
        yield GlanceGround(found)


@pytest.fixture(params=["openstack", "podman", "aws-snapshot", "aws-image", "aws-ebs-direct"])
async def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    name, _, method = request.param.partition("-")
    if name == "aws":
        async with aws_images_ground(request.getfixturevalue("s3_server")) as account:
            yield AwsGround(account, method)
        return
    entry = {"openstack": _openstack, "podman": _podman}[name]
    async with entry(tmp_path_factory.mktemp("g")) as found:  # podman accepts only short paths
        yield found


@dataclass
class Upload:
    """Keep the state of an upload as a store does, and its file."""

    wanted: WantedImage
    file: Path
    state: dict[str, str] = field(default_factory=dict)
    doing: str = "sending"

    async def send(self, images: Images) -> str:
        """Continue until the image exists; return the id that machines are made from."""
        async with asyncio.timeout(DEADLINE_S):
            while isinstance(step := await images.send(self.wanted, dict(self.state), self.file), Sending):
                self.state = dict(step.state)
                if images.under_way:
                    await asyncio.wait(images.under_way)
        self.state = dict(step.state)
        return step.external_id

    async def withdraw(self, images: Images) -> None:
        self.doing = "withdrawing"
        async with asyncio.timeout(DEADLINE_S):
            while not await images.withdraw(self.wanted, dict(self.state)):
                pass

    async def live(self, images: Images) -> None:
        await self.send(images)
        await self.withdraw(images)
        self.doing = "gone"


def upload(ground: Ground, place: Path) -> Upload:
    file = place / "image"
    file.write_bytes(ground.content)
    id = str(uuid.uuid4())
    tags = {SYSTEM_TAG: "ours", UPLOAD_TAG: id, "team": "a b=c"}
    digest = hashlib.sha256(ground.content).hexdigest()
    return Upload(WantedImage(id, "debian", ground.format, digest, ground.image, ground.provider, tags), file)


async def _until_a_crash(ground: Ground, one: Upload, number: int) -> None:
    halt = Halt(number)
    images = ground.driving(halt)
    living, broken = asyncio.ensure_future(one.live(images)), asyncio.ensure_future(halt.done.wait())
    await asyncio.wait([living, broken], return_when=asyncio.FIRST_COMPLETED)
    for task in (living, broken):
        task.cancel()
    await asyncio.gather(living, broken, return_exceptions=True)
    await images.close()
    halt.go.set()


@pytest.mark.long
async def test_the_next_process_finds_one_image_after_a_crash_between_any_two_requests(
    ground: Ground, tmp_path: Path
) -> None:
    """A process dies once a request is done: its answer is lost, and the state is the one before, or lost as well."""
    number, found = 1 - STRIDE, set[str]()
    while "gone" not in found:
        number += STRIDE
        one = upload(ground, tmp_path)
        await _until_a_crash(ground, one, number)
        found.add(one.doing)
        if number % 2:
            one.state = {}
        images = ground.driving(Halt())
        if one.doing == "sending":
            await one.send(images)
            ((tags, digest),) = (await ground.everything()).values()
            assert digest == one.wanted.sha256 and one.wanted.tags.items() <= tags.items(), number
        await one.withdraw(images)
        await images.close()
        assert await ground.everything() == {}, number
    assert found == {"sending", "withdrawing", "gone"} and await ground.theirs()


async def test_an_unneeded_upload_is_found_by_its_tags_and_can_be_discarded_twice(
    ground: Ground, tmp_path: Path
) -> None:
    one, images = upload(ground, tmp_path), ground.driving(Halt())
    first = await images.send(one.wanted, {}, None)
    assert isinstance(first, Sending) and first.lacks_file
    id = await one.send(images)
    listed: list[Resource] = await images.listed(one.wanted.provider)
    ours = sorted((found for found in listed if found.tags.get(UPLOAD_TAG) == one.wanted.upload), key=lambda o: o.id)
    assert ours[0].id == id and all(found.tags == one.wanted.tags for found in ours)
    assert {found.tags.get(SYSTEM_TAG) for found in listed} == {"ours", "theirs"}
    for found in ours * 2:
        await images.discard(one.wanted.provider, found)
    await images.close()
    assert await ground.everything() == {} and await ground.theirs()
