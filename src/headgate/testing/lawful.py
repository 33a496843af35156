"""A store that refuses what must never be written: by a writer the map does not name, or without the guard of the lock
that the map says it is written under."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from headgate.map.places import Map
from headgate.map.tree import Row, render
from headgate.store.types import Append, At, Backend, Delete, Entry, Op
from headgate.testing.through import Through

_KEY = re.compile(r"<([^>]+)>")
WORKERS = frozenset({"executor", "merger"})


class Unlawful(AssertionError):
    """A write that breaks the rules of the map."""


class _Law(NamedTuple):
    under: str
    taken_under: str
    by: str
    template: str

    @property
    def writers(self) -> frozenset[str]:
        """Nobody, of a place that is only kept for the contract."""
        named = frozenset(word.strip() for word in self.by.split(",") if self.by)
        return named | WORKERS if "worker" in named else named


@dataclass(frozen=True, slots=True)
class Laws:
    """The rules of every place below `root`, as one expression to match paths with."""

    root: str
    pattern: re.Pattern[str]
    laws: tuple[_Law, ...]

    @classmethod
    def of(cls, root: str) -> Laws:
        rows = [row for row in render(Map, root) if row.place is not None]
        rows.sort(key=lambda row: (-row.template.count("/"), row.template))
        return cls(root, re.compile("|".join(f"({_expression(row)})" for row in rows)), tuple(map(_law, rows)))

    def check(self, writers: Set[str], checks: Sequence[At], ops: Sequence[Op]) -> None:
        """Raises Unlawful."""
        held = {check.path.rpartition("/")[0] for check in checks if check.version is not None}
        for op in ops:
            path = f"{op.parent}/{op.prefix}0000000000" if isinstance(op, Append) else op.path
            match = self.pattern.fullmatch(path)
            if match is None or match.lastindex is None:
                raise Unlawful(f"{', '.join(sorted(writers))}: {path} is written, which is not on the map")
            law = self.laws[match.lastindex - 1]
            if not writers & law.writers:
                raise Unlawful(f"{path} is written by {', '.join(sorted(writers))}; the map names {law.by or 'nobody'}")
            for needed in (law.under, law.taken_under if isinstance(op, Delete) else ""):
                if needed and (lock := f"{self.root}/{self._filled(needed, law, path)}") not in held:
                    raise Unlawful(f"{path} is written without a guard under {lock}")

    @staticmethod
    def _filled(lock: str, law: _Law, path: str) -> str:
        parts = dict(zip(law.template.split("/"), path.split("/"), strict=False))
        return _KEY.sub(lambda key: parts[key.group()], lock)


def _expression(row: Row) -> str:
    """The path of the place, and of what lies below it where something may."""
    assert row.place is not None, "only places have laws"
    fixed = "/".join("[^/]+" if part.startswith("<") else re.escape(part) for part in row.template.split("/"))
    below = {"persistent": "", "lock": "/[^/]+", "sequence": "/[^/]+", "keyed": "/[^/]+"}
    kind = row.place.node.removeprefix("ephemeral ")
    return fixed + below.get(kind, "(?:/[^/]+){0,3}")


def _law(row: Row) -> _Law:
    assert row.place is not None, "only places have laws"
    under, taken_under = ("", "") if row.place.node == "lock" else row.locks
    return _Law(under, taken_under, row.place.by, row.template)


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
