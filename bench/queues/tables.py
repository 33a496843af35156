"""Print the tables: throughput, latency, memory."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.queues import others, ours
from headgate.cli.terminal.screen import TextTable
from headgate.testing.servers.databases import postgres

KINDS = ((1, 200), (10, 200), (1, 10_000), (10, 10_000))
COUNT, COUNT_SLOW, LATENCIES = 10_000, 500, 50
STORED = 1_000_000


@contextmanager
def database(server: str) -> Iterator[str]:
    """Provide a new database."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("drop database if exists bench with (force)")
        connection.execute("create database bench")
    yield server.replace("/postgres", "/bench")


def throughput() -> TextTable:
    """Measure throughput, interleaved: all ways for one kind of message, then the next kind."""
    table = TextTable("messages/s, first post to last job", *_heads(), title="Partitions (or threads) x size of bodies")
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


def latency() -> TextTable:
    """Measure latency on an idle system: one message at a time, each to the next partition."""
    table = TextTable("from a post to its job, idle", *_heads(), title="Latency, p50 / p99, ms")
    rows: dict[str, list[str]] = {}
    with postgres(durable=True) as server:
        for partitions, size in KINDS:
            with tempfile.TemporaryDirectory() as name:
                file = f"sqlite:///{name}/messages.sqlite"
                _latency(rows, "Headgate on SQLite", ours.latency(file, LATENCIES, partitions, size))
            with database(server) as url:
                _latency(rows, "Headgate on PostgreSQL", ours.latency(url, LATENCIES, partitions, size))
            if shutil.which("redis-server"):
                _latency(rows, "Dramatiq on Redis", others.dramatiq_latency(partitions, LATENCIES, size))
            with database(server) as url:
                way = f"PostgreSQL, SKIP LOCKED, looks every {others.POLL_S * 1000:.0f} ms"
                _latency(rows, way, others.skip_locked_latency(url, LATENCIES, size))
    for way, cells in rows.items():
        table.add_row(way, *cells)
    table.add_row("the original, by its settings: first pause / longest", *["24,000 / 36,864,000"] * len(KINDS))
    return table


def _latency(rows: dict[str, list[str]], way: str, found: list[float]) -> None:
    p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
    rows.setdefault(way, []).append(f"{statistics.median(found) * 1000:.1f} / {p99 * 1000:.1f}")


def _heads() -> list[str]:
    return [f"{partitions} x {size / 1000:g} kB" for partitions, size in KINDS]


def memory() -> TextTable:
    with tempfile.TemporaryDirectory() as name:
        server, worker, rate = ours.memory(f"sqlite:///{name}/messages.sqlite", STORED)
    table = TextTable("with so many messages", "server MB", "worker MB", "messages/s", title="Memory")
    table.add_row(f"{STORED:,}", f"{server:.0f}", f"{worker:.0f}", f"{rate:,.0f}")
    return table
