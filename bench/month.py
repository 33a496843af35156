"""Print the savings of `reuse` in a month of sixty repositories: `python -m bench.month SEED CHANGES`.

The repositories have the shapes of `headgate.testing.month`; without `reuse` the policy is Zuul's.
"""

from __future__ import annotations

import statistics
import sys
from itertools import product

from headgate.testing.month import CHANGES, Month

FAILING = (0.02, 0.05, 0.10)
"""Fractions of changes that fail."""
DAYS = (22, 10)
"""Days in which the changes are approved: relaxed, and with a queue that is full most of the day."""


def measure(seed: int = 1, changes: int = CHANGES) -> list[tuple[str, ...]]:
    """Return a row for each load and each fraction of failing changes: the results with `reuse`, as fractions of
    those without."""
    rows = list[tuple[str, ...]]()
    for days, failing in product(DAYS, FAILING):
        without, with_it = (
            Month(seed, failing, reuse=reuse, changes=changes, days=days).run() for reuse in (False, True)
        )
        # The comparison is worthless if reuse lets through or rejects anything else.
        assert not with_it.untested, "what lands was tested"
        assert (len(with_it.landed_s), with_it.rejected) == (len(without.landed_s), without.rejected)
        p50, p95 = ([statistics.quantiles(one.landed_s, n=20)[k] for one in (without, with_it)] for k in (9, 18))
        rows.append(
            (
                f"{changes / days:.0f}",
                f"{failing:.0%}",
                f"{without.builds:,}",
                f"{with_it.builds / without.builds:.2f}",
                f"{without.machine_h * 60:,.0f}",
                f"{with_it.machine_h / without.machine_h:.2f}",
                f"{with_it.reused:,}",
                f"{with_it.carried:,}",
                f"{p50[0] / 60:.0f} min",
                f"{p50[1] / p50[0]:.2f}",
                f"{p95[0] / 60:.0f} min",
                f"{p95[1] / p95[0]:.2f}",
            )
        )
    return rows


HEADINGS = (
    "a day", "failing", "builds without", "with reuse", "machine min", "with reuse", "stood in", "carried over",
    "p50 without", "with reuse", "p95 without", "with reuse",
)  # fmt: skip

if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:]]
    for row in (HEADINGS, *measure(*words)):
        print("  ".join(f"{cell:>14}" for cell in row))
