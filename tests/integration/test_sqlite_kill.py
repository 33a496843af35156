"""Test that every acknowledged write survives kill -9."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.store.sqlite import SqliteBackend

WRITER = """
import asyncio, sys
from headgate.store.sqlite import SqliteBackend
from headgate.store.types import Put

async def writer(backend, who):
    n = 0
    while True:
        await backend.commit([], [Put(f"/w/{who}/{n}", b"x" * 100), Put(f"/last/{who}", str(n).encode())])
        print(who, n, flush=True)
        n += 1

async def main():
    backend = await SqliteBackend.open(sys.argv[1])
    await asyncio.gather(*(writer(backend, who) for who in range(8)))

asyncio.run(main())
"""


def killed_after(path: Path, lines: int) -> list[str]:
    """Return what a writer had acknowledged when it was killed, some time after so many lines."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    acknowledged += process.stdout.readlines()
    process.wait()
    return acknowledged


@pytest.mark.long
async def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    chance = random.Random(1)
    for round in range(4):
        path = tmp_path / f"store{round}"
        acknowledged = killed_after(path, chance.randrange(50, 800))
        backend = await SqliteBackend.open(path)
        for line in acknowledged:
            if line.endswith("\n"):
                who, n = line.split()
                assert await backend.get(f"/w/{who}/{n}") is not None, (round, line)
        for who in range(8):
            last = await backend.get(f"/last/{who}")
            assert last is not None and await backend.get(f"/w/{who}/{int(last.value)}") is not None
        await backend.close()
