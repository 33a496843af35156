"""What `reuse` spares in a month of sixty repositories: `python -m bench.month SEED CHANGES`."""

from __future__ import annotations

import statistics
import sys

from headgate.testing.month import CHANGES, Month

FAILING = (0.02, 0.05, 0.10)
"""Of changes."""


def measure(seed: int = 1, changes: int = CHANGES) -> list[tuple[str, ...]]:
    """Return a row for each part of failing changes: what `reuse` comes to, as parts of what there is without."""
    rows = list[tuple[str, ...]]()
    for failing in FAILING:
        without, with_it = (Month(seed, failing, reuse=reuse, changes=changes).run() for reuse in (False, True))
        assert not with_it.untested, "what lands was tested"
        assert (len(with_it.landed_s), with_it.rejected) == (len(without.landed_s), without.rejected)
        p50, p95 = ([statistics.quantiles(one.landed_s, n=20)[k] for one in (without, with_it)] for k in (9, 18))
        rows.append(
            (
                f"{failing:.0%}",
                f"{without.builds:,}",
                f"{with_it.builds / without.builds:.2f}",
                f"{with_it.machine_h / without.machine_h:.2f}",
                f"{p50[0] / 60:.0f} min",
                f"{p50[1] / p50[0]:.2f}",
                f"{p95[0] / 60:.0f} min",
                f"{p95[1] / p95[0]:.2f}",
            )
        )
    return rows


HEADINGS = (
    "failing", "builds without", "with reuse", "machine time", "p50 without", "with reuse", "p95 without", "with reuse",
)  # fmt: skip

if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:]]
    for row in (HEADINGS, *measure(*words)):
        print("  ".join(f"{cell:>14}" for cell in row))
