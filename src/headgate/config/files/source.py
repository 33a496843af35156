"""Represent where a piece of configuration comes from, and errors that point there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from headgate.base.texts import line as one_line
from headgate.base.texts import visible
from headgate.config.model import ConfigError

CONTEXT_LINES = 4
"""Number of lines shown above and below the line of an error."""
LINE_SHOWN_MAX = 500
"""Largest number of characters shown of a line."""
NAMED_MAX = 12
"""Largest number of known words that a message lists."""
SCHEMA = "Unknown"
"""Name of errors of form: text that is not YAML, an unknown key, or a wrong type."""
UNKNOWN_WORD = "Unknown Word"
"""Name of warnings about words that a driver does not know."""
NO_EFFECT = "No Effect"
"""Name of warnings about settings that are accepted without effect."""
NEVER = "Trigger Never Matches"
"""Name of warnings about triggers that no event can match."""
MEANING = "Unknown Configuration Error"
"""Name of errors of meaning that have no name of their own."""


@dataclass(frozen=True, slots=True)
class Source:
    """Represent a file on a branch of a project."""

    project: str
    connection: str
    branch: str
    path: str
    trusted: bool
    text: str

    def error(self, name: str, text: str, line: int = 0, severity: str = "error") -> ConfigError:
        return ConfigError(
            name=name,
            text=visible(text),
            project=self.project,
            branch=self.branch,
            path=one_line(self.path),
            line=line,
            snippet=snippet(self.text, line),
            severity=severity,
        )

    def error_from(self, wrong: Wrong, line: int = 0) -> ConfigError:
        """Turn `wrong` into an error of this file. `line` applies if the error has no line of its own."""
        return self.error(wrong.name, wrong.text, wrong.line or line, wrong.severity)

    @property
    def place(self) -> str:
        return f"{self.project} {self.branch} {self.path}"


class Wrong(Exception):
    """Report one error at one line; it becomes a ConfigError where the source is known."""

    def __init__(self, text: str, line: int, name: str = SCHEMA, severity: str = "error") -> None:
        super().__init__(text)
        self.text, self.line, self.name, self.severity = text, line, name, severity


_UNREADABLE = "\0headgate: "
"""Prefix of the placeholder for the text of a file that was not read; no YAML contains a NUL."""


def unread(why: str) -> str:
    """Return a placeholder for the text of a file that was not read; parsing it reports `why`."""
    return _UNREADABLE + why


def unreadable(text: str) -> str:
    """Return why the text of a file was not read, or an empty string if it was."""
    return text.removeprefix(_UNREADABLE) if text.startswith(_UNREADABLE) else ""


@lru_cache(maxsize=32)
def _lines(text: str) -> list[str]:
    """Split a text into lines. The result is cached, because a file with many errors is split again for each of
    them."""
    return text.splitlines()


def snippet(text: str, line: int) -> str:
    """Return the lines around `line` (1-based), with that line marked, or an empty string if there is no such line."""
    lines = _lines(text) if line > 0 and not unreadable(text) else []
    if line > len(lines):
        return ""
    first, last = max(1, line - CONTEXT_LINES), min(len(lines), line + CONTEXT_LINES)
    width = len(str(last))
    shown = (
        # Text of others may hold control characters, or be a single line of megabytes.
        f"{'>' if n == line else ' '} {n:{width}} | {one_line(lines[n - 1], LINE_SHOWN_MAX)}"
        for n in range(first, last + 1)
    )
    return "\n".join(shown) if lines else ""


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


def nearest(word: str, known: Collection[str]) -> str:
    """Return `; did you mean X?`, or the list of known words if it is short; otherwise an empty string."""
    if not isinstance(word, str):
        return ""
    most, letters = 1 if len(word) < 5 else 2, set(word)
    # Computing a distance is slow: words of other lengths or other letters are ruled out first.
    alike = (k for k in known if abs(len(k) - len(word)) <= most and len(letters ^ set(k)) <= 2 * most)
    close = [(strokes, k) for k in alike if (strokes := _strokes(word, k)) <= most]
    if close:
        return f"; did you mean {min(close)[1]!r}?"
    return f"; known are {', '.join(sorted(known))}" if 0 < len(known) <= NAMED_MAX else ""
