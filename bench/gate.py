"""Measure a running gate from outside: memory, latency, and how time per change grows."""

from __future__ import annotations

import fcntl
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from headgate.testing.gate import MEASURED_TENANTS, measured_configuration
from headgate.testing.repositories import Repositories
from headgate.testing.servers.databases import etcd
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
metrics = everybody
[executor]
sandbox = none
"""
EIGHT = "builds = 8\n"
"""Continuation of the last section of SETTINGS: the number of simultaneous builds."""
WINDOW = 20
# The kernel hands the script to `true`, which ignores it: no job can cost less.
NO_TIME = "#!/bin/true\n"
CHANGES_MAX = 200


def page(edited: int | None = None) -> dict[str, str]:
    """Return the files of the repository: one file in which each change edits a line of its own, so that a work tree
    costs the same for any number of changes."""
    lines = (f"{n}{' edited' if n == edited else ''}\n-\n-\n" for n in range(CHANGES_MAX))
    return {"page": "".join(lines)}


def prepare(
    root: Path, repositories: Repositories, jobs: int, settings: str = EIGHT, window: int = WINDOW, job: str = NO_TIME
) -> None:
    """Create the project `code` with `jobs` jobs per change, and SETTINGS followed by `settings`."""
    repositories.create("config", {"zuul.yaml": measured_configuration(jobs, window), "jobs/unit": job})
    repositories.create("code", page())
    (root / "headgate.conf").write_text(SETTINGS + settings)
    (root / "tenants.yaml").write_text(MEASURED_TENANTS)


def landed(
    repositories: Repositories,
    count: int,
    before: str,
    deadline_s: float = 900,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Wait until `count` changes have landed, and call `look` repeatedly meanwhile."""
    end = time.monotonic() + deadline_s
    # A change lands as one merge commit, whatever its own commits are.
    words = ("git", "-C", str(repositories.hub / "code"), "rev-list", "--count", "--merges", f"{before}..master")
    while time.monotonic() < end:
        if int(subprocess.run(words, capture_output=True, text=True, check=True).stdout) >= count:
            return
        look()
        time.sleep(0.05)
    raise TimeoutError(f"not {count} landed")


