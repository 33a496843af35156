"""Build images from a file of the proposed tree, and cache them by their sources.

Each step is a command like those of the job itself, in the same network, limits and container, so a Containerfile can
do no more than its job.  The files that the steps wrote become one layer above the base image.  The layer's key is a
digest of the base image, the Containerfile and, if that copies files, the files next to it: nobody chooses the key, so
nobody can replace the layer of another project.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from headgate.adapters.process.bounds.limits import Exceeded
from headgate.adapters.process.bounds.watch import measured
from headgate.adapters.process.cell import Cell, Command
from headgate.adapters.process.containers.box import Container
from headgate.adapters.process.containers.containerfile import SIZE_MAX_BYTES, BadFile, Recipe, Step, read
from headgate.adapters.process.containers.store import Image
from headgate.adapters.process.joblog import JobLog
from headgate.adapters.process.workspace import BadPlaybook, Workspace
from headgate.adapters.work.directory import Directory, Strange, remove
from headgate.base.errors import ExecutionError
from headgate.base.ids import fresh
from headgate.base.tasks import run_to_end

FILES_MAX = 100_000
"""Maximum number of files in the directory of a Containerfile that copies files."""
_RUN = 'mkdir -p "$1" && cd "$1" && shift && exec "$@"'
_COPY = """
cd "$1" && target=$2 && shift 2 || exit 1
case $#$target in 1*/|[!1]*) into=yes;; esac
for one; do
    if [ -d "$one" ]; then
        mkdir -p "$target" && cp -R "$one/." "$target/" || exit 1
        [ "$one" != . ] || rm -rf "$target/.git"
    elif [ "$into" ] || [ -d "$target" ]; then
        mkdir -p "$target" && cp "$one" "$target/" || exit 1
    else
        mkdir -p "${target%/*}/" && cp "$one" "$target" || exit 1
    fi
