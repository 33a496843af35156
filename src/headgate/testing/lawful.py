"""A store that refuses what must never be written: by a writer the map does not name, or without the guard of the lock
that the map says it is written under."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from headgate.map.places import Map
from headgate.map.tree import Row, render
from headgate.store.types import Append, At, Backend, Delete, Entry, Op
from headgate.testing.through import Through

_KEY = re.compile(r"<([^>]+)>")
WORKERS = frozenset({"executor", "merger"})
KNOWN_MAX = 10_000
"""Paths whose law is kept."""


class Unlawful(AssertionError):
    """A write that breaks the rules of the map."""


class _Law(NamedTuple):
    """What holds at one path."""

    writers: frozenset[str]
    by: str
    under: tuple[str, ...]
    """Locks that whoever writes must hold."""
    taken_under: tuple[str, ...]
    """Those that whoever deletes must hold beside."""


class Laws:
    """The rules of every place below `root`, as one expression to match paths with."""

    def __init__(self, root: str) -> None:
        rows = [row for row in render(Map, root) if row.place is not None]
        rows.sort(key=lambda row: (-row.template.count("/"), row.template))
        self._root, self._rows = root, rows
        self._pattern = re.compile("|".join(f"({_expression(row)})" for row in rows))
        self._known: dict[str, _Law] = {}

    def check(self, writers: Set[str], checks: Sequence[At], ops: Sequence[Op]) -> None:
        """Raises Unlawful."""
        held = {check.path.rpartition("/")[0] for check in checks if check.version is not None}
        for op in ops:
            path = f"{op.parent}/{op.prefix}0000000000" if isinstance(op, Append) else op.path
            law = self._known.get(path) or self._find(path)
            if law is None:
                raise Unlawful(f"{', '.join(sorted(writers))}: {path} is written, which is not on the map")
            if writers.isdisjoint(law.writers):
                raise Unlawful(f"{path} is written by {', '.join(sorted(writers))}; the map names {law.by or 'nobody'}")
            for lock in law.under + law.taken_under if isinstance(op, Delete) else law.under:
                if lock not in held:
                    raise Unlawful(f"{path} is written without a guard under {lock}")

    def _find(self, path: str) -> _Law | None:
        match = self._pattern.fullmatch(path)
        if match is None or match.lastindex is None:
            return None
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        law = self._known[path] = self._law(self._rows[match.lastindex - 1], path)
        return law

    def _law(self, row: Row, path: str) -> _Law:
        assert row.place is not None, "only places have laws"
        by = row.place.by
        named = frozenset(word.strip() for word in by.split(",") if by)
        keys = dict(zip(row.template.split("/"), path.split("/"), strict=False))
        locks = ("", "") if row.place.node == "lock" else row.locks
        under, taken_under = ((f"{self._root}/{_filled(lock, keys)}",) if lock else () for lock in locks)
        return _Law(named | WORKERS if "worker" in named else named, by, under, taken_under)


def _filled(lock: str, keys: Mapping[str, str]) -> str:
    return _KEY.sub(lambda key: keys[key.group()], lock)


def _expression(row: Row) -> str:
    """The path of the place, and of what lies below it where something may."""
    assert row.place is not None, "only places have laws"
    fixed = "/".join("[^/]+" if part.startswith("<") else re.escape(part) for part in row.template.split("/"))
    below = {"persistent": "", "lock": "/[^/]+", "sequence": "/[^/]+", "keyed": "/[^/]+"}
    kind = row.place.node.removeprefix("ephemeral ")
    return fixed + below.get(kind, "(?:/[^/]+){0,3}")


class LawfulBackend(Through):
    """The store as one process sees it, which runs components of the kinds `writers`.  `broken` is told of an unlawful
    write before it is refused."""

    def __init__(
        self, inner: Backend, laws: Laws, writers: Set[str], broken: Callable[[Unlawful], None] = lambda unlawful: None
    ) -> None:
        super().__init__(inner)
        self._laws, self._writers, self._broken = laws, writers, broken

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        try:
            self._laws.check(self._writers, checks, ops)
        except Unlawful as unlawful:
            self._broken(unlawful)
            raise
        return await self.inner.commit(checks, ops)
