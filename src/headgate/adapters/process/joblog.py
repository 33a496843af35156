"""The log of a build: written as it comes, safe whatever a job writes, never larger than allowed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import BinaryIO

LINE_SIZE_MAX_BYTES = 65_536
"""A longer line is broken."""


class JobLog:
    """Lines `YYYY-MM-DD HH:MM:SS.mmm | text`, UTC.  Raises OSError when the disk is full."""

    def __init__(self, path: Path, *, size_max_bytes: int) -> None:
        self.path = path
        self._size_max_bytes = size_max_bytes
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._size_bytes = self._file.tell()
        self._rest = b""
        self._full = False

    def say(self, text: str) -> None:
        """A line of our own; written even when the log is full."""
        self._flush()
        for line in text.splitlines() or [""]:
            self._file.write(_stamped(line.encode()))

    def write(self, chunk: bytes) -> None:
        """Output of a job, in any pieces."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) > LINE_SIZE_MAX_BYTES:
            lines.append(self._rest[:LINE_SIZE_MAX_BYTES])
            self._rest = self._rest[LINE_SIZE_MAX_BYTES:]
        self._lines(lines)

    def _lines(self, lines: list[bytes]) -> None:
        if self._full or not lines:
            return
        for line in lines:
            for start in range(0, max(1, len(line)), LINE_SIZE_MAX_BYTES):
                if not self._fits(_stamped(line[start : start + LINE_SIZE_MAX_BYTES])):
                    return

    def _fits(self, line: bytes) -> bool:
        """Writes it, or says, once, that no more is written."""
        self._size_bytes += len(line)
        if self._size_bytes <= self._size_max_bytes:
            self._file.write(line)
            return True
        self._full = True
        limit = f"{self._size_max_bytes / 1_000_000:g} MB"
        self._file.write(_stamped(f"The log has reached {limit}; what follows of the output is discarded".encode()))
        return False

    def _flush(self) -> None:
        if self._rest:
            rest, self._rest = self._rest, b""
            self._lines([rest])

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._file.close()


def _stamped(line: bytes) -> bytes:
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now))
    text = line.rstrip(b"\r").decode("utf-8", "backslashreplace")
    clean = "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" if c != "\x1b" else "" for c in text)
    return f"{stamp}.{int(now % 1 * 1000):03d} | {clean}\n".encode()
