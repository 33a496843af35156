"""Match patterns that RE2 lacks, exactly as Python's engine does, in bounded time.

Python's engine tries, one after another, the ways in which the parts of a pattern can match, so the number of ways
bounds its steps: see `steps_max`. A lookaround or an atomic group is matched separately, so its ways do not multiply
those of the parts around it.

`Walk` matches if that bound is too high. It visits each pair of a position in the pattern and a position in the subject
once. With references to groups, it visits a pair once for each content of the groups, within a limit of steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # not in typeshed; the parser of the engine
from typing import Any, NamedTuple

from headgate.base.errors import ConfigurationError

Item = tuple[Any, Any]
"""(kind, arguments), as Python's parser returns them."""
Tree = Any
"""A sequence of items that knows its width."""
Groups = tuple[tuple[int, int] | None, ...]
"""Start and end of each group's match; empty if the pattern has no references."""

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
"""Number of rounds that means an unlimited repetition."""
TYPES = int(_parser.TYPE_FLAGS)
MANY = 10**15
"""Cap for computed counts: far more steps than are allowed."""
_END, _LEAF, _SPLIT, _OPEN, _CLOSE, _LOOP = "end", "leaf", "split", "open", "close", "loop"


def parsed(pattern: str) -> Tree:
    """Parse a pattern. Raise re.error, RecursionError or OverflowError."""
    return _parser.parse(pattern)


def compiled_plain(items: list[Item], flags: int) -> Any:
    """Compile a sequence of plain items."""
    state = _parser.State()
    state.flags = flags
    return _compiler.compile(_parser.SubPattern(state, items))


def inside(item: Item) -> list[Tree]:
    """Return the sequences inside an item."""
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
    """Return the total number of characters in all ranges; the engine's compiler visits each of them."""
    own = [part[1] for item in items if item[0] is IN for part in item[1] if part[0] is _constants.RANGE]
    return sum(int(last - first) + 1 for first, last in own) + sum(
        range_lengths(inner) for item in items for inner in inside(item)
    )


def same(one: str, other: str, flags: int) -> bool:
    """Return whether two characters are equal under these flags."""
    if one == other or not flags & re.IGNORECASE:
        return one == other
    # Let the engine decide: it knows special pairs, such as `k` and the Kelvin sign.
    return re.match(re.escape(one), other, flags & ~re.VERBOSE) is not None


class MatchCost(NamedTuple):
    """Bound the cost of matching an item."""

    ways: int
    """Number of ways in which the item can match at one position."""
    steps: int
    """Number of steps to try all ways."""


def steps_max(pattern: Tree, length: int) -> int:
    """Return an upper bound of the steps for a subject of `length` characters."""
    return _sequence(pattern, length).steps


def _sequence(items: Iterable[Item], length: int) -> MatchCost:
    return reduce(lambda so_far, item: _then(so_far, _item(item, length)), items, MatchCost(1, 1))


def _then(one: MatchCost, next: MatchCost) -> MatchCost:
    return MatchCost(min(MANY, one.ways * next.ways), min(MANY, one.steps + one.ways * next.steps))


def _item(item: Item, length: int) -> MatchCost:
    kind, arguments = item
    if kind is BRANCH:
        found = [_sequence(one, length) for one in arguments[1]]
        return MatchCost(min(MANY, sum(c.ways for c in found)), min(MANY, sum(c.steps for c in found) + len(found)))
    if kind is SUBPATTERN:
        return _sequence(arguments[3], length)
    if kind in REPEATS:
        return _repeat(arguments, length, atomic=kind is POSSESSIVE_REPEAT)
    if kind is ATOMIC_GROUP or kind in LOOKS:
        return MatchCost(1, _sequence(arguments if kind is ATOMIC_GROUP else arguments[1], length).steps)
    if kind is GROUPREF:
        # A reference is compared character by character.
        return MatchCost(1, length + 1)
    if kind is GROUPREF_EXISTS:
        found = [_sequence(one, length) for one in arguments[1:] if one is not None]
        return MatchCost(sum(c.ways for c in found) + 1, sum(c.steps for c in found) + 1)
    return MatchCost(1, len(arguments) if kind is IN else 1)


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
        # Every round multiplies the ways: `(a|ab)*`. Test the size first, because huge powers are slow to compute.
        ways = sum(each.ways**n for n in range(rounds + 1)) if rounds * each.ways.bit_length() < 60 else MANY
        steps = min(MANY, ways * (each.steps + 1))
    return MatchCost(1 if atomic else min(MANY, ways), steps)


class Exhausted(ConfigurationError):
    """Report that matching took more steps than are allowed."""


