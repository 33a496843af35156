"""Test the complete path of an image: requested, built by a job, uploaded, tested by a job, and used for machines."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from headgate.base.tasks import run_until
from headgate.config.machines import FlatProvider
from headgate.gate.builds.imagework import Body, body_of
from headgate.gate.state.change import EventKind
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.inventory.images import ImageArtifact, ImageFile, ImageOrder, ImageUpload
from headgate.map.inventory.nodes import Installation
from headgate.ports.clouds import Resource, Sending, Sent, State, WantedImage
from headgate.recipes.lock import lock
from headgate.services.context import Context
from headgate.services.nodes.accounts import CloudAccount
from headgate.services.nodes.images.choice import chosen, read_all
from headgate.services.nodes.images.keeper import ImageKeeper, image_event_ops
from headgate.services.nodes.machines.records import providers
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories, run_git

from .conftest import MACHINE_TENANTS, PIPELINES

R = TypeVar("R", ImageArtifact, ImageUpload)
IMAGES = """
- pipeline:
    name: build-images
    manager: independent
    post-review: true
    trigger: {zuul: {event: image-build}}
    success: {zuul: {image-built: true}}
- pipeline:
    name: try-images
    manager: independent
    post-review: true
    trigger: {zuul: {event: image-validate}}
    success: {zuul: {image-validated: true}}
    failure: {zuul: {image-validated: false}}
- job: {name: build-debian, run: jobs/unit, image-build-name: debian}
- job: {name: other, run: jobs/unit}
- project:
    name: config
    build-images: {jobs: [build-debian, other]}
    try-images: {jobs: [build-debian]}
- image: {name: debian, type: zuul}
- flavor: {name: small}
- label: {name: little, image: debian, flavor: small}
- section:
    name: here
    connection: engine
    images: [debian]
    flavors: [small]
- provider: {name: main, section: here, labels: [little]}
"""
PROJECT = "git.example/config"
IMAGE = "git.example%2Fconfig/debian"


class Engine:
    """Imitate a cloud that accepts every file."""

    def __init__(self) -> None:
        self.images = self
        self.there: dict[str, WantedImage] = {}

    async def send(self, wanted: WantedImage, state: State, file: Path | None) -> Sending | Sent:
        """Accept it once its file is there."""
        if file is None:
            return Sending({}, "its file is needed", lacks_file=True)
        assert hashlib.sha256(file.read_bytes()).hexdigest() == wanted.sha256
        self.there[wanted.upload] = wanted
        return Sent(f"image-of-{wanted.upload}", {})

    async def withdraw(self, wanted: WantedImage, state: State) -> bool:
        """Delete it."""
        self.there.pop(wanted.upload, None)
        return True

    async def listed(self, provider: Any) -> list[Resource]:
        """Return nothing: no leftovers exist here."""
        return []

    async def discard(self, provider: Any, resource: Resource) -> None:
        """Delete nothing."""


class Files:
    """Provide files that jobs of this test wrote."""

    def __init__(self, place: Path) -> None:
        self.place, self.requested = place, list[str]()

    def have(self, sha256: str) -> Path | None:
        """Return it after it was requested."""
        return self.place / sha256 if (self.place / sha256).exists() and sha256 in self.requested else None

    async def fetch(self, url: str, sha256: str) -> Path:
        """Return it."""
        self.requested.append(sha256)
        return self.place / sha256

    def keep(self, digests: frozenset[str]) -> None:
        """Keep all."""


async def until(context: Context, path: str, type: type[R], met: Callable[[list[R]], bool]) -> list[R]:
    """Wait until the condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        with context.mirror.part(path) as part:
            while True:
                seen = part.moves
                found = [one for _, _, one in read_all(context.mirror, path, type)]
                if met(found):
                    return found
                await part.moved(seen)


async def configured(context: Context) -> FlatProvider:
    async with asyncio.timeout(DEADLINE_S):
        with context.mirror.part(context.map.nodes.providers.path) as part:
            while not (found := providers(context.map, context.mirror).get("example")):
                await part.moved(part.moves)
    return found[0]


async def test_an_image_is_built_uploaded_tried_used_and_deleted(tmp_path: Path, repositories: Repositories) -> None:
    repositories.write("config", {"zuul.yaml": PIPELINES + IMAGES})
    run_git("commit", "-q", "-m", "Build images", at=repositories.work("config"))
    run_git("push", "-q", "origin", "master", at=repositories.work("config"))
    content = b"a root file system"
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / hashlib.sha256(content).hexdigest()).write_bytes(content)
    tried = list[str]()

    def build(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        about = body_of(spec.change)
        assert about is not None and about.image_names == ("debian",)
        tried.append(about.image_upload_uuid)
        metadata = {"type": "zuul_image", "format": "tar", "sha256": hashlib.sha256(content).hexdigest()}
        artifacts = [
            {"name": "root", "url": "http://logs/root.tar", "metadata": metadata},
            {"name": "log", "url": "log"},
        ]
        return BuildOutcome(build=spec.build, result="SUCCESS", data={"zuul": {"artifacts": artifacts}})

    async with gate(
        tmp_path,
        repositories.hub,
        MemoryBackend(),
        MACHINE_TENANTS,
        jobs={"build-debian": build},
        clouds={"engine": "podman"},
    ) as running:
        context, engine, files = running.context, Engine(), Files(tmp_path / "files")
        await running.looked_at(PROJECT)
        assert [one.canonical for one in (await configured(context)).images] == [IMAGE]
        await context.store.commit([], [context.map.nodes.installation.put(Installation("ours"))])

        async def launches(session: Session) -> None:
            async with lock(context.store, session, context.map.nodepool.path).hold() as guard:
                accounts = {"engine": CloudAccount("engine", engine, 0)}  # type: ignore[arg-type]
                await ImageKeeper(context, accounts, files, guard).run("ours")

        async def plays() -> None:
            file = ImageFile(
                image=IMAGE, name="debian", project=PROJECT, connection="local", branch="master", build="",
                format="", url="",
            )  # fmt: skip
            ops = await image_event_ops(context, EventKind.IMAGE_BUILD, "e1", "example", file, Body(("debian",)))
            assert ops, "its branch is known"
            await context.store.commit([], ops)
            at = context.map.image_uploads.uploads.path
            [upload] = await until(context, at, ImageUpload, lambda found: [one.usable for one in found] == [True])
            assert [one.job.name for one in running.runner.ran] == ["build-debian", "build-debian"]
            assert tried == ["", upload.id] and list(engine.there) == [upload.id]
            assert upload.tags["zuul_system_id"] == "ours" and upload.tags["zuul_upload_uuid"] == upload.id
            known = chosen(providers(context.map, context.mirror), context.map, context.mirror)
            assert known["example"][0].labels[0].image["image-id"] == upload.external_id
            order = context.map.images.orders(upload.artifact).record
            await context.store.commit([], [order.put(ImageOrder("delete"))])
            await until(context, at, ImageUpload, lambda found: not found)
            await until(context, context.map.images.artifacts.path, ImageArtifact, lambda found: not found)
            assert engine.there == {}
            known = chosen(providers(context.map, context.mirror), context.map, context.mirror)
            assert "image-id" not in known["example"][0].labels[0].image

        async with context.store.session("launcher") as session:
            stop = asyncio.Event()
            playing = asyncio.ensure_future(plays())
            playing.add_done_callback(lambda _: stop.set())
            await run_until(stop, launches(session))
            await playing
