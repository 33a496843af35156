"""Find the exact columns of errors in their files, and what a word in a file refers to, for editors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import yaml

from headgate.config.budgets import DEFAULTS
from headgate.config.definitions import Key
from headgate.config.files.document import composed
from headgate.config.files.source import Wrong
from headgate.config.model import ConfigError

_QUOTED = re.compile(r"'([^']+)'")
# Names contain `-`, `.` and `/`, so `\b` would also find a name inside a longer one.
_WORD = r"(?<![\w./-]){}(?![\w/-])"
_DEFINED = ("job", "nodeset", "secret", "project-template")
"""Kinds of stanzas for which `key_of` finds both definitions and uses."""


class Extent(NamedTuple):
    """Delimit text: from its first character up to the position after its last one. Lines and columns count characters
    from 1."""

    line: int
    column: int
    end_line: int
    end_column: int

    def holds(self, line: int, column: int) -> bool:
        return (self.line, self.column) <= (line, column) < (self.end_line, self.end_column)


class Spelled(NamedTuple):
    """Represent a scalar of a document and the keys on the way to it. An element of a list has the path of its list."""

    path: tuple[str, ...]
    text: str
    extent: Extent
    key: bool
    """Whether it is the key of a mapping, which is then the last element of `path`."""


@lru_cache(maxsize=64)
def spelled(text: str) -> tuple[Spelled, ...]:
    """Return all scalars in the order of the file, or nothing if the text is not YAML. The target of aliases appears
    once."""
    try:
        root = composed(text, DEFAULTS)
    except Wrong:
        return ()
    return tuple(_walk(root, (), set())) if root is not None else ()


def _walk(node: yaml.Node, path: tuple[str, ...], seen: set[int]) -> Iterator[Spelled]:
    # Visit a node only once: many aliases may refer to it, perhaps from inside itself.
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield Spelled(path, node.value, _extent(node), key=False)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _walk(child, path, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            # The key of a mapping may be a list: the text need not be valid configuration.
            inner = (*path, str(key.value))
            if isinstance(key, yaml.ScalarNode):
                yield Spelled(inner, key.value, _extent(key), key=True)
            yield from _walk(value, inner, seen)


def _extent(node: yaml.Node) -> Extent:
    start, end = node.start_mark, node.end_mark
    return Extent(start.line + 1, start.column + 1, end.line + 1, end.column + 1)


def extent(error: ConfigError, text: str) -> Extent:
    """Return the part of its line that the error is about: a word that the error quotes, or else a value of the line,
    or else the entire line.

    `text` is the text of the file. If it does not have that line, the extent is empty, at the beginning of the line.
    """
    lines = text.split("\n")
    if not 0 < error.line <= len(lines):
        return Extent(max(error.line, 1), 1, max(error.line, 1), 1)
    here = [one for one in spelled(text) if one.extent.line == error.line]
    for word in _QUOTED.findall(error.text):
        # Errors quote words with `repr`, which escapes special characters.
        if (found := next((one for one in here if word in (one.text, repr(one.text)[1:-1])), None)) is not None:
            return _within(found.extent, lines)
    start, end = in_line(lines[error.line - 1], error.text, {one.text for one in here})
    return Extent(error.line, start + 1, error.line, end + 1)


def in_line(line: str, text: str, values: Collection[str] = ()) -> tuple[int, int]:
    """Return the first column (from 0) and the one after the last of the word that `text` quotes or that equals one of
    the `values`; if the line has no such word, those of its content without surrounding spaces."""
    line = line.rstrip("\r")
    quoted = _QUOTED.findall(text)
    for word in (*quoted, *(word for word in text.split() if word in values)):
        if exact := re.search(_WORD.format(re.escape(word)), line):
            return exact.start(), exact.end()
    bare = line.lstrip()
    first = len(line) - len(bare)
    return first, first + max(1, len(bare.rstrip()))


def _within(found: Extent, lines: list[str]) -> Extent:
    """Return the extent, limited to its first line."""
    if found.end_line == found.line:
        return found
    return Extent(found.line, found.column, found.line, len(lines[found.line - 1].rstrip("\r")) + 1)


def word_at(text: str, line: int, column: int) -> Spelled | None:
    """Return the key or value at this place of a file (both from 1)."""
    return next((one for one in spelled(text) if one.extent.holds(line, column)), None)


def key_of(word: Spelled) -> Key | None:
    """Return the key that a word defines or refers to in a layout, or None if it does neither."""
    path, key = word.path, word.key
    match path:
        case (kind, "name") if kind in _DEFINED and not key:
            return (kind, word.text)
        case ("project" | "project-template", _, "jobs") if not key:
            return ("job", word.text)
        case ("project" | "project-template", _, "jobs", name) if key:
            return ("job", name)
        case ("project", "templates") if not key:
            return ("project-template", word.text)
    return None if key else _attribute(path, word.text)


def _attribute(path: Sequence[str], text: str) -> Key | None:
    """Return the key that an attribute of a job refers to, in a job stanza or in a project's section, or None."""
    match tuple(path[-2:]):
        # Sections of providers have parents, too, but these are sections.
        case (_, "parent") if path[0] == "job" and len(path) == 2:
            return ("job", text)
        case (_, "dependencies") | ("dependencies", "name"):
            return ("job", text)
        case (_, "nodeset" | "alternatives"):
            return ("nodeset", text)
        case (_, "secrets") | ("secrets", "secret" | "name"):
            return ("secret", text)
    return None
