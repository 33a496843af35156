"""Write the log of a build, detect failures in it, quote the lines that name their cause, and follow it."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import re2

from headgate.adapters.keys.clear import Censor
from headgate.base.errors import ExecutionError
from headgate.base.texts import line as one_line

COLOUR = r"\x1b\[[0-9;]*m"
RESET = "\x1b[m"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_]?)")
"""Escape sequences that colour text or move the cursor."""
_PLAIN = frozenset((1, 2, 3, 4, 7, 22, 23, 24, 27, 39, 49, *range(30, 38), *range(40, 48), *range(90, 98)))
_LONG = (38, 48)
"""Codes of an extended colour, for text and for its background."""
_SIZES = {5: 3, 2: 5}
"""Kind of an extended colour -> count of its codes: with the index of a palette, or with red, green and blue."""
_FIGURES_MAX, _FIGURE_MAX = 32, 255
LINE_SIZE_MAX_BYTES = 65_536
"""Size above which a line is split."""
_UNSEEN = re.compile(f"(?P<colour>{COLOUR})|[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and characters that change the direction of text."""
TOKEN_VARIABLE = "HEADGATE_FAILING"
"""Variable with the line that our callback plugin prints when a task has failed."""
PATTERNS_MEMORY_MAX_BYTES = 1 << 20
"""Memory for all patterns of a job together."""
MATCHED_MAX_BYTES = 4_000
"""Length of a line's beginning that is matched."""
MATCHING_MAX_S = 20.0
"""Time for matching all lines of one build, because other builds wait in the meantime."""
SIGN_MAX_CHARS = 200
"""How much of a line a sign of failure quotes."""
_HOST = b" | "
"""Separator of host and text in Ansible's output of a task."""
EXCERPT_LINES_MAX = 4
EXCERPT_LINE_MAX_CHARS = 200
EXAMINED_MAX_BYTES = 400
"""Length of a line's beginning that is examined."""
EXCERPT_LINE_MAX_BYTES = 10_000
"""Size above which a line is never quoted, since it may have split a secret."""
_SUSPECT = re.compile(
    rb"^E   |\b[A-Z]\w*(?:Error|Exception)\b|\b(?i:error|fatal|panic): |\b(?:ERROR|FAILED|FAIL|FATAL)\b"
    rb"|^not ok\b|\*\*\* "
)
_HARMLESS = re.compile(rb"\(ignored\)|\b(?i:0 errors?|no errors?)\b")
CHUNK_SIZE_BYTES = 65_536
LOOK_INTERVAL_S = 0.1
QUICK_MAX = 20
"""Up to this many followers in this process, the interval is the shortest; with more, it grows."""


def with_colours(text: str) -> str:
    """Return the text with its colours."""
    return _SEQUENCE.sub(lambda found: _colour(found[0]) if re.fullmatch(COLOUR, found[0]) else "", text)


def ended(text: str) -> str:
    """Return the text, which contains only colour sequences, with the colours reset at its end."""
    last = text.rfind("\x1b")
    return text if last < 0 or text.startswith(RESET, last) else text + RESET


def _colour(sequence: str) -> str:
    # Limit the length: Python refuses to convert thousands of digits, which a job could print.
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


