"""How much of what is random each tier looks at."""

from __future__ import annotations

import os

SOAK = bool(os.environ.get("SOAK"))
"""Whether `make soak` runs the tests: random tests look at many times as many examples as in `make test`."""


def share(examples: int) -> int:
    """Return how many of a random test's `examples` this tier looks at: all of them in `make soak`, a fifth in
    `make test`, which anything that breaks most of them needs only a few of."""
    return examples if SOAK else max(1, examples // 5)
