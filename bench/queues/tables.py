"""The tables: throughput, latency, memory."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from rich.table import Table

from bench.queues import others, ours
from headgate.testing.queues.postgres import postgres

KINDS = ((1, 200), (10, 200), (1, 10_000), (10, 10_000))
COUNT, COUNT_SLOW, LATENCIES = 10_000, 500, 50
STORED = 1_000_000


@contextmanager
def database(server: str) -> Iterator[str]:
    """A new one."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("drop database if exists bench with (force)")
        connection.execute("create database bench")
    yield server.replace("/postgres", "/bench")


def throughput() -> Table:
    """Interleaved: every way is measured for a kind of message before the next kind is."""
    heads = [f"{partitions} x {size / 1000:g} kB" for partitions, size in KINDS]
    table = Table("messages/s, first post to last job", *heads, title="Partitions (or threads) x size of bodies")
    rows: dict[str, list[str]] = {}

    def cell(way: str, rate: float) -> None:
        rows.setdefault(way, []).append(f"{rate:,.0f}")

    with postgres(durable=True) as server:
        for partitions, size in KINDS:
            with tempfile.TemporaryDirectory() as name:
                file = f"sqlite:///{name}/messages.sqlite"
                cell("Headgate on SQLite", ours.throughput(file, partitions, COUNT, size))
            with database(server) as url:
                cell("Headgate on PostgreSQL", ours.throughput(url, partitions, COUNT, size))
            cell("SetPartitioner, a progress write a message", others.original(partitions, COUNT_SLOW, size))
            if shutil.which("redis-server"):
                cell("Dramatiq on Redis (threads: no order)", others.dramatiq(partitions, COUNT, size))
            with database(server) as url:
                cell("PostgreSQL, SKIP LOCKED (threads: no order)", others.skip_locked(url, partitions, COUNT, size))
            with database(server) as url:
                cell("limit: PostgreSQL, insert and select", others.raw_postgres(url, COUNT, size))
            with tempfile.TemporaryDirectory() as name:
                cell("limit: SQLite, insert and select", others.raw_sqlite(Path(name), COUNT, size))
    for way, cells in rows.items():
        table.add_row(way, *cells)
    return table


def latency() -> Table:
    table = Table("from a post to its job, idle", "p50 ms", "p99 ms", title="Latency")
    ways: dict[str, Callable[[], list[float]]] = {
        "Headgate on SQLite": lambda: _latencies(None),
        "Dramatiq on Redis": lambda: others.dramatiq_latency(LATENCIES),
    }
    with postgres(durable=True) as server, database(server) as url:
        ways["Headgate on PostgreSQL"] = lambda: _latencies(url)
        for way, measure in ways.items():
            found = measure()
            p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
            table.add_row(way, f"{statistics.median(found) * 1000:.1f}", f"{p99 * 1000:.1f}")
    table.add_row("the original, by its settings: first pause, longest pause", "24,000", "36,864,000")
    return table


def _latencies(url: str | None) -> list[float]:
    if url is not None:
        return ours.latency(url, LATENCIES)
    with tempfile.TemporaryDirectory() as name:
        return ours.latency(f"sqlite:///{name}/messages.sqlite", LATENCIES)


def memory() -> Table:
    with tempfile.TemporaryDirectory() as name:
        server, worker, rate = ours.memory(f"sqlite:///{name}/messages.sqlite", STORED)
    table = Table("with so many messages", "server MB", "worker MB", "messages/s", title="Memory")
    table.add_row(f"{STORED:,}", f"{server:.0f}", f"{worker:.0f}", f"{rate:,.0f}")
    return table
