"""Check disk images by their headers and last bytes: the format, and that they refer to no other file."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from headgate.ports.cloud import LaunchFailed

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


def check(file: Path, format: str) -> None:
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
