"""Fetch files of images from the addresses that builds return, and check what kind of disk they hold.

Jobs choose the addresses, so only those count that are below a root which the operator named: nothing is asked of any
other server, no redirection is followed, and what is fetched is thrown away unless it has the digest that its build
returned.  What is packed is unpacked up to a limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from headgate.adapters.nodes.clouds.http import one_line
from headgate.base.zstd import ZstdError, reader
from headgate.ports.clouds import LaunchFailed, NoFile

STALL_MAX_S = 60.0
FETCH_MAX_S = 6 * 3600.0
PIECE_BYTES = 2**20
RESERVE_BYTES = 2**30
"""Space that stays free on the disk."""
ZSTD = ".zst"
_PART = ".part"
QCOW2, VHDX, VHD, VMDK, TAR = b"QFI\xfb", b"vhdxfile", b"conectix", b"KDMV", b"ustar"
_FOOT = 512
_TAR_AT = 257
_EXTERNAL = 1 << 2
"""Incompatible feature of qcow2: the data are in another file."""
_SECTOR = 512
_DESCRIPTOR_SECTORS_MAX = 2_048
_VMDK_KINDS = frozenset({"monolithicSparse", "streamOptimized"})
"""Kinds of vmdk that are one file."""
_CREATE_TYPE = re.compile(r'createType\s*=\s*"?([^"\s]*)', re.IGNORECASE)
_EXTENT = re.compile(r"(?:RW|RDONLY|NOACCESS)(?!\S)", re.IGNORECASE)  # also alone in a line: readers skip line ends
_OWN_EXTENT = re.compile(r'(?:RW|RDONLY)\s+[0-9]+\s+SPARSE\s+"[^"/\\]+"')


class FetchedImages:
    """See `ports.clouds.ImageFiles`."""

    def __init__(self, directory: Path, roots: Sequence[str], size_max_bytes: int) -> None:
        """Remove incomplete files from `directory`. `roots`: addresses below which files of images may be;
        `size_max_bytes`: limit for a file, also after unpacking."""
        self._directory, self._roots, self._most = directory, tuple(roots), size_max_bytes
        self._turn = asyncio.Lock()
        for part in directory.glob(f"*{_PART}") if directory.exists() else ():
            part.unlink(missing_ok=True)

    def have(self, sha256: str) -> Path | None:
        """Return the file, which has its name only once it is complete."""
        path = self._directory / sha256
        return path if len(sha256) == 64 and path.exists() else None

    def keep(self, digests: frozenset[str]) -> None:
        """Remove all other files, except those that are being fetched."""
        for path in self._directory.iterdir() if self._directory.exists() else ():
            if path.name not in digests and not path.name.endswith(_PART):
                path.unlink(missing_ok=True)

    async def fetch(self, url: str, sha256: str) -> Path:
        """Fetch one at a time."""
        self.check(url)
        # Two large files at once would each see the same free space.
        async with self._turn:
            if (file := self.have(sha256)) is not None:
                return file
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            raw, plain = self._directory / f"{sha256}{_PART}", self._directory / f"{sha256}.plain{_PART}"
            try:
                async with asyncio.timeout(FETCH_MAX_S):
                    digest = await self._download(url, raw)
                    if urlsplit(url).path.endswith(ZSTD):
                        # The digest that a build returns is that of the unpacked file, which is what clouds receive.
                        digest = await asyncio.to_thread(self._unpack, raw, plain)
                        os.replace(plain, raw)
                if digest != sha256:
                    raise NoFile(f"{_short(url)}: its sha256 is {digest}, and its build returned {sha256}")
                # Renamed only after the digest is right: a file with this name is trusted after a restart too.
                os.replace(raw, self._directory / sha256)
            except TimeoutError as error:
                raise NoFile(f"{_short(url)}: it did not come within {FETCH_MAX_S / 3600:.0f} hours") from error
            except OSError as error:
                raise NoFile(f"{_short(url)}: it cannot be kept here: {error.strerror}") from error
            finally:
                raw.unlink(missing_ok=True)
                plain.unlink(missing_ok=True)
            return self._directory / sha256

    def check(self, url: str) -> None:
        """Raise NoFile for an address that is not below a root."""
        if not any(_below(url, root) for root in self._roots):
            named = ", ".join(self._roots) or "none is named"
            raise NoFile(
                f"{_short(url)}: images are fetched only from places that [launcher] image_sources names: {named}"
            )

    async def _download(self, url: str, to: Path) -> str:
        """Return the digest of the downloaded file. Raise NoFile, OSError."""
        digest, size = hashlib.sha256(), 0
        room = shutil.disk_usage(self._directory).free - RESERVE_BYTES
        try:
            async with (
                httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=STALL_MAX_S) as client,
                # Packed on the way, the file would be hashed and measured in that form.
                client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer,
            ):
                if answer.status_code != 200:
                    raise NoFile(f"{_short(url)}: its server answers {answer.status_code}")
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise NoFile(f"{_short(url)}: its server packs what is asked for as it is")
                with to.open("wb") as file:
                    async for piece in answer.aiter_raw(PIECE_BYTES):
                        size += len(piece)
                        self._bounded(size, room, url)
                        digest.update(piece)
                        await asyncio.to_thread(file.write, piece)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoFile(f"{_short(url)}: {one_line(str(error) or type(error).__name__)}") from error
        return digest.hexdigest()

    def _unpack(self, packed: Path, to: Path) -> str:
        """Return the digest of the unpacked file. Raise NoFile, OSError."""
        digest, size = hashlib.sha256(), 0
        room = shutil.disk_usage(self._directory).free - RESERVE_BYTES
        try:
            with packed.open("rb") as source, reader(source) as unpacked, to.open("wb") as file:
                while piece := unpacked.read(PIECE_BYTES):
                    size += len(piece)
                    self._bounded(size, room, packed.name)
                    digest.update(piece)
                    file.write(piece)
        except (ZstdError, EOFError) as error:
            raise NoFile(f"what its name says is packed as zstd cannot be unpacked: {error}") from error
        return digest.hexdigest()

    def _bounded(self, size: int, room: int, url: str) -> None:
        if size > self._most:
            raise NoFile(
                f"{_short(url)}: it is larger than {self._most:,} bytes, which [launcher] image_size_max_mb allows"
            )
        if size > room:
            raise NoFile(f"{_short(url)}: this machine has no room for it")


def _below(url: str, root: str) -> bool:
    """Return whether an address is below a root, however its server treats dots, escapes and user names."""
    try:
        parts, allowed = urlsplit(url), urlsplit(root)
        same = (parts.scheme, parts.hostname, parts.port) == (allowed.scheme, allowed.hostname, allowed.port)
    except ValueError:
        return False
    if allowed.scheme not in ("http", "https") or not same or "@" in parts.netloc:
        return False
    path, base = parts.path, allowed.path.rstrip("/") + "/"
    plain = path
    with suppress(UnicodeDecodeError):
        # Some servers decode more than once: `%252e` is `.` after two rounds.
        for _ in range(3):
            plain = unquote(plain, errors="strict")
    dotted = any(part in (".", "..") for part in (*path.split("/"), *plain.split("/")))
    return path.startswith(base) and not dotted and "\\" not in plain and url.isprintable() and " " not in url


def _short(url: str) -> str:
    return one_line(url)[:200]


def check_disk(file: Path, format: str) -> None:
    """Raise LaunchFailed unless the file has the format and refers to no other file, which could be one of the
    cloud's."""
    with file.open("rb") as opened:
        head = opened.read(_FOOT)
        opened.seek(0, 2)
        opened.seek(max(0, opened.tell() - _FOOT))
        # A fixed-size VHD has its header at the end.
        foot = opened.read(_FOOT)
    known = {
        "qcow2": head[:4] == QCOW2,
        "vhdx": head[:8] == VHDX,
        "vhd": VHD in (head[:8], foot[:8]),
        "vmdk": head[:4] == VMDK,  # a file that begins with a textual descriptor names other files
        "ova": head[_TAR_AT : _TAR_AT + len(TAR)] == TAR,
    }
    if format != "raw" and not known.get(format, False):
        raise LaunchFailed(f"the file is no {format}, and that is its format by what its build returned")
    if not head:
        raise LaunchFailed("the file is empty")
    # A file announced as raw that begins like qcow2 would be opened as qcow2 by a tool that guesses, with a backing
    # file such as /etc/passwd of the cloud's machine.
    other = next((name for name, found in known.items() if found and name != format), "")
    if other and format == "raw":
        raise LaunchFailed(f"the file is {other}, and its build returned that its format is raw")
    if format == "qcow2":
        _stands_alone(head)
    if format == "vmdk":
        _names_no_file(_descriptor(file, head))


