"""A running gate, measured from outside: memory, latency, and how time per change grows."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from headgate.testing.measure import TENANTS, configuration
from headgate.testing.repositories import Repositories
from headgate.testing.servers.etcd import etcd
from headgate.testing.servers.program import Program

HEADGATE = str(Path(sys.executable).with_name("headgate"))
COMPONENTS = ("scheduler", "merger", "executor")

SETTINGS = """
[scheduler]
tenant_config = tenants.yaml
state_dir = state
[connection local]
baseurl = hub
canonical_hostname = git.example
[web]
port = 0
[executor]
builds = 8
sandbox = none
"""


def prepare(root: Path, repositories: Repositories, jobs: int, store: str) -> None:
    """The project `code` with `jobs` jobs a change that take no time, and the settings."""
    repositories.create("config", {"zuul.yaml": configuration(jobs), "jobs/unit": "#!/bin/true\n"})
    repositories.create("code", {"README": "x\n"})
    (root / "headgate.conf").write_text(SETTINGS + (f"[store]\nurl = {store}\n" if store else ""))
    (root / "tenants.yaml").write_text(TENANTS)


def landed(repositories: Repositories, count: int, before: str, deadline_s: float = 900) -> None:
    """Waits for it."""
    end = time.monotonic() + deadline_s
    words = ("git", "-C", str(repositories.hub / "code"), "rev-list", "--count", "--merges", f"{before}..master")
    while time.monotonic() < end:
        if int(subprocess.run(words, capture_output=True, text=True, check=True).stdout) >= count:
            return
        time.sleep(0.05)
    raise TimeoutError(f"not {count} landed")


class Running:
    """`headgate run` in a directory of its own, with `jobs` jobs a change that take no time."""

    def __init__(self, root: Path, jobs: int) -> None:
        self.root, self.repositories = root, Repositories(root)
        prepare(root, self.repositories, jobs, "")
        command = [HEADGATE, "run", "--config", "headgate.conf"]
        self.log = root / "log"
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(command, cwd=root, stdout=out, stderr=out)
        self.until(r"pages are at")
        self.stat = psutil.Process(self.process.pid)

    def until(self, pattern: str, count: int = 1, deadline_s: float = 600) -> float:
        """When the log has matched so often; seconds of the monotonic clock."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if len(re.findall(pattern, self.log.read_text(errors="replace"))) >= count:
                return time.monotonic()
            time.sleep(0.005)
        raise TimeoutError(f"{pattern} x{count}: {self.log.read_text()[-2000:]}")

    @property
    def memory_mb(self) -> float:
        return self.stat.memory_info().rss / 1e6

    @property
    def cpu_s(self) -> float:
        used = self.stat.cpu_times()
        return used.user + used.system

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def latency(pushes: int = 20) -> dict[str, float]:
    """Seconds from the push of an approval to the first build's start, on an idle system; and idle memory."""
    with tempfile.TemporaryDirectory() as name:
        running = Running(Path(name), 1)
        try:
            found = []
            for n in range(pushes):
                running.repositories.propose("code", f"t{n}", {f"f{n}": "x\n"})
                time.sleep(0.3)
                begin = time.monotonic()
                running.repositories.approve("code", f"t{n}")
                found.append(running.until(r"build \w+: job0 of gate", n + 1) - begin)
                running.until(r"build \w+: SUCCESS", n + 1)
                time.sleep(0.3)
            found.sort()
            return {"p50_s": statistics.median(found), "p99_s": found[-1], "memory_mb": running.memory_mb}
        finally:
            running.stop()


def gate_of(changes: int, jobs: int = 5) -> dict[str, float]:
    """A gate of so many changes, all approved at once."""
    with tempfile.TemporaryDirectory() as name:
        running = Running(Path(name), jobs)
        try:
            before = running.repositories.head("code")
            for n in range(changes):
                running.repositories.propose("code", f"t{n}", {f"f{n}": "x\n"})
            cpu_s = running.cpu_s
            begin = time.monotonic()
            for n in range(changes):
                running.repositories.approve("code", f"t{n}")
            peak = running.memory_mb
            landed(running.repositories, changes, before)
            peak = max(peak, running.memory_mb)
            wall_s = time.monotonic() - begin
            return {"wall_s": wall_s, "cpu_s": running.cpu_s - cpu_s, "memory_mb": peak}
        finally:
            running.stop()


def apart(changes: int, jobs: int = 5) -> dict[str, float]:
    """CPU seconds that each component used for a gate of so many changes, each a process of its own, on etcd."""
    with tempfile.TemporaryDirectory() as name, etcd(Path(name) / "etcd") as server:
        root = Path(name)
        repositories = Repositories(root)
        prepare(root, repositories, jobs, f"etcd://127.0.0.1:{server.port}")
        programs = {kind: Program([HEADGATE, kind, "--config", "../headgate.conf"], root / kind) for kind in COMPONENTS}
        try:
            for program in programs.values():
                program.start()
            for n in range(changes):
                repositories.propose("code", f"t{n}", {f"f{n}": "x\n"})
            before, used = repositories.head("code"), {kind: _cpu_s(program) for kind, program in programs.items()}
            for n in range(changes):
                repositories.approve("code", f"t{n}")
            landed(repositories, changes, before)
            return {kind: _cpu_s(program) - used[kind] for kind, program in programs.items()}
        finally:
            for program in programs.values():
                program.stop()


def _cpu_s(program: Program) -> float:
    """Without its children."""
    assert program.process is not None, "it was started"
    used = psutil.Process(program.process.pid).cpu_times()
    return used.user + used.system
