"""Define a short notation for shapes of JSON, and compare answers with it.

`s` is a string, `i` a whole number, `n` a number, `b` true or false, `o` any mapping, `a` anything, `[x]` a list of x,
`{name x, …}` a mapping with these keys and any others, a capitalised word a named shape; then `?` means may be null,
`~` may be absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*|[][{}?~,])")
_PLAIN: dict[str, tuple[type, ...]] = {"s": (str,), "i": (int,), "n": (int, float), "b": (bool,), "o": (dict,)}


class Shape(NamedTuple):
    kind: str
    """A word, `list` or `mapping`."""
    inner: tuple[tuple[str, Shape], ...] = ()
    null: bool = False
    absent: bool = False


def shape(text: str) -> Shape:
    tokens, at = [], 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        assert found, f"{text[at:]!r} is no notation"
        tokens.append(found[1])
        at = found.end()
    made = _shape(tokens)
    assert not tokens, f"{tokens} is left of {text!r}"
    return made


def _shape(tokens: list[str]) -> Shape:
    word = tokens.pop(0)
    inner: list[tuple[str, Shape]] = []
    if word == "[":
        inner.append(("", _shape(tokens)))
        assert tokens.pop(0) == "]"
    while word == "{":
        inner.append((tokens.pop(0), _shape(tokens)))
        if tokens.pop(0) == "}":
            break
    marks = set()
    while tokens and tokens[0] in "?~":
        marks.add(tokens.pop(0))
    return Shape({"[": "list", "{": "mapping"}.get(word, word), tuple(inner), "?" in marks, "~" in marks)


def unlike(value: Any, wanted: Shape, named: Mapping[str, Shape], where: str = "") -> Iterator[str]:
    """Yield the deviations of the value from the shape, with their places."""
    if value is None:
        if not (wanted.null or wanted.kind == "a"):
            yield f"{where or 'it'} is null"
    elif wanted.kind == "a":
        return
    elif wanted.kind == "list":
        if not isinstance(value, list):
            yield f"{where or 'it'} is not a list: {value!r}"
            return
        for number, one in enumerate(value):
            yield from unlike(one, wanted.inner[0][1], named, f"{where}[{number}]")
    elif wanted.kind == "mapping":
        yield from _fields(value, wanted, named, where)
    elif wanted.kind in named:
        yield from unlike(value, named[wanted.kind], named, where)
    elif not isinstance(value, _PLAIN[wanted.kind]) or (isinstance(value, bool) and wanted.kind != "b"):
        yield f"{where or 'it'} is not {wanted.kind}: {value!r}"


def _fields(value: Any, wanted: Shape, named: Mapping[str, Shape], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where or 'it'} is not a mapping: {value!r}"
        return
    for name, inner in wanted.inner:
        if name in value:
            yield from unlike(value[name], inner, named, f"{where}.{name}" if where else name)
        elif not inner.absent:
            yield f"{where or 'it'} lacks {name}"
