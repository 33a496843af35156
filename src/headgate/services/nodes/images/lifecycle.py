"""Take one upload through its life cycle: each step calls its cloud once, and is recorded before the next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from headgate.map.inventory.images import UNDER_WAY, ImageUpload
from headgate.map.inventory.nodes import FREE, MadeNode
from headgate.ports import clouds
from headgate.services.nodes.accounts import WHY_MAX, CloudAccount
from headgate.services.nodes.images.choice import UPLOAD, read_all
from headgate.services.nodes.ledger import MachineLedger
from headgate.store.types import At, Op, StoreError, TooLarge

log = logging.getLogger("headgate.images")

POLL_S = 2.0
"""Interval between two checks of an upload in progress."""
USED_S = 30.0
"""Interval between two checks whether machines still use an image that is being deleted."""
RETRY_S = 60.0
"""Pause after a failure."""
TRIES_MAX = 3
"""Limit on the attempts to upload an image to one place."""
Change = Callable[[ImageUpload], ImageUpload | None]


@dataclass(slots=True)
class UploadLedger:
    """Record uploads under the launcher's lock, and never overwrite another process's change."""

    ledger: MachineLedger

    def find(self, id: str) -> tuple[ImageUpload, At] | None:
        """Return the recorded upload."""
        place = self.ledger.context.map.image_uploads.uploads(id).record
        entry = self.ledger.context.mirror.get(place.path)
        return (place.decode(entry.value), At(entry.path, entry.version)) if entry is not None else None

    async def change(self, id: str, change: Change, more: Sequence[Op] = ()) -> None:
        """Write a change of the upload's record, applied to its present content; None deletes it. Raise StoreError."""
        place = self.ledger.context.map.image_uploads.uploads(id).record
        # A person or another step may write the record in the meantime; the change is then applied to the new content.
        while (found := self.find(id)) is not None:
            one, at = found
            now = change(one)
            if now == one and not more:
                return
            if now is not None and now.state != one.state:
                now = replace(now, since_ms=self.ledger.context.now_ms())
            if await self.ledger.commit([at], [place.put(now) if now is not None else place.delete(), *more]):
                return


