"""The log of a build: written as it comes, safe whatever a job writes, never larger than allowed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from headgate.adapters.keys.censor import Censor
from headgate.adapters.process.colours import COLOUR, ended, kept
from headgate.adapters.process.excerpt import Excerpt

LINE_SIZE_MAX_BYTES = 65_536
"""A longer line is broken."""


class JobLog:
    """Write lines `YYYY-MM-DD HH:MM:SS.mmm | text`, UTC. Raise OSError if the disk is full."""

    def __init__(self, path: Path, *, size_max_bytes: int) -> None:
        self.path = path
        self._size_max_bytes = size_max_bytes
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._size_bytes = self._file.tell()
        self._rest = b""
        self._full = False
        self.censor = Censor()
        """Keeps out of it what it has learned."""
        self.excerpt = Excerpt()
        self.sieve: Callable[[list[bytes]], list[bytes]] = list
        """Told every line of output, also when the log is full; what it answers is written."""

    def say(self, text: str) -> None:
        """Write a text of our own, line by line, even when the log is full."""
        self._flush()
        self._file.write(_stamped([self.censor.line(line.encode()) for line in text.splitlines()] or [b""]))

    def write(self, chunk: bytes) -> None:
        """Write a piece of a job's output; pieces may end anywhere, also within a line."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) > LINE_SIZE_MAX_BYTES + self.censor.size_max_bytes:
            rest = self.censor.line(self._rest)  # whole: a secret may lie where the line is broken
            lines.append(rest[:LINE_SIZE_MAX_BYTES])
            self._rest = rest[LINE_SIZE_MAX_BYTES:]
        self._lines(self.sieve(lines))

    def _lines(self, lines: list[bytes]) -> None:
        if self._full or not lines:
            return
        lines = [self.censor.line(line) for line in lines]
        self.excerpt.hear(lines)
        if any(len(line) > LINE_SIZE_MAX_BYTES for line in lines):
            lines = [
                line[start : start + LINE_SIZE_MAX_BYTES]
                for line in lines
                for start in range(0, max(1, len(line)), LINE_SIZE_MAX_BYTES)
            ]
        text = _stamped(lines)
        if self._size_bytes + len(text) > self._size_max_bytes:
            self._full = True
            text = text[: text.rfind(b"\n", 0, max(0, self._size_max_bytes - self._size_bytes)) + 1]
            limit = f"{self._size_max_bytes / 1_000_000:g} MB"
            text += _stamped([f"The log has reached {limit}; what follows of the output is discarded".encode()])
        self._size_bytes += len(text)
        self._file.write(text)

    def _flush(self) -> None:
        if self._rest:
            rest, self._rest = self._rest, b""
            self._lines(self.sieve([rest]))

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._file.close()


_UNSEEN = re.compile(f"(?P<colour>{COLOUR})|[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and what turns the direction of text."""


def _stamped(lines: list[bytes]) -> bytes:
    now = time.time()
    stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d} | "
    return "".join(f"{stamp}{_clean(line)}\n" for line in lines).encode()


def _clean(line: bytes) -> str:
    """Return a line as a terminal would show it, in its colours, with what cannot be shown escaped."""
    text = line.rstrip(b"\r").decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    text = kept(text).rpartition("\r")[2]  # a progress bar is what it came to
    return ended(_UNSEEN.sub(_escaped, text))


def _escaped(found: re.Match[str]) -> str:
    return found["colour"] or found[0].encode("unicode_escape").decode()