class _Node:
    """Represent a position in the pattern; `next` is the position after it."""

    __slots__ = ("data", "kind", "next")

    def __init__(self, kind: Any, data: Any, next: _Node | None) -> None:  # as the parser makes them
        self.kind, self.data, self.next = kind, data, next


class _Loop:
    """Represent a repetition in its round number `count`."""

    __slots__ = ("again", "body", "count", "flags", "greedy", "idles", "last", "least", "most")

    def __init__(
        self,
        body: Tree,
        flags: int,
        least: int,
        most: int,
        *,
        greedy: bool,
        idles: bool,
        count: int = 0,
        last: int = -1,
    ) -> None:
        """Begin the loop. `idles` means that a round may match nothing, and that the order of alternatives
        matters."""
        self.body, self.flags, self.least, self.most = body, flags, least, most
        self.greedy, self.count, self.last = greedy, count, last
        self.idles = idles
        self.again: dict[int, _Node] = {}
        """Position in the subject (or -1) -> compiled body of the next round."""

    @property
    def endless(self) -> bool:
        return self.most >= MANY_ROUNDS

    def following(self, at: int) -> _Loop:
        count = min(self.count + 1, self.least) if self.endless else self.count + 1
        return _Loop(
            self.body,
            self.flags,
            self.least,
            self.most,
            greedy=self.greedy,
            idles=self.idles,
            count=count,
            last=at if self.idles else -1,
        )


