"""The log of a build: written as it comes, safe whatever a job writes, never larger than allowed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from headgate.adapters.keys.censor import Censor
from headgate.adapters.process.excerpt import Excerpt

COLOUR = r"\x1b\[[0-9;]*m"
RESET = "\x1b[m"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_]?)")
"""Escape sequences that colour text or move the cursor."""
_PLAIN = frozenset((1, 2, 3, 4, 7, 22, 23, 24, 27, 39, 49, *range(30, 38), *range(40, 48), *range(90, 98)))
_LONG = (38, 48)
"""Codes of an extended colour, for text and for its background."""
_SIZES = {5: 3, 2: 5}
"""Kind of an extended colour -> how many numbers it has: index of a palette, or red, green and blue."""
_FIGURES_MAX, _FIGURE_MAX = 32, 255


def with_colours(text: str) -> str:
    """Return the text with its colours."""
    return _SEQUENCE.sub(lambda found: _colour(found[0]) if re.fullmatch(COLOUR, found[0]) else "", text)


def ended(text: str) -> str:
    """Return the text, which contains only colour sequences, with the colours reset at its end."""
    last = text.rfind("\x1b")
    return text if last < 0 or text.startswith(RESET, last) else text + RESET


def _colour(sequence: str) -> str:
    # Python refuses to convert a text of thousands of digits, which a job could print.
    figures = [int(figure or 0) if len(figure) < 4 else -1 for figure in sequence[2:-1].split(";")]
    codes = list(_codes(figures[:_FIGURES_MAX]))
    return RESET if codes == ["0"] else f"\x1b[{';'.join(codes)}m" if codes else ""


def _codes(figures: Sequence[int]) -> Iterator[str]:
    """Yield the codes that colour text; stop at the first unknown one."""
    at = 0
    while at < len(figures):
        size = 1
        if figures[at] in _LONG:
            size = _SIZES.get(figures[at + 1], 0) if at + 1 < len(figures) else 0
            code = figures[at : at + size]
            if not size or len(code) < size or not all(0 <= figure <= _FIGURE_MAX for figure in code):
                return
            yield ";".join(map(str, code))
        elif figures[at] in _PLAIN or figures[at] == 0:
            yield str(figures[at])
        at += size


LINE_SIZE_MAX_BYTES = 65_536
"""Size above which a line is split."""


class JobLog:
    """Write lines `YYYY-MM-DD HH:MM:SS.mmm | text`, UTC. Raise OSError if the disk is full."""

    def __init__(self, path: Path, *, size_max_bytes: int) -> None:
        self.path = path
        self._size_max_bytes = size_max_bytes
        # Unbuffered: followers read the file while it grows, and a killed executor loses nothing that it had received.
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._size_bytes = self._file.tell()
        self._rest = b""
        self._full = False
        self.censor = Censor()
        """Removes the secrets that it knows from the log."""
        self.excerpt = Excerpt()
        self.sieve: Callable[[list[bytes]], list[bytes]] = list
        """Receives every line of output, even when the log is full; its return value is written."""

    def say(self, text: str) -> None:
        """Write a message of our own, line by line, even when the log is full."""
        self._flush()
        self._file.write(_stamped([self.censor.line(line.encode()) for line in text.splitlines()] or [b""]))

    def write(self, chunk: bytes) -> None:
        """Write a piece of a job's output; pieces may end anywhere, also within a line."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) > LINE_SIZE_MAX_BYTES + self.censor.size_max_bytes:
            rest = self.censor.line(self._rest)  # the whole line: a secret may lie where it is split
            lines.append(rest[:LINE_SIZE_MAX_BYTES])
            self._rest = rest[LINE_SIZE_MAX_BYTES:]
        self._lines(self.sieve(lines))

    def _lines(self, lines: list[bytes]) -> None:
        if not lines:
            return
        if self._full:
            # The reason of a failure tends to come last. Not censored here: a secret that the log does not have is not
            # exposed by it, and the excerpt removes all secrets itself.
            self.excerpt.hear(lines)
            return
        # Before anything is stored or cut: a secret that was split between two lines would be found in neither.
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
            # Cut at the end of a line, so that no record is half of one.
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
"""Control characters, and characters that change the direction of text."""


def _stamped(lines: list[bytes]) -> bytes:
    now = time.time()
    stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d} | "
    return "".join(f"{stamp}{_clean(line)}\n" for line in lines).encode()


def _clean(line: bytes) -> str:
    """Return a line as a terminal would show it, in its colours, with what cannot be shown escaped."""
    text = line.rstrip(b"\r").decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    text = with_colours(text).rpartition("\r")[2]  # keep the final state of a progress bar
    return ended(_UNSEEN.sub(_escaped, text))


def _escaped(found: re.Match[str]) -> str:
    return found["colour"] or found[0].encode("unicode_escape").decode()
