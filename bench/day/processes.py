"""Run the processes of a day: a store, schedulers, a merger and machines; return the usage of each."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headgate.testing.day.plan import DayPlan
from headgate.testing.servers.databases import ZooKeeperKind, etcd, zookeeper
from headgate.testing.servers.program import Program, free_ports

HEADGATE = str(Path(sys.executable).with_name("headgate"))
SETTINGS = """
[scheduler]
tenant_config = {root}/tenants.yaml
state_dir = {state}
prometheus_port = {port}
[merger]
prometheus_port = {port}
[web]
metrics = everybody
[connection local]
baseurl = {root}/hub
canonical_hostname = git.example
[database]
dburi = sqlite:///{root}/history.sqlite
[store]
url = {url}
"""
_REQUESTS = re.compile(r"^headgate_store_request_seconds_count\{.*\} (\S+)$", re.MULTILINE)
MB = 1e6


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one kind of process, all of them together."""

    cpu_s: float = 0.0
    git_s: float = 0.0
    """CPU of the child processes that have ended."""
    requests: int = 0
    memory_mb: float = 0.0
    """The maximum of any of them."""

    def since(self, before: Usage) -> Usage:
        return Usage(
            self.cpu_s - before.cpu_s, self.git_s - before.git_s, self.requests - before.requests, self.memory_mb
        )


@dataclass(slots=True)
class Running:
    url: str
    root: Path
    store: Program
    programs: dict[str, list[Program]] = field(default_factory=dict)
    ports: dict[str, list[int]] = field(default_factory=dict)

    def start(self, kind: str, count: int) -> None:
        """Start this many components of a kind, each with its own directory."""
        self.ports[kind] = free_ports(count)
        self.programs[kind] = [self._program(f"{kind}{n}", kind, port) for n, port in enumerate(self.ports[kind])]
        for program in self.programs[kind]:
            program.start()

    def start_machines(self, plan: DayPlan, minute_s: float) -> None:
        words = (self.url, plan.projects_count, plan.changes_count, minute_s)
        program = Program([sys.executable, "-m", "bench.day.machines", *map(str, words)], self.root / "machines",
                          {"PYTHONPATH": str(Path(__file__).parents[2])})  # fmt: skip
        self.programs["machines"] = [program]
        program.start()

    def _program(self, name: str, kind: str, port: int) -> Program:
        place = self.root / name
        place.mkdir()
        settings = SETTINGS.format(root=self.root, state=place / "state", port=port, url=self.url)
        (place / "headgate.conf").write_text(settings)
        return Program([HEADGATE, kind, "--config", "headgate.conf"], place)

    def used(self) -> dict[str, Usage]:
        """Return kind -> usage of its processes since their start. Raise RuntimeError if one has ended."""
        found = {
            kind: _sum(map(_usage, programs, self._request_counts(kind))) for kind, programs in self.programs.items()
        }
        return {**found, "store": _usage(self.store, 0)}

    def _request_counts(self, kind: str) -> list[int]:
        return [_requests(port) for port in self.ports[kind]] if kind in self.ports else [0]

    def stop(self) -> None:
        for program in [program for programs in self.programs.values() for program in programs]:
            program.stop()


@contextmanager
def running(root: Path, store: str) -> Iterator[Running]:
    """Provide a store, `etcd` or `zookeeper`, without any component."""
    with ExitStack() as stack:
        if store == "etcd":
            server = stack.enter_context(etcd(root / "store"))
            url, program = f"etcd://127.0.0.1:{server.port}", server.program
        else:
            keeper = stack.enter_context(zookeeper(root / "store", ZooKeeperKind(large=True)))
            url, program = f"zookeeper://127.0.0.1:{keeper.port}", keeper.program
        found = Running(url, root, program)
        stack.callback(found.stop)
        yield found


def _usage(program: Program, requests: int) -> Usage:
    if not program.running or program.process is None:
        raise RuntimeError(f"{program.command} has ended: {program.log.read_text(errors='replace')[-2000:]}")
    process = psutil.Process(program.process.pid)
    used = process.cpu_times()
    # The peak, which a read of the current size would miss.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert peak is not None, "Linux tells of every process"
    git_s = used.children_user + used.children_system
    return Usage(used.user + used.system, git_s, requests, int(peak[1]) * 1024 / MB)


def _sum(usages: Iterator[Usage]) -> Usage:
    every = list(usages)
    return Usage(
        sum(one.cpu_s for one in every),
        sum(one.git_s for one in every),
        sum(one.requests for one in every),
        max(one.memory_mb for one in every),
    )


def _requests(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as metrics:
        return int(sum(float(number) for number in _REQUESTS.findall(metrics.read().decode())))
