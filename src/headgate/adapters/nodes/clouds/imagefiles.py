"""Fetch image files from the URLs that builds return, and check the disks that they contain.

Jobs choose the URLs, so only URLs below a root that the operator named are used: no other server is contacted, no
redirection is followed, and a file is discarded unless it has the digest that its build returned.  Compressed files are
decompressed up to a limit.
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
"""Incompatible feature of qcow2: the data is in another file."""
_SECTOR = 512
_DESCRIPTOR_SECTORS_MAX = 2_048
_VMDK_KINDS = frozenset({"monolithicSparse", "streamOptimized"})
"""Kinds of vmdk that consist of one file."""
_CREATE_TYPE = re.compile(r'createType\s*=\s*"?([^"\s]*)', re.IGNORECASE)
_EXTENT = re.compile(r"(?:RW|RDONLY|NOACCESS)(?!\S)", re.IGNORECASE)  # also alone in a line: readers skip line ends
_OWN_EXTENT = re.compile(r'(?:RW|RDONLY)\s+[0-9]+\s+SPARSE\s+"[^"/\\]+"')


class FetchedImages:
    """Keep image files in a directory; see `ports.clouds.ImageFiles`."""

    def __init__(self, directory: Path, roots: Sequence[str], size_max_bytes: int) -> None:
        """Use `directory`, and remove incomplete files from it. `roots`: URLs below which image files may be;
        `size_max_bytes`: size limit of a file, before and after decompression."""
        self._directory, self._roots, self._most = directory, tuple(roots), size_max_bytes
        self._turn = asyncio.Lock()
        for part in directory.glob(f"*{_PART}") if directory.exists() else ():
            part.unlink(missing_ok=True)

    def have(self, sha256: str) -> Path | None:
        """Return the file if it exists; it gets this name only once it is complete."""
        path = self._directory / sha256
        return path if len(sha256) == 64 and path.exists() else None

    def keep(self, digests: frozenset[str]) -> None:
        """Remove all files except those with these digests and those that are being fetched."""
        for path in self._directory.iterdir() if self._directory.exists() else ():
            if path.name not in digests and not path.name.endswith(_PART):
                path.unlink(missing_ok=True)

    async def fetch(self, url: str, sha256: str) -> Path:
        """Fetch and verify a file, one at a time; see `ImageFiles.fetch`."""
        self.check(url)
        # One at a time, because two concurrent downloads of large files would both count on the same free space.
        async with self._turn:
            if (file := self.have(sha256)) is not None:
                return file
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            raw, plain = self._directory / f"{sha256}{_PART}", self._directory / f"{sha256}.plain{_PART}"
            try:
                async with asyncio.timeout(FETCH_MAX_S):
                    digest = await self._download(url, raw)
                    if urlsplit(url).path.endswith(ZSTD):
                        # The build returns the digest of the decompressed file, because that is sent to clouds.
                        digest = await asyncio.to_thread(self._unpack, raw, plain)
                        os.replace(plain, raw)
                if digest != sha256:
                    raise NoFile(f"{_short(url)}: its sha256 is {digest}, and its build returned {sha256}")
                # Renamed only after the digest is verified: a file with this name is trusted, even after a restart.
                os.replace(raw, self._directory / sha256)
            except TimeoutError as error:
                raise NoFile(f"{_short(url)}: the download takes more than {FETCH_MAX_S / 3600:.0f} hours") from error
            except OSError as error:
                raise NoFile(f"{_short(url)}: it cannot be stored here: {error.strerror}") from error
            finally:
                raw.unlink(missing_ok=True)
                plain.unlink(missing_ok=True)
            return self._directory / sha256

    def check(self, url: str) -> None:
        """Raise NoFile for an address that is not below a root."""
        if not any(_below(url, root) for root in self._roots):
            named = ", ".join(self._roots) or "none is named"
            raise NoFile(f"{_short(url)}: images are fetched only from the URLs in [launcher] image_sources: {named}")

    async def _download(self, url: str, to: Path) -> str:
        """Fetch a file and return its digest. Raise NoFile, OSError."""
        digest, size = hashlib.sha256(), 0
        room = shutil.disk_usage(self._directory).free - RESERVE_BYTES
        try:
            async with (
                httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=STALL_MAX_S) as client,
                # With a content encoding, the compressed bytes would be hashed and measured.
                client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer,
            ):
                if answer.status_code != 200:
                    raise NoFile(f"{_short(url)}: its server returned status {answer.status_code}")
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise NoFile(f"{_short(url)}: its server compresses the file, which was not requested")
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
        """Decompress a file and return the digest of the result. Raise NoFile, OSError."""
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
            raise NoFile(f"the name of the file ends with {ZSTD}, but it cannot be decompressed: {error}") from error
        return digest.hexdigest()

    def _bounded(self, size: int, room: int, url: str) -> None:
        if size > self._most:
            raise NoFile(
                f"{_short(url)}: it is larger than {self._most:,} bytes, the limit of [launcher] image_size_max_mb"
            )
        if size > room:
            raise NoFile(f"{_short(url)}: this machine has no disk space for it")


def _below(url: str, root: str) -> bool:
    """Return whether a URL is below a root, however its server treats dots, escapes and user names."""
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
    """Raise LaunchFailed unless the file has the format and refers to no other file, because that could be a file of
    the cloud's machine."""
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
        "vmdk": head[:4] == VMDK,  # a file that begins with a text descriptor names other files
        "ova": head[_TAR_AT : _TAR_AT + len(TAR)] == TAR,
    }
    if format != "raw" and not known.get(format, False):
        raise LaunchFailed(f"the file is not in the format {format}, which its build returned")
    if not head:
        raise LaunchFailed("the file is empty")
    # A tool that guesses formats would open a "raw" file that begins like qcow2 as qcow2, with a backing file such as
    # /etc/passwd of the cloud's machine.
    other = next((name for name, found in known.items() if found and name != format), "")
    if other and format == "raw":
        raise LaunchFailed(f"the file is in the format {other}, but its build returned the format raw")
    if format == "qcow2":
        _stands_alone(head)
    if format == "vmdk":
        _names_no_file(_descriptor(file, head))


