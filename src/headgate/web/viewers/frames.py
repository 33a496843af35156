"""Encode, compress and frame what viewers are sent: once, however many there are.

Only the standard library: the process that hands it out has nothing else.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

LEVEL = 6
FULL_MAX_S = 1.0
"""Age of a full state that newcomers receive, at most: it contains the time."""
GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Head of a gzip stream. Independent blocks of deflate follow, so that viewers who join later receive the same bytes;
the stream never ends, so it has no checksum.
"""
STILL_HERE = b": still here\r\n\r\n"
_SIZE = struct.Struct(">I")


def packed(parts: Sequence[bytes]) -> bytes:
    """Return parts as one text, each after its size."""
    return b"".join(piece for part in parts for piece in (_SIZE.pack(len(part)), part))


def unpacked(text: bytes) -> list[bytes]:
    """Return the parts that `packed` joined."""
    parts, at = list[bytes](), 0
    while at < len(text):
        (size,) = _SIZE.unpack_from(text, at)
        parts.append(text[at + _SIZE.size : at + _SIZE.size + size])
        at += _SIZE.size + size
    return parts


class Frame:
    """Hold what several viewers receive, encoded in each form when the first of them needs it."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._forms: dict[tuple[bool, bool], bytes] = {}

    def form(self, *, gzip: bool, chunked: bool) -> bytes:
        """Return the bytes; `chunked`: as HTTP frames them when the length of the answer is unknown."""
        if (gzip, chunked) not in self._forms:
            plain = deflated(self._text) if gzip else self._text
            self._forms[gzip, chunked] = b"%x\r\n%b\r\n" % (len(plain), plain) if chunked else plain
        return self._forms[gzip, chunked]


def deflated(text: bytes) -> bytes:
    """Return blocks of deflate that refer to nothing before them, and that nothing after them refers to."""
    packing = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    # A full flush resets the dictionary and aligns to a byte, so blocks can follow each other in any viewer's stream.
    return packing.compress(text) + packing.flush(zlib.Z_FULL_FLUSH)


@dataclass(slots=True)
class Scene:
    """Represent a text around items that change one by one, each of which has a name."""

    clock_s: Callable[[], float] = time.monotonic
    number: int = 0
    """Number of the current state; 0: there is none yet."""
    change: Frame = field(default_factory=lambda: Frame(b""))
    """Difference between the previous state and this one."""
    _text: bytes = b""
    _items: dict[bytes, bytes] = field(default_factory=dict)
    _at: tuple[int, float] = (0, 0.0)
    """Time of this state: milliseconds since the epoch, and by the clock."""
    _full: tuple[float, Frame] | None = None
    """The frame of the full state, and when it was made, by the clock."""

    def update(self, now_ms: int, text: bytes, fresh: dict[bytes, bytes], gone: Iterable[bytes] = ()) -> bool:
        """Take the latest state: the items that are new or have changed, and the names of removed ones. Return False if
        nothing has changed.
        """
        left = [name for name in gone if self._items.pop(name, None) is not None]
        fresh = {name: item for name, item in fresh.items() if self._items.get(name) != item}
        # Number 0 means that there is no state: an empty first state must still count as one.
        if self.number and text == self._text and not fresh and not left:
            return False
        self._items.update(fresh)
        self._text, self._at = text, (now_ms, self.clock_s())
        self.number, self._full = self.number + 1, None
        self.change = self._frame(fresh)
        return True

    def full(self) -> Frame:
        """Return the full state, for viewers who are new or have missed a change."""
        now_s = self.clock_s()
        if self._full is None or now_s - self._full[0] > FULL_MAX_S:
            # Newcomers of the same second share one encoding: a thousand at once cost one compression.
            self._full = (now_s, self._frame(self._items))
        return self._full[1]

    def _frame(self, items: dict[bytes, bytes]) -> Frame:
        # The parent's clock of the state, advanced by this process's
        # monotonic clock: viewers correct their own clocks by it.
        at_ms, at_s = self._at
        now_ms = at_ms + int((self.clock_s() - at_s) * 1_000)
        body = b",".join(b"%b:%b" % one for one in items.items())
        return Frame(b'event: status\r\ndata: {"now":%d,"status":%b,"items":{%b}}\r\n\r\n' % (now_ms, self._text, body))
