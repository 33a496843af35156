"""Upload images that jobs build to Glance: with Headgate's properties, piece by piece, and verified by their digest."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from headgate.adapters.nodes.clouds.http import understood
from headgate.adapters.nodes.clouds.imagefiles import check_disk
from headgate.adapters.nodes.clouds.openstack.api import NoService, OpenStack, OpenStackRefused
from headgate.base.tasks import end
from headgate.ports import clouds

IMAGE = "image"
PIECE_BYTES = 2**20
TEXT_MAX = 255
SENDS_MAX = 3
"""Attempts to send a file before the upload fails; after a lost connection, the file is sent from the beginning."""
SAVING_MAX_S = 3600.0
"""Time limit for Glance to store a file that is no longer being sent."""
USUAL = ("sha512", "sha256", "md5")
"""Digests that are computed while a file is sent: Glance's, Headgate's, and that of old versions of Glance."""
OWN = frozenset(
    {
        *("id", "name", "status", "visibility", "protected", "os_hidden", "checksum", "os_hash_algo", "os_hash_value"),
        *("size", "virtual_size", "container_format", "disk_format", "min_disk", "min_ram", "owner", "tags"),
        *("created_at", "updated_at", "self", "file", "schema", "direct_url", "locations", "stores"),
    }
)
"""Glance's own fields of an image, which are not properties."""
_COPIED = ("base_image_ref", "instance_uuid")
"""Properties of images that Nova makes from servers; such an image inherits the tags of the server's image."""
_BUSY = ("saving", "uploading", "importing")
At = Callable[[Mapping[str, Any]], OpenStack]
Work = Coroutine[Any, Any, dict[str, str]]


