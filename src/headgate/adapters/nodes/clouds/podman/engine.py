"""Run podman, and import images that jobs build, which are archives of root file systems.

Only plain archives are imported: an archive that names its images could replace an image of others, and a compressed
one, or one with sparse files, could fill the disk (see `check_archive`).
"""

from __future__ import annotations

import asyncio
import json
import re
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from headgate.adapters.nodes.clouds.http import one_line
from headgate.base.pipes import OutputTooLarge, communicate, put_down
from headgate.base.tasks import end
from headgate.ports import clouds

ANSWER_MAX_S = 120.0
ANSWER_MAX_BYTES = 16 * 2**20
IMPORT_MAX_S = 3_600.0
IMAGE = "image"
IMAGE_NAME = "localhost/headgate/upload"
BLOCK = 512
ENTRIES_MAX = 3_000_000
TEXT_MAX_BYTES = 2**20
"""Size limit of a header that is longer than a block, such as long names and attributes."""
_MAGIC_AT, _MAGIC = 257, b"ustar"
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_FILE, _OLD_FILE, _EXTENDED, _GLOBAL = b"0", b"\0", b"x", b"g"
_LONG_NAMES = (b"L", b"K")
_WITHOUT_CONTENT = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})
_SIZE_END = 10**18
_RECORD = re.compile(rb"([1-9][0-9]{0,7}) ([^=\0]+)=")


class PodmanResult(NamedTuple):
    status: int
    out: bytes
    why: str
    """Error output of podman, as one line."""