@dataclass(slots=True)
class UploadLife:
    """Advance uploads, one step at a time."""

    uploads: UploadLedger
    accounts: Mapping[str, CloudAccount]
    files: clouds.ImageFiles

    async def step(self, id: str) -> float:
        """Take the next step of an upload; return the seconds until another one is due."""
        found = self.uploads.find(id)
        if found is None:
            return 0.0
        one = found[0]
        account = self.accounts.get(one.connection)
        cloud = clouds.images_of(account.cloud) if account is not None else None
        if account is None or cloud is None:
            await self._waits(
                id, f"in this launcher's settings, the connection {one.connection} does not accept images"
            )
            return RETRY_S
        try:
            if one.state in ("deleting", "failed"):
                return await self._withdraw(account, cloud, one)
            return await self._send(account, cloud, one)
        except clouds.CloudUnavailable as away:
            await self._waits(id, str(away)[:WHY_MAX])
            return max(POLL_S, away.after_s)
        except (clouds.LaunchFailed, clouds.OverQuota, clouds.NoFile) as failed:
            return await self._failed(one, str(failed)[:WHY_MAX])
        except Exception as error:
            # An unavailable store or a lost lock is not the upload's fault, and the component must handle it.
            if isinstance(error, StoreError) and not isinstance(error, TooLarge):
                raise
            log.exception("upload %s of %s: its next step failed", one.id, one.file.name)
            return RETRY_S

    async def _send(self, account: CloudAccount, cloud: clouds.ImageCloud, one: ImageUpload) -> float:
        """Take the upload one step further. Raise CloudUnavailable, LaunchFailed, OverQuota, NoFile."""
        if one.state == "pending":
            # From the first call on, the cloud may hold data, so `dirty` is recorded before the call.
            await self.uploads.change(one.id, lambda known: _now(known, one, state="uploading", dirty=True))
            return 0.0
        file = self.files.have(one.file.sha256)
        sent = await account.ask(lambda: cloud.send(wanted_of(one), one.driver, file))
        if isinstance(sent, clouds.Sending):
            state, why = dict(sent.state), sent.why[:WHY_MAX]
            await self.uploads.change(one.id, lambda known: _now(known, one, driver=state, why=why))
            if sent.lacks_file and file is None:
                await self._fetch(one)
                return 0.0
            return POLL_S
        log.info("image %s of build %s is at %s", one.file.name, one.file.build, one.connection)
        await self.uploads.change(
            one.id,
            lambda known: _now(
                known, one, state="ready", external_id=sent.external_id, driver=dict(sent.state), why="", tries=0
            ),
        )
        return 0.0

    async def _fetch(self, one: ImageUpload) -> Path:
        """Fetch the file of the upload. Raise NoFile."""
        await self._waits(one.id, "the file is being fetched from the URL that its build returned")
        return await self.files.fetch(one.file.url, one.file.sha256)

    async def _withdraw(self, account: CloudAccount, cloud: clouds.ImageCloud, one: ImageUpload) -> float:
        """Delete the upload from the cloud; failures are retried until nothing is left. Return the seconds until the
        next step. Raise CloudUnavailable."""
        if busy := await self._users(one):
            await self._waits(one.id, f"{busy} machines were created from it")
            return USED_S
        try:
            gone = await account.ask(lambda: cloud.withdraw(wanted_of(one), one.driver))
        except (clouds.LaunchFailed, clouds.OverQuota) as error:
            await self._waits(one.id, f"it cannot be deleted: {str(error)[:WHY_MAX]}")
            return RETRY_S
        if gone:
            await self.uploads.change(one.id, _gone)
            return 0.0
        return POLL_S

    async def _users(self, one: ImageUpload) -> int:
        """Return the number of machines that use the upload; mark the free ones for deletion."""
        ledger, busy = self.uploads.ledger, 0
        map, mirror = ledger.context.map, ledger.context.mirror
        for _, _, node in read_all(mirror, map.nodes.made.path, MadeNode):
            if node.settings.get("image", {}).get(UPLOAD) != one.id:
                continue
            busy += not node.main
            if not node.request and not node.slots and node.state in FREE:
                await ledger.change(node.id, _outdated)
        return busy

    async def _failed(self, one: ImageUpload, why: str) -> float:
        log.warning("image %s of build %s at %s: %s", one.file.name, one.file.build, one.connection, why)
        last = one.tries + 1 >= TRIES_MAX

        def change(known: ImageUpload) -> ImageUpload:
            state = "failed" if last else "uploading"
            # Without the driver's state, the next attempt starts from scratch.
            return _now(known, one, state=state, tries=one.tries + 1, why=why, driver={})

        await self.uploads.change(one.id, change)
        return RETRY_S

    async def _waits(self, id: str, why: str) -> None:
        await self.uploads.change(id, lambda one: replace(one, why=why))


def _now(known: ImageUpload, as_read: ImageUpload, **changes: object) -> ImageUpload:
    """Return the changed upload, unless its state has changed since it was read."""
    # A step may take long, and a person may have ordered the deletion in the meantime.
    return replace(known, **changes) if known.state in UNDER_WAY and known.state == as_read.state else known


def _gone(known: ImageUpload) -> ImageUpload | None:
    """Return the record that remains when the cloud holds nothing of an upload: a failed upload stays visible."""
    if known.state == "deleting":
        return None
    return replace(known, dirty=False) if known.state == "failed" else known


def _outdated(node: MadeNode) -> MadeNode:
    if node.request or node.state not in FREE or node.slots:
        return node
    return replace(node, state="outdated", why="its image is being deleted")


def wanted_of(one: ImageUpload) -> clouds.WantedImage:
    """Return the driver's description of an upload, as when it was started."""
    return clouds.WantedImage(
        one.id, one.file.name, one.file.format, one.file.sha256, one.image, one.provider, one.tags
    )
