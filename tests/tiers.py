"""Define how many random or parametrized cases each tier runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest

SOAK = bool(os.environ.get("SOAK"))
"""Whether `make soak` runs the tests: random tests then run all their examples, chosen again each time."""

STRIDE = 1 if SOAK else 3
"""Of the points at which a process may die, this tier tries one in this many."""
MUTANTS = 2
"""Number of the mutants of a module that `make test` runs."""
SHARES = 6
"""Number of shares of the tests marked `long`; `make test` runs one of them."""
LONG = os.environ.get("LONG", "")
"""`all` runs every test marked `long`, a number the share of that number; otherwise the commit decides."""


def share(examples: int) -> int:
    """Return how many of a random test's `examples` this tier runs: all of them in `make soak`, a fifth in `make
    test`, where a few are enough to find a defect that breaks most of them."""
    return examples if SOAK else max(1, examples // 5)


def is_named(config: pytest.Config) -> bool:
    """Return whether tests were named: these always run."""
    return any("::" in arg for arg in config.args)


def sampled(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the `items` of this tier; `make soak` runs all.

    Of a test with the marker `sampled(count)`, `make test` runs `count` sets of parameters.  Which ones depends on the
    test's name: tests that share their parameters run with all of them between them.  Of the mutants of a module it
    runs a few: that a test can fail rarely changes, and it takes as long as the test itself.
    """
    if SOAK:
        return list(items)
    sets: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        name, count = _sampling(item)
        if count:
            sets.setdefault((name, count), []).append(item)
    chosen = {item for (name, count), those in sets.items() for item in _chosen(name, those, count)}
    return [item for item in items if item in chosen or not _sampling(item)[1]]


def _sampling(item: pytest.Item) -> tuple[str, int]:
    """Return the other items that an item is sampled with, and how many of them run: 0 where all do."""
    if item.get_closest_marker("mutant"):
        return item.nodeid.partition("::")[0], MUTANTS
    marker = item.get_closest_marker("sampled")
    return item.nodeid.partition("[")[0], (marker.args or (1,))[0] if marker else 0


def _chosen(name: str, items: Sequence[pytest.Item], most: int) -> Iterable[pytest.Item]:
    count = min(len(items), most)
    first = turn(name, len(items))
    return (items[(first + i * len(items) // count) % len(items)] for i in range(count))


def in_share(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the `items` without the tests marked `long` that are not in the share of this commit."""
    now = share_of_commit()
    return [item for item in items if now is None or not item.get_closest_marker("long") or _share(item) == now]


def _share(item: pytest.Item) -> int:
    return turn(item.nodeid, SHARES)


@cache
def share_of_commit() -> int | None:
    """Return which share of the tests marked `long` runs, or None where all do.

    The files of the commit decide: the same files are tested in the same way everywhere, also where only the last
    commit is checked out, and other files select another share.
    """
    if SOAK or LONG == "all":
        return None
    if LONG:
        return int(LONG) % SHARES
    command = ["git", "rev-parse", "HEAD^{tree}"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return int(done.stdout[:8] or "0", 16) % SHARES


def turn(name: str, count: int) -> int:
    """Return the indices of the `count` sets of parameters that run for a test of that name; they stay the same."""
    return crc32(name.encode()) % count
