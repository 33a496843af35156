"""YAML whose every key and value knows where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import yaml

from headgate.config.model import ConfigError

CONTEXT_LINES = 3
"""Lines shown above and below the one an error is about."""
KNOWN_MAX = 60
"""More names are not listed, and compared only when they begin alike."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a piece of configuration comes from."""

    project: str
    connection: str
    branch: str
    path: str
    trusted: bool
    text: str

    def error(self, name: str, text: str, line: int = 0, severity: str = "error") -> ConfigError:
        return ConfigError(
            name=name,
            text=text,
            project=self.project,
            branch=self.branch,
            path=self.path,
            line=line,
            snippet=snippet(self.text, line),
            severity=severity,
        )


def snippet(text: str, line: int) -> str:
    """A few lines around `line` (1-based), marked; empty when there is no line."""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ""
    first, last = max(1, line - CONTEXT_LINES), min(len(lines), line + CONTEXT_LINES)
    width = len(str(last))
    return "\n".join(f"{'>' if n == line else ' '} {n:{width}} | {lines[n - 1]}" for n in range(first, last + 1))


class Wrong(Exception):
    """One thing wrong, at one line; becomes a ConfigError where the source is known."""

    def __init__(self, text: str, line: int, name: str = "Syntax Error") -> None:
        super().__init__(text)
        self.text, self.line, self.name = text, line, name


@dataclass(frozen=True, slots=True)
class Tagged:
    """A value under `!override` or `!inherit`."""

    tag: str
    value: Any  # JSON


class Table(dict[str, Any]):
    """A mapping that knows its line and the line of each key.  Values are JSON, Tables and Tagged."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def at(self, key: str) -> int:
        return self.lines.get(key, self.line)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def load(text: str) -> Any:
    """The document as JSON with Tables; None when empty.  Raises Wrong."""
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context = f" {error.context}" if error.context else ""
        raise Wrong(f"this is not YAML: {error.problem}{context}", mark.line + 1 if mark else 0) from error
    except yaml.YAMLError as error:
        raise Wrong(f"this is not YAML: {error}", 0) from error
    return None if node is None else _value(node)


_PLAIN = yaml.SafeLoader("")


def _value(node: yaml.Node) -> Any:
    if node.tag in ("!override", "!inherit"):
        tag, node.tag = node.tag[1:], _untagged(node)
        return Tagged(tag, _value(node))
    if isinstance(node, yaml.MappingNode):
        return _table(node)
    if isinstance(node, yaml.SequenceNode):
        return [_value(child) for child in node.value]
    if node.tag.startswith("!"):
        if node.tag == "!encrypted/pkcs1-oaep":
            return Tagged(node.tag[1:], node.value)
        raise Wrong(
            f"the tag {node.tag} is not known; there are !override, !inherit and !encrypted/pkcs1-oaep", _line(node)
        )
    try:
        value = yaml.SafeLoader.construct_object(_PLAIN, node, deep=True)
    except yaml.YAMLError as error:
        raise Wrong(f"cannot be read: {error}", _line(node)) from error
    return value if isinstance(value, str | int | float | bool | None) else str(node.value)


def _untagged(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "tag:yaml.org,2002:map"
    if isinstance(node, yaml.SequenceNode):
        return "tag:yaml.org,2002:seq"
    return "tag:yaml.org,2002:str"


def _table(node: yaml.MappingNode) -> Table:
    table = Table(_line(node))
    merged: list[Table] = []
    for key_node, value_node in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            found = _value(value_node)
            merged += found if isinstance(found, list) else [found]
            continue
        key = str(key_node.value)
        if key in table:
            raise Wrong(f"the key {key!r} is given twice", _line(key_node), "Duplicate Key")
        table[key] = _value(value_node)
        table.lines[key] = _line(key_node)
    for other in merged:
        for key, value in other.items():
            if key not in table:
                table[key] = value
                table.lines[key] = other.at(key)
    return table


def nearest(word: str, known: list[str]) -> str:
    """`; did you mean X?`, or what there is, or how much."""
    likely = known
    if len(known) > KNOWN_MAX:
        likely = [k for k in known if k[:1] == word[:1] and abs(len(k) - len(word)) <= 3]
    close = get_close_matches(word, likely, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(sorted(known))}" if len(known) <= KNOWN_MAX else f"; there are {len(known)} others"