class Running:
    """Run `headgate run` in a directory of its own, which `prepare` fills."""

    def __init__(self, root: Path, jobs: int, settings: str = EIGHT, window: int = WINDOW, job: str = NO_TIME) -> None:
        self.root, self.repositories = root, Repositories(root)
        prepare(root, self.repositories, jobs, settings, window, job)
        self.peak_mb = 0.0
        """Largest value that `look` returned."""
        command = [HEADGATE, "run", "--config", "headgate.conf"]
        self.log = root / "log"
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(command, cwd=root, stdout=out, stderr=out)
        self.until(r"pages are at")
        self.stat = psutil.Process(self.process.pid)

    def until(
        self, pattern: str, count: int = 1, deadline_s: float = 600, look: Callable[[], None] = lambda: None
    ) -> float:
        """Return the monotonic time in seconds at which the log matches `count` times; call `look` repeatedly."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if len(re.findall(pattern, self.log.read_text(errors="replace"))) >= count:
                return time.monotonic()
            look()
            time.sleep(0.005)
        raise TimeoutError(f"{pattern} x{count}: {self.log.read_text()[-2000:]}")

    @property
    def memory_mb(self) -> float:
        return self.stat.memory_info().rss / 1e6

    def look(self) -> None:
        """Measure the memory."""
        self.peak_mb = max(self.peak_mb, self.memory_mb)

    @property
    def cpu_s(self) -> float:
        used = self.stat.cpu_times()
        return used.user + used.system

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def latency(pushes: int) -> dict[str, float]:
    """Return the seconds from the push of an approval to the start of the first build, idle; and the idle memory."""
    with tempfile.TemporaryDirectory() as name:
        running = Running(Path(name), 1)
        try:
            found = []
            for n in range(pushes):
                running.repositories.propose("code", f"t{n}", page(n))
                # Headgate's poll of the proposal must not fall into the measured time.
                time.sleep(0.3)
                begin = time.monotonic()
                running.repositories.approve("code", f"t{n}")
                found.append(running.until(r"build \w+: job0 of gate", n + 1) - begin)
                running.until(r"build \w+: SUCCESS", n + 1)
                time.sleep(0.3)
            found.sort()
            return {"p50_s": statistics.median(found), "slowest_s": found[-1], "memory_mb": running.memory_mb}
        finally:
            running.stop()


def gate_of(changes: int, jobs: int = 5) -> dict[str, float]:
    """Measure a gate of this many changes, all approved at once."""
    with tempfile.TemporaryDirectory() as name:
        running = Running(Path(name), jobs)
        try:
            before = running.repositories.head("code")
            for n in range(changes):
                running.repositories.propose("code", f"t{n}", page(n))
            cpu_s = running.cpu_s
            begin = time.monotonic()
            for n in range(changes):
                running.repositories.approve("code", f"t{n}")
            landed(running.repositories, changes, before, look=running.look)
            wall_s = time.monotonic() - begin
            return {"wall_s": wall_s, "cpu_s": running.cpu_s - cpu_s, "memory_mb": running.peak_mb}
        finally:
            running.stop()


def in_flight(changes: int, jobs: int) -> float:
    """Return the peak memory in MB while the gate tests this many changes at once, with all of their jobs running
    together, and until all have landed."""
    # Each job waits for a shared lock of this file until all of them have begun.
    with tempfile.TemporaryDirectory() as name, open(Path(name) / "hold", "w") as hold:
        fcntl.flock(hold, fcntl.LOCK_EX)
        held = f"#!/bin/sh\nexec flock -s {hold.name} true\n"
        running = Running(Path(name), jobs, f"builds = {changes * jobs}\n", window=changes + 20, job=held)
        try:
            before = running.repositories.head("code")
            for n in range(changes):
                running.repositories.propose("code", f"t{n}", page(n))
            for n in range(changes):
                running.repositories.approve("code", f"t{n}")
            running.until(r"build \w+: job\d+ of gate", changes * jobs, look=running.look)
            fcntl.flock(hold, fcntl.LOCK_UN)
            landed(running.repositories, changes, before, look=running.look)
            return running.peak_mb
        finally:
            running.stop()


def apart(changes: int, jobs: int = 5) -> dict[str, float]:
    """Return the CPU seconds of each component, all separate processes on etcd, for a gate of this many changes."""
    with tempfile.TemporaryDirectory() as name, etcd(Path(name) / "etcd") as server:
        root = Path(name)
        repositories = Repositories(root)
        # EIGHT continues the last section of the settings, and the store is another section behind it.
        prepare(root, repositories, jobs, f"{EIGHT}[store]\nurl = etcd://127.0.0.1:{server.port}\n")
        programs = {kind: Program([HEADGATE, kind, "--config", "../headgate.conf"], root / kind) for kind in COMPONENTS}
        try:
            for program in programs.values():
                program.start()
            for n in range(changes):
                repositories.propose("code", f"t{n}", page(n))
            # Counted from here, without the reading of the configuration and the proposals.
            before, used = repositories.head("code"), {kind: _cpu_s(program) for kind, program in programs.items()}
            for n in range(changes):
                repositories.approve("code", f"t{n}")
            landed(repositories, changes, before)
            return {kind: _cpu_s(program) - used[kind] for kind, program in programs.items()}
        finally:
            for program in programs.values():
                program.stop()


def _cpu_s(program: Program) -> float:
    """Return the CPU seconds of a process without its children."""
    assert program.process is not None, "it was started"
    used = psutil.Process(program.process.pid).cpu_times()
    return used.user + used.system
