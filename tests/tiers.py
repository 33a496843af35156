"""How much of what is random each tier looks at."""

from __future__ import annotations

import os

SOAK = bool(os.environ.get("SOAK"))
"""Whether `make soak` runs the tests: random tests then run all their examples, chosen anew each time."""


def share(examples: int) -> int:
    """Return how many of a random test's `examples` this tier runs: all of them in `make soak`, a fifth in `make test`,
    where a few are enough to find a defect that breaks most of them."""
    return examples if SOAK else max(1, examples // 5)
