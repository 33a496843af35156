"""Tables, and blocks of drawings one below the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Protocol

from headgate.cli.terminal.text import Style, Text

GAP = 2
"""Spaces between two columns of a table."""
ALIGNED_MAX = 1_000
"""Width up to which columns are aligned; a wider cell is printed whole, and the cells after it move to the right."""


class Drawing(Protocol):
    """Declare what can be printed."""

    def lines(self, width: int | None = None) -> list[Text]:
        """Return the lines for a terminal of `width` columns; None: there is no limit."""


class Block:
    """Hold drawings that stand one below the other."""

    def __init__(self, *parts: Drawing) -> None:
        self._parts = parts

    def lines(self, width: int | None = None) -> list[Text]:
        return [line for part in self._parts for line in part.lines(width)]


def paragraph(text: str, style: Style = "") -> Block:
    """Return a text of several lines; `Text`, which is a single line, would show line breaks as escapes."""
    return Block(*(Text(line, style) for line in text.split("\n")))


class TextTable:
    """Hold rows of cells, which are as wide as they need to be; if the terminal is too narrow, the cells of the
    widest columns are wrapped, or cropped with `crop`."""

    def __init__(self, *heads: str, title: str = "", crop: bool = False) -> None:
        self._title, self._crop = title, crop
        self._rows: list[tuple[Text, ...] | Text] = [tuple(Text(head, "bold") for head in heads)] if heads else []

    def add_row(self, *cells: str | Text, style: Style = "") -> None:
        self._rows.append(tuple(cell if isinstance(cell, Text) else Text(cell, style) for cell in cells))

    def add_line(self, text: Text) -> None:
        """Add a line across all columns."""
        self._rows.append(text)

    def lines(self, width: int | None = None) -> list[Text]:
        # Lines across all columns do not count for the widths.
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
    """Give narrow columns the width they need, and the others equal shares of the rest."""
    given = list(widths)
    for done, n in enumerate(sorted(range(len(widths)), key=widths.__getitem__)):
        # Narrowest first: what a column does not need is shared by the wider ones that follow.
        given[n] = max(1, min(widths[n], room // (len(widths) - done)))
        room -= given[n]
    return given


def _aligned(cells: Iterable[Text], widths: list[int]) -> Text:
    """Join cells to a line without trailing spaces."""
    made, missing = Text(), 0
    for cell, width in zip(cells, widths, strict=False):
        # An empty cell only adds to the gap, so that no line ends with blanks.
        if cell.pieces:
            made.pieces += (*Text(" " * missing).pieces, *cell.pieces)
            missing = 0
        missing += max(0, width - cell.columns) + GAP
    return made