class JobLog:
    """Write lines `YYYY-MM-DD HH:MM:SS.mmm | text`, UTC. Raise OSError if the disk is full."""

    def __init__(self, path: Path, *, size_max_bytes: int) -> None:
        self.path = path
        self._size_max_bytes = size_max_bytes
        # Do not buffer: followers read the file while it grows, and a killed executor must not lose received output.
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._size_bytes = self._file.tell()
        self._rest = b""
        self._full = False
        self.censor = Censor()
        """Removes the secrets that it knows from the log."""
        self.excerpt = Excerpt()
        self._sieve: Callable[[list[bytes]], list[bytes]] = list
        """Receives all lines of output, even when the log is full; the lines that it returns are written."""

    def sift(self, sieve: Callable[[list[bytes]], list[bytes]]) -> None:
        """Pass all lines of output through `sieve` from now on."""
        self._sieve = sieve

    def say(self, text: str) -> None:
        """Write a message of our own, line by line, even when the log is full."""
        self._flush()
        self._file.write(_stamped([self.censor.line(line.encode()) for line in text.splitlines()] or [b""]))

    def write(self, chunk: bytes) -> None:
        """Write a piece of a job's output; pieces may end anywhere, even within a line."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) > LINE_SIZE_MAX_BYTES + self.censor.size_max_bytes:
            rest = self.censor.line(self._rest)  # the entire line: a secret may be where it is split
            lines.append(rest[:LINE_SIZE_MAX_BYTES])
            self._rest = rest[LINE_SIZE_MAX_BYTES:]
        self._lines(self._sieve(lines))

    def _lines(self, lines: list[bytes]) -> None:
        if not lines:
            return
        if self._full:
            # The excerpt still needs the lines, since the reason for a failure tends to come last. Do not censor them
            # here: they do not get into the log, and the excerpt itself removes all secrets.
            self.excerpt.hear(lines)
            return
        # Censor before anything is stored or cut: a secret that is split between two lines is found in neither.
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
            # Cut at the end of a line, so that no line is incomplete.
            text = text[: text.rfind(b"\n", 0, max(0, self._size_max_bytes - self._size_bytes)) + 1]
            limit = f"{self._size_max_bytes / 1_000_000:g} MB"
            text += _stamped([f"The log has reached {limit}; the rest of the output is discarded".encode()])
        self._size_bytes += len(text)
        self._file.write(text)

    def _flush(self) -> None:
        if self._rest:
            rest, self._rest = self._rest, b""
            self._lines(self._sieve([rest]))

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._file.close()


def _stamped(lines: list[bytes]) -> bytes:
    now = time.time()
    stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d} | "
    return "".join(f"{stamp}{_clean(line)}\n" for line in lines).encode()


def _clean(line: bytes) -> str:
    """Return a line as a terminal would show it, with its colours, and with unprintable characters escaped."""
    text = line.rstrip(b"\r").decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    text = with_colours(text).rpartition("\r")[2]  # keep the final state of a progress bar
    return ended(_UNSEEN.sub(_escaped, text))


def _escaped(found: re.Match[str]) -> str:
    return found["colour"] or found[0].encode("unicode_escape").decode()


class _Pattern(Protocol):
    def search(self, text: str) -> object | None: ...


class PatternsTooLarge(ExecutionError):
    """Report that the patterns of `failure-output` cannot be combined into one."""


class EarlySigns:
    """Inspect every line of a job's output. Once a line signals a failure, the build will fail, whatever follows."""

    def __init__(self, patterns: Sequence[str], on_failure: Callable[[], None]) -> None:
        """Prepare to call `on_failure` once, at the first sign of failure.  Raise PatternsTooLarge."""
        # The token is random, so that no program of the job can print it.
        self.token = secrets.token_hex(16)
        self.why = ""
        """Reason, as a message; empty while there is no sign of failure."""
        self._on_failure, self._spent_s = on_failure, 0.0
        self._armed = self._ansible = False
        self._pattern = _together(patterns) if patterns else None

    def begins(self, *, counts: bool, ansible: bool) -> None:
        """Record the start of a playbook; `counts`: whether its failure fails the build."""
        self._armed, self._ansible = counts, ansible

    def sift(self, lines: list[bytes]) -> list[bytes]:
        """Look for signs of failure in the lines; return the lines that are shown to people."""
        if self._ansible and (token := self.token.encode()) in lines:
            lines = [line for line in lines if line != token]
            self._sign("a task failed")
        if self._armed and not self.why and self._pattern is not None:
            began = time.perf_counter()
            self._look(lines)
            self._spent_s += time.perf_counter() - began
            if self._spent_s > MATCHING_MAX_S:
                self._sign(f"matching its failure-output took more than {MATCHING_MAX_S:.0f} s")
        return lines

    def _look(self, lines: list[bytes]) -> None:
        for line in lines:
            # Patterns match a program's line, without the host that Ansible prepends.
            content = line.partition(_HOST)[2] if self._ansible else line
            text = content[:MATCHED_MAX_BYTES].decode(errors="replace").rstrip("\r")
            if text and self._pattern is not None and self._pattern.search(text):
                self._sign(f'its output matches failure-output: "{one_line(text, SIGN_MAX_CHARS)}"')
                return

    def _sign(self, why: str) -> None:
        if self._armed and not self.why:
            self.why = why
            self._on_failure()