done
"""


class NotBuilt(ExecutionError):
    """Report that a step failed; `result` is the result of the build."""

    def __init__(self, result: str, why: str) -> None:
        super().__init__(why)
        self.result = result


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """Describe from what an image is built."""

    name: str
    recipe: Recipe
    content: bytes
    beside: Path
    """Directory of the file."""

    @staticmethod
    def of(workspace: Workspace, name: str) -> ImageRecipe:
        """Return the recipe in the proposed tree. Raise BadPlaybook, OSError."""
        job, project = workspace.spec.job.name, workspace.spec.change.project
        *above, last = Path(name).parts
        home = workspace.home()
        try:
            with Directory.at(home) as tree, tree.below(*above) as directory:
                content = directory.read(last, SIZE_MAX_BYTES)
            if content is None:
                raise FileNotFoundError(name)
            return ImageRecipe(name, read(content), content, home.joinpath(*above))
        except FileNotFoundError as error:
            raise BadPlaybook(f"{project} has no file {name}, from which the image of job {job} is built") from error
        except (BadFile, Strange) as bad:
            raise BadPlaybook(f"{name}, from which the image of job {job} is built, cannot be used: {bad}") from bad

    def key(self, base: Image) -> str:
        """Return the key of the resulting layer; call it before anything of the build runs. Raise BadPlaybook,
        OSError."""
        found = hashlib.sha256()
        # Use the id instead of the name: a moved tag must lead to another layer.
        _hash_entry(found, "image", base.id.encode())
        _hash_entry(found, "file", self.content)
        # Without COPY, the files cannot change the result, so one layer serves every change of the project.
        if self.recipe.copies:
            self._check()
            for path, kind, content in self._files():
                _hash_entry(found, f"{kind} {path}", content)
        return found.hexdigest()

    def _check(self) -> None:
        """Refuse git's directory: it differs in each build, so no image should depend on it. Raise BadPlaybook."""
        context = self.beside.resolve()
        for source in (source for step in self.recipe.steps for source in step.sources if source != "."):
            found = (context / source).resolve()
            if found == context or found.is_relative_to(context / ".git"):
                raise BadPlaybook(
                    f"{self.name} copies {source}, which contains git's own files instead of files of the project"
                )

    def _files(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield the path, kind and content of each file, in a fixed order."""
        count = 0
        for at, directories, files in os.walk(self.beside):
            directories[:] = sorted(one for one in directories if one != ".git" or at != str(self.beside))
            for name in sorted((*directories, *files)):
                place, count = Path(at, name), count + 1
                if count > FILES_MAX:
                    raise BadPlaybook(f"there are more than {FILES_MAX} files next to {self.name}")
                path = str(place.relative_to(self.beside))
                if place.is_symlink():
                    yield path, "link", os.fsencode(os.readlink(place))
                elif place.is_file():
                    with open(place, "rb") as file:
                        digest = hashlib.file_digest(file, "sha256").digest()
                    yield path, "program" if os.access(place, os.X_OK) else "file", digest
                else:
                    yield path, "directory", b""


def _hash_entry(found: hashlib._Hash, name: str, content: bytes) -> None:
    for part in (os.fsencode(name), content):
        # Include the length: otherwise different pairs of name and content could have the same hash.
        found.update(len(part).to_bytes(8, "big") + part)


@dataclass(slots=True)
class Layers:
    """Store the layers that were built here, below `place`."""

    place: Path
    size_max_bytes: int
    _used: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards `_used`, since a thread removes layers."""

    def begin(self) -> None:
        """Remove incomplete layers. Raise OSError."""
        remove(self.place / "building")
        for name in ("building", "built"):
            (self.place / name).mkdir(parents=True, exist_ok=True)

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        """Protect the layer from removal while the context lasts."""
        with self._lock:
            self._used[key] = self._used.get(key, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._used[key] -= 1

    def has(self, key: str) -> bool:
        found = self.place / "built" / key
        if found.is_dir():
            # The least recently used layer is removed first.
            os.utime(found)
            return True
        return False

    def keep(self, key: str, made: Path) -> None:
        """Store a new layer. Raise OSError."""
        try:
            # The rename publishes the complete layer atomically: a killed build leaves it in `building`, where the next
            # start removes it.
            made.rename(self.place / "built" / key)
        except OSError:
            if not self.has(key):  # another build may have built it in the meantime
                raise
        for one in sorted((self.place / "built").iterdir(), key=_changed_s):
            if measured(self.place / "built", ()).size_bytes <= self.size_max_bytes:
                return
            gone = self.place / "building" / f"gone-{fresh()}"
            # Move it while holding the lock, and remove it afterwards, so that no build starts to use a partial layer.
            with self._lock, suppress(FileNotFoundError):  # an interrupted removal must not leave a partial layer
                if not self._used.get(one.name):
                    one.rename(gone)
            remove(gone)

    def on(self, base: Image, key: str, variables: Mapping[str, str]) -> Image:
        """Return the image with the layer added."""
        above = os.path.relpath(self.place / "built" / key, base.store)
        return replace(base, layers=(above, *base.layers), environment={**base.environment, **variables})


def _changed_s(place: Path) -> float:
    """Return when the place last changed; 0 if another build has removed it."""
    return place.stat().st_mtime if place.exists() else 0.0


async def build(
    wanted: ImageRecipe, base: Container, made: Path, cell: Cell, workspace: Workspace, log: JobLog,
    cancel: asyncio.Event, limit_s: float,
) -> None:  # fmt: skip
    """Run the steps, which write into `made`. Raise NotBuilt, OSError."""
    place = made.parent
    end_s = time.monotonic() + limit_s
    container = Container(base.image, place)
    container.prepare()
    try:
        for step in wanted.recipe.steps:
            log.say(f"IMAGE {wanted.name}:{step.line}: {step.description}")
            image = replace(base.image, environment={**base.image.environment, **step.environment})
            command = _command(wanted, step, workspace, replace(container, image=image))
            try:
                # All steps share one limit.
                status = await cell.run(command, log, cancel, max(0.0, end_s - time.monotonic()))
            except Exceeded as reached:
                raise NotBuilt("FAILURE", f"{wanted.name}:{step.line}: {reached}") from reached
            if status:
                result = {"cancel": "CANCELED", "timeout": "TIMED_OUT"}.get(str(status), "FAILURE")
                why = {"cancel": "cancelled", "timeout": "at its time limit"}.get(str(status), f"exit status {status}")
                raise NotBuilt(result, f"the image was not built: {wanted.name}:{step.line}: {step.description}: {why}")
    except BaseException:
        await run_to_end(asyncio.to_thread(remove, place))
        raise


def _command(wanted: ImageRecipe, step: Step, workspace: Workspace, container: Container) -> Command:
    if step.sources:
        words = ["/bin/sh", "-c", _COPY, "copy", str(wanted.beside), step.target, *step.sources]
    else:
        words = ["/bin/sh", "-c", _RUN, "run", step.directory, *step.command]
    spec = workspace.spec
    return Command(
        words,
        {"HOME": "/root", "LANG": "C.UTF-8", "HEADGATE_IMAGE": f"{workspace.root}/image"},
        Path("/"),
        container.place,
        f"{spec.tenant} {spec.change.project}",
        trusted=False,
        writable=(),
        readable=(wanted.beside,) if step.sources else (),
        container=container,
    )
