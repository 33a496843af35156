"""Images of podman that jobs build: the archive of a root file system, imported under a name of ours.

Nothing else is taken: an archive with names of its own could put itself in the place of an image of others, and one
that is packed, or that has files with holes, could fill the disk (see `archives`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.adapters.nodes.clouds.podman import archives
from headgate.adapters.nodes.clouds.podman.engine import Engine
from headgate.base.tasks import end
from headgate.ports.cloud import SYSTEM_TAG, CloudUnavailable, LaunchFailed, Resource, State
from headgate.ports.images import Sending, Sent, WantedImage

IMPORT_MAX_S = 3_600.0
IMAGE = "image"
NAME = "localhost/headgate/upload"


class PodmanImages:
    """See `ports.images.ImageCloud`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._importing: dict[str, asyncio.Task[str]] = {}
        """Upload -> the task that imports it and returns the error, empty if there is none."""

    @property
    def under_way(self) -> list[asyncio.Task[str]]:
        """Return the imports whose result was not taken."""
        return list(self._importing.values())

    async def close(self) -> None:
        """Stop importing; present images stay."""
        await end(*self._importing.values())

    async def send(self, wanted: WantedImage, state: State, file: Path | None) -> Sending | Sent:
        """Import the file; a present image has the digest of the file that was sent."""
        name = f"{NAME}:{wanted.upload}"
        task = self._importing.get(wanted.upload)
        if task is not None and not task.done():
            return Sending({}, "podman imports it")
        if task is not None:
            del self._importing[wanted.upload]
            if wrong := task.result():
                raise LaunchFailed(wrong)
        found = await self._named(name)
        if found is not None:
            # podman names a layer by the digest of its plain archive, and an import makes one layer: this is the file's
            # digest.
            layers = (found.get("RootFS") or {}).get("Layers") or []
            if layers == [f"sha256:{wanted.sha256}"]:
                return Sent(name, {})
            await self._engine.run("rmi", name)
            raise LaunchFailed(f"podman has another image than was sent: its layers are {', '.join(map(str, layers))}")
        if file is None:
            return Sending({}, "its file is needed", lacks_file=True)
        self._importing[wanted.upload] = asyncio.ensure_future(self._imported(wanted, name, file))
        return Sending({}, "podman imports it")

    async def _imported(self, wanted: WantedImage, name: str, file: Path) -> str:
        labels = [f'--change=LABEL "{_plain(tag)}"="{_plain(value)}"' for tag, value in sorted(wanted.tags.items())]
        try:
            # Before the import, which unpacks the archive as root.
            await asyncio.to_thread(archives.check, file)
            done = await self._engine.run("import", "-q", *labels, "--", str(file), name, max_s=IMPORT_MAX_S)
        except (CloudUnavailable, LaunchFailed) as wrong:
            return str(wrong)
        except OSError as error:
            return f"its file cannot be read: {error.strerror}"
        return f"podman does not import it: {done.why}" if done.status else ""

    async def _named(self, name: str) -> dict[str, Any] | None:
        # Any other status is an error of podman, and must not count as a missing image; `listed` then reports it.
        if (await self._engine.run("image", "exists", name)).status == 1:
            return None
        found = await self._engine.listed("image", "inspect", name)
        return found[0] if found else None

    async def withdraw(self, wanted: WantedImage, state: State) -> bool:
        """Remove it, unless a container uses it."""
        task = self._importing.pop(wanted.upload, None)
        if task is not None:
            await end(task)
        name = f"{NAME}:{wanted.upload}"
        if await self._named(name) is not None:
            await self._remove(name)
        return await self._named(name) is None

    async def _remove(self, name: str) -> None:
        done = await self._engine.run("rmi", name)
        if done.status and "no such image" not in done.why.lower() and "image not known" not in done.why.lower():
            raise LaunchFailed(f"podman does not remove it: {done.why}")

    async def listed(self, provider: Mapping[str, Any]) -> list[Resource]:
        """Return the images that have labels of ours."""
        found = []
        for one in await self._engine.listed("images", f"--filter=label={SYSTEM_TAG}"):
            name = next((known for known in one.get("Names") or () if known.startswith(f"{NAME}:")), str(one["Id"]))
            found.append(Resource(name, IMAGE, dict(one.get("Labels") or {}), {}))
        return found

    async def discard(self, provider: Mapping[str, Any], resource: Resource) -> None:
        """Remove it."""
        await self._remove(resource.id)


def _plain(text: str) -> str:
    """Return the text of a tag without characters that are special in an instruction, which has no escapes."""
    return "".join(c if c.isprintable() and c not in '"\\$' else "_" for c in text)
