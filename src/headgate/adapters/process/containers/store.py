"""Keep the images of this executor: podman fetches them, they are stored as layers, and unused ones are removed.

Podman runs unprivileged: in a user namespace whose root is the root of every container here, so that the files that it
unpacks belong to that user, and a flaw in its parsing of images does not give root's rights.  It has no credentials,
and only fetches and removes images; bubblewrap runs programs on their layers.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import platform
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.adapters.process.bounds.limits import Exceeded, of_bytes
from headgate.adapters.process.bounds.watch import measured
from headgate.adapters.process.confinement import boxes
from headgate.adapters.process.confinement.users import Numbers
from headgate.adapters.process.containers import podman
from headgate.adapters.process.processes import ProcessKeeper, Sink
from headgate.adapters.process.sandbox import Confined, Spaces
from headgate.adapters.work.directory import remove
from headgate.base.errors import ExecutionError
from headgate.base.ids import fresh
from headgate.base.tasks import run_to_end
from headgate.config.kinds.image import BadImageName, ImageName, allowed

log = logging.getLogger("headgate.executor")

NUMBERS = Numbers(1_900_100_000, 65_536)
"""Users and groups of containers on this machine, above those of builds; the first one is the container's root."""
PROGRAM = "podman"
REGISTRIES = "CONTAINERS_REGISTRIES_CONF"
"""Variable of this process with podman's configuration file for registries."""
KNOWN_S = 600.0
"""How long the image of a tag is cached; after that, the registry is queried again."""
FETCH_TIMEOUT_S = 1_800.0
TRIAL_TIMEOUT_S = 60.0
# A layer uses 29 bytes of the mount options, which the kernel limits to a page of 4096.
LAYERS_MAX = 120
_ALONE = (
    "if [ -d /var/lib/containers ]; then mount -t tmpfs -o mode=0755 tmpfs /var/lib/containers || exit; fi; "
    'exec "$0" "$@"'
)
"""Hides root's store of podman: podman believes that it is root, and would read signatures there without permission."""
VARIABLES_SIZE_MAX_BYTES = 65_536
"""Size of the variables that an image sets."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_LAYER = re.compile(r"[0-9a-f]{64}")
_LINK = re.compile(r"l/[A-Z0-9]{26}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONF = """[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
tmp_dir = "{0}/tmp"
static_dir = "{0}/static"
volume_path = "{0}/volumes"
"""


class NoImage(ExecutionError):
    """Report that a job cannot have its image; the message is shown to users."""


@dataclass(frozen=True, slots=True)
class Image:
    """Describe an image that is present."""

    name: str
    id: str
    digest: str
    store: Path
    layers: tuple[str, ...]
    """Names of the layers in the directory `store`, the uppermost first."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImageSupply:
    """Hold the settings for images."""

    place: Path
    patterns: tuple[str, ...]
    """Patterns of the names that jobs may use."""
    size_max_bytes: int
    """Size of all stored images together."""
    default: str = ""
    """Image of jobs that name none; empty: such jobs use this machine's programs."""


class ContainerStore:
    """Keep the images of one executor; call `begin` before any other method."""

    def __init__(self, keeper: ProcessKeeper, supply: ImageSupply) -> None:
        """Make a store, whose programs `keeper` runs and limits."""
        self._keeper, self.supply = keeper, supply
        self._place = supply.place / "store"
        self._spaces: Spaces = {}
        self._lock = -1
        self._known: dict[str, tuple[Image, float]] = {}
        """Name -> its image, and when that entry expires."""
        self._commands = 0
        """Number of podman commands that are running."""
        self._changed = False
        """Whether a command may have left something to clean up."""
        self._fetching: dict[str, asyncio.Lock] = {}
        self._used: dict[str, int] = {}
        """Image -> number of builds that use it."""
        self._found_here: dict[str, int] = {}
        """Image -> number of builds that are about to use it."""
        self._fetches = 0
        self._choosing = asyncio.Lock()
        """Held while images are chosen for removal, so that no build starts to use one of them."""

    async def begin(self) -> None:
        """Prepare the store. Raise OSError with a message about what is missing on this machine."""
        if os.geteuid() != 0:
            raise OSError("containers need an executor that runs as root")
        if shutil.which(PROGRAM) is None:
            raise OSError(f"the program {PROGRAM} is not installed; install the package podman")
        self.supply.place.mkdir(parents=True, exist_ok=True)
        self.supply.place.chmod(0o700)
        self._lock = os.open(self.supply.place / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OSError(f"another executor has the images in {self.supply.place}") from error
        left_behind = (*self._place.glob("gone-*"), *self.supply.place.glob("trial-*"))
        for left in (self._place / "fetching", *left_behind):
            await asyncio.to_thread(remove, left)
        for name in ("", "tmp", "fetching"):
            (self._place / name).mkdir(exist_ok=True)
            os.chown(self._place / name, NUMBERS.first, NUMBERS.first)
        (self._place / "none.json").write_text("{}")  # jobs must not use the operator's credentials
        if own := os.environ.get(REGISTRIES):
            (self._place / "registries.conf").write_bytes(Path(own).read_bytes())
        (self._place / "containers.conf").write_text(_CONF.format(f"{boxes.PLACE}/images"))
        self._spaces = {"user": await self._keeper.user_namespace(NUMBERS.mapped, NUMBERS.mapped, NUMBERS.first)}
        await self._podman("info")

    async def close(self) -> None:
        """Release the store; requires that no build runs."""
        for fd in self._spaces.values():
            os.close(fd)
        self._spaces = {}
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @asynccontextmanager
    async def taken(self, text: str, sink: Sink, cancel: asyncio.Event) -> AsyncIterator[Image]:
        """Hold the image with that name, after fetching it if necessary; `sink` gets messages. Raise NoImage."""
        try:
            name = ImageName.read(text)
        except BadImageName as bad:
            raise NoImage(str(bad)) from bad
        if not allowed(name, self.supply.patterns):
            raise NoImage(f"jobs may not use the image {name} here ([executor] images)")
        image = await self._found(name, sink, cancel)  # no await until it is counted, or `_tidy` may remove it
        with _counted(self._used, image.id):
            yield image

    async def _found(self, name: ImageName, sink: Sink, cancel: asyncio.Event) -> Image:
        """Find the image of a name, and fetch it if necessary.  Raise NoImage."""
        async with self._fetching.setdefault(str(name), asyncio.Lock()):
            known = self._known.get(str(name))
            if known is not None and time.monotonic() < known[1]:
                return known[0]
            self._fetches += 1
            try:
                with ExitStack() as stack:
                    return await self._fetched(name, sink, cancel, stack)
            except OSError as error:
                raise NoImage(f"the image {name} cannot be provided: {error}") from error
            finally:
                self._fetches -= 1

    async def _fetched(self, name: ImageName, sink: Sink, cancel: asyncio.Event, stack: ExitStack) -> Image:
        """Fetch an image, unless it is present and named by its digest; hold it until `stack` closes. Raise NoImage,
        OSError."""
        description = await self._looked(str(name), stack)
        if description is None or not name.digest:  # a tag may have moved
            sink.say(f"FETCHING the image {name}")
            why = await self._fetch(name, sink, cancel)
            if why and description is None:  # if the registry is down, use the present image
                raise NoImage(f"the image {name} cannot be fetched: {why}")
            if why:
                sink.say(f"The registry does not answer; using the image that is already here: {why}")
            description = await self._looked(str(name), stack)
        if description is None:
            raise NoImage(f"the image {name} is missing although it was fetched")
        image = self._read(str(name), description)
        await self._tidy(image)
        self._known[str(name)] = image, time.monotonic() + KNOWN_S
        return image

    async def _looked(self, name: str, stack: ExitStack) -> dict[str, Any] | None:
        """Return podman's description of an image, which is then not removed before `stack` closes. JSON. Raise
        OSError."""
        async with self._choosing:
            description = await self._inspected(name)
            if description is not None:
                stack.enter_context(_counted(self._found_here, description["Id"]))
            return description

    async def _fetch(self, name: ImageName, sink: Sink, cancel: asyncio.Event) -> str:
        """Fetch an image; return why that failed, empty if it succeeded. Raise OSError."""
        words = podman.PodmanSink(sink)
        try:
            async with self._used_by_podman(changes=True):
                status = await self._run(["pull", str(name)], words, cancel)
        except Exceeded as reached:
            return f"it is too large: {reached}"
        if status == 0:
            return ""
        return {"cancel": "the build was cancelled", "timeout": "it took too long"}.get(str(status), words.why)

    @asynccontextmanager
    async def _used_by_podman(self, *, changes: bool = False) -> AsyncIterator[None]:
        """Wrap a command. Leftovers of a killed command that `changes` the store are removed once no command runs,
        since all commands make temporary files, and fail if an image disappears in the meantime."""
        self._commands += 1
        try:
            yield
        finally:
            self._commands -= 1
            self._changed = self._changed or changes
            if self._changed and not self._commands:
                self._changed = False
                await asyncio.to_thread(remove, self._set_aside())

    def _set_aside(self) -> Path:
        """Move leftovers out of the store, and return their directory. There is no await, so no command begins
        in the meantime."""
        aside, gone = self._place / "fetching", self._place / f"gone-{fresh()}"
        podman.take_out_orphans(self._place / "root", aside)
        aside.rename(gone)
        aside.mkdir()
        os.chown(aside, NUMBERS.first, NUMBERS.first)
        return gone

    async def _run(self, words: Sequence[str], sink: Sink, cancel: asyncio.Event) -> int | str:
        return await self._keeper.run(
            Confined(self._command(words)),
            build="images",
            whose="images",
            environment=self._environment,
            directory=Path("/"),
            root=self._place,
            log=sink,
            cancel=cancel,
            timeout_s=FETCH_TIMEOUT_S,
            spaces=self._spaces,
            box=self._box,
        )

    async def tried(
        self, confined: Confined, box: Mapping[str, Any], place: Path, sink: Sink, cancel: asyncio.Event
    ) -> int | str:
        """Run a program of an image in a box, with the same limits as jobs; see `ProcessKeeper.run`."""
        return await self._keeper.run(
            confined,
            build="images",
            whose="images",
            environment={},
            directory=Path("/"),
            root=place,
            log=sink,
            cancel=cancel,
            timeout_s=TRIAL_TIMEOUT_S,
            spaces=self._spaces,
            box=box,
        )

    async def _podman(self, *words: str) -> str:
        """Run podman, and return its output. Raise OSError."""
        program = {"do": "program", "command": self._command(words), "environment": self._environment, "box": self._box}
        async with self._used_by_podman():
            return (await run_to_end(self._keeper.errand(self._spaces, **program, stdin="", inputs={}))).output

    @property
    def _box(self) -> dict[str, Any]:
        """Return a box that shows the store to podman at another path: nobody may access its real path."""
        return boxes.box_of(binds=[(str(self._place), "/images", True)], owner=NUMBERS.first)

    @property
    def _environment(self) -> dict[str, str]:
        passed = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
        at = f"{boxes.PLACE}/images"
        return {
            **{name: os.environ[name] for name in passed if name in os.environ},
            **({REGISTRIES: f"{at}/registries.conf"} if REGISTRIES in os.environ else {}),
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": at,
            "TMPDIR": f"{at}/fetching",
            "CONTAINERS_CONF": f"{at}/containers.conf",
            "REGISTRY_AUTH_FILE": f"{at}/none.json",
        }

    def _command(self, words: Sequence[str]) -> list[str]:
        at = f"{boxes.PLACE}/images"
        return [
            *("unshare", "--mount", "--", "sh", "-c", _ALONE, PROGRAM),
            *("--root", f"{at}/root", "--runroot", f"{at}/run", "--storage-driver", "overlay", *words),
        ]

    async def _inspected(self, name: str) -> dict[str, Any] | None:
        """Return podman's description of an image; None if the image is missing. JSON. Raise OSError."""
        if await self._podman("images", "--quiet", "--filter", f"reference={name}") == "":
            return None
        found: dict[str, Any] = json.loads(await self._podman("image", "inspect", name))[0]  # JSON
        return found

    def _read(self, name: str, found: Mapping[str, Any]) -> Image:
        """Read podman's description of an image. Raise NoImage, OSError."""
        theirs, own = (
            found["Architecture"],
            _ARCHITECTURES.get(platform.machine(), platform.machine()),
        )
        if found["Os"] != "linux" or theirs not in (own, ""):
            raise NoImage(f"the image {name} is for {found['Os']} on {theirs}; this machine is linux on {own}")
        overlay = self._place / "root/overlay"
        layers = _layers(overlay, Path(found["GraphDriver"]["Data"]["UpperDir"]).parent.name)
        if len(layers) > LAYERS_MAX:
            raise NoImage(f"the image {name} has {len(layers)} layers; at most {LAYERS_MAX} are possible")
        settings = (found.get("Config") or {}).get("Env") or []
        if sum(map(len, settings)) > VARIABLES_SIZE_MAX_BYTES:
            raise NoImage(f"the variables that the image {name} sets together are too large")
        pairs = (one.partition("=") for one in settings)
        environment = {key: value for key, _, value in pairs if _VARIABLE.fullmatch(key) and "\0" not in value}
        return Image(name, found["Id"], found["Digest"], overlay, tuple(layers), environment)

    async def _tidy(self, newest: Image) -> None:
        """Remove unused images, the least recently used first, while all images use more than half of the space. Raise
        OSError, or NoImage if the newest is too large."""
        most = self.supply.size_max_bytes
        used = self.supply.place / "used"
        async with self._choosing:
            used.mkdir(exist_ok=True)
            (used / newest.id).touch()
            listing = await self._podman("images", "--all", "--quiet", "--no-trunc")
            present = {one.removeprefix("sha256:") for one in listing.split()}
            for one in sorted(present - {newest.id}, key=lambda one: _touched_s(used / one)):
                if await self._size_bytes() <= most // 2:
                    return
                comes = self._fetches > 1 and not (used / one).exists()  # another build may have just fetched it
                if not (self._used.get(one) or self._found_here.get(one) or comes):
                    await self._remove(one)
            if await self._size_bytes() > most and not self._used.get(newest.id):
                await self._remove(newest.id)
                raise NoImage(f"the image {newest.name} is too large: all images together may have {of_bytes(most)}")

    async def _remove(self, image: str) -> None:
        """Remove an image from the store.  Raise OSError."""
        self._known = {name: known for name, known in self._known.items() if known[0].id != image}
        async with self._used_by_podman(changes=True):
            await self._podman("rmi", "--force", image)
        (self.supply.place / "used" / image).unlink(missing_ok=True)

    async def _size_bytes(self) -> int:
        return (await asyncio.to_thread(measured, self._place, ())).size_bytes


@contextmanager
def _counted(counts: dict[str, int], name: str) -> Iterator[None]:
    counts[name] = counts.get(name, 0) + 1
    try:
        yield
    finally:
        counts[name] -= 1


def _touched_s(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


def _layers(overlay: Path, uppermost: str) -> list[str]:
    """Return the short names of an image's layers.  Raise OSError."""
    if not _LAYER.fullmatch(uppermost):
        raise OSError(f"{uppermost!r} is not a layer")
    lower = overlay / uppermost / "lower"
    below = lower.read_text().split(":") if lower.exists() else []
    found = [f"l/{(overlay / uppermost / 'link').read_text()}", *below]
    for layer in found:
        directory = (overlay / layer).resolve()
        # podman wrote these files without privileges: after an exploit of a flaw in it, they could name any directory.
        if not _LINK.fullmatch(layer) or directory.parent.parent != overlay.resolve() or directory.name != "diff":
            raise OSError(f"{layer!r} is not a layer")
    return found
