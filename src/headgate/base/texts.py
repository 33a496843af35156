"""Prepare text for display: make untrusted text safe for a terminal, a log or a page, and shorten lists of words."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_]?)")
"""Escape sequences that colour text or move the cursor."""
_SEQUENCE_BYTES = re.compile(_SEQUENCE.pattern.encode())
# Direction marks can make people read different code, or a different name, than programs do.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, invisible characters, characters that change the direction of text, and lone surrogates."""


def visible(text: str) -> str:
    """Return the text without anything that moves the cursor, or colours, hides or reorders what is written. Line
    breaks stay."""
    # The usual case costs one pass in C. For `isprintable`, line breaks are not printable.
    if text.isprintable():
        return text
    return _UNSEEN.sub(_escaped, _SEQUENCE.sub("", text))


def uncoloured(line: bytes) -> bytes:
    """Return the line without the escape sequences that colour it and move the cursor."""
    return _SEQUENCE_BYTES.sub(b"", line)


def line(text: str, size_max: int = 2_000) -> str:
    """Return the text as one `visible` line; cut it if it is longer than `size_max` characters."""
    if len(text) > size_max:
        text = f"{text[:size_max]}…"
    return visible(text).replace("\n", "\\n")


def plain_json(text: str) -> str:
    """Return equivalent JSON without unseen characters: they occur only in strings, where they are escaped."""
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def listed(words: Sequence[str], most: int = 8) -> str:
    """Return `a, b and 12 more`."""
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[: most - 1])} and {len(words) - most + 1:,} more"


def yaml_fault(error: Exception) -> str:
    """Return the problem of a YAML document in one line, after the number of its line if that is known."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem, context = getattr(error, "problem", None), getattr(error, "context", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}: {problem}{f' {context}' if context else ''}"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