def _together(patterns: Sequence[str]) -> _Pattern:
    """Combine the patterns into one, so that the cost of a line does not grow with their number. Raise
    PatternsTooLarge."""
    options = re2.Options()
    options.log_errors = False
    # re2 matches in linear time, so that no pattern of a job can hang the executor; its memory needs this limit.
    options.max_mem = PATTERNS_MEMORY_MAX_BYTES
    try:
        found: _Pattern = re2.compile("|".join(f"(?:{pattern})" for pattern in patterns), options)
    except re2.error as error:
        raise PatternsTooLarge(
            "the patterns of its failure-output together are too large; use fewer or simpler ones"
        ) from error
    return found


class Excerpt:
    """Examine every line of output, and keep the few lines of one playbook that look like the reason for a failure."""

    def __init__(self) -> None:
        self.censor = Censor()
        """Knows every secret, even if the job may show it in its log: reports exist longer and reach more people."""
        self._first: list[bytes] = []
        self._later = b""
        self._last: deque[bytes] = deque(maxlen=2)
        self._settled = False

    def begin(self) -> None:
        """Forget the lines of earlier playbooks, unless one has failed: its lines stay."""
        if not self._settled:
            self._first, self._later = [], b""
            self._last.clear()

    def hear(self, lines: Iterable[bytes]) -> None:
        """Examine lines of output."""
        if self._settled:
            return
        for line in lines:
            start = line[:EXAMINED_MAX_BYTES]
            if len(line) > EXCERPT_LINE_MAX_BYTES or not start.strip():
                continue
            self._last.append(line)
            if _SUSPECT.search(start) and not _HARMLESS.search(start):
                # Keep the first errors and the very last one: causes tend to come first, and a summary last.
                if len(self._first) < EXCERPT_LINES_MAX - 1:
                    self._first.append(line)
                else:
                    self._later = line

    def settle(self) -> None:
        """Keep the lines since `begin`, because this playbook failed."""
        self._settled = True

    def text(self) -> str:
        """Return at most `EXCERPT_LINES_MAX` printable lines: those that name an error, otherwise the last two. Secrets
        are removed. The result is empty if no playbook failed."""
        if not self._settled:
            return ""
        found = [*self._first, *([self._later] if self._later else [])] or list(self._last)
        # Censor the lines now instead of when they arrive: a secret may become known only after its line.
        clear = (self.censor.line(one).decode(errors="replace").strip() for one in found)
        return "\n".join(one_line(one, EXCERPT_LINE_MAX_CHARS) for one in clear)


class TailGroup:
    """Follow files in one process; many followers together cost no more than a few."""

    def __init__(self) -> None:
        self._count = 0

    async def follow(self, path: Path, finished: Callable[[], bool], offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the bytes from `offset` on as they are written, until `finished` returns True and all of them are
        read.
        """
        self._count += 1
        try:
            while True:
                last = finished()
                while chunk := await asyncio.to_thread(_read, path, offset):
                    offset += len(chunk)
                    yield chunk
                if last:
                    return
                await asyncio.sleep(LOOK_INTERVAL_S * max(1.0, self._count / QUICK_MAX))
        finally:
            self._count -= 1


def _read(path: Path, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(CHUNK_SIZE_BYTES)
    except FileNotFoundError:
        return b""


follow = TailGroup().follow
"""Followers in this process."""
