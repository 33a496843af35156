"""Read YAML with the line of every key and value, and decrypt the encrypted strings in it."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import yaml

from headgate.base.errors import ConfigurationError
from headgate.base.hints import HintedText, expected
from headgate.config.budgets import DEFAULTS, Budgets, sized
from headgate.config.files.source import Wrong, unreadable

DEPTH_MAX = 200
"""Maximum depth of nesting, with aliases expanded."""
INTEGER_MAX = 2**63 - 1
DIGITS_MAX = 100
"""Maximum number of characters of a number."""
ENCRYPTED = "!encrypted/pkcs1-oaep"
CHUNKS_MAX = 1_000
"""Maximum number of pieces of one encrypted string."""
_YAML = "tag:yaml.org,2002:"
_TEXT = frozenset(_YAML + kind for kind in ("str", "timestamp", "value", "merge", "binary"))
"""Kinds of scalars whose text is the value."""
_NUMBERS = frozenset((_YAML + "int", _YAML + "float"))
_NESTS = frozenset((_YAML + "map", _YAML + "seq"))


@dataclass(frozen=True, slots=True)
class Tagged:
    """Hold a value with the tag `!override` or `!inherit`."""

    tag: str
    value: Any  # JSON


@dataclass(frozen=True, slots=True)
class Encrypted:
    """Hold a string with the tag `!encrypted/pkcs1-oaep`: base64 of one or more chunks."""

    chunks: tuple[str, ...]


class Table(dict[str, Any]):
    """Represent a mapping with its line and the line of each key. Values are JSON, Tables, Rows, Tagged and Encrypted.

    One Table may appear at several places of a document, so do not modify a Table after reading.
    """

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def at(self, key: str) -> int:
        """Return the line of a key, or that of the mapping if it has no such key."""
        return self.lines.get(key, self.line)


class Rows(list[Any]):
    """Hold a list with the line of each element."""

    __slots__ = ("line", "lines")

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


def row_lines(value: Any, line: int) -> list[int]:
    """Return the line of each element of a list, or `line` for a single value in place of a list."""
    return value.lines if isinstance(value, Rows) else [line]


def load(text: str, budgets: Budgets = DEFAULTS) -> Any:
    """Return the document as JSON with Tables and Rows, or None if it is empty. Raise Wrong."""
    node = composed(text, budgets)
    return None if node is None else _Reader().value(node)


def composed(text: str, budgets: Budgets) -> yaml.Node | None:
    """Return the root node of a document that is within the budgets, or None if it is empty. Raise Wrong."""
    if why := unreadable(text):
        raise Wrong(why, 1)
    # From here to the composer, each test is cheaper than the next one, and protects it from huge input.
    if (length_bytes := len(text.encode(errors="replace"))) > budgets.file_max_bytes:
        raise Wrong(f"this file has {sized(length_bytes)}; at most {sized(budgets.file_max_bytes)} are allowed", 1)
    _shallow(text, budgets.values_max)
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context = f" {error.context}" if error.context else ""
        # The parser may report an error after the last line.
        last = max(1, len(text.splitlines()))
        raise Wrong(f"this is not YAML: {error.problem}{context}", min(mark.line + 1, last) if mark else 1) from error
    except (yaml.YAMLError, UnicodeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Wrong(f"this is not YAML: {why}", 1) from error
    # Without anchors there are no aliases to expand, and `_shallow` already checked the text itself.
    if node is not None and "&" in text:
        _Extent(budgets).of(node)
    if node is not None and _DIGITS.search(text):
        _short_numbers(node)
    return node


_INDENT = re.compile(r"^[ \-?:]*", re.MULTILINE)
_SEPARATORS = (
    ",", "\n", "\r", "\x85", "\u2028", "\u2029", "[", "{", ": ", ":\t", "- ", "-\t", "? ", "?\t",
    '":', "':", "]:", "}:",
)  # fmt: skip
"""Texts that precede values: each value of a document follows one of them, or is an empty value between two of them."""


def _shallow(text: str, values_max: int) -> None:
    """Raise Wrong if the text is nested too deeply for the recursive composer, or has too many values."""
    brackets = text.count("[") + text.count("{")
    # Counting characters is far cheaper than parsing, and never underestimates. Nearly all files pass this test, and so
    # are parsed only once.
    deep = brackets + max((len(m.group()) for m in _INDENT.finditer(text)), default=0) >= DEPTH_MAX
    # Double the count, because there may also be an empty value between two separators.
    if not deep and 2 * sum(map(text.count, _SEPARATORS)) < values_max:
        return
    depth = values = 0
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
                continue
            values += isinstance(event, yaml.NodeEvent)
            depth += isinstance(event, yaml.CollectionStartEvent)
            if depth > DEPTH_MAX or values > values_max:
                line = event.start_mark.line + 1 if event.start_mark else 0
                raise Wrong(_too_deep() if depth > DEPTH_MAX else f"this contains more than {values_max} values", line)
    except (yaml.YAMLError, UnicodeError):
        return  # the composer finds the same error and reports it


def _too_deep() -> str:
    return f"this is nested more than {DEPTH_MAX} levels deep"


_DIGITS = re.compile(rf"[0-9a-fA-F_:.]{{{DIGITS_MAX}}}")


def _short_numbers(root: yaml.Node) -> None:
    """Raise Wrong if a number is too long to be converted quickly."""
    seen, waiting = {id(root)}, [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and len(node.value) > DIGITS_MAX:
            raise Wrong(f"the number {node.value[:20]}… is too long; write it as a string, in quotes", _line(node))
        fresh = [child for child in _children(node) if id(child) not in seen]
        seen.update(map(id, fresh))
        waiting += fresh


class _Extent:
    """Measure a document with its aliases expanded: values, characters and levels."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._known: dict[int, tuple[int, int, int]] = {}
        self._inside: set[int] = set()

    def of(self, node: yaml.Node) -> tuple[int, int, int]:
        """Return the numbers of values, characters and levels of a node. Raise Wrong if it contains itself or is too
        large."""
        # Measure each node once, and add its size for each use: ten lines of nested aliases can expand to billions of
        # values.
        known = self._known.get(id(node))
        if known is not None:
            return known
        if id(node) in self._inside:
            raise Wrong("this contains itself, through an alias", _line(node))
        self._inside.add(id(node))
        values, characters, levels = 1, 0, 0
        for child in _children(node):
            more = self.of(child)
            values, characters, levels = values + more[0], characters + more[1], max(levels, more[2] + 1)
        if isinstance(node, yaml.ScalarNode):
            characters = len(node.value)
        self._inside.discard(id(node))
        budgets, how = self._budgets, "with aliases expanded, this"
        if values > budgets.values_max:
            raise Wrong(f"{how} contains more than {budgets.values_max} values", _line(node))
        if characters > budgets.written_max_bytes:
            raise Wrong(f"{how} has more than {sized(budgets.written_max_bytes)}", _line(node))
        if levels > DEPTH_MAX:
            raise Wrong(f"{how} is nested more than {DEPTH_MAX} levels deep", _line(node))
        self._known[id(node)] = values, characters, levels
        return values, characters, levels


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Turn nodes into values; a node that appears in several places is read once."""

    def __init__(self) -> None:
        self._scalars = yaml.constructor.SafeConstructor()
        self._known: dict[int, Any] = {}

    def value(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag == _YAML + "str":
            return node.value
        # Use `self` to mean "not read yet", because None is a valid value.
        known = self._known.get(id(node), self)
        if known is self:
            known = self._known[id(node)] = self._read(node)
        return known

    def _read(self, node: yaml.Node) -> Any:
        tag = node.tag
        if tag in ("!override", "!inherit"):
            return Tagged(tag[1:], self._content(node))
        if tag == ENCRYPTED:
            return self._encrypted(node)
        # The slash excludes tags such as `!!python/...`.
        if tag.startswith("!") or not tag.startswith(_YAML) or "/" in tag:
            raise Wrong(HintedText(f"unknown tag {tag}", expected(("!override", "!inherit", ENCRYPTED))), _line(node))
        return self._content(node)

    def _content(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode) and node.tag.startswith(_YAML) and node.tag not in _NESTS:
            raise Wrong(f"unknown tag {node.tag}", _line(node))
        if isinstance(node, yaml.MappingNode):
            return self._table(node)
        if isinstance(node, yaml.SequenceNode):
            rows = Rows(_line(node))
            for child in node.value:
                rows.append(self.value(child))
                rows.lines.append(_line(child))
            return rows
        return node.value if node.tag.startswith("!") else self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        if node.tag in _TEXT:
            return node.value
        assert isinstance(node, yaml.ScalarNode), "mappings and sequences are read elsewhere"
        read = {
            _YAML + "int": self._scalars.construct_yaml_int,
            _YAML + "float": self._scalars.construct_yaml_float,
            _YAML + "bool": self._scalars.construct_yaml_bool,
            _YAML + "null": self._scalars.construct_yaml_null,
        }.get(node.tag)
        if read is None:
            raise Wrong(f"unknown tag {node.tag}", _line(node))
        try:
            value = read(node)
        except (yaml.YAMLError, ValueError, KeyError, IndexError, OverflowError) as error:
            raise Wrong(f"{node.value[:80]!r} cannot be read as {node.tag.removeprefix(_YAML)}", _line(node)) from error
        if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX:
            raise Wrong(f"the number {node.value[:80]} is too large; write it as a string, in quotes", _line(node))
        return value

    def _encrypted(self, node: yaml.Node) -> Encrypted:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if isinstance(node, yaml.MappingNode) or not all(isinstance(n, yaml.ScalarNode) for n in nodes):
            raise Wrong(f"{ENCRYPTED} must precede a string or a list of strings", _line(node))
        return Encrypted(tuple("".join(n.value.split()) for n in nodes))

    def _table(self, node: yaml.MappingNode) -> Table:
        own, merged = Table(_line(node)), list[Any]()
        for key_node, value_node in node.value:
            if key_node.tag == _YAML + "merge":
                found = self.value(value_node)
                merged += found if isinstance(found, list) else [found]
                continue
            key = self._key(key_node)
            # PyYAML would silently use the last one.
            if key in own:
                raise Wrong(f"the key {key!r} occurs twice", _line(key_node))
            own[key] = self.value(value_node)
            own.lines[key] = _line(key_node)
        return self._merged(own, merged) if merged else own

    def _merged(self, own: Table, others: list[Any]) -> Table:
        """Add merged keys that the mapping itself does not have. If several merged mappings have a key, the first one
        takes precedence."""
        table = Table(own.line)
        for other in reversed(others):
            if not isinstance(other, Table):
                raise Wrong("the value of << must be a mapping, or a list of mappings", own.line)
            table.update(other)
            table.lines.update(other.lines)
        table.update(own)
        table.lines.update(own.lines)
        return table

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise Wrong("a key must be a string", _line(node))
        value = self.value(node)
        if isinstance(value, Tagged | Encrypted):
            raise Wrong("a key cannot have a tag", _line(node))
        # In YAML 1.1, the keys `on` and `yes` are booleans.
        if isinstance(value, bool):
            return "true" if value else "false"
        return "null" if value is None else str(value)


class SecretClosed(ConfigurationError):
    """Report why a secret cannot be decrypted."""


class SecretOpener(Protocol):
    """Decrypt with the projects' private keys (RSA; PKCS#1 OAEP with SHA-1 and MGF1-SHA-1)."""

    def open(self, project: str, chunks: Sequence[bytes]) -> str:
        """Return the text of `chunks`, which were encrypted with the public key of `project` (canonical name). Raise
        SecretClosed."""
        ...


def chunks_of(encrypted: Encrypted) -> list[bytes]:
    """Return the encrypted pieces. Raise SecretClosed."""
    return _decoded(encrypted.chunks)


def _decoded(chunks: Sequence[str]) -> list[bytes]:
    # Limit the pieces, because each costs an operation with the private key.
    if not 0 < len(chunks) <= CHUNKS_MAX:
        raise SecretClosed(f"an encrypted value must have 1 to {CHUNKS_MAX} pieces")
    try:
        return [b64decode(chunk, validate=True) for chunk in chunks]
    except (binascii.Error, ValueError) as error:
        raise SecretClosed(f"the encrypted value is not base64: {error}") from error


def revealed(data: Any, project: str, opener: SecretOpener) -> Any:
    """Return `data` of a `model.PlaybookSecret` as JSON with all encrypted strings decrypted. Raise SecretClosed."""
    if isinstance(data, dict):
        if set(data) == {ENCRYPTED} and isinstance(data[ENCRYPTED], list):
            return opener.open(project, _decoded(data[ENCRYPTED]))
        return {key: revealed(value, project, opener) for key, value in data.items()}
    if isinstance(data, list):
        return [revealed(value, project, opener) for value in data]
    return data
