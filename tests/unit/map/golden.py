"""Generate one record of each type on the map from its declaration, and its bytes in each format.

`python -m tests.unit.map.golden` writes those of the newest format. Run it only when a format or a type is new.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from pathlib import Path
from typing import Any

import msgspec

from headgate.map.tree import render
from headgate.map.trees import trees
from headgate.recipes import codec
from headgate.recipes.codec import encode, unpack

FILE = Path(__file__).parent / "golden.json"
"""Format -> name of a type -> its bytes, as text."""
PLAIN: dict[Any, Any] = {str: "text", int: 7, float: 0.5, bool: True, bytes: b"bytes", Any: {"a": [1]}, object: "o"}


def records() -> dict[str, msgspec.Struct]:
    """Name of a type -> one instance with every field set."""
    return {kind.__name__: _sample(kind, 0) for kind in types_of_places() if not hasattr(kind, "to_wire")}


def types_of_places() -> set[Any]:
    """Return all types of records on the map."""
    places = [row.place for tree in trees() for row in render(tree.dir, tree.root) if row.place is not None]
    return {kind for place in places for kind in _members(place.type)}


def _members(form: Any) -> tuple[Any, ...]:
    return typing.get_args(form) if isinstance(form, types.UnionType) else (form,)


def _sample(of: Any, depth: int) -> Any:
    if of in PLAIN:
        return PLAIN[of]
    origin, args = typing.get_origin(of), typing.get_args(of)
    if origin is typing.Annotated:
        return _sample(args[0], depth)
    if origin is typing.Literal:
        return args[0]
    if isinstance(of, types.UnionType) or origin is typing.Union:
        return _sample(next(arg for arg in args if arg is not types.NoneType), depth)
    if origin in (tuple, list, set, frozenset):
        if origin is tuple and Ellipsis not in args:
            return tuple(_sample(arg, depth) for arg in args)
        return origin([] if depth > 3 else [_sample(args[0], depth)])
    if isinstance(origin, type) and issubclass(origin, typing.Mapping):
        return {} if depth > 3 else {_sample(args[0], depth): _sample(args[1], depth)}
    if isinstance(of, type) and issubclass(of, enum.Enum):
        return next(iter(of))
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        hints = typing.get_type_hints(of, include_extras=True)
        return of(**{name: _sample(hints[name], depth + 1) for name in of.__struct_fields__})
    raise TypeError(f"no sample of {of}")


def bytes_of(record: object, format: int) -> str:
    """Return the uncompressed bytes."""
    return unpack(encode(record, format)).decode()


if __name__ == "__main__":
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    of_newest = known.setdefault(str(codec.FORMAT), {})
    for name, record in sorted(records().items()):
        of_newest.setdefault(name, bytes_of(record, codec.FORMAT))
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
