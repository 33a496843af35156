"""Run many seeds on all processors: `python -m headgate.testing.sim SEEDS [FIRST]`.

HOSTILE=1 adds an intruder, HUB=1 a forge.
"""

from __future__ import annotations

import logging
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from headgate.testing.sim.forgeworld import simulate_hub
from headgate.testing.sim.simulation import simulate

CHUNK = 20


def broken(seeds: range) -> list[str]:
    """Return the failures of these seeds."""
    logging.disable(logging.CRITICAL)
    found = []
    for seed in seeds:
        try:
            if os.environ.get("HUB"):
                simulate_hub([seed])
            else:
                simulate([seed], hostile=bool(os.environ.get("HOSTILE")))
        except Exception as error:  # whatever breaks is a finding; the run continues
            found.append(
                str(error) if f"seed {seed}" in str(error) else f"seed {seed}: {type(error).__name__}: {error}"
            )
    return found


def main(seeds: int, first: int = 0) -> int:
    found: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        runs = processes.map(broken, (range(first, first + seeds)[at : at + CHUNK] for at in range(0, seeds, CHUNK)))
        for done, many in enumerate(runs, 1):
            found += many
            if sys.stderr.isatty():
                print(f"\r{min(seeds, done * CHUNK):,} of {seeds:,} simulated", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    for one in found:
        print(one)
    print(f"{seeds:,} seeds from {first}: {len(found)} broken")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3] or ["1000"])))