class Walk:
    """Match one pattern against one subject."""

    def __init__(self, pattern: Tree, subject: str, *, steps_max: int) -> None:
        self._pattern, self._subject, self._left = pattern, subject, steps_max
        self._leaves: dict[tuple[int, int, int], Any] = {}
        self._refers = pattern.state.groups > 1 and _holds(pattern, (GROUPREF, GROUPREF_EXISTS))
        self._ordered = self._refers or _holds(pattern, (ATOMIC_GROUP, POSSESSIVE_REPEAT))
        """Whether the order in which alternatives are tried affects the result."""

    def matches(self, *, full: bool) -> bool:
        """Return whether the pattern matches at the start and, with `full`, to the end. Raise Exhausted."""
        try:
            start = self._compiled(self._pattern, self._pattern.state.flags, _Node(_END, full, None))
            groups: Groups = (None,) * self._pattern.state.groups if self._refers else ()
            return self._run(start, 0, groups) is not None
        # A pattern that is nested too deeply counts as one that takes too long.
        except RecursionError as error:
            raise Exhausted from error

    # --- from the parser's tree to nodes, last to first

    def _compiled(self, items: Tree, flags: int, next: _Node) -> _Node:
        found, plain = next, list[Item]()
        for item in reversed(list(items)):
            self._spend()
            if item[0] in PLAIN:
                plain.insert(0, item)
                continue
            found = self._node(item, flags, self._leaf(plain, flags, found))
            plain = []
        return self._leaf(plain, flags, found)

    def _leaf(self, items: list[Item], flags: int, next: _Node) -> _Node:
        if not items:
            return next
        key = (id(items[0]), len(items), flags)
        # The bodies of loops are compiled in each round from the same items, so cache them.
        engine = self._leaves.get(key)
        if engine is None:
            engine = self._leaves[key] = compiled_plain(items, flags)
        return _Node(_LEAF, engine.match, next)

    def _node(self, item: Item, flags: int, next: _Node) -> _Node:
        kind, arguments = item
        if kind is BRANCH:
            return _Node(_SPLIT, [self._compiled(one, flags, next) for one in arguments[1]], None)
        if kind is SUBPATTERN:
            group, more, less, body = arguments
            inner = ((flags & ~TYPES if more & TYPES else flags) | more) & ~less
            if group is None or not self._refers:
                return self._compiled(body, inner, next)
            return _Node(_OPEN, group, self._compiled(body, inner, _Node(_CLOSE, group, next)))
        if kind in REPEATS:
            least, most, body = arguments
            greedy = kind is not MIN_REPEAT
            # If the order of alternatives cannot affect the result, rounds that match nothing need no state: `seen` in
            # `_run` ends them.
            loop = _Loop(body, flags, least, most, greedy=greedy, idles=self._ordered and body.getwidth()[0] == 0)
            if kind is POSSESSIVE_REPEAT:
                return _Node(ATOMIC_GROUP, _Node(_LOOP, loop, _Node(_END, False, None)), next)
            return _Node(_LOOP, loop, next)
        if kind is ATOMIC_GROUP:
            return _Node(kind, self._compiled(arguments, flags, _Node(_END, False, None)), next)
        if kind in LOOKS:
            direction, body = arguments
            back = body.getwidth()[0] if direction < 0 else 0
            return _Node(kind, (self._compiled(body, flags, _Node(_END, False, None)), back), next)
        if kind is GROUPREF_EXISTS:
            group, yes, no = arguments
            otherwise = next if no is None else self._compiled(no, flags, next)
            return _Node(kind, (group, self._compiled(yes, flags, next), otherwise), None)
        return _Node(kind, (arguments, flags), next)

    # --- walking

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Exhausted

    def _run(self, start: _Node, at: int, groups: Groups) -> tuple[int, Groups] | None:
        """Return the end and the groups of the first successful match, or None if there is none."""
        waiting, seen = [(start, at, groups)], set[tuple[_Node, int, Groups]]()
        while waiting:
            state = waiting.pop()
            # The rest of the walk depends only on the state, so skip a state that was visited before.
            if state in seen:
                continue
            seen.add(state)
            self._spend()
            node, at, groups = state
            if node.kind is not _END:
                # This is a stack, so push the alternative that the engine tries first last.
                waiting += reversed(self._steps(node, at, groups))
            elif not node.data or at == len(self._subject):
                return at, groups
        return None

    def _steps(self, node: _Node, at: int, groups: Groups) -> Sequence[tuple[_Node, int, Groups]]:
        """Return the next states, in the order in which to try them."""
        kind, data, next = node.kind, node.data, node.next
        if kind is _LEAF:
            found = data(self._subject, at)
            return [] if found is None or next is None else [(next, found.end(), groups)]
        if kind is _SPLIT:
            return [(one, at, groups) for one in data]
        if kind is _LOOP:
            return self._round(node, at, groups)
        if kind is GROUPREF_EXISTS:
            group, yes, no = data
            held = groups[group]
            return [(yes if held is not None and held[1] >= 0 else no, at, groups)]
        assert next is not None, "all others have something after them"
        if kind is _OPEN:
            # The end -1 marks an open group: a reference to it cannot match yet.
            return [(next, at, (*groups[:data], (at, -1), *groups[data + 1 :]))]
        if kind is _CLOSE:
            held = groups[data]
            begun = held[0] if held is not None else at
            return [(next, at, (*groups[:data], (begun, at), *groups[data + 1 :]))]
        if kind is ATOMIC_GROUP:
            inside = self._run(data, at, groups)
            return [] if inside is None else [(next, *inside)]
        if kind in LOOKS:
            return self._looked(node, next, at, groups)
        if kind is GROUPREF:
            return self._referred(data, next, at, groups)
        return []  # an item that never matches

    def _round(self, node: _Node, at: int, groups: Groups) -> Sequence[tuple[_Node, int, Groups]]:
        loop: _Loop = node.data
        assert node.next is not None, "a loop has an end"
        out = (node.next, at, groups)
        # As in Python's engine, a round that matched nothing is the last; otherwise `(a*)*` would never end.
        if loop.count >= loop.most or (loop.count >= loop.least and loop.last == at):
            return [out]
        key = at if loop.idles else -1
        body = loop.again.get(key)
        if body is None:
            # After the minimum number of rounds, all rounds of an endless loop are equivalent and can share one node.
            settled = loop.endless and loop.count >= loop.least and not loop.idles
            back = node if settled else _Node(_LOOP, loop.following(at), node.next)
            body = loop.again[key] = self._compiled(loop.body, loop.flags, back)
        again = (body, at, groups)
        if loop.count < loop.least:
            return [again]
        return [again, out] if loop.greedy else [out, again]

    def _looked(self, node: _Node, next: _Node, at: int, groups: Groups) -> Sequence[tuple[_Node, int, Groups]]:
        body, back = node.data
        # Python allows only lookbehinds of a fixed width, so there is only one start position.
        inside = self._run(body, at - back, groups) if at >= back else None
        if node.kind is ASSERT_NOT:
            return [(next, at, groups)] if inside is None else []
        return [] if inside is None else [(next, at, inside[1])]

    def _referred(
        self, arguments: tuple[int, int], next: _Node, at: int, groups: Groups
    ) -> Sequence[tuple[_Node, int, Groups]]:
        group, flags = arguments
        held = groups[group]
        if held is None or held[1] < 0:
            return []
        text = self._subject[held[0] : held[1]]
        for n, character in enumerate(text):
            self._spend()
            if at + n >= len(self._subject) or not same(character, self._subject[at + n], flags):
                return []
        return [(next, at + len(text), groups)]


def _holds(items: Tree, kinds: Sequence[Any]) -> bool:
    """Return whether the pattern contains an item of one of these kinds, at any depth."""
    return any(item[0] in kinds or any(_holds(inner, kinds) for inner in inside(item)) for item in items)
