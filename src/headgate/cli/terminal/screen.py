"""The terminal that a command prints to, and drawings in it that are updated."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self, TextIO

from headgate.cli.terminal.table import Drawing
from headgate.cli.terminal.text import CODES, ELLIPSIS, Style, Text

SIZE = (80, 24)
"""Columns and rows to assume for a terminal that does not report its size."""
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
"""Sequences that hide and show the cursor."""
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""Sequences that enter and leave the alternate screen."""
HOME, ERASE_LINE, ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


class Terminal:
    """Print to standard output, or to `out`. Anything but a terminal gets plain text, of any width."""

    def __init__(self, out: TextIO | None = None, environment: Mapping[str, str] = os.environ) -> None:
        self.out = out or sys.stdout
        self.live: LiveDrawing | None = None
        self._environment = environment
        self.is_terminal = self.out.isatty()
        dumb = environment.get("TERM") in ("dumb", "unknown")
        self.moves = self.is_terminal and not dumb
        """Whether printed lines can be overwritten."""
        self.styles = self._styles() if self.moves or (environment.get("FORCE_COLOR") and not dumb) else frozenset()

    def _styles(self) -> frozenset[Style]:
        # NO_COLOR forbids colours; bold and dim are none.
        return frozenset(("bold", "dim")) if self._environment.get("NO_COLOR") else frozenset(CODES)

    @property
    def size(self) -> tuple[int, int]:
        """Return the current columns and rows."""
        found = (0, 0)
        with suppress(OSError, ValueError):
            found = os.get_terminal_size(self.out.fileno())
        # A terminal in a container or behind a serial line may report 0 columns.
        return found[0] or self._number("COLUMNS") or SIZE[0], found[1] or self._number("LINES") or SIZE[1]

    def _number(self, name: str) -> int:
        text = self._environment.get(name, "")
        return int(text) if text.isdecimal() else 0

    @property
    def width(self) -> int | None:
        """Return the columns, or None if lines have no limit."""
        return self.size[0] if self.is_terminal else None

    def print(self, what: Drawing | str = "", style: Style = "") -> None:
        """Print a drawing, or a text as one line."""
        drawing = Text(what, style) if isinstance(what, str) else what
        shown = "".join(f"{line.painted(self.styles)}\n" for line in drawing.lines(self.width))
        if self.live:
            self.live.above(shown)
        else:
            self.send(shown)

    def send(self, text: str) -> None:
        """Send text that is already harmless, including its control sequences."""
        self.out.write(text)
        self.out.flush()


class Printing(Protocol):
    """Declare what prints a line, as a terminal does."""

    def __call__(self, what: str, style: Style = "") -> None: ...


class LiveDrawing:
    """Draw in place: on the alternate `screen`, or below lines that are printed meanwhile. The drawing disappears
    at the end, even after an error. If the terminal cannot overwrite lines, nothing is drawn."""

    def __init__(self, terminal: Terminal, screen: bool = False) -> None:
        self._terminal, self._screen = terminal, screen
        self._shown: list[Text] = []
        self._size: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        if self._terminal.moves:
            self._terminal.live = self
            self._terminal.send(ENTER + HIDE if self._screen else HIDE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal.moves:
            self._terminal.live = None
            self._terminal.send(SHOW + LEAVE if self._screen else self._start() + ERASE_BELOW + SHOW)

    def update(self, drawing: Drawing) -> None:
        """Draw it, if it differs from what is shown."""
        if not self._terminal.moves:
            return
        size = width, height = self._terminal.size
        lines = [part for line in drawing.lines(width) for part in line.wrapped(width)]
        rows = height if self._screen else max(1, height - 1)
        if len(lines) > rows:
            lines[rows - 1 :] = [Text(ELLIPSIS, "dim")]
        if (size, [line.pieces for line in lines]) != (self._size, [line.pieces for line in self._shown]):
            self._terminal.send(self._start() + self._painted(lines, width))
        self._shown, self._size = lines, size

    def above(self, text: str) -> None:
        """Print lines that stay, above the drawing."""
        shown = self._painted(self._shown, self._size[0]) if self._size else ""
        self._terminal.send(self._start() + ERASE_BELOW + text + shown)

    def _start(self) -> str:
        """Move to the drawing's first line; in a terminal that has become narrower, a line may take several rows."""
        if self._screen:
            return HOME
        width = self._terminal.size[0]
        rows = sum(max(1, -(-line.columns // width)) for line in self._shown)
        return f"\r\x1b[{rows - 1}A" if rows > 1 else "\r"

    def _painted(self, lines: list[Text], width: int) -> str:
        """Write over the lines without erasing first, so that nothing flickers. Only full lines are erased before:
        erasing the rest of the line afterwards would remove their last character."""
        *most, last = lines or [Text()]
        shown = [(line.painted(self._terminal.styles), line.columns < width) for line in most]
        over = (f"{text}{ERASE_LINE}" if short else f"{ERASE_LINE}{text}" for text, short in shown)
        return "\r\n".join((*over, ERASE_BELOW + last.painted(self._terminal.styles)))
