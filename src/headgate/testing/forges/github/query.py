"""Read the part of GraphQL that clients of the stand-in use: queries, variables, aliases, fragments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(r'[\s,]+|#[^\n]*|(\.\.\.|[{}()\[\]:!$=@|&]|"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?|[_A-Za-z]\w*)')
DEPTH_MAX = 30

Node = dict[str, Any]
"""`__typename` and fields: a value, a node, a list of nodes, or a function of the arguments."""


class BadQuery(Exception):
    """Report a query that GitHub answers with errors."""


@dataclass(slots=True)
class Field:
    name: str
    alias: str
    arguments: dict[str, Any]
    selected: Selection


@dataclass(slots=True)
class Spread:
    """Represent `... on Type { }`, or the fragment of that name."""

    on: str
    selected: Selection


Selection = list["Field | Spread"]


@dataclass(frozen=True, slots=True)
class Variable:
    name: str


@dataclass(slots=True)
class Document:
    kind: str = "query"
    defaults: dict[str, Any] = field(default_factory=dict)
    selected: Selection = field(default_factory=list)
    fragments: dict[str, Spread] = field(default_factory=dict)


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise BadQuery(f"Parse error on {text[at : at + 10]!r}")
            # Blanks and comments match outside the group.
            if found[1]:
                self._tokens.append(found[1])
            at = found.end()
        self._at = 0
        self.document = Document()

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self, wanted: str = "") -> str:
        found = self._peek()
        if not found or (wanted and found != wanted):
            raise BadQuery(f"Parse error on {found!r}: expected {wanted or 'more'!r}")
        self._at += 1
        return found

    def read(self) -> Document:
        while word := self._peek():
            if word == "fragment":
                self._next()
                name = self._next()
                self._next("on")
                self.document.fragments[name] = Spread(self._next(), self._selection(0))
                continue
            if word in ("query", "mutation"):
                self.document.kind = self._next()
                # Queries may have a name, which is ignored.
                if self._peek() not in ("{", "("):
                    self._next()
                if self._peek() == "(":
                    self._variables()
            self.document.selected = self._selection(0)
        return self.document

    def _variables(self) -> None:
        self._next("(")
        while self._peek() != ")":
            self._next("$")
            name = self._next()
            self._next(":")
            # Types are not checked.
            while self._peek() in ("[", "]", "!") or (self._peek().isidentifier()):
                self._next()
            if self._peek() == "=":
                self._next()
                self.document.defaults[name] = self._value()
        self._next(")")

    def _selection(self, depth: int) -> Selection:
        if depth > DEPTH_MAX:
            raise BadQuery("Query has too much depth")
        found: Selection = []
        self._next("{")
        while self._peek() != "}":
            if self._peek() == "...":
                self._next()
                if self._peek() == "on":
                    self._next()
                    found.append(Spread(self._next(), self._selection(depth + 1)))
                else:
                    found.append(Spread(self._next(), []))
                continue
            found.append(self._field(depth))
        self._next("}")
        return found

    def _field(self, depth: int) -> Field:
        alias = name = self._next()
        if self._peek() == ":":
            self._next()
            name = self._next()
        arguments: dict[str, Any] = {}
        if self._peek() == "(":
            self._next()
            while self._peek() != ")":
                key = self._next()
                self._next(":")
                arguments[key] = self._value()
            self._next()
        return Field(name, alias, arguments, self._selection(depth + 1) if self._peek() == "{" else [])

    def _value(self) -> Any:
        word = self._next()
        if word == "$":
            return Variable(self._next())
        if word.startswith('"'):
            return word[1:-1].encode().decode("unicode_escape")
        if word == "[":
            found = []
            while self._peek() != "]":
                found.append(self._value())
            self._next()
            return found
        if word == "{":
            fields = {}
            while self._peek() != "}":
                key = self._next()
                self._next(":")
                fields[key] = self._value()
            self._next()
            return fields
        if re.fullmatch(r"-?\d+", word):
            return int(word)
        # Any other word is the value of an enumeration.
        return {"true": True, "false": False, "null": None}.get(word, word)


def read(text: str) -> Document:
    """Return the parsed query. Raise BadQuery."""
    return _Reader(text).read()


def run(document: Document, root: Node, variables: Mapping[str, Any]) -> Node:
    """Return the part of a root that a document selects. Raise BadQuery."""
    return _select(root, document.selected, document, {**document.defaults, **variables})


def _select(node: Node, selected: Selection, document: Document, variables: Mapping[str, Any]) -> Node:
    found: Node = {}
    for one in selected:
        if isinstance(one, Spread):
            # A spread without a selection names a fragment, which may be defined after its use.
            fragment = one if one.selected else document.fragments[one.on]
            if fragment.on in (node["__typename"], *node.get("__interfaces", ())):
                found |= _select(node, fragment.selected, document, variables)
            continue
        if one.name not in node:
            raise BadQuery(f"Field '{one.name}' doesn't exist on type '{node['__typename']}'")
        value = node[one.name]
        if isinstance(value, Callable):  # type: ignore[arg-type] # the type checker knows it as a special form
            value = value(**{k: _filled(v, variables) for k, v in one.arguments.items()})
        found[one.alias] = _shown(value, one, document, variables)
    return found


def _shown(value: Any, one: Field, document: Document, variables: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_shown(each, one, document, variables) for each in value]
    if isinstance(value, dict):
        if not one.selected:
            raise BadQuery(f"Field must have selections (field '{one.name}' returns {value['__typename']})")
        return _select(value, one.selected, document, variables)
    return value


def _filled(value: Any, variables: Mapping[str, Any]) -> Any:
    if isinstance(value, Variable):
        return variables.get(value.name)
    if isinstance(value, list):
        return [_filled(one, variables) for one in value]
    if isinstance(value, dict):
        return {key: _filled(one, variables) for key, one in value.items()}
    return value


def connection(kind: str, found: list[Node]) -> Callable[..., Node]:
    """Return the resolver of a list that is read in pages."""

    def page(first: int | None = None, last: int | None = None, after: str | None = None, **_: Any) -> Node:
        # GitHub demands exactly one of them, and a limit of 100: a query that omits it would pass here and fail there.
        if (first is None) == (last is None):
            raise BadQuery(f"You must provide a `first` or `last` value to properly paginate the `{kind}` connection.")
        if max(first or 0, last or 0) > 100:
            raise BadQuery(f"Requesting {first or last} records on the `{kind}` connection exceeds the `first` limit")
        begin = int(after) if after else 0
        # The last page counts from the end, whatever the cursor.
        if last is not None:
            begin, stop = max(0, len(found) - last), len(found)
        else:
            stop = min(len(found), begin + (first or 0))
        info = {
            "__typename": "PageInfo",
            "hasNextPage": stop < len(found),
            "hasPreviousPage": begin > 0,
            "endCursor": str(stop),
            "startCursor": str(begin),
        }
        return {"__typename": kind, "totalCount": len(found), "nodes": found[begin:stop], "pageInfo": info}

    return page
