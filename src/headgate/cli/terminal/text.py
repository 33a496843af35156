"""Measure, style and cut lines for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from headgate.base.texts import line

Style = Literal["", "bold", "dim", "red", "green", "yellow", "blue", "cyan"]
CODES: Mapping[Style, int] = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}
"""Style -> SGR code that starts it."""
CHARACTERS_MAX = 1_000_000
"""Limit on the characters of a line; the rest is not printed."""
GLYPH_MAX = 16
"""Limit on the characters of a glyph; further combining marks are dropped."""
TAB = 4
ELLIPSIS = "…"
CARRIER = "\u25cc"
"""Base for a combining mark at the start of a string, so that it does not combine with other text."""
_JOINERS = "\u200b\u200c\u200d"
_AS_PICTURE = "\ufe0f"
"""Variation selector that turns the character before it into a picture, twice as wide in most terminals."""


@lru_cache(4096)
def _width(character: str) -> int:
    """Return the columns of a character; if terminals differ, the larger number."""
    if character in _JOINERS or "\u1160" <= character <= "\u11ff":  # Hangul vowels and final consonants
        return 0
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Glyph(NamedTuple):
    """Hold a character with its combining marks, which must stay together."""

    text: str
    columns: int
    style: Style


def glyphs(text: str, style: Style = "") -> list[Glyph]:
    found: list[Glyph] = []
    for character in text:
        width = _width(character)
        if width or not found:
            found.append(Glyph(character, width, style))
        elif len(found[-1].text) < GLYPH_MAX:
            last = found[-1]
            found[-1] = Glyph(last.text + character, 2 if character == _AS_PICTURE else last.columns, style)
    return found


def columns(text: str) -> int:
    """Return the number of terminal columns that a string takes."""
    return len(text) if text.isascii() else sum(glyph.columns for glyph in glyphs(text))


class Text:
    """Hold one line, made of styled pieces. The text may be untrusted: control characters, line breaks and direction
    marks are replaced by visible escapes."""

    __slots__ = ("pieces",)

    def __init__(self, text: str = "", style: Style = "") -> None:
        self.pieces: tuple[tuple[str, Style], ...] = ()
        if clean := line(text, CHARACTERS_MAX).expandtabs(TAB):
            # A combining mark at the start would combine with the text printed before this one.
            self.pieces = ((clean if _width(clean[0]) else CARRIER + clean, style),)

    def __add__(self, other: Text) -> Text:
        return joined((self, other))

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.pieces)

    @property
    def columns(self) -> int:
        return sum(columns(text) for text, _ in self.pieces)

    def lines(self, width: int | None = None) -> list[Text]:
        """Return the uncut line: the terminal wraps a long line, and copying it yields one line."""
        return [self]

    def painted(self, shown: Collection[Style]) -> str:
        """Return the characters to send to a terminal that shows these styles."""
        return "".join(f"\x1b[{CODES[style]}m{text}\x1b[0m" if style in shown else text for text, style in self.pieces)

    def cropped(self, width: int) -> Text:
        """Return the line cut to `width` columns, with an ellipsis at the end if something is missing."""
        if self.columns <= width:
            return self
        found = self._glyphs()
        end = _fitting(found, 0, width - 1)
        return _of((*found[:end], Glyph(ELLIPSIS, 1, found[end].style)))

    def wrapped(self, width: int) -> list[Text]:
        """Return lines of at most `width` columns, broken between words if possible."""
        if self.columns <= width:
            return [self]
        # Replace glyphs wider than a line: they would never fit, and the loop below would not end.
        found = [glyph if glyph.columns <= width else Glyph(ELLIPSIS, 1, glyph.style) for glyph in self._glyphs()]
        lines, start = [], 0
        while start < len(found):
            end = following = _fitting(found, start, width)
            if end < len(found) and (space := _space(found, start, end)):
                end = following = space
                # Drop the spaces at the break.
                while following < len(found) and found[following].text == " ":
                    following += 1
            lines.append(_of(found[start:end]))
            start = following
        return lines

    def _glyphs(self) -> list[Glyph]:
        return [glyph for text, style in self.pieces for glyph in glyphs(text, style)]


def joined(texts: Iterable[Text], between: str = "") -> Text:
    """Join texts into one line, with `between` between them."""
    made = Text()
    for text in texts:
        made.pieces += (*Text(between if made.pieces else "").pieces, *text.pieces)
    return made


def _of(found: Iterable[Glyph]) -> Text:
    """Make text from glyphs without control characters."""
    made, pieces = Text(), list[tuple[list[str], Style]]()
    for glyph in found:
        if not pieces or pieces[-1][1] != glyph.style:
            pieces.append(([], glyph.style))
        pieces[-1][0].append(glyph.text)
    made.pieces = tuple(("".join(texts), style) for texts, style in pieces)
    return made


def _fitting(found: list[Glyph], start: int, width: int) -> int:
    """Return the index of the first glyph that no longer fits."""
    end = start
    while end < len(found) and found[end].columns <= width:
        width -= found[end].columns
        end += 1
    return end


def _space(found: list[Glyph], start: int, end: int) -> int:
    """Return the index of the last space that follows a word, or 0."""
    for at in range(end, start, -1):
        if found[at].text == " " and found[at - 1].text != " ":
            return at
    return 0
