"""Simulate images that jobs build, under random schedules, crashes and clouds that lie: same seed, same run.

The simulation checks that machines are made only from complete, validated uploads, and from the newest of them; an
image is never deleted while a machine is made from it; in the end everything in an account is recorded, the newest good
build is everywhere, and no more than the configured number is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.base.ids import drawn_from, fresh
from headgate.base.tasks import run_until
from headgate.config.machines import FlatImage, FlatLabel, FlatProvider
from headgate.gate.builds.imagework import body_of
from headgate.gate.state.change import TriggerEvent
from headgate.map.inventory.images import UNDER_WAY, ImageFile, ImageOrder, ImageReport, ImageUpload
from headgate.map.inventory.nodes import MadeNode
from headgate.map.places import Map
from headgate.map.records import BranchCache
from headgate.ports import clouds
from headgate.recipes.codec import decode
from headgate.recipes.lock import lock
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.membership import serve
from headgate.services.nodes.accounts import CloudAccount
from headgate.services.nodes.images.choice import UPLOAD, chosen, unmade, upload_checks, uploads
from headgate.services.nodes.images.keeper import ImageKeeper
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session, Store
from headgate.store.types import At, Backend, Conflict, Delete
from headgate.testing.backends import SimFault, SimLink, dies
from headgate.testing.clock import run_virtual
from headgate.testing.nodes.doubles import CloudFaults, MachineInvariantBroken, Sky

TIME_MAX_S = 4 * 3_600.0
DEATHS_MAX, RETAIN = 4, 2
PROJECT, SYSTEM = "sim/images", "ours"
IMAGE = f"{PROJECT.replace('/', '%2F')}/debian"


@dataclass(slots=True)
class AccountImage:
    """Represent an image in the account."""

    sha256: str
    tags: dict[str, str]
    ready_s: float
    listed_s: float


@dataclass(slots=True)
class Gallery:
    """Imitate `ports.clouds.ImageCloud` for one account."""

    chance: random.Random
    faults: CloudFaults
    name: str
    used: Callable[[str], bool]
    """Whether a recorded machine is made from the upload."""
    there: dict[str, AccountImage] = field(default_factory=dict)
    sent: int = 0
    wrong: list[str] = field(default_factory=list)

    async def send(
        self, wanted: clouds.WantedImage, state: clouds.State, file: Path | None
    ) -> clouds.Sending | clouds.Sent:
        """Accept the file, or report the progress; an image of this upload that exists already is used."""
        await self._call()
        now_s = asyncio.get_running_loop().time()
        own = next((id for id, one in self.there.items() if one.tags[clouds.UPLOAD_TAG] == wanted.upload), "")
        if not own and file is None:
            return clouds.Sending({}, "its file is needed", lacks_file=True)
        if not own:
            if self.chance.random() < self.faults.refused:
                raise clouds.LaunchFailed("it is refused")
            self.sent += 1
            own = f"{self.name}-{self.sent}"
            broken = self.chance.random() < self.faults.broken
            # Lists of clouds lag behind, so an image may exist before it is listed.
            late_s = now_s + self.chance.random() * self.faults.late_s
            ready_s = now_s + self.chance.random() * 300
            self.there[own] = AccountImage("broken" if broken else str(file), dict(wanted.tags), ready_s, late_s)
            self._lose()
        if now_s < self.there[own].ready_s:
            return clouds.Sending({"id": own}, "it is saved")
        if self.there[own].sha256 != wanted.sha256:
            del self.there[own]
            raise clouds.LaunchFailed("it is not what was sent")
        return clouds.Sent(own, {"id": own})

    async def withdraw(self, wanted: clouds.WantedImage, state: clouds.State) -> bool:
        """Delete it."""
        await self._call()
        for id, one in list(self.there.items()):
            if one.tags[clouds.UPLOAD_TAG] == wanted.upload:
                self._delete(id)
                self._lose()
                return False
        return True

    def _delete(self, id: str) -> None:
        # Compared with the store itself, not with a launcher's mirror, which may lag.
        if self.used(self.there[id].tags[clouds.UPLOAD_TAG]):
            self.wrong.append(f"{id} is deleted although a machine is made from it")
        del self.there[id]

    async def listed(self, provider: Mapping[str, Any]) -> list[clouds.Resource]:
        """Return the images that are listed by now, and foreign ones."""
        await self._call()
        now_s = asyncio.get_running_loop().time()
        found = [clouds.Resource(id, "image", one.tags, {}) for id, one in self.there.items() if one.listed_s <= now_s]
        # Include it in every list, so that each poll gives the launcher the chance to delete what belongs to others.
        return [
            *found,
            clouds.Resource("strange", "image", {clouds.UPLOAD_TAG: "other", clouds.SYSTEM_TAG: "theirs"}, {}),
        ]

    async def discard(self, provider: Mapping[str, Any], resource: clouds.Resource) -> None:
        """Delete images that nobody needs; foreign ones stay."""
        await self._call()
        if resource.id == "strange":
            self.wrong.append("a foreign image is deleted")
        elif resource.id in self.there:
            self._delete(resource.id)

    async def _call(self) -> None:
        await asyncio.sleep(self.chance.random() * self.faults.slow_s)
        if self.chance.random() < self.faults.away:
            raise clouds.CloudUnavailable("no answer")

    def _lose(self) -> None:
        if self.chance.random() < self.faults.lost:
            raise clouds.CloudUnavailable("the answer was lost")


class ImageTakingCloud(Sky):
    """Imitate a cloud that also accepts images."""

    images: Gallery


@dataclass(slots=True)
class Shelf:
    """Imitate `ports.clouds.ImageFiles`: fetches are slow and may fail, and files are lost when the process dies."""

    chance: random.Random
    files: set[str] = field(default_factory=set)

    def have(self, sha256: str) -> Path | None:
        """Return a path with the name of the digest."""
        return Path(sha256) if sha256 in self.files else None

    async def fetch(self, url: str, sha256: str) -> Path:
        """Fetch the file; sometimes fail."""
        await asyncio.sleep(self.chance.random() * 120)
        if self.chance.random() < 0.1:
            raise clouds.NoFile("its server returned status 503")
        self.files.add(sha256)
        return Path(sha256)

    def keep(self, digests: frozenset[str]) -> None:
        """Forget the others."""
        self.files &= digests


MakeKeeper = Callable[[Context, Mapping[str, CloudAccount], Shelf, At], ImageKeeper]
Checks = Callable[[list[FlatLabel], Map, Mirror], list[At] | None]


@dataclass(slots=True)
class ImagingSimulation:
    """Run once."""

    seed: int
    keeper: MakeKeeper = ImageKeeper
    checks: Checks = upload_checks
    deaths: int = 0
    sent: int = 0
    machines: int = 0
    refused: int = 0
    """Number of builds that were rejected as bad."""

    def run(self) -> None:
        """Run the simulation. Raise MachineInvariantBroken, naming the seed."""
        chance = random.Random(self.seed)
        with drawn_from(chance.getrandbits):
            try:
                run_virtual(self._run(chance))
            except MachineInvariantBroken as broken:
                raise MachineInvariantBroken(f"seed {self.seed}: {broken}") from broken

    async def _run(self, chance: random.Random) -> None:
        backend, stop, map = MemoryBackend(), asyncio.Event(), Map()
        halls = {name: self._hall(name, chance, backend) for name in ("west", "far")}
        store = Store(backend)
        for one in _providers():
            await store.commit([], [map.nodes.providers("t").provider(one.name).record.put(one)])
        cache = map.cache.connection("sim").branches.data
        await store.commit([], cache.blob(BranchCache({PROJECT: {"refs/heads/m": "c" * 40}})))
        built = asyncio.ensure_future(self._builds(store, backend, chance))
        # Two, although one holds the lock: the other takes over when it dies, and both may work while one has not
        # noticed.
        works = [self._process("launcher", backend, halls, chance, stop) for _ in range(2)]
        works += [self._tries(backend, chance), self._uses(backend, halls, chance)]
        running = asyncio.ensure_future(run_until(stop, *works))
        try:
            await built
            await self._until_quiet(backend, running, halls)
        finally:
            stop.set()
            built.cancel()
            await asyncio.gather(running, built, return_exceptions=True)
        self.sent = sum(hall.images.sent for hall in halls.values())

    def _hall(self, name: str, chance: random.Random, backend: MemoryBackend) -> ImageTakingCloud:
        faults = CloudFaults(lost=0.15, away=0.15, broken=0.1, refused=0.05, late_s=90.0, slow_s=20.0)

        def used(upload: str) -> bool:
            nodes = [decode(one.value, MadeNode) for one in backend.tree.under(Map().nodes.made.path)]
            return any(node.settings["image"].get(UPLOAD) == upload for node in nodes)

        hall = ImageTakingCloud(chance, faults, name=name)
        hall.images = Gallery(chance, faults, name, used)
        return hall

    async def _builds(self, store: Store, backend: MemoryBackend, chance: random.Random) -> None:
        """Report builds of the image at intervals, some of them twice, as after a turn that was cut."""
        for number in range(chance.randrange(3, 7)):
            file = ImageFile(
                image=IMAGE, name="debian", project=PROJECT, connection="sim", branch="m", build=f"b{number}",
                format="tar", url=f"http://here/{number}", sha256=f"{number:064x}",
            )  # fmt: skip
            at_ms = int(asyncio.get_running_loop().time() * 1000)
            report = ImageReport(id=f"r{number}", tenant="t", pipeline="p", files=(file,), at_ms=at_ms)
            for _ in range(chance.choice((1, 1, 2))):
                await store.commit([], [Map().images.reports(report.id).record.put(report)])
                await asyncio.sleep(chance.random())
            await asyncio.sleep(chance.random() * 600)
            await self._whim(store, backend, chance)
            await asyncio.sleep(chance.random() * 600)

    async def _whim(self, store: Store, backend: MemoryBackend, chance: random.Random) -> None:
        """Let a person request an action on one of the existing uploads."""
        under = list(backend.tree.under(Map().image_uploads.uploads.path))
        if under and chance.random() < 0.7:
            one = decode(chance.choice(under).value, ImageUpload)
            do = chance.choice(("delete", "delete", "validate", "upload"))
            await store.commit([], [Map().images.orders(one.id).record.put(ImageOrder(do, "somebody"))])

    async def _tries(self, backend: MemoryBackend, chance: random.Random) -> None:
        """Handle the events that request tests of uploads, as the pipelines of a tenant do."""
        store, map = Store(backend), Map()
        stream = map.events.tenant("t").trigger.stream
        while True:
            for entry in list(backend.tree.under(stream.data)):
                event = decode(entry.value, TriggerEvent)
                body = body_of(event.change)
                await asyncio.sleep(chance.random() * 60)
                assert body is not None, "it is of an image"
                good = chance.random() < 0.8
                self.refused += not good
                report = ImageReport(
                    id=event.id, tenant="t", pipeline="p", upload=body.image_upload_uuid, validated=good
                )
                await store.commit([], [Delete(entry.path)])
                await store.commit([], [map.images.reports(report.id).record.put(report)])
            await asyncio.sleep(5)

    async def _uses(self, backend: Backend, halls: Mapping[str, ImageTakingCloud], chance: random.Random) -> None:
        """Make machines from the chosen image, and delete them later."""
        store, map = Store(backend), Map()
        mirror = Mirror(store, map.path)
        watching = asyncio.ensure_future(mirror.run())
        try:
            await mirror.moved(0)
            while True:
                await asyncio.sleep(chance.random() * 20)
                for provider in chosen({"t": _providers()}, map, mirror)["t"]:
                    if not unmade(provider, "small"):
                        await self._use(store, mirror, provider, halls[provider.connection].images, chance)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _use(
        self, store: Store, mirror: Mirror, provider: FlatProvider, gallery: Gallery, chance: random.Random
    ) -> None:
        map, label = Map(), provider.labels[0]
        checks = self.checks([label], map, mirror)
        await asyncio.sleep(chance.random() * 10)  # as between a read and its commit
        if checks is None:
            return
        node = MadeNode(
            id=fresh(), provider=provider.name, connection=provider.connection, label="small", state="in-use",
            request="somebody's", settings={"image": label.image, "provider": {}, "label": {}, "flavor": {}},
        )  # fmt: skip
        record = map.nodes.made(node.id).record
        try:
            await store.commit(checks, [record.put(node)])
        except Conflict:
            return
        self.machines += 1
        upload = next((one for one in uploads(map, mirror) if one.id == label.image[UPLOAD]), None)
        image = gallery.there.get(label.image["image-id"])
        if upload is None or not upload.usable or image is None or image.sha256 != upload.file.sha256:
            gallery.wrong.append(f"a machine is made from {label.image['image-id']}, which is {upload}, {image}")
        asyncio.get_running_loop().call_later(chance.random() * 900, _gone, store, record.path)

    async def _process(
        self,
        kind: str,
        inner: MemoryBackend,
        halls: Mapping[str, ImageTakingCloud],
        chance: random.Random,
        stop: asyncio.Event,
    ) -> None:
        """Run a process that meets faults, dies, and is started again, a few times."""
        lives = chance.randrange(DEATHS_MAX + 1)
        while not stop.is_set():
            # After that many requests to the store, wherever the process is then.
            faults = {chance.randrange(5, 60): SimFault.DEATH} if lives > 0 else {}
            lives -= 1
            backend = SimLink(inner, chance, faults)
            if not await dies(backend, self._life(kind, backend, halls, chance, stop)):
                return
            self.deaths += 1

    async def _life(
        self,
        kind: str,
        backend: Backend,
        halls: Mapping[str, ImageTakingCloud],
        chance: random.Random,
        stop: asyncio.Event,
    ) -> None:
        loop, store = asyncio.get_running_loop(), Store(backend)
        context = Context(store, Mirror(store, Map().path), lambda: int(loop.time() * 1000), ProcessSettings(kind))
        accounts = {name: CloudAccount(name, hall, 2.0) for name, hall in halls.items()}

        async def body(session: Session) -> None:
            async with lock(store, session, context.map.nodepool.path).hold() as guard:
                await self.keeper(context, accounts, Shelf(chance), guard).run(SYSTEM)

        await run_until(stop, context.mirror.run(), serve(context, "launcher", body, stop))

    async def _until_quiet(
        self, backend: MemoryBackend, running: asyncio.Future[None], halls: Mapping[str, ImageTakingCloud]
    ) -> None:
        """Wait until nothing is in progress and every image is at its places. Raise MachineInvariantBroken."""
        loop, map = asyncio.get_running_loop(), Map()
        while True:
            await asyncio.sleep(10.0)
            for hall in halls.values():
                if hall.images.wrong:
                    raise MachineInvariantBroken(hall.images.wrong[0])
            # It only ends by an error, which is raised here.
            if running.done():
                await running
            records = [decode(one.value, ImageUpload) for one in backend.tree.under(map.image_uploads.uploads.path)]
            known = {one.id for one in records}
            lost = [
                id for h in halls.values() for id, i in h.images.there.items() if i.tags[clouds.UPLOAD_TAG] not in known
            ]
            busy = [one for one in records if one.state in (*UNDER_WAY, "deleting") or _open(one)]
            left = list(backend.tree.under(map.images.reports.path))
            many = [name for name in halls if sum(one.usable and one.connection == name for one in records) > RETAIN]
            if not (busy or lost or left or many):
                return
            if loop.time() > TIME_MAX_S:
                descriptions = [f"{one.file.build} {one.connection} {one.state} {one.why}" for one in records]
                raise MachineInvariantBroken(
                    f"not quiet: lost {lost[:3]}, left {len(left)}, too many {many}, uploads {descriptions[:9]}"
                )


def _open(one: ImageUpload) -> bool:
    """Return whether the upload still needs work."""
    return (one.state == "ready" and one.validated is None) or (one.state == "failed" and one.dirty)


def _gone(store: Store, path: str) -> None:
    task = asyncio.ensure_future(store.commit([], [Delete(path)]))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _providers() -> list[FlatProvider]:
    image = FlatImage("debian", IMAGE, PROJECT, "sim", "m", "tar", {"name": "debian"}, "digest", RETAIN)
    label = FlatLabel("small", {"name": "small"}, {"name": "debian", "type": "zuul"}, {}, digest="small")
    return [FlatProvider(f"p/{name}", name, "sky", (label,), images=(image,)) for name in ("west", "far")]
