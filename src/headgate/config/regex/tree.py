"""Parse patterns with Python's own parser, so that they mean exactly what they mean to Python's engine."""

from __future__ import annotations

import re
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # not in typeshed; the parser of the engine
from typing import Any

Item = tuple[Any, Any]
"""(kind, arguments), as the parser makes them."""
Tree = Any
"""A sequence of items that knows its width."""

BRANCH = _constants.BRANCH
SUBPATTERN = _constants.SUBPATTERN
POSSESSIVE_REPEAT = _constants.POSSESSIVE_REPEAT
MIN_REPEAT = _constants.MIN_REPEAT
REPEATS = frozenset((_constants.MAX_REPEAT, MIN_REPEAT, POSSESSIVE_REPEAT))
ATOMIC_GROUP = _constants.ATOMIC_GROUP
ASSERT_NOT = _constants.ASSERT_NOT
LOOKS = frozenset((_constants.ASSERT, ASSERT_NOT))
GROUPREF = _constants.GROUPREF
GROUPREF_EXISTS = _constants.GROUPREF_EXISTS
IN = _constants.IN
PLAIN = frozenset((_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, IN, _constants.AT))
"""Kinds that match in at most one way."""
MANY_ROUNDS = int(_constants.MAXREPEAT)
"""Number of rounds that stands for an unlimited repetition."""
TYPES = int(_parser.TYPE_FLAGS)


def parsed(pattern: str) -> Tree:
    """Parse a pattern. Raise re.error, RecursionError or OverflowError."""
    return _parser.parse(pattern)


def engine(items: list[Item], flags: int) -> Any:
    """Compile a sequence of plain items."""
    state = _parser.State()
    state.flags = flags
    return _compiler.compile(_parser.SubPattern(state, items))


def inside(item: Item) -> list[Tree]:
    """Return the sequences that an item holds."""
    kind, arguments = item
    if kind is BRANCH:
        return list(arguments[1])
    if kind is SUBPATTERN:
        return [arguments[3]]
    if kind in REPEATS:
        return [arguments[2]]
    if kind in LOOKS:
        return [arguments[1]]
    if kind is GROUPREF_EXISTS:
        return [one for one in arguments[1:] if one is not None]
    return [arguments] if kind is ATOMIC_GROUP else []


def range_lengths(items: Tree) -> int:
    """Return the number of characters in all ranges together; the engine's compiler visits each of them."""
    own = [part[1] for item in items if item[0] is IN for part in item[1] if part[0] is _constants.RANGE]
    return sum(int(last - first) + 1 for first, last in own) + sum(
        range_lengths(inner) for item in items for inner in inside(item)
    )


def same(one: str, other: str, flags: int) -> bool:
    """Return whether two characters are equal under these flags."""
    if one == other or not flags & re.IGNORECASE:
        return one == other
    # The engine itself is asked: it has pairs of its own, such as `k` and the Kelvin sign.
    return re.match(re.escape(one), other, flags & ~re.VERBOSE) is not None
