"""Print a digest of what happens in each simulated run: `python -m tests.sim.traced SEED…`."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections.abc import Sequence

from headgate.store.memory import MemoryBackend
from headgate.store.types import Append, At, Entry, Op
from headgate.testing.sim.simulation import Simulation, prepare


def traced(seed: int) -> str:
    """Return a digest of all commits: times, checks and written paths, but not values, which name their process."""
    digest, real = hashlib.sha256(), MemoryBackend.commit

    async def commit(self: MemoryBackend, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        paths = [f"{type(op).__name__} {op.parent if isinstance(op, Append) else op.path}" for op in ops]
        digest.update(repr((asyncio.get_running_loop().time(), checks, paths)).encode())
        return await real(self, checks, ops)

    MemoryBackend.commit = commit  # type: ignore[method-assign]
    try:
        Simulation(seed).run()
    finally:
        MemoryBackend.commit = real  # type: ignore[method-assign]
    return digest.hexdigest()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    prepare()
    for seed in sys.argv[1:]:
        print(seed, traced(int(seed)))
