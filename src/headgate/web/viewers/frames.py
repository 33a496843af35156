"""Encode, compress and frame what viewers are sent, once for all of them.

This module uses only the standard library, as the viewers' process has nothing else.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

LEVEL = 6
FULL_MAX_S = 1.0
"""Limit on the age of the full state that new viewers receive, as it contains the time."""
GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Header of a gzip stream. Independent deflate blocks follow it, so that viewers who join later can receive the same
blocks; the stream never ends, so there is no checksum.
"""
STILL_HERE = b": still here\r\n\r\n"
_SIZE = struct.Struct(">I")


def packed(parts: Sequence[bytes]) -> bytes:
    """Join parts, each preceded by its size."""
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
    """Hold a piece of the stream that several viewers receive; it is encoded in each form when first needed."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._forms: dict[tuple[bool, bool], bytes] = {}

    def form(self, *, gzip: bool, chunked: bool) -> bytes:
        """Return the encoded bytes; with `chunked`, as a chunk of HTTP's chunked transfer encoding."""
        if (gzip, chunked) not in self._forms:
            plain = deflated(self._text) if gzip else self._text
            self._forms[gzip, chunked] = b"%x\r\n%b\r\n" % (len(plain), plain) if chunked else plain
        return self._forms[gzip, chunked]


def deflated(text: bytes) -> bytes:
    """Compress to deflate blocks that are independent of the blocks before and after them."""
    packing = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    # A full flush resets the dictionary and aligns to a byte, so that blocks can be combined in any viewer's stream.
    return packing.compress(text) + packing.flush(zlib.Z_FULL_FLUSH)


@dataclass(slots=True)
class Scene:
    """Represent the state that the viewers of a tenant see: a document, and named items that change individually."""

    clock_s: Callable[[], float] = time.monotonic
    number: int = 0
    """Number of the current state; 0: there is none yet."""
    change: Frame = field(default_factory=lambda: Frame(b""))
    """Difference between the previous state and this one."""
    _text: bytes = b""
    _items: dict[bytes, bytes] = field(default_factory=dict)
    _at: tuple[int, float] = (0, 0.0)
    """Time of this state: in milliseconds since the epoch, and by `clock_s`."""
    _full: tuple[float, Frame] | None = None
    """When the frame of the full state was encoded, by `clock_s`, and the frame."""

    def update(self, now_ms: int, text: bytes, fresh: dict[bytes, bytes], gone: Iterable[bytes] = ()) -> bool:
        """Replace the state: `fresh` has the new and changed items, `gone` the names of removed ones. Return False if
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
        """Return the full state, for viewers that are new or have missed a change."""
        now_s = self.clock_s()
        if self._full is None or now_s - self._full[0] > FULL_MAX_S:
            # New viewers of the same second share one encoding: a thousand of them cost one compression.
            self._full = (now_s, self._frame(self._items))
        return self._full[1]

    def _frame(self, items: dict[bytes, bytes]) -> Frame:
        # The parent's time of the state, advanced by this process's
        # monotonic clock: viewers correct their own clocks with it.
        at_ms, at_s = self._at
        now_ms = at_ms + int((self.clock_s() - at_s) * 1_000)
        body = b",".join(b"%b:%b" % one for one in items.items())
        return Frame(b'event: status\r\ndata: {"now":%d,"status":%b,"items":{%b}}\r\n\r\n' % (now_ms, self._text, body))
