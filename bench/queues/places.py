"""Run servers for one measurement, each as a process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

KEY = "bench"
BIN = Path(sys.executable).parent
JOBS = """
import json, time
N = {count}
seen = []
async def process(message, context):
    seen.append(time.time())
    if len(seen) % N == 0:
        with open("done.tmp", "w") as file:
            json.dump(seen, file)
        import os
        os.replace("done.tmp", "done")
        seen.clear()
"""
FILE = """
[qdo-worker]
job = bench_jobs:process
[queuey]
connection = http://127.0.0.1:{port}/v1/queuey/
app_key = bench
[store]
url = sqlite:///workers.sqlite
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def program(line: list[str], root: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(root / "log", "ab") as log:
        process = subprocess.Popen(line, cwd=root, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def server(root: Path, database: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run `headgate queue serve`; provide its port and process."""
    port = free_port()
    line = [str(BIN / "headgate"), "queue", "serve", "--database", database]
    with program([*line, "--listen", f"127.0.0.1:{port}", "--key", f"queuey={KEY}"], root) as process:
        until(lambda: _listens(port))
        yield port, process


@contextmanager
def worker(root: Path, port: int, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run `headgate worker`; after every `count` messages, a file `done` lists the time at which each began."""
    (root / "bench_jobs.py").write_text(JOBS.format(count=count))
    (root / "worker.conf").write_text(FILE.format(port=port))
    with program([str(BIN / "headgate"), "worker", "-c", "worker.conf"], root) as process:
        yield process


def done(root: Path, within_s: float = 300.0) -> list[float]:
    file = root / "done"
    until(file.exists, within_s)
    found = json.loads(file.read_text())
    file.unlink()
    return list(found)


def until(holds: object, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not holds():  # type: ignore[operator]  # any question
        if time.monotonic() > end:
            raise TimeoutError("what is measured did not come to an end")
        time.sleep(0.005)


def memory_mb(process: subprocess.Popen[bytes]) -> float:
    return float(psutil.Process(process.pid).memory_info().rss) / 1e6


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
