"""Test which files are disks of virtual machines that refer to no other file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from headgate.adapters.nodes.clouds.imagefiles import check_disk
from headgate.ports.clouds import LaunchFailed

SPARSE = 'RW 2048 SPARSE "disk.vmdk"'


def descriptor(kind: str = "monolithicSparse", *extents: str, more: str = "") -> bytes:
    lines = ["# Disk DescriptorFile", "version=1", "CID=7", "parentCID=ffffffff", f'createType="{kind}"', more]
    return "\n".join([*lines, *(extents or (SPARSE,)), 'ddb.adapterType = "ide"', ""]).encode()


def vmdk(text: bytes, capacity: int = 2048, at: int = 1, sectors: int = 20) -> bytes:
    head = b"KDMV" + struct.pack("<IIQQQQ", 1, 3, capacity, 128, at, sectors)
    return head.ljust(512, b"\0") + text.ljust(20 * 512, b"\0") + bytes(65_536)


@pytest.mark.parametrize(
    "content",
    [
        vmdk(descriptor()),
        vmdk(descriptor("streamOptimized", 'RDONLY 2048 SPARSE "call-me-stream.vmdk"'), sectors=1),
        vmdk(descriptor().replace(b"\n", b"\r\n")),
    ],
)
def test_a_vmdk_that_is_one_sparse_file_is_accepted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "disk").write_bytes(content)
    check_disk(tmp_path / "disk", "vmdk")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (vmdk(descriptor("monolithicFlat", 'RW 8 FLAT "/etc/passwd" 0'), capacity=0), "has its data in other files"),
        (vmdk(descriptor(), capacity=0), "has its data in other files"),
        (vmdk(descriptor("monolithicFlat", 'RW 8 FLAT "/etc/passwd" 0')), "monolithicFlat"),
        (vmdk(descriptor("twoGbMaxExtentSparse")), "twoGbMaxExtentSparse"),
        (vmdk(descriptor(more='# createType="vmfs"')), "vmfs"),
        (vmdk(descriptor(more="createtype = custom")), "custom"),
        (vmdk(b'RW 2048 SPARSE "disk.vmdk"\n'), "its descriptor has no createType"),
        (vmdk(descriptor("monolithicSparse", SPARSE, 'RW 8 FLAT "/etc/passwd" 0')), "extents"),
        (vmdk(descriptor("monolithicSparse", SPARSE, '\t rw 8 SPARSE "other.vmdk"')), "extents"),
        (vmdk(descriptor("monolithicSparse", SPARSE, "RW", '8 FLAT "/etc/passwd" 0')), "extents"),
        (vmdk(descriptor("monolithicSparse", 'RW 8 SPARSE "/etc/passwd"')), "extents"),
        (vmdk(descriptor("monolithicSparse", 'RW 8 SPARSE "..\\\\passwd"')), "extents"),
        (vmdk(descriptor("monolithicSparse", 'RW 8 FLAT "disk.vmdk" 0')), "extents"),
        (vmdk(descriptor("monolithicSparse", "ddb.none = 1")), "extents"),
        (vmdk(descriptor(more='parentFileNameHint="/etc/passwd"')), "backing file"),
        (vmdk(descriptor() + b"\0" + b'parentFileNameHint="/etc/passwd"'), "descriptor"),
        (vmdk(descriptor(), at=0), "descriptor"),
        (vmdk(descriptor(), at=2**63), "descriptor"),
        (vmdk(descriptor(), sectors=0), "descriptor"),
        (vmdk(descriptor(), sectors=2**40), "descriptor"),
        (vmdk(descriptor() + b"#" * 512, sectors=1), "descriptor"),
        (vmdk(descriptor())[:40], "descriptor"),
    ],
)
def test_a_vmdk_that_may_refer_to_another_file_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "disk").write_bytes(content)
    with pytest.raises(LaunchFailed, match=why):
        check_disk(tmp_path / "disk", "vmdk")
