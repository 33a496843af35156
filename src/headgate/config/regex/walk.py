"""Match patterns on which Python's engine could take for ever, in time that the sizes of pattern and subject bound.

Each pair of a position in the pattern and a position in the subject is visited once. With references to groups, it is
visited once for each content of the groups, within a limit of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.config.regex import tree as t

Groups = tuple[tuple[int, int] | None, ...]
"""Start and end of each group's match; empty when no reference needs them."""


class Exhausted(Exception):
    """Report that matching took more steps than are allowed."""


class _Node:
    """Represent a position in the pattern; `next` is the position after it."""

    __slots__ = ("data", "kind", "next")

    def __init__(self, kind: Any, data: Any, next: _Node | None) -> None:  # as the parser makes them
        self.kind, self.data, self.next = kind, data, next


_END, _LEAF, _SPLIT, _OPEN, _CLOSE, _LOOP = "end", "leaf", "split", "open", "close", "loop"


class _Loop:
    """Represent a repetition in its round number `count`."""

    __slots__ = ("again", "body", "count", "flags", "greedy", "idles", "last", "least", "most")

    def __init__(
        self,
        body: t.Tree,
        flags: int,
        least: int,
        most: int,
        *,
        greedy: bool,
        idles: bool,
        count: int = 0,
        last: int = -1,
    ) -> None:
        """Set `idles` if a round may match nothing and the order of attempts after that matters."""
        self.body, self.flags, self.least, self.most = body, flags, least, most
        self.greedy, self.count, self.last = greedy, count, last
        self.idles = idles
        self.again: dict[int, _Node] = {}
        """Position in the subject (or -1) -> compiled body of the next round."""

    @property
    def endless(self) -> bool:
        return self.most >= t.MANY_ROUNDS

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

    def __init__(self, pattern: t.Tree, subject: str, *, steps_max: int) -> None:
        self._pattern, self._subject, self._left = pattern, subject, steps_max
        self._leaves: dict[tuple[int, int, int], Any] = {}
        self._refers = pattern.state.groups > 1 and _holds(pattern, (t.GROUPREF, t.GROUPREF_EXISTS))
        self._ordered = self._refers or _holds(pattern, (t.ATOMIC_GROUP, t.POSSESSIVE_REPEAT))
        """Whether the order in which alternatives are tried affects the result."""

    def matches(self, *, full: bool) -> bool:
        """Match at the start, and to the end with `full`. Raise Exhausted."""
        try:
            start = self._compiled(self._pattern, self._pattern.state.flags, _Node(_END, full, None))
            groups: Groups = (None,) * self._pattern.state.groups if self._refers else ()
            return self._run(start, 0, groups) is not None
        # A pattern that is nested too deeply to be compiled here counts as one that takes too long.
        except RecursionError as error:
            raise Exhausted from error

    # --- from the parser's tree to nodes, last to first

    def _compiled(self, items: t.Tree, flags: int, next: _Node) -> _Node:
        found, plain = next, list[t.Item]()
        for item in reversed(list(items)):
            self._spend()
            if item[0] in t.PLAIN:
                plain.insert(0, item)
                continue
            found = self._node(item, flags, self._leaf(plain, flags, found))
            plain = []
        return self._leaf(plain, flags, found)

    def _leaf(self, items: list[t.Item], flags: int, next: _Node) -> _Node:
        if not items:
            return next
        key = (id(items[0]), len(items), flags)
        # Bodies of loops are compiled once a round, from the same items.
        engine = self._leaves.get(key)
        if engine is None:
            engine = self._leaves[key] = t.engine(items, flags)
        return _Node(_LEAF, engine.match, next)

    def _node(self, item: t.Item, flags: int, next: _Node) -> _Node:
        kind, arguments = item
        if kind is t.BRANCH:
            return _Node(_SPLIT, [self._compiled(one, flags, next) for one in arguments[1]], None)
        if kind is t.SUBPATTERN:
            group, more, less, body = arguments
            inner = ((flags & ~t.TYPES if more & t.TYPES else flags) | more) & ~less
            if group is None or not self._refers:
                return self._compiled(body, inner, next)
            return _Node(_OPEN, group, self._compiled(body, inner, _Node(_CLOSE, group, next)))
        if kind in t.REPEATS:
            least, most, body = arguments
            greedy = kind is not t.MIN_REPEAT
            # Where order cannot affect the result, rounds that match nothing need no state of their own: `seen` ends
            # them.
            loop = _Loop(body, flags, least, most, greedy=greedy, idles=self._ordered and body.getwidth()[0] == 0)
            if kind is t.POSSESSIVE_REPEAT:
                return _Node(t.ATOMIC_GROUP, _Node(_LOOP, loop, _Node(_END, False, None)), next)
            return _Node(_LOOP, loop, next)
        if kind is t.ATOMIC_GROUP:
            return _Node(kind, self._compiled(arguments, flags, _Node(_END, False, None)), next)
        if kind in t.LOOKS:
            direction, body = arguments
            back = body.getwidth()[0] if direction < 0 else 0
            return _Node(kind, (self._compiled(body, flags, _Node(_END, False, None)), back), next)
        if kind is t.GROUPREF_EXISTS:
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
            # All that follows depends on the state alone, so one that is met again leads nowhere that was not tried.
            if state in seen:
                continue
            seen.add(state)
            self._spend()
            node, at, groups = state
            if node.kind is not _END:
                # A stack: the alternative that the engine tries first must be on top.
                waiting += reversed(self._steps(node, at, groups))
            elif not node.data or at == len(self._subject):
                return at, groups
        return None

    def _steps(self, node: _Node, at: int, groups: Groups) -> Sequence[tuple[_Node, int, Groups]]:
        """Return the next states, in the order in which they are tried."""
        kind, data, next = node.kind, node.data, node.next
        if kind is _LEAF:
            found = data(self._subject, at)
            return [] if found is None or next is None else [(next, found.end(), groups)]
        if kind is _SPLIT:
            return [(one, at, groups) for one in data]
        if kind is _LOOP:
            return self._round(node, at, groups)
        if kind is t.GROUPREF_EXISTS:
            group, yes, no = data
            held = groups[group]
            return [(yes if held is not None and held[1] >= 0 else no, at, groups)]
        assert next is not None, "all others have something after them"
        if kind is _OPEN:
            # The end -1 marks a group that is open: nothing matches a reference to it yet.
            return [(next, at, (*groups[:data], (at, -1), *groups[data + 1 :]))]
        if kind is _CLOSE:
            held = groups[data]
            begun = held[0] if held is not None else at
            return [(next, at, (*groups[:data], (begun, at), *groups[data + 1 :]))]
        if kind is t.ATOMIC_GROUP:
            inside = self._run(data, at, groups)
            return [] if inside is None else [(next, *inside)]
        if kind in t.LOOKS:
            return self._looked(node, next, at, groups)
        if kind is t.GROUPREF:
            return self._referred(data, next, at, groups)
        return []  # an item that never matches

    def _round(self, node: _Node, at: int, groups: Groups) -> Sequence[tuple[_Node, int, Groups]]:
        loop: _Loop = node.data
        assert node.next is not None, "a loop has an end"
        out = (node.next, at, groups)
        # A round that matched nothing is the last, as in Python's engine; otherwise `(a*)*` would never end.
        if loop.count >= loop.most or (loop.count >= loop.least and loop.last == at):
            return [out]
        key = at if loop.idles else -1
        body = loop.again.get(key)
        if body is None:
            # After the least number of rounds, all rounds of an endless loop are alike, and one node stands for them.
            settled = loop.endless and loop.count >= loop.least and not loop.idles
            back = node if settled else _Node(_LOOP, loop.following(at), node.next)
            body = loop.again[key] = self._compiled(loop.body, loop.flags, back)
        again = (body, at, groups)
        if loop.count < loop.least:
            return [again]
        return [again, out] if loop.greedy else [out, again]

    def _looked(self, node: _Node, next: _Node, at: int, groups: Groups) -> Sequence[tuple[_Node, int, Groups]]:
        body, back = node.data
        # Python allows lookbehinds of a fixed width only, so there is one place to begin.
        inside = self._run(body, at - back, groups) if at >= back else None
        if node.kind is t.ASSERT_NOT:
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
            if at + n >= len(self._subject) or not t.same(character, self._subject[at + n], flags):
                return []
        return [(next, at + len(text), groups)]


def _holds(items: t.Tree, kinds: Sequence[Any]) -> bool:
    """Return whether the pattern contains an item of one of these kinds, at any depth."""
    return any(item[0] in kinds or any(_holds(inner, kinds) for inner in t.inside(item)) for item in items)
