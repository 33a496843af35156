"""Archives of root file systems, read before podman unpacks them: none may become more than it is, or be packed.

An entry of a few bytes can stand for a file of any size, most of which is holes, and podman writes the holes out.  What
looks like an archive can be packed as well, as a packer's header has room for an archive's.  So the headers are read as
strictly as podman's own reader reads them, or more strictly: what two readers could take for different things is
refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from headgate.ports.cloud import LaunchFailed

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


def check(path: Path) -> None:
    """Raise LaunchFailed unless the file is a plain archive (tar) that needs no more space than it has itself."""
    with path.open("rb") as file:
        head = file.read(BLOCK)
        # podman guesses the packing by the first bytes, which in an archive are the first file's name: `BZh` could be
        # either.
        if head[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC or head.startswith(_PACKED):
            raise LaunchFailed("it is not a plain archive (tar) of a root file system; pack it as .zst or not at all")
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
    raise LaunchFailed(f"its archive has more than {ENTRIES_MAX:,} entries")


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


def _odd(at: int, finding: str) -> LaunchFailed:
    return LaunchFailed(f"its archive has, {at - BLOCK:,} bytes from the beginning, {finding}")
