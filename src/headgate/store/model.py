"""Specify the store as a pure value.  Tests compare every backend with it, step by step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import assert_never

from headgate.store import types

# Apart from `~`, ZooKeeper itself refuses these. Every backend refuses them, so that a store can be moved to another.
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]|/(~|\.\.?(/|$))")
"""Pattern of what no path may contain: control and private-use characters, the components `.` and `..`, and components
that begin with `~`, which are reserved for the backends."""


# Cached, because the same paths are checked at every commit.
@lru_cache(maxsize=10_000)
def check_path(path: str) -> None:
    """Check that a path is absolute, has no empty component and no trailing slash, and that every backend accepts its
    characters and components."""
    if not path.startswith("/") or path.endswith("/") or "//" in path or _UNFIT.search(path):
        raise ValueError(
            f"not a store path: {path!r} (absolute, no empty component, no trailing slash, no control characters, "
            f"no component that is `.` or `..` or begins with `~`)"
        )


def check_commit(checks: Sequence[types.At], ops: Sequence[types.Op]) -> None:
    """Check the limits that apply on every backend, even where a backend allows more."""
    if len(checks) > types.OPS_MAX or len(ops) > types.OPS_MAX:
        raise types.TooLarge(
            f"a commit has at most {types.OPS_MAX} checks and {types.OPS_MAX} operations, not {len(checks)}, {len(ops)}"
        )
    named: set[str] = set()
    parents: set[str] = set()
    size_bytes = 0
    for op in ops:
        if isinstance(op, types.Append):
            path = op.parent
            parents.add(path)
        else:
            path = op.path
            # A transaction of etcd must not write one key twice.
            if path in named:
                raise ValueError(f"a commit names each path once; {path} is named twice")
            named.add(path)
        check_path(path)
        size_bytes += _size_bytes(path)
        if not isinstance(op, types.Delete):
            size_bytes += len(op.value)
    for check in checks:
        check_path(check.path)
        size_bytes += _size_bytes(check.path)
    if len(_leases(ops)) > 1:
        raise ValueError("a commit is made under one lease at most")
    if len(parents) > types.PARENTS_MAX:
        raise types.TooLarge(f"a commit appends to at most {types.PARENTS_MAX} parents, not {len(parents)}")
    if size_bytes > types.COMMIT_SIZE_MAX_BYTES:
        raise types.TooLarge(
            f"a commit has at most {types.COMMIT_SIZE_MAX_BYTES} bytes, not {size_bytes}; store it as a blob"
        )


def _leases(ops: Sequence[types.Op]) -> set[types.Lease]:
    return {op.lease for op in ops if not isinstance(op, types.Delete) and op.lease is not None}


def _size_bytes(path: str) -> int:
    return len(path) if path.isascii() else len(path.encode())


def check_leased(ops: Sequence[types.Op], leased: Callable[[str], bool], above: Callable[[str], bool]) -> None:
    """Check that an entry with a lease has no entries below it. `leased` returns whether a path is an entry with a
    lease, `above` whether a path has entries below it."""
    # ZooKeeper's ephemeral nodes cannot have children, so the rule applies to all backends.
    fresh = {op.path for op in ops if isinstance(op, types.Put) and op.lease is not None}
    seen: set[str] = set()
    for op in ops:
        if isinstance(op, types.Delete):
            continue
        path = op.path if isinstance(op, types.Put) else f"{op.parent}/"
        up = path.rpartition("/")[0]
        while up and up not in seen:  # parents of a path that was seen were seen, too
            seen.add(up)
            if up in fresh or leased(up):
                raise ValueError(f"{up}: an entry with a lease can have no entries below it, such as {path}")
            up = up.rpartition("/")[0]
        if path in fresh and above(path):
            raise ValueError(f"{path}: an entry with a lease can have no entries below it")


@lru_cache(maxsize=10_000)
def ancestors(path: str) -> tuple[str, ...]:
    """Return the paths above this one, nearest first, without the root."""
    found = []
    while path := path.rpartition("/")[0]:
        found.append(path)
    return tuple(found)


def inside(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")


def order(entry: types.Entry) -> tuple[int, str]:
    """Return the sort key of entries: the oldest first, and by path within a commit."""
    return entry.born, entry.path


@dataclass(frozen=True, slots=True)
class Model:
    """Hold all entries, and the number of children that were ever appended to each parent."""

    revision: int = 0
    entries: Mapping[str, types.Entry] = field(default_factory=dict)
    appended: Mapping[str, int] = field(default_factory=dict)
    """Parent -> number of children ever appended to it."""

    def commit(
        self, checks: Sequence[types.At], ops: Sequence[types.Op]
    ) -> tuple[Model, tuple[types.Entry | None, ...]]:
        """Return the model after the commit, and an entry for each operation. Raise Conflict if a check fails."""
        check_commit(checks, ops)
        for check in checks:
            entry = self.entries.get(check.path)
            if (entry.version if entry else None) != check.version:
                raise types.Conflict(check)
        check_leased(ops, self._leased, lambda path: any(p.startswith(path + "/") for p in self.entries))
        model, written = replace(self, revision=self.revision + 1), []
        for op in ops:
            model, entry = model._apply(op)
            written.append(entry)
        return model, tuple(written)

    def _leased(self, path: str) -> bool:
        return path in self.entries and self.entries[path].lease is not None

    def _apply(self, op: types.Op) -> tuple[Model, types.Entry | None]:
        now = self.revision
        match op:
            case types.Put(path, value, lease):
                old = self.entries.get(path)
                entry = types.Entry(path, value, now, old.born if old else now, lease)
                return replace(self, entries={**self.entries, path: entry}), entry
            case types.Append(parent, value, lease, prefix):
                count = self.appended.get(parent, 0)
                path = f"{parent}/{prefix}{count:0{types.NAME_DIGITS}d}"
                entry = types.Entry(path, value, now, now, lease)
                appended = {**self.appended, parent: count + 1}
                return replace(self, entries={**self.entries, path: entry}, appended=appended), entry
            case types.Delete(path):
                rest = {p: e for p, e in self.entries.items() if p != path}
                return replace(self, entries=rest), None
            case _:
                assert_never(op)

    def expire(self, lease: types.Lease) -> Model:
        """Return the model without the entries of the lease."""
        rest = {p: e for p, e in self.entries.items() if e.lease != lease}
        return replace(self, revision=self.revision + 1, entries=rest)

    def under(self, prefix: str) -> tuple[types.Entry, ...]:
        """Return the subtree at `prefix`, oldest born first."""
        return tuple(sorted((e for p, e in self.entries.items() if inside(p, prefix)), key=order))