def _stands_alone(head: bytes) -> None:
    if len(head) < 104:
        raise LaunchFailed("the qcow2 file is incomplete")
    (version,), (backing,), (features,) = (
        struct.unpack_from(kind, head, at) for kind, at in ((">I", 4), (">Q", 8), (">Q", 72))
    )
    if backing:
        raise LaunchFailed("the qcow2 file has a backing file: make it independent with `qemu-img convert`")
    # Only version 3 has feature bits; in version 2 these bytes are not part of the header.
    if version >= 3 and features & _EXTERNAL:
        raise LaunchFailed("the qcow2 file has its data in another file: make it independent with `qemu-img convert`")


def _descriptor(file: Path, head: bytes) -> str:
    """Return the descriptor that is embedded in a vmdk. Raise LaunchFailed."""
    if len(head) < _SECTOR:
        raise LaunchFailed("the vmdk file ends before its descriptor")
    (capacity,), (at, sectors) = struct.unpack_from("<Q", head, 12), struct.unpack_from("<QQ", head, 28)
    if not capacity:
        raise LaunchFailed("the vmdk file has its data in other files: make it independent with `qemu-img convert`")
    # Programs that open vmdk disks expect the descriptor in the second sector, whatever the header says.
    if at != 1 or not 0 < sectors <= _DESCRIPTOR_SECTORS_MAX:
        raise LaunchFailed("the vmdk file has no descriptor after its header")
    with file.open("rb") as opened:
        opened.seek(_SECTOR)
        text, end, rest = opened.read(sectors * _SECTOR).partition(b"\0")
    # Some programs stop at the first zero byte, and others at the size; both must read the same text.
    if not end or rest.strip(b"\0"):
        raise LaunchFailed("the vmdk file has a descriptor without a clear end")
    return text.decode("latin-1")


def _names_no_file(descriptor: str) -> None:
    # Searched everywhere, even in comments: some programs search for the words, and others read line by line.
    kinds = set(_CREATE_TYPE.findall(descriptor))
    if not kinds:
        raise LaunchFailed("the vmdk file may refer to other files: its descriptor has no createType")
    if others := ", ".join(sorted(kinds - _VMDK_KINDS)):
        raise LaunchFailed(f"the vmdk file is {others:.100}: convert it to monolithicSparse or streamOptimized")
    if "parentfilenamehint" in descriptor.lower():
        raise LaunchFailed("the vmdk file has a backing file: make it independent with `qemu-img convert`")
    extents = [line for line in map(str.strip, descriptor.splitlines()) if _EXTENT.match(line)]
    # The only extent has the name that the file had when it was written.
    if len(extents) != 1 or not _OWN_EXTENT.fullmatch(extents[0]):
        raise LaunchFailed("the vmdk file has extents in other files: make it independent with `qemu-img convert`")
