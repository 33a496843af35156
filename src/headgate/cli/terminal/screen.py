"""Draw tables and blocks in a terminal, once or as a live display."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from types import TracebackType
from typing import Protocol, Self, TextIO

from headgate.cli.terminal.text import CODES, ELLIPSIS, Style, Text, joined

GAP = 2
"""Spaces between two columns of a table."""
ALIGNED_MAX = 1_000
"""Width up to which columns are aligned; a wider cell is printed in full, and shifts the cells after it."""
SIZE = (80, 24)
"""Columns and rows to assume for a terminal that does not report its size."""
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
"""Sequences that hide and show the cursor."""
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""Sequences that enter and leave the alternate screen."""
HOME, ERASE_LINE, ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


class Drawing(Protocol):
    """Declare the interface of everything that `Terminal` can print."""

    def lines(self, width: int | None = None) -> list[Text]:
        """Return the lines for a terminal of `width` columns; None means no limit."""


class Block:
    """Stack drawings one below the other."""

    def __init__(self, *parts: Drawing) -> None:
        self._parts = parts

    def lines(self, width: int | None = None) -> list[Text]:
        return [line for part in self._parts for line in part.lines(width)]


def paragraph(text: str, style: Style = "") -> Block:
    """Return a drawing of text with several lines; `Text` is a single line and would escape line breaks."""
    return Block(*(Text(line, style) for line in text.split("\n")))


class TextTable:
    """Hold rows of cells. Columns are as wide as necessary; if the terminal is too narrow, the cells of the widest
    columns are wrapped or, with `crop`, cropped."""

    def __init__(self, *heads: str, title: str = "", crop: bool = False) -> None:
        self._title, self._crop = title, crop
        self._rows: list[tuple[Text, ...] | Text] = [tuple(Text(head, "bold") for head in heads)] if heads else []

    def add_row(self, *cells: str | Text, style: Style = "") -> None:
        self._rows.append(tuple(cell if isinstance(cell, Text) else Text(cell, style) for cell in cells))

    def add_line(self, text: Text) -> None:
        """Add a line across all columns."""
        self._rows.append(text)

    def lines(self, width: int | None = None) -> list[Text]:
        # Lines across all columns do not affect the widths.
        cells = [row for row in self._rows if isinstance(row, tuple)]
        widths = [max(cell.columns for cell in column) for column in zip_longest(*cells, fillvalue=Text())]
        widths = [min(each, ALIGNED_MAX) for each in widths]
        if width is not None:
            widths = _shrunk(widths, width - GAP * (len(widths) - 1))
        lines = [Text(self._title, "bold")] if self._title else []
        for row in self._rows:
            if isinstance(row, Text):
                lines.append(row)
            else:
                parts = (self._part(cell, each, width) for cell, each in zip(row, widths, strict=False))
                lines += [_aligned(cut, widths) for cut in zip_longest(*parts, fillvalue=Text())]
        return lines if width is None else [line.cropped(width) for line in lines]

    def _part(self, cell: Text, room: int, width: int | None) -> Sequence[Text]:
        if width is None:
            return (cell,)
        return (cell.cropped(room),) if self._crop else cell.wrapped(room)


def _shrunk(widths: list[int], room: int) -> list[int]:
    """Return widths that fit into `room`: narrow columns keep theirs, and the others share the rest equally."""
    given = list(widths)
    for done, n in enumerate(sorted(range(len(widths)), key=widths.__getitem__)):
        # Narrowest first: wider columns share the space that a column does not need.
        given[n] = max(1, min(widths[n], room // (len(widths) - done)))
        room -= given[n]
    return given


def _aligned(cells: Iterable[Text], widths: list[int]) -> Text:
    """Join cells into a line without trailing spaces."""
    pieces, missing = list[Text](), 0
    for cell, width in zip(cells, widths, strict=False):
        # An empty cell only widens the gap, so that no line ends with spaces.
        if cell.pieces:
            pieces += [Text(" " * missing), cell]
            missing = 0
        missing += max(0, width - cell.columns) + GAP
    return joined(pieces)


class Terminal:
    """Print to standard output, or to `out`. If that is not a terminal, print plain text of any width."""

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
        # NO_COLOR forbids colours, but bold and dim are not colours.
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
        """Return the number of columns, or None if the width is not limited."""
        return self.size[0] if self.is_terminal else None

    def print(self, what: Drawing | str = "", style: Style = "") -> None:
        """Print a drawing, or a string as one line."""
        drawing = Text(what, style) if isinstance(what, str) else what
        shown = "".join(f"{line.painted(self.styles)}\n" for line in drawing.lines(self.width))
        if self.live:
            self.live.above(shown)
        else:
            self.send(shown)

    def send(self, text: str) -> None:
        """Write text that contains no untrusted control sequences."""
        self.out.write(text)
        self.out.flush()


class Printing(Protocol):
    """Declare the type of functions that print a line, such as `Terminal.print`."""

    def __call__(self, what: str, style: Style = "") -> None: ...


class LiveDrawing:
    """Update a drawing in place: on the alternate `screen`, or below lines that are printed in the meantime. Remove it
    at the end, even after an error. Draw nothing if the terminal cannot overwrite lines."""

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
        """Draw it, if it differs from the current drawing."""
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
        """Print permanent lines above the drawing."""
        shown = self._painted(self._shown, self._size[0]) if self._size else ""
        self._terminal.send(self._start() + ERASE_BELOW + text + shown)

    def _start(self) -> str:
        """Return the sequence that moves to the drawing's first line. In a terminal that has become narrower, a line
        may take several rows."""
        if self._screen:
            return HOME
        width = self._terminal.size[0]
        rows = sum(max(1, -(-line.columns // width)) for line in self._shown)
        return f"\r\x1b[{rows - 1}A" if rows > 1 else "\r"

    def _painted(self, lines: list[Text], width: int) -> str:
        """Return text that overwrites the lines without erasing them first, which would flicker. Full-width lines are
        still erased first: erasing the rest of the line afterwards would remove their last character."""
        *most, last = lines or [Text()]
        shown = [(line.painted(self._terminal.styles), line.columns < width) for line in most]
        over = (f"{text}{ERASE_LINE}" if short else f"{ERASE_LINE}{text}" for text, short in shown)
        return "\r\n".join((*over, ERASE_BELOW + last.painted(self._terminal.styles)))