class GlanceImages:
    """Upload images to Glance; see `ports.clouds.ImageCloud`."""

    def __init__(self, at: At, now_s: Callable[[], float] = time.time) -> None:
        """Create a client. `at` returns the OpenStack project in the region of a provider; `now_s` is the clock."""
        self._at, self._now_s = at, now_s
        self._working: dict[str, asyncio.Task[dict[str, str]]] = {}
        """Upload -> task that sends or reads its file, and returns the digests."""

    @property
    def under_way(self) -> list[asyncio.Task[dict[str, str]]]:
        """Return the tasks of uploads that run, or whose result was not read yet."""
        return list(self._working.values())

    async def close(self) -> None:
        """Stop sending."""
        await end(*self._working.values())

    @understood
    async def send(
        self, wanted: clouds.WantedImage, state: clouds.State, file: Path | None
    ) -> clouds.Sending | clouds.Sent:
        """Take the next step: make the image, send the file, or compare the digests."""
        task = self._working.get(wanted.upload)
        if task is not None and not task.done():
            return clouds.Sending(state, "its file is being sent to Glance")
        try:
            if task is not None:
                del self._working[wanted.upload]
                state = {**state, **task.result()}
            return await self._step(self._at(wanted.provider), wanted, state, file)
        except NoService as error:
            raise clouds.LaunchFailed(str(error)) from error

    async def _step(
        self, cloud: OpenStack, wanted: clouds.WantedImage, state: clouds.State, file: Path | None
    ) -> clouds.Sending | clouds.Sent:
        images = await self._mine(cloud, wanted, state)
        # The first image is the one to keep, whichever call made it.
        for extra in images[1:]:
            await _delete(cloud, str(extra["id"]))
        if not images and IMAGE in state:
            raise clouds.LaunchFailed(f"the image {state[IMAGE]} no longer exists in {cloud.place.name}")
        if not images:
            # The properties are part of this call, so if its response is lost, the image is found by them.
            image_record = await cloud.call("POST", "image", "/images", _described(wanted))
            return clouds.Sending({**state, IMAGE: str(image_record["id"])}, "its file is needed", lacks_file=True)
        image, reported = images[0], str(images[0]["status"])
        state = {**state, IMAGE: str(image["id"])}
        if reported == "active":
            return await self._compared(cloud, wanted, state, image, file)
        # This process is not sending it, so either Glance stores it, or a launcher died while it sent the file.
        if reported in _BUSY:
            return await self._saving(cloud, state)
        if reported != "queued":
            await _delete(cloud, state[IMAGE])
            raise clouds.LaunchFailed(f"{cloud.place.name} says: the image is {reported}")
        if file is None:
            return clouds.Sending(state, "its file is needed", lacks_file=True)
        times = int(state.get("sends", 0))
        if times >= SENDS_MAX:
            raise clouds.LaunchFailed(f"{cloud.place.name} did not accept the file, although it was sent {times} times")
        await asyncio.to_thread(check_disk, file, wanted.format)
        # Digests of an earlier attempt must not count for the bytes that are sent now.
        state = {**{k: v for k, v in state.items() if k not in ("since", *USUAL)}, "sends": str(times + 1)}
        self._begin(wanted, self._sent(cloud, wanted, state[IMAGE], file))
        return clouds.Sending(state, "its file is being sent to Glance")

    def _begin(self, wanted: clouds.WantedImage, work: Work) -> None:
        self._working[wanted.upload] = asyncio.ensure_future(work)

    async def _sent(self, cloud: OpenStack, wanted: clouds.WantedImage, image: str, file: Path) -> dict[str, str]:
        taken: dict[str, str] = {}

        async def pieces() -> AsyncGenerator[bytes, None]:
            digests = {name: hashlib.new(name, usedforsecurity=False) for name in USUAL}
            with file.open("rb") as opened:
                while piece := await asyncio.to_thread(_read, opened.read, digests):
                    yield piece
            taken.update({name: digest.hexdigest() for name, digest in digests.items()})

        try:
            await cloud.send(f"/images/{image}/file", os.path.getsize(file), pieces)
        except OpenStackRefused as error:
            if error.status == 409:  # Glance still stores an earlier upload whose connection was lost
                raise clouds.CloudUnavailable(str(error)) from error
            raise
        except OSError as error:
            raise clouds.LaunchFailed(f"the file cannot be read: {error.strerror}") from error
        # `taken` is empty if the file was not sent completely, for example because Glance answered early; the image is
        # not trusted then, either.
        if taken.get("sha256") != wanted.sha256:
            await _delete(cloud, image)
            raise clouds.LaunchFailed("the file no longer has the digest that its build returned")
        return taken

    async def _saving(self, cloud: OpenStack, state: clouds.State) -> clouds.Sending:
        now_s = self._now_s()
        since_s = float(state.get("since", now_s))
        if now_s - since_s > SAVING_MAX_S:
            await _delete(cloud, state[IMAGE])
            raise clouds.LaunchFailed(
                f"{cloud.place.name} has not stored the image within {SAVING_MAX_S / 60:.0f} minutes"
            )
        return clouds.Sending({**state, "since": str(since_s)}, "Glance stores it")

    async def _compared(
        self,
        cloud: OpenStack,
        wanted: clouds.WantedImage,
        state: clouds.State,
        image: Mapping[str, Any],
        file: Path | None,
    ) -> clouds.Sending | clouds.Sent:
        name, value = str(image.get("os_hash_algo") or ""), str(image.get("os_hash_value") or "")
        # Versions of Glance before Rocky have only `checksum`, which is MD5. This Python may lack an unusual algorithm.
        if not value or name not in hashlib.algorithms_available:
            name, value = "md5", str(image.get("checksum") or "")
        if not value:
            await _delete(cloud, state[IMAGE])
            raise clouds.LaunchFailed(f"{cloud.place.name} does not return the digest of the image")
        # After a crash, the digests of the sent file are unknown, so the file is read once more.
        if name not in state and file is None:
            return clouds.Sending(state, "its file is needed, to be compared", lacks_file=True)
        if name not in state and file is not None:
            self._begin(wanted, _digests(file, name))
            return clouds.Sending(state, "its file is compared with the image")
        if state[name] != value:
            await _delete(cloud, state[IMAGE])
            where = cloud.place.name
            raise clouds.LaunchFailed(f"{where} stored another file than was sent: its {name} is {value:.128}")
        return clouds.Sent(state[IMAGE], {IMAGE: state[IMAGE]})

    async def _mine(self, cloud: OpenStack, wanted: clouds.WantedImage, state: clouds.State) -> list[dict[str, Any]]:
        """Return the images of an upload; the first one is the one to keep. There are several if a call whose response
        was lost was still running when it was repeated."""
        found = [one for one in await _ours(cloud, {clouds.UPLOAD_TAG: wanted.upload}) if _is_of(one, wanted)]
        ranks = {"active": 0, "saving": 1, "queued": 2}
        return sorted(
            found,
            key=lambda one: (
                one["id"] != state.get(IMAGE),
                ranks.get(one["status"], 3),
                str(one.get("created_at", "")),
                one["id"],
            ),
        )

    @understood
    async def withdraw(self, wanted: clouds.WantedImage, state: clouds.State) -> bool:
        """Delete the images of an upload, whatever their state; return whether there were none."""
        task = self._working.pop(wanted.upload, None)
        if task is not None:
            await end(task)
        cloud = self._at(wanted.provider)
        try:
            left = await self._mine(cloud, wanted, state)
            for one in left:
                await _delete(cloud, str(one["id"]))
        except NoService as error:
            raise clouds.LaunchFailed(str(error)) from error
        return not left

    @understood
    async def listed(self, provider: Mapping[str, Any]) -> list[clouds.Resource]:
        """Return the images of the project that have Headgate's tags."""
        try:
            found = await _ours(self._at(provider), {})
        except (clouds.LaunchFailed, clouds.OverQuota, NoService) as error:
            raise clouds.CloudUnavailable(str(error)) from error
        return [clouds.Resource(str(one["id"]), IMAGE, _tags(one), {}) for one in found if clouds.SYSTEM_TAG in one]

    async def discard(self, provider: Mapping[str, Any], resource: clouds.Resource) -> None:
        """Delete an image."""
        try:
            await _delete(self._at(provider), resource.id)
        except NoService as error:
            raise clouds.CloudUnavailable(str(error)) from error


