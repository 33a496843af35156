"""Decide in which image the job of a build runs, and whether it may run there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from headgate.adapters.process.bounds.limits import Exceeded, ProcessBounds
from headgate.adapters.process.bounds.watch import Limiter
from headgate.adapters.process.cell import Cell
from headgate.adapters.process.containers.box import Container, boxed
from headgate.adapters.process.containers.store import ContainerStore, Image, ImageSupply, NoImage
from headgate.adapters.process.imagebuild import ImageRecipe, Layers, build
from headgate.adapters.process.joblog import JobLog
from headgate.adapters.process.processes import ProcessKeeper, Sink
from headgate.adapters.process.sandbox import Network, Sandbox
from headgate.adapters.process.workspace import Workspace
from headgate.adapters.work.directory import remove
from headgate.base.ids import fresh
from headgate.base.tasks import run_to_end
from headgate.config.model import FrozenJob, Playbook

log = logging.getLogger("headgate.images")

PLACE = "container"
"""Name of the container's directory below the directory of a build."""


@dataclass(slots=True)
class BuildContainer:
    """Represent the container of a build, and the layer that must still be built for its image."""

    container: Container
    wanted: ImageRecipe | None
    key: str = ""
    """Key of the layer to build; empty if there is none."""
    plays: bool = False
    """Whether the container is a host of the playbooks."""

    @property
    def description(self) -> str:
        """Return the image as one line: its name with its digest, and the layer that was built on it."""
        image, built = self.container.image, f" with {self.wanted.name} ({self.key[:12]})" if self.wanted else ""
        return (image.name if "@" in image.name else f"{image.name}@{image.digest}") + built


class BuildContainers:
    """Create the containers of builds. The first one detects whether this machine supports them."""

    def __init__(self, supply: ImageSupply | None, bounds: ProcessBounds, sandbox: Sandbox) -> None:
        self._supply, self._bounds, self._sandbox = supply, bounds, sandbox
        self._works = set[str]()
        """Images in which a command has run successfully."""
        self._beginning = asyncio.Lock()
        self._keeper: ProcessKeeper | None = None
        self._store: ContainerStore | None = None
        self._layers = Layers(supply.place if supply else Path(), supply.size_max_bytes if supply else 0)

    @asynccontextmanager
    async def container(
        self, workspace: Workspace, sink: Sink, cancel: asyncio.Event, plays: bool = False
    ) -> AsyncIterator[BuildContainer | None]:
        """Yield the container in whose image the job's programs run; None if none of them would run in one.  `plays`:
        whether the job has playbooks, but no machines for them.  Raise NoImage, OSError."""
        job = workspace.spec.job
        wanted = ImageRecipe.of(workspace, job.image_file) if job.image_file else None
        name = wanted.recipe.base if wanted else job.image or (self._supply.default if self._supply else "")
        plays = plays and bool(job.image or wanted)
        if not name or not (plays or any(book.in_image for book in _books(job))):
            if job.image or wanted:
                sink.say("The image is not used: only untrusted programs, and playbooks without machines, run in it")
            yield None
            return
        if self._supply is None:
            raise NoImage(f"the job needs the image {name}, but no job runs in an image here ([executor] sandbox)")
        store = await self._begun(self._supply)
        async with store.taken(name, sink, cancel) as image:
            await self._try(store, image, sink, cancel)
            sink.say(f"The image {image.name} is {image.id[:12]}, {image.digest}")
            found = BuildContainer(Container(image, workspace.root / PLACE), wanted, plays=plays)
            found.container.prepare()
            if wanted is None:
                yield found
                return
            # Do this before anything of the build runs, which could change the files that determine the key.
            found.key = await run_to_end(asyncio.to_thread(wanted.key, image))
            with self._layers.held(found.key):
                yield found

    async def complete(
        self,
        given: BuildContainer,
        cell: Cell,
        workspace: Workspace,
        log: JobLog,
        cancel: asyncio.Event,
        limit_s: float,
    ) -> None:
        """Build the layer of the job's image on its base, unless it was built before. Raise NotBuilt, OSError."""
        wanted, layers, container = given.wanted, self._layers, given.container
        if wanted is None:
            return
        if not layers.has(given.key):
            made = layers.place / "building" / workspace.spec.build / "upper"
            await build(wanted, container, made, cell, workspace, log, cancel, limit_s)
            await run_to_end(asyncio.to_thread(layers.keep, given.key, made))
            await run_to_end(asyncio.to_thread(remove, made.parent))
        container.replace_image(layers.on(container.image, given.key, wanted.recipe.environment))
        log.say(f"The image built from {wanted.name} is {given.key[:12]}")

    async def works(self) -> bool:
        """Return whether jobs can run in images here; log the reason if they cannot although they should."""
        if self._supply is None:
            return False
        try:
            await self._begun(self._supply)
        except NoImage as none:
            log.error("%s ([executor] sandbox); this executor leaves such builds to others", none)
            return False
        return True

    async def _begun(self, supply: ImageSupply) -> ContainerStore:
        """Return the store of images; prepare it at the first call.  Raise NoImage."""
        async with self._beginning:
            if self._store is None:
                # Use a separate keeper: fetches have another disk limit than builds, and outlive them.
                keeper = ProcessKeeper(Limiter(replace(self._bounds, disk_max_bytes=supply.size_max_bytes)))
                store = ContainerStore(keeper, supply)
                try:
                    await store.begin()
                    await asyncio.to_thread(self._layers.begin)
                except OSError as error:
                    await store.close()
                    keeper.close()
                    raise NoImage(f"no job can run in a container here: {error}") from error
                self._keeper, self._store = keeper, store
            return self._store

    async def _try(self, store: ContainerStore, image: Image, sink: Sink, cancel: asyncio.Event) -> None:
        """Run a shell in an image that was not tried before: the image may be malicious, but other builds do not wait
        for it.  Raise NoImage."""
        if image.id in self._works:
            return
        # Use a separate container, so that nothing that the image's shell does when it starts is left in the build's
        # container.
        trial = Container(image, store.supply.place / f"trial-{fresh()}")
        try:
            trial.prepare()
            found = boxed(
                self._sandbox, trial, ["/bin/sh", "-c", ":"], Network(cut=True), writable=(), readable=(),
                directory=Path("/"), environment={},
            )  # fmt: skip
            status = await store.tried(found.confined, found.box, trial.place, sink, cancel)
        except (OSError, Exceeded) as error:
            raise NoImage(f"the image {image.name} has no /bin/sh that runs here: {error}") from error
        finally:
            await asyncio.to_thread(remove, trial.place)
        if status != 0:
            why = {"cancel": "the build was cancelled", "timeout": "it did not finish in time"}
            reason = why.get(str(status), f"exit status {status}")
            raise NoImage(f"the image {image.name} has no /bin/sh that runs here: {reason}")
        # Remember only a success: a failure may have a temporary reason on this machine.
        self._works.add(image.id)

    async def close(self) -> None:
        """Close the store of images and its keeper; requires that no build runs."""
        if self._store is not None and self._keeper is not None:
            await self._store.close()
            self._keeper.close()
        self._store = self._keeper = None


def _books(job: FrozenJob) -> Iterable[Playbook]:
    return *job.pre_run, *job.run, *job.post_run
