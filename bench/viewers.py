"""Measure the cost of a thousand viewers for a gate: the same gate with them and without, in turn.

A processor does less in a second while its neighbour works, whatever the neighbour does: viewers on the same machine
cost the gate something even if it never hears of them. So runs beside programs that only keep the machine busy are
measured, too, and the gate's own account of its work for pages.
"""

from __future__ import annotations

import contextlib
import re
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from bench.gate import EIGHT, Running, landed, page

VIEWERS = 1_000
POLLING = 10
"""One viewer in this many polls the status every five seconds instead, as the reference's dashboard does."""
POLL_INTERVAL_S = 5.0
COMING = 20
"""Number of viewers that connect at once."""
NOBODY, BUSY, WATCHED = "nobody", "nobody, busy machine", f"{VIEWERS:,} viewers"
NOISE = """
import socket
one, other = socket.socketpair()
while True:
    one.send(b"x" * 8000), other.recv(8000)
    sum(i * i for i in range(500))
"""
"""Program that works like viewers, but sends only to itself."""
NOISES = 2
CHANGES, JOBS, ROUNDS = 40, 5, 7
"""Two equal runs differ by up to 15 % of CPU time; so there are several of each."""
STREAM = b"GET /api/tenant/bench/events HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"
STATUS = (
    b"GET /api/tenant/bench/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept-Encoding: gzip\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Hold the seconds of one run: until all have landed, and of CPU, used by the gate without its children."""

    wall_s: float
    cpu_s: float
    pages_s: float
    """CPU time that its loop spent on pages and API, as it reports itself."""


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """Keep the machine busy inside the context, with programs of the lowest priority."""
    # nice 19: the gate goes first wherever both want a processor.
    programs = [subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", NOISE]) for _ in range(NOISES)]
    try:
        yield
    finally:
        for program in programs:
            program.terminate()
            program.wait(30)


@contextlib.contextmanager
def watched(port: int, viewers: int) -> Iterator[None]:
    """Connect this many viewers inside the context, from a program of the lowest priority."""
    words = ["nice", "-n", "19", sys.executable, "-m", "bench.viewers", str(port), str(viewers)]
    program = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None, "it has a pipe"
        assert program.stdout.readline() == "there\n", "the viewers did not come"
        yield
        assert program.poll() is None, "those who look on have gone"
    finally:
        program.terminate()
        program.wait(30)


def spent_on_pages(port: int) -> float:
    """Return the CPU seconds that the gate reports for pages."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        found = re.findall(r"^headgate_pages_cpu_seconds_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found, "there is such a figure"
    return sum(map(float, found))


def once(condition: str) -> Cost:
    """Run a gate of changes approved at once, under a condition that holds from before the first."""
    with tempfile.TemporaryDirectory() as name:
        running = Running(Path(name), JOBS, EIGHT)
        try:
            found = re.search(r"pages are at http://\S+:(\d+)", running.log.read_text())
            assert found, "the log names the address"
            port, before = int(found[1]), running.repositories.head("code")
            for n in range(CHANGES):
                running.repositories.propose("code", f"t{n}", page(n))
            # None of them has started anything yet: only the one that is entered below does.
            conditions = {BUSY: busy_machine(), WATCHED: watched(port, VIEWERS)}
            with conditions.get(condition, contextlib.nullcontext()):
                pages_s, cpu_s, began_s = spent_on_pages(port), running.cpu_s, time.monotonic()
                for n in range(CHANGES):
                    running.repositories.approve("code", f"t{n}")
                landed(running.repositories, CHANGES, before)
                wall_s, cpu_s = time.monotonic() - began_s, running.cpu_s - cpu_s
                return Cost(wall_s, cpu_s, spent_on_pages(port) - pages_s)
        finally:
            running.stop()


def measure() -> dict[str, Cost]:
    """Return the medians, by the condition; runs take turns."""
    found: dict[str, list[Cost]] = {NOBODY: [], BUSY: [], WATCHED: []}
    for _ in range(ROUNDS):
        for condition, costs in found.items():
            costs.append(once(condition))
    return {
        condition: Cost(*(statistics.median(parts) for parts in zip(*map(astuple, costs), strict=True)))
        for condition, costs in found.items()
    }


def look_on(port: int, viewers: int) -> None:
    """Act as the viewers: read and discard."""
    # Each viewer takes a descriptor, and shells allow 1,024.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    selector, followed, come = selectors.DefaultSelector(), set[int](), 0
    streams, every_s, next_s = viewers - viewers // POLLING, POLL_INTERVAL_S * POLLING / viewers, 0.0

    def ask(what: bytes) -> None:
        there = socket.create_connection(("127.0.0.1", port))
        there.sendall(what)
        there.setblocking(False)
        selector.register(there, selectors.EVENT_READ, what)

    while True:
        while come < streams and come - len(followed) < COMING:
            ask(STREAM)
            come += 1
        for key, _ in selector.select(every_s):
            assert isinstance(key.fileobj, socket.socket), "they are sockets"
            if key.fileobj.recv(1 << 20):
                followed.update({key.fd} if key.data == STREAM else ())
            elif key.data == STREAM:
                # The end of a stream: the measurement would continue with fewer viewers than it states.
                raise SystemExit("a viewer was let go")
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()
        if not next_s and len(followed) == streams:
            next_s = time.monotonic()
            print("there", flush=True)
        while next_s and time.monotonic() >= next_s:
            ask(STATUS)
            # After a delay, at most one second's polls are made up for; the others never happened.
            next_s = max(next_s + every_s, time.monotonic() - 1)


if __name__ == "__main__":
    look_on(int(sys.argv[1]), int(sys.argv[2]))