def _described(wanted: clouds.WantedImage) -> dict[str, Any]:
    """Return the request that makes an image. Raise LaunchFailed for a tag with the name of one of Glance's own
    fields."""
    wrong = sorted(OWN & set(wanted.tags))
    if wrong:
        raise clouds.LaunchFailed(
            f"tags of the image {wanted.name}: {', '.join(wrong)} is the name of a field of Glance; rename the tag"
        )
    return {
        **{name[:TEXT_MAX]: value[:TEXT_MAX] for name, value in wanted.tags.items()},
        "name": f"{wanted.name}-{wanted.upload}"[:TEXT_MAX],
        "disk_format": wanted.format,
        "container_format": "bare",
        "visibility": "private",
    }


async def _ours(cloud: OpenStack, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return only private images of this project, because images that others share or publish may have any
    properties."""
    found = await cloud.every("image", "/images", "images", {"visibility": "private", **query})
    return [one for one in found if one["status"] not in ("deleted", "pending_delete") and not _is_copy(one)]


def _is_copy(image: Mapping[str, Any]) -> bool:
    return image.get("image_type") == "snapshot" or any(name in image for name in _COPIED)


def _is_of(image: Mapping[str, Any], wanted: clouds.WantedImage) -> bool:
    return all(image.get(name) == wanted.tags[name] for name in (clouds.SYSTEM_TAG, clouds.UPLOAD_TAG))


def _tags(image: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in image.items() if name not in OWN and isinstance(value, str)}


async def _delete(cloud: OpenStack, image: str) -> None:
    try:
        await cloud.call("DELETE", "image", f"/images/{image}")
    except OpenStackRefused as error:
        if error.status not in (404, 410):
            raise


def _read(read: Callable[[int], bytes], digests: Mapping[str, Any]) -> bytes:
    piece = read(PIECE_BYTES)
    for digest in digests.values():
        digest.update(piece)
    return piece


async def _digests(file: Path, name: str) -> dict[str, str]:
    def read() -> dict[str, str]:
        with file.open("rb") as opened:
            return {name: hashlib.file_digest(opened, partial(hashlib.new, name, usedforsecurity=False)).hexdigest()}

    try:
        return await asyncio.to_thread(read)
    except OSError as error:
        raise clouds.LaunchFailed(f"the file cannot be read: {error.strerror}") from error
