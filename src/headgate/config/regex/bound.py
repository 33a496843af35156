"""Compute, from the form of a pattern, an upper bound for the steps of Python's engine.

The engine tries, one after another, the ways in which the parts of a pattern can match, so the number of ways bounds
its steps. A lookaround or an atomic group is tried by itself: its ways do not multiply those of the parts around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, NamedTuple

from headgate.config.regex import tree as t

MANY = 10**15
"""Largest count that is computed: more steps than anybody would wait for."""


class MatchCost(NamedTuple):
    ways: int
    """Number of ways in which the item can match at one position."""
    steps: int
    """Number of steps to try all ways."""


def steps_max(pattern: t.Tree, length: int) -> int:
    """Return an upper bound of the steps for a subject of `length` characters."""
    return _sequence(pattern, length).steps


def _sequence(items: Iterable[t.Item], length: int) -> MatchCost:
    return reduce(lambda so_far, item: _then(so_far, _item(item, length)), items, MatchCost(1, 1))


def _then(one: MatchCost, next: MatchCost) -> MatchCost:
    return MatchCost(min(MANY, one.ways * next.ways), min(MANY, one.steps + one.ways * next.steps))


def _item(item: t.Item, length: int) -> MatchCost:
    kind, arguments = item
    if kind is t.BRANCH:
        found = [_sequence(one, length) for one in arguments[1]]
        return MatchCost(min(MANY, sum(c.ways for c in found)), min(MANY, sum(c.steps for c in found) + len(found)))
    if kind is t.SUBPATTERN:
        return _sequence(arguments[3], length)
    if kind in t.REPEATS:
        return _repeat(arguments, length, atomic=kind is t.POSSESSIVE_REPEAT)
    if kind is t.ATOMIC_GROUP or kind in t.LOOKS:
        return MatchCost(1, _sequence(arguments if kind is t.ATOMIC_GROUP else arguments[1], length).steps)
    if kind is t.GROUPREF:
        # A reference is compared character by character.
        return MatchCost(1, length + 1)
    if kind is t.GROUPREF_EXISTS:
        found = [_sequence(one, length) for one in arguments[1:] if one is not None]
        return MatchCost(sum(c.ways for c in found) + 1, sum(c.steps for c in found) + 1)
    return MatchCost(1, len(arguments) if kind is t.IN else 1)


def _repeat(arguments: Any, length: int, *, atomic: bool) -> MatchCost:  # as parsed: (least, most, body)
    least, most, body = arguments
    each = _sequence(body, length)
    width = body.getwidth()[0]
    # Rounds that match something are limited by the length of the subject; the engine ends a loop after an empty one.
    rounds = max(int(least), min(int(most), length // max(1, width) + 1))
    # The body matches in one way, so only the number of rounds varies: `[ab]*` has length + 1 ways.
    if each.ways == 1:
        ways = rounds + 1
        steps = min(MANY, ways * (each.steps + 1))
    else:
        # Every round multiplies the ways: `(a|ab)*`. The powers themselves would take long to compute, hence the test
        # first.
        ways = sum(each.ways**n for n in range(rounds + 1)) if rounds * each.ways.bit_length() < 60 else MANY
        steps = min(MANY, ways * (each.steps + 1))
    return MatchCost(1 if atomic else min(MANY, ways), steps)
