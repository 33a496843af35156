"""Measure our server and our worker, each a process."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from bench.queues.places import KEY, done, memory_mb, server, worker
from headgate.base.ids import fresh
from headgate.ports.messages import NewMessage
from headgate.queue.messages.client import MessageClient

BATCH = 500


async def fill(port: int, queue: str, partitions: int, count: int, body: str, *, at_once: int = 4) -> None:
    async with MessageClient.open([f"http://127.0.0.1:{port}/v1/queuey/"], KEY) as source:
        await source.create(queue, partitions)
        gate = asyncio.Semaphore(at_once)

        async def post(first: int) -> None:
            messages: list[tuple[str, int | None]] = [
                (body, n % partitions + 1) for n in range(first, min(first + BATCH, count))
            ]
            async with gate:
                await source.post_many(queue, messages, fresh())

        await asyncio.gather(*(post(first) for first in range(0, count, BATCH)))


def throughput(database: str, partitions: int, count: int, size_bytes: int) -> float:
    """Return messages per second, from the first post to the last job."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with server(root, database) as (port, _), worker(root, port, count):
            asyncio.run(_warm(port, partitions))
            began_s = time.time()
            asyncio.run(fill(port, "bench", partitions, count, "x" * size_bytes))
            return count / (done(root)[-1] - began_s)


async def _warm(port: int, partitions: int) -> None:
    """Wait until the worker owns the queue."""
    async with MessageClient.open([f"http://127.0.0.1:{port}/v1/queuey/"], KEY) as source:
        await source.create("bench", partitions)
    # Long enough for a worker to see the new queue and take its partitions.
    await asyncio.sleep(3)


def latency(database: str, tries: int, partitions: int, size_bytes: int) -> list[float]:
    """Return the seconds from a post to the start of its job, on an idle system."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with server(root, database) as (port, _), worker(root, port, 1):
            asyncio.run(_warm(port, partitions))
            return sorted(asyncio.run(_latencies(port, root, tries, partitions, "x" * size_bytes)))


async def _latencies(port: int, root: Path, tries: int, partitions: int, body: str) -> list[float]:
    found = []
    async with MessageClient.open([f"http://127.0.0.1:{port}/v1/queuey/"], KEY) as source:
        for n in range(tries):
            began_s = time.time()
            await source.post(NewMessage("bench", body, fresh(), n % partitions + 1))
            found.append((await asyncio.to_thread(done, root))[0] - began_s)
            await asyncio.sleep(0.02)
    return found


def memory(database: str, count: int) -> tuple[float, float, float]:
    """Return the memory of server and worker in MB, with this many messages stored, and the worker's rate on them."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with server(root, database) as (port, process):
            asyncio.run(fill(port, "bench", 10, count, "x" * 200))
            with worker(root, port, count) as working:
                times = done(root, 900)
                return memory_mb(process), memory_mb(working), count / (times[-1] - times[0])
