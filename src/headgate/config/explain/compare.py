"""Compare two states of a job graph, as `explain.describe` describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.config.explain import describe
from headgate.config.model import ConfigError, FrozenGraph

_WHERE = ("inheritance",)
"""Attributes that are ignored because they only name places in files; moved lines are no difference."""


class AttributeDifference(NamedTuple):
    """Describe the difference of one attribute. `path` separates nested keys by dots; None means absent."""

    path: str
    old: Any
    new: Any


class GraphDifference(NamedTuple):
    """Describe what a graph gains, what it loses and what changes in it."""

    new: list[dict[str, Any]]
    gone: list[dict[str, Any]]
    changed: dict[str, list[AttributeDifference]]
    """Job name -> attributes that differ."""
    order: list[str]
    """Jobs in both graphs, in their new order; empty if the order is the same."""
    errors_new: list[ConfigError]
    errors_gone: list[ConfigError]

    def __bool__(self) -> bool:
        return any(self)


def graphs(old: FrozenGraph, new: FrozenGraph) -> GraphDifference:
    """Return the differences between two graphs. If either has errors, only the errors are compared."""
    if old == new:
        return GraphDifference([], [], {}, [], [], [])
    both = not old.errors and not new.errors
    before, after = (_by_name(graph) if both else {} for graph in (old, new))
    old_common, new_common = [name for name in before if name in after], [name for name in after if name in before]
    return GraphDifference(
        new=[job for name, job in after.items() if name not in before],
        gone=[job for name, job in before.items() if name not in after],
        changed={name: found for name in old_common if (found := jobs(before[name], after[name]))},
        order=new_common if old_common != new_common else [],
        errors_new=errors(old.errors, new.errors),
        errors_gone=errors(new.errors, old.errors),
    )


def jobs(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[AttributeDifference]:
    return [
        d for key in dict.fromkeys((*old, *new)) if key not in _WHERE for d in _values(key, old.get(key), new.get(key))
    ]


def _values(path: str, old: Any, new: Any) -> Iterator[AttributeDifference]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _values(f"{path}.{key}", old.get(key), new.get(key))
    else:
        yield AttributeDifference(path, old, new)


def _by_name(graph: FrozenGraph) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in describe.graph(graph)}


def errors(old: Sequence[ConfigError], new: Sequence[ConfigError]) -> list[ConfigError]:
    """Return the errors of `new` that are not in `old`, regardless of their lines."""
    known = {(e.name, e.text, e.project, e.branch, e.path) for e in old}
    return [e for e in new if (e.name, e.text, e.project, e.branch, e.path) not in known]
