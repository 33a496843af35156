"""The specification of a store, as a pure value.  Every backend is compared with this, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from headgate.store.types import (
    COMMIT_SIZE_MAX_BYTES,
    NAME_DIGITS,
    OPS_MAX,
    Append,
    At,
    Conflict,
    Delete,
    Entry,
    Lease,
    Op,
    Put,
    TooLarge,
)


def check_path(path: str) -> None:
    """Absolute, no empty component, no trailing slash."""
    if not path.startswith("/") or path.endswith("/") or "//" in path:
        raise ValueError(f"not a store path: {path!r} (absolute, no empty component, no trailing slash)")


def check_commit(checks: Sequence[At], ops: Sequence[Op]) -> None:
    """The limits that hold on every backend, whatever it could bear itself."""
    if len(checks) > OPS_MAX or len(ops) > OPS_MAX:
        raise TooLarge(f"a commit has at most {OPS_MAX} checks and {OPS_MAX} operations, not {len(checks)}, {len(ops)}")
    named: set[str] = set()
    size_bytes = 0
    for op in ops:
        path = op.parent if isinstance(op, Append) else op.path
        check_path(path)
        if not isinstance(op, Append):
            if path in named:
                raise ValueError(f"a commit names each path once; {path} is named twice")
            named.add(path)
        size_bytes += len(path) + (0 if isinstance(op, Delete) else len(op.value))
    for check in checks:
        check_path(check.path)
    if size_bytes > COMMIT_SIZE_MAX_BYTES:
        raise TooLarge(f"a commit has at most {COMMIT_SIZE_MAX_BYTES} bytes, not {size_bytes}; store it as a blob")


def inside(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")


@dataclass(frozen=True, slots=True)
class Model:
    """All entries, and what numbers were used."""

    revision: int = 0
    entries: Mapping[str, Entry] = field(default_factory=dict)
    appended: Mapping[str, int] = field(default_factory=dict)
    """Parent -> how many children were ever appended to it."""

    def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> tuple[Model, tuple[Entry | None, ...]]:
        """The model after the commit and an entry per op; raises Conflict and changes nothing."""
        check_commit(checks, ops)
        for check in checks:
            entry = self.entries.get(check.path)
            if (entry.version if entry else None) != check.version:
                raise Conflict(check)
        model, written = self, []
        for op in ops:
            model, entry = model._apply(op)
            written.append(entry)
        return model, tuple(written)

    def _apply(self, op: Op) -> tuple[Model, Entry | None]:
        now = self.revision + 1
        match op:
            case Put(path, value, lease):
                old = self.entries.get(path)
                entry = Entry(path, value, now, old.born if old else now, lease)
                return replace(self, revision=now, entries={**self.entries, path: entry}), entry
            case Append(parent, value, lease, prefix):
                count = self.appended.get(parent, 0)
                path = f"{parent}/{prefix}{count:0{NAME_DIGITS}d}"
                entry = Entry(path, value, now, now, lease)
                appended = {**self.appended, parent: count + 1}
                return replace(self, revision=now, entries={**self.entries, path: entry}, appended=appended), entry
            case Delete(path):
                rest = {p: e for p, e in self.entries.items() if p != path}
                return replace(self, revision=now, entries=rest), None
            case _:
                assert_never(op)

    def expire(self, lease: Lease) -> Model:
        """Without what the lease held."""
        rest = {p: e for p, e in self.entries.items() if e.lease != lease}
        return replace(self, revision=self.revision + 1, entries=rest)

    def under(self, prefix: str) -> tuple[Entry, ...]:
        """The subtree at `prefix`, oldest born first."""
        return tuple(sorted((e for p, e in self.entries.items() if inside(p, prefix)), key=lambda e: e.born))