class Engine:
    """Run a podman process for each request. Every method raises CloudUnavailable if there is no response."""

    def __init__(self, words: Sequence[str]) -> None:
        """Create a client. `words` holds the program, and the options of every call."""
        self._words = tuple(words)

    async def run(self, *words: str, stdin: bytes = b"", max_s: float = ANSWER_MAX_S) -> PodmanResult:
        """Run a command and return its result."""
        try:
            process = await asyncio.create_subprocess_exec(*self._words, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        except OSError as error:
            raise clouds.CloudUnavailable(
                f"{self._words[0]} cannot be run: {error.strerror}; install podman"
            ) from error
        try:
            async with asyncio.timeout(max_s):
                out, wrong = await communicate(process, stdin, ANSWER_MAX_BYTES)
        except (TimeoutError, OutputTooLarge) as error:
            raise clouds.CloudUnavailable(
                f"{self._words[0]} {words[0]} has not answered within {max_s:.0f} s"
            ) from error
        finally:
            # Also after a timeout or a cancellation: a podman process that continues would hold its locks.
            await put_down(process)
        return PodmanResult(process.returncode or 0, out, one_line(complaint(wrong.decode(errors="replace"))))

    async def listed(self, *words: str) -> list[dict[str, Any]]:
        """Return a list from podman's JSON."""
        done = await self.run(*words, "--format", "json")
        try:
            found = json.loads(done.out or b"[]")
        except ValueError:
            found = None
        if done.status or not isinstance(found, list):
            raise clouds.CloudUnavailable(f"{self._words[0]} {' '.join(words)}: {done.why or 'it printed no JSON'}")
        return found

    async def inspected(self, name: str) -> dict[str, Any] | None:
        """Return the properties of a container; None if it does not exist."""
        done = await self.run("container", "inspect", name)
        if done.status:
            # podman exits with the same status for a missing container and for other errors.
            if "no such" in done.why.lower():
                return None
            raise clouds.CloudUnavailable(f"{self._words[0]} inspect {name}: {done.why}")
        try:
            found: dict[str, Any] = json.loads(done.out)[0]
        except (ValueError, LookupError) as error:
            raise clouds.CloudUnavailable(f"{self._words[0]} inspect {name}: it printed no JSON") from error
        return found


def complaint(text: str) -> str:
    """Return podman's error output without warnings, which would hide the error, unless there is nothing else."""
    lines = [line for line in text.splitlines() if "level=warning" not in line]
    return "\n".join(lines) if any(map(str.strip, lines)) else text


class PodmanImages:
    """Import images into podman; see `ports.clouds.ImageCloud`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._importing: dict[str, asyncio.Task[str]] = {}
        """Upload -> task that imports it and returns an error, or an empty string."""

    @property
    def under_way(self) -> list[asyncio.Task[str]]:
        """Return the tasks of imports that run, or whose result was not read yet."""
        return list(self._importing.values())

    async def close(self) -> None:
        """Stop importing; imported images stay."""
        await end(*self._importing.values())

    async def send(
        self, wanted: clouds.WantedImage, state: clouds.State, file: Path | None
    ) -> clouds.Sending | clouds.Sent:
        """Import the file, and check that the image has its digest."""
        name = f"{IMAGE_NAME}:{wanted.upload}"
        task = self._importing.get(wanted.upload)
        if task is not None and not task.done():
            return clouds.Sending({}, "podman imports it")
        if task is not None:
            del self._importing[wanted.upload]
            if wrong := task.result():
                raise clouds.LaunchFailed(wrong)
        found = await self._named(name)
        if found is not None:
            # podman names a layer by the digest of its uncompressed archive, and an import makes one layer, so this is
            # the digest of the file.
            layers = (found.get("RootFS") or {}).get("Layers") or []
            if layers == [f"sha256:{wanted.sha256}"]:
                return clouds.Sent(name, {})
            await self._engine.run("rmi", name)
            raise clouds.LaunchFailed(
                f"podman stored another file than was sent: the image's layers are {', '.join(map(str, layers))}"
            )
        if file is None:
            return clouds.Sending({}, "its file is needed", lacks_file=True)
        self._importing[wanted.upload] = asyncio.ensure_future(self._imported(wanted, name, file))
        return clouds.Sending({}, "podman imports it")

    async def _imported(self, wanted: clouds.WantedImage, name: str, file: Path) -> str:
        labels = [f'--change=LABEL "{_plain(tag)}"="{_plain(value)}"' for tag, value in sorted(wanted.tags.items())]
        try:
            # Checked before the import, which unpacks the archive as root.
            await asyncio.to_thread(check_archive, file)
            done = await self._engine.run("import", "-q", *labels, "--", str(file), name, max_s=IMPORT_MAX_S)
        except (clouds.CloudUnavailable, clouds.LaunchFailed) as wrong:
            return str(wrong)
        except OSError as error:
            return f"its file cannot be read: {error.strerror}"
        return f"podman cannot import it: {done.why}" if done.status else ""

    async def _named(self, name: str) -> dict[str, Any] | None:
        # Any other status is an error of podman, which must not count as a missing image; `listed` then reports it.
        if (await self._engine.run("image", "exists", name)).status == 1:
            return None
        found = await self._engine.listed("image", "inspect", name)
        return found[0] if found else None

    async def withdraw(self, wanted: clouds.WantedImage, state: clouds.State) -> bool:
        """Remove the image of an upload; return whether it is gone. Raise LaunchFailed while a container uses it."""
        task = self._importing.pop(wanted.upload, None)
        if task is not None:
            await end(task)
        name = f"{IMAGE_NAME}:{wanted.upload}"
        if await self._named(name) is not None:
            await self._remove(name)
        return await self._named(name) is None

    async def _remove(self, name: str) -> None:
        done = await self._engine.run("rmi", name)
        if done.status and "no such image" not in done.why.lower() and "image not known" not in done.why.lower():
            raise clouds.LaunchFailed(f"podman cannot remove the image: {done.why}")

    async def listed(self, provider: Mapping[str, Any]) -> list[clouds.Resource]:
        """Return the images that have Headgate's labels."""
        found = []
        for one in await self._engine.listed("images", f"--filter=label={clouds.SYSTEM_TAG}"):
            name = next(
                (known for known in one.get("Names") or () if known.startswith(f"{IMAGE_NAME}:")), str(one["Id"])
            )
            found.append(clouds.Resource(name, IMAGE, dict(one.get("Labels") or {}), {}))
        return found

    async def discard(self, provider: Mapping[str, Any], resource: clouds.Resource) -> None:
        """Remove an image."""
        await self._remove(resource.id)


def _plain(text: str) -> str:
    """Return the text of a tag without characters that are special in a LABEL instruction, which has no escapes."""
    return "".join(c if c.isprintable() and c not in '"\\$' else "_" for c in text)


def check_archive(path: Path) -> None:
    """Raise LaunchFailed unless the file is a plain archive (tar) whose content needs no more space than the file.

    A sparse entry of a few bytes can represent a file of any size, and podman writes its holes to the disk. A
    compressed file can look like an archive, because its header has room for that of an archive.  Therefore the headers
    are read at least as strictly as by podman's own reader, and everything that two readers could interpret differently
    is refused.
    """
    with path.open("rb") as file:
        head = file.read(BLOCK)
        # podman guesses the compression from the first bytes. In an archive, they are the name of the first file, so
        # `BZh` is ambiguous.
        if head[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC or head.startswith(_PACKED):
            raise clouds.LaunchFailed(
                "it is not a plain archive (tar) of a root file system; compress it as .zst or not at all"
            )
        at, size = 0, None
        for _ in range(ENTRIES_MAX):
            file.seek(at)
            block = file.read(BLOCK)
            if not any(block):
                return
            at += BLOCK
            length, size = _entry(file, block, at, size)
            # Content is padded to whole blocks.
            at += -(-length // BLOCK) * BLOCK
    raise clouds.LaunchFailed(f"its archive has more than {ENTRIES_MAX:,} entries")


def _entry(file: BinaryIO, block: bytes, at: int, size: int | None) -> tuple[int, int | None]:
    """Return the size of the data that begins at `at`, after the header, and the size that this entry sets for the next
    one. `size`: size that attributes set for this entry; -1 if they set none, None without attributes. Raise
    LaunchFailed."""
    if len(block) < BLOCK or block[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC:
        raise _odd(at, "a header in another format")
    kind, length = block[156:157], _number(block[124:136], at)
    if kind in (_EXTENDED, _GLOBAL, *_LONG_NAMES):
        if length > TEXT_MAX_BYTES:
            raise _odd(at, f"names or attributes of more than {TEXT_MAX_BYTES:,} bytes")
        # Extended attributes come before the entry that they describe, and may replace the size in its header.
        if kind == _EXTENDED and size is None:
            return length, _size_attribute(file.read(length), at)
        if kind in (_EXTENDED, _GLOBAL) and size is not None:
            raise _odd(at, "two headers for one entry")
        return length, size
    length = size if size is not None and size >= 0 else length
    if kind not in (_FILE, _OLD_FILE) and kind not in _WITHOUT_CONTENT:
        raise _odd(at, f"an entry of the kind {kind!r}: make it without sparse files, and as a single volume")
    # Readers disagree whether such content exists, and would find the next header in different places.
    if length and kind != _FILE:
        raise _odd(at, "an entry with content that is not a file")
    return length, None


def _size_attribute(text: bytes, at: int) -> int:
    """Return the size that attributes set for an entry, -1 if they set none. Raise LaunchFailed."""
    size, place = -1, 0
    while place < len(text):
        found = _RECORD.match(text, place)
        end = place + int(found[1]) if found is not None else 0
        # The number at the start is the length of the record, including itself and the newline:
        # `20 size=12345678901\n`.
        if found is None or not found.end() < end <= len(text) or text[end - 1 : end] != b"\n":
            raise _odd(at, "attributes that cannot be read")
        name, value = found[2], text[found.end() : end - 1]
        if name.startswith(b"GNU.sparse"):
            raise _odd(at, "a sparse file, whose holes podman would write to the disk: make it without --sparse")
        if name == b"size":
            # If there are two sizes, some readers use the first, and others the last.
            if not re.fullmatch(rb"[0-9]{1,18}", value) or size >= 0:
                raise _odd(at, "a size that cannot be read")
            size = int(value)
        place = end
    return size


def _number(field: bytes, at: int) -> int:
    """Return the size in a header.  Raise LaunchFailed."""
    # GNU's format for sizes above 8 GiB: binary, marked by the highest bit.
    if field[0] == 0x80:
        if (found := int.from_bytes(field[1:])) >= _SIZE_END:
            raise _odd(at, "a size that cannot be read")
        return found
    plain = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]*", plain):
        raise _odd(at, "a size that cannot be read")
    return int(plain or b"0", 8)


def _odd(at: int, finding: str) -> clouds.LaunchFailed:
    return clouds.LaunchFailed(f"its archive has, {at - BLOCK:,} bytes from the beginning, {finding}")
