"""Check disk images by their first and last bytes: the format, and that they refer to no other file."""

from __future__ import annotations

import struct
from pathlib import Path

from headgate.ports.cloud import LaunchFailed

QCOW2, VHDX, VHD, VMDK, TAR = b"QFI\xfb", b"vhdxfile", b"conectix", b"KDMV", b"ustar"
_FOOT = 512
_TAR_AT = 257
_EXTERNAL = 1 << 2
"""Incompatible feature of qcow2: the data are in another file."""


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
