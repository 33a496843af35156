"""Run podman's program, and import the images that jobs build: archives of root file systems, checked first.

Nothing but a plain archive is imported: an archive with names of its own could put itself in the place of an image of
others, and one that is packed, or that has files with holes, could fill the disk (see `check_archive`).
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
"""Size of a header with more than a block, such as long names and attributes."""
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
    """Run a podman process for each question. Every method raises CloudUnavailable if there is no answer."""

    def __init__(self, words: Sequence[str]) -> None:
        """Take `words`: the program, with the options that every call has."""
        self._words = tuple(words)

    async def run(self, *words: str, stdin: bytes = b"", max_s: float = ANSWER_MAX_S) -> PodmanResult:
        """Return the result of the command."""
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
            # Also after a timeout or a cancellation: a podman that runs on would hold its locks.
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
            raise clouds.CloudUnavailable(f"{self._words[0]} {' '.join(words)}: {done.why or 'it answers no JSON'}")
        return found

    async def inspected(self, name: str) -> dict[str, Any] | None:
        """Return the properties of a container; None if it does not exist."""
        done = await self.run("container", "inspect", name)
        if done.status:
            # podman ends with the same status for a missing container and for a failure of its own.
            if "no such" in done.why.lower():
                return None
            raise clouds.CloudUnavailable(f"{self._words[0]} inspect {name}: {done.why}")
        try:
            found: dict[str, Any] = json.loads(done.out)[0]
        except (ValueError, LookupError) as error:
            raise clouds.CloudUnavailable(f"{self._words[0]} inspect {name}: it answers no JSON") from error
        return found


def complaint(text: str) -> str:
    """Return podman's error output without warnings, unless there is nothing else: they would hide the error."""
    lines = [line for line in text.splitlines() if "level=warning" not in line]
    return "\n".join(lines) if any(map(str.strip, lines)) else text


class PodmanImages:
    """See `ports.clouds.ImageCloud`."""

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

    async def send(
        self, wanted: clouds.WantedImage, state: clouds.State, file: Path | None
    ) -> clouds.Sending | clouds.Sent:
        """Import the file; a present image has the digest of the file that was sent."""
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
            # podman names a layer by the digest of its plain archive, and an import makes one layer: this is the file's
            # digest.
            layers = (found.get("RootFS") or {}).get("Layers") or []
            if layers == [f"sha256:{wanted.sha256}"]:
                return clouds.Sent(name, {})
            await self._engine.run("rmi", name)
            raise clouds.LaunchFailed(
                f"podman has another image than was sent: its layers are {', '.join(map(str, layers))}"
            )
        if file is None:
            return clouds.Sending({}, "its file is needed", lacks_file=True)
        self._importing[wanted.upload] = asyncio.ensure_future(self._imported(wanted, name, file))
        return clouds.Sending({}, "podman imports it")

    async def _imported(self, wanted: clouds.WantedImage, name: str, file: Path) -> str:
        labels = [f'--change=LABEL "{_plain(tag)}"="{_plain(value)}"' for tag, value in sorted(wanted.tags.items())]
        try:
            # Before the import, which unpacks the archive as root.
            await asyncio.to_thread(check_archive, file)
            done = await self._engine.run("import", "-q", *labels, "--", str(file), name, max_s=IMPORT_MAX_S)
        except (clouds.CloudUnavailable, clouds.LaunchFailed) as wrong:
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

    async def withdraw(self, wanted: clouds.WantedImage, state: clouds.State) -> bool:
        """Remove it, unless a container uses it."""
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
            raise clouds.LaunchFailed(f"podman does not remove it: {done.why}")

    async def listed(self, provider: Mapping[str, Any]) -> list[clouds.Resource]:
        """Return the images that have labels of ours."""
        found = []
        for one in await self._engine.listed("images", f"--filter=label={clouds.SYSTEM_TAG}"):
            name = next(
                (known for known in one.get("Names") or () if known.startswith(f"{IMAGE_NAME}:")), str(one["Id"])
            )
            found.append(clouds.Resource(name, IMAGE, dict(one.get("Labels") or {}), {}))
        return found

    async def discard(self, provider: Mapping[str, Any], resource: clouds.Resource) -> None:
        """Remove it."""
        await self._remove(resource.id)


def _plain(text: str) -> str:
    """Return the text of a tag without characters that are special in an instruction, which has no escapes."""
    return "".join(c if c.isprintable() and c not in '"\\$' else "_" for c in text)


def check_archive(path: Path) -> None:
    """Raise LaunchFailed unless the file is a plain archive (tar) that needs no more space than it has itself.

    An entry of a few bytes can represent a file of any size, most of which is holes, and podman writes the holes out.
    What looks like an archive can be packed as well, since a packer's header has room for an archive's.  So the headers
    are read at least as strictly as podman's own reader reads them: what two readers could take for different things is
    refused.
    """
    with path.open("rb") as file:
        head = file.read(BLOCK)
        # podman guesses the packing by the first bytes, which in an archive are the first file's name: `BZh` could be
        # either.
        if head[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC or head.startswith(_PACKED):
            raise clouds.LaunchFailed(
                "it is not a plain archive (tar) of a root file system; pack it as .zst or not at all"
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
    """Return the size of the data after the header at `at`, and the size that this entry sets for the next one. `size`:
    size that the earlier entry set for this one; 0 or more, -1 if none. Raise LaunchFailed."""
    if len(block) < BLOCK or block[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC:
        raise _odd(at, "a header that is not one of this format")
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
        raise _odd(at, f"an entry of the kind {kind!r}: pack it without sparse files, for one machine and not in parts")
    # Readers disagree on whether such content is there, and would find the next header in different places.
    if length and kind != _FILE:
        raise _odd(at, "content of an entry that is not a file")
    return length, None


def _size_attribute(text: bytes, at: int) -> int:
    """Return the size that attributes set for an entry, -1 if none. Raise LaunchFailed."""
    size, place = -1, 0
    while place < len(text):
        found = _RECORD.match(text, place)
        end = place + int(found[1]) if found is not None else 0
        # The number at the start counts the whole record, itself and the line's end included: `20 size=12345678901\n`.
        if found is None or not found.end() < end <= len(text) or text[end - 1 : end] != b"\n":
            raise _odd(at, "attributes that cannot be read")
        name, value = found[2], text[found.end() : end - 1]
        if name.startswith(b"GNU.sparse"):
            raise _odd(at, "a sparse file, which podman would write with all its holes: pack it without --sparse")
        if name == b"size":
            # Of two sizes, one reader takes the first and another the last.
            if not re.fullmatch(rb"[0-9]{1,18}", value) or size >= 0:
                raise _odd(at, "a size that cannot be read")
            size = int(value)
        place = end
    return size


def _number(field: bytes, at: int) -> int:
    """Return the size in a header.  Raise LaunchFailed."""
    # GNU's form for sizes above 8 GiB: binary, marked by the highest bit.
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