def _stands_alone(head: bytes) -> None:
    if len(head) < 104:
        raise LaunchFailed("the file is not a whole qcow2")
    (version,), (backing,), (features,) = (
        struct.unpack_from(kind, head, at) for kind, at in ((">I", 4), (">Q", 8), (">Q", 72))
    )
    if backing:
        raise LaunchFailed("the qcow2 file has a backing file: make it whole with `qemu-img convert`")
    # Only version 3 has feature bits; in version 2 these bytes are not part of the header.
    if version >= 3 and features & _EXTERNAL:
        raise LaunchFailed("the qcow2 file has its data in another file: make it whole with `qemu-img convert`")


def _descriptor(file: Path, head: bytes) -> str:
    """Return the text that a vmdk has within. Raise LaunchFailed."""
    if len(head) < _SECTOR:
        raise LaunchFailed("the vmdk file ends before its descriptor")
    (capacity,), (at, sectors) = struct.unpack_from("<Q", head, 12), struct.unpack_from("<QQ", head, 28)
    if not capacity:
        raise LaunchFailed("the vmdk file has its data in other files: make it whole with `qemu-img convert`")
    # Programs that open such disks expect the descriptor in the second sector, whatever the header says.
    if at != 1 or not 0 < sectors <= _DESCRIPTOR_SECTORS_MAX:
        raise LaunchFailed("the vmdk file has no descriptor behind its header")
    with file.open("rb") as opened:
        opened.seek(_SECTOR)
        text, end, rest = opened.read(sectors * _SECTOR).partition(b"\0")
    # Some programs stop at the first zero byte, and others at the size: both have to see the same text.
    if not end or rest.strip(b"\0"):
        raise LaunchFailed("the vmdk file has a descriptor without a clear end")
    return text.decode("latin-1")


def _names_no_file(descriptor: str) -> None:
    # Everywhere, comments included: some programs search for the words, and others read line by line.
    kinds = set(_CREATE_TYPE.findall(descriptor))
    if not kinds:
        raise LaunchFailed("the vmdk file does not stand alone: its descriptor has no type")
    if others := ", ".join(sorted(kinds - _VMDK_KINDS)):
        raise LaunchFailed(f"the vmdk file is {others:.100}: make it monolithicSparse or streamOptimized")
    if "parentfilenamehint" in descriptor.lower():
        raise LaunchFailed("the vmdk file has a backing file: make it whole with `qemu-img convert`")
    extents = [line for line in map(str.strip, descriptor.splitlines()) if _EXTENT.match(line)]
    # The only extent bears the name that the file had when it was written.
    if len(extents) != 1 or not _OWN_EXTENT.fullmatch(extents[0]):
        raise LaunchFailed("the vmdk file has extents in other files: make it whole with `qemu-img convert`")
