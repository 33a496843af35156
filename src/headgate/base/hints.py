"""Compute hints for errors: the word that was probably meant, or all possible words.

An error carries such a hint as a value, and its text ends with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import NamedTuple

NAMED_MAX = 12
"""Maximum number of possible words to list in a hint of `nearest`."""
_LENIENT = 0.5
"""Similarity of two words from which `similar` suggests one for the other; 1 if they are equal."""


class HintedText(NamedTuple):
    """Represent the text of an error and its hint."""

    problem: str
    hint: str = ""
    """Empty: none."""

    def __str__(self) -> str:
        return with_hint(self.problem, self.hint)

    def after(self, begin: str) -> HintedText:
        """Return the same with this text in front of it."""
        return HintedText(f"{begin}{self.problem}", self.hint)


def hinted(text: str | HintedText) -> HintedText:
    return text if isinstance(text, HintedText) else HintedText(text)


def with_hint(problem: str, hint: str) -> str:
    """Return the complete text of an error."""
    return f"{problem}; {hint}" if hint else problem


def did_you_mean(words: Iterable[str]) -> str:
    return f"did you mean {' or '.join(map(repr, words))}?"


def expected(words: Collection[str]) -> str:
    """Return a hint that lists the possible words, in their order; empty if there are none."""
    return f"expected {'one of ' * (len(words) > 1)}{', '.join(words)}" if words else ""


def nearest(word: str, known: Collection[str]) -> str:
    """Return a hint with the word that was meant, or with the known words if these are few; otherwise an empty
    string."""
    if not isinstance(word, str):
        return ""
    most, letters = 1 if len(word) < 5 else 2, set(word)
    # Computing a distance is slow, so first exclude words of other lengths or with other letters.
    alike = (k for k in known if abs(len(k) - len(word)) <= most and len(letters ^ set(k)) <= 2 * most)
    close = [(strokes, k) for k in alike if (strokes := _strokes(word, k)) <= most]
    if close:
        return did_you_mean([min(close)[1]])
    return expected(sorted(known)) if len(known) <= NAMED_MAX else ""


def similar(word: str, known: Collection[str]) -> str:
    """Return a hint with the known word that resembles `word` most, however little, or with all known words. Use it for
    lists that are read once, by the person who wrote the word."""
    close = get_close_matches(word, list(known), n=1, cutoff=_LENIENT)
    return did_you_mean(close) if close else expected(known)


def _strokes(one: str, other: str) -> int:
    """Return the edit distance of two words: additions, deletions, replacements, and swaps of adjacent characters."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for n, a in enumerate(one, 1):
        last, before, row = before, row, [n]
        for m, b in enumerate(other, 1):
            cost = min(before[m] + 1, row[m - 1] + 1, before[m - 1] + (a != b))
            if n > 1 and m > 1 and a == other[m - 2] and b == one[n - 2]:
                cost = min(cost, last[m - 2] + 1)
            row.append(cost)
    return row[-1]
