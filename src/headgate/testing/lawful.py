"""Refuse writes to a store that violate the map.

These are writes by a writer that the map does not name, and writes without the guard of the lock that the map
requires.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from headgate.map.places import Map
from headgate.map.tree import PageRow, place, render
from headgate.store.types import Append, At, Backend, Delete, Entry, Op
from headgate.testing.backends import WrappedBackend

WORKERS = frozenset({"executor", "merger"})


class Unlawful(AssertionError):
    """Report a write that breaks the rules of the map."""


class _Law(NamedTuple):
    """Describe the rules of a place."""

    writers: frozenset[str]
    by: str
    under: tuple[_Filled, ...]
    """Locks that a writer must hold."""
    taken_under: tuple[_Filled, ...]
    """Locks that a deleter must hold."""
    below: range
    """How many components may follow the place's own path."""


_Filled = tuple[str | int, ...]
"""Components of a path; a number refers to the component at that index of another path."""


@dataclass(slots=True)
class _Branch:
    """Hold the map's rules for paths with the same beginning."""

    named: dict[str, _Branch] = field(default_factory=dict)
    keyed: _Branch | None = None
    law: _Law | None = None

    def of(self, part: str) -> _Branch:
        if not part.startswith("<"):
            return self.named.setdefault(part, _Branch())
        self.keyed = self.keyed or _Branch()
        return self.keyed

    def find(self, parts: Sequence[str], at: int) -> _Law | None:
        """Return the law of the deepest place that contains a path."""
        if at < len(parts):
            # A named place wins over a keyed one at the same depth.
            for branch in (self.named.get(parts[at]), self.keyed):
                found = branch.find(parts, at + 1) if branch is not None else None
                if found is not None:
                    return found
        return self.law if self.law is not None and len(parts) - at in self.law.below else None


class Laws:
    """Hold the rules of every place below `root`."""

    def __init__(self, root: str) -> None:
        self._places = _Branch()
        for row in render(Map, root):
            if row.place is not None:
                branch = self._places
                for part in row.template.split("/"):
                    branch = branch.of(part)
                branch.law = _law(row, row.place, root)
        # Paths repeat within a run.
        self._at = lru_cache(maxsize=10_000)(self._find)

    def check(self, writers: Set[str], checks: Sequence[At], ops: Sequence[Op]) -> None:
        """Check a commit. Raise Unlawful."""
        # A guard checks the version of the writer's own entry below the lock; that an entry is absent guards nothing.
        held = {check.path.rpartition("/")[0] for check in checks if check.version is not None}
        for op in ops:
            path = f"{op.parent}/{op.prefix}0000000000" if isinstance(op, Append) else op.path
            entry = self._at(path)
            if entry is None:
                raise Unlawful(f"{', '.join(sorted(writers))}: {path} is written, which is not on the map")
            law, under, taken_under = entry
            if writers.isdisjoint(law.writers):
                raise Unlawful(f"{path} is written by {', '.join(sorted(writers))}; the map names {law.by or 'nobody'}")
            for needed in under + taken_under if isinstance(op, Delete) else under:
                if needed not in held:
                    raise Unlawful(f"{path} is written without a guard under {needed}")

    def _find(self, path: str) -> tuple[_Law, tuple[str, ...], tuple[str, ...]] | None:
        """Find the law at a path, and the locks it names there."""
        parts = path.split("/")
        law = self._places.find(parts, 0)
        return None if law is None else (law, _filled(law.under, parts), _filled(law.taken_under, parts))


def _filled(locks: tuple[_Filled, ...], parts: Sequence[str]) -> tuple[str, ...]:
    return tuple("/".join([parts[part] if isinstance(part, int) else part for part in lock]) for lock in locks)


def _law(row: PageRow, place: place[Any], root: str) -> _Law:
    named = frozenset(word.strip() for word in place.by.split(",") if place.by)
    parts = row.template.split("/")
    locks = ("", "") if place.node == "lock" else row.locks
    under, taken_under = (
        (tuple(parts.index(part) if part.startswith("<") else part for part in f"{root}/{lock}".split("/")),)
        if lock
        else ()
        for lock in locks
    )
    below = {"persistent": range(1), "lock": range(1, 2), "sequence": range(1, 2), "keyed": range(1, 2)}
    kind = place.node.removeprefix("ephemeral ")
    writers = named | WORKERS if "worker" in named else named
    return _Law(writers, place.by, under, taken_under, below.get(kind, range(4)))


class LawfulBackend(WrappedBackend):
    """Show the store as seen by one process, which runs components of the kinds `writers`. `broken` receives an
    unlawful write before it is rejected."""

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
