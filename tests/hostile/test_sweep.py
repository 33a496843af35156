"""Test the remains of an executor that is killed in the middle of builds: the next one that starts removes them."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from headgate.adapters.process.bounds.limits import Groups
from headgate.testing.clock import DEADLINE_S
from tests.integration.builds.bench import Bench
from tests.integration.builds.world import World, greeter
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose builds have interfaces and groups")

ROOT = Path(__file__).parents[2]
PORT = 4999
"""In the outside world, nobody listens there until the neighbours' builds may end."""
JOB = """
mkdir -p shut/within; chmod 0 shut
env -i setsid python3 -c 'import signal; signal.signal(15, signal.SIG_IGN); signal.pause()' &
exec python3 -c '
import socket, time
print("begun", flush=True)
while True:
    try:
        with socket.create_connection(("{address}", {port}), timeout=1) as found:
            print("said", found.recv(9), flush=True)
            break
    except OSError:
        time.sleep(0.05)
'
"""
EXECUTOR = """
import asyncio, sys
from pathlib import Path
from tests.integration.builds.bench import Bench

async def main():
    bench = Bench(Path(sys.argv[1]), "bwrap")
    bench.runner.root = Path(sys.argv[2])
    builds = []
    for name in ("one", "two"):
        builds.append(bench.start(run=(bench.script(name, sys.argv[3]),)))
        await bench.says("| begun")
        print("BUILD", bench.id, flush=True)
    print("NETWORK", bench.runner.cells._networks._way._number, flush=True)
    print("GROUPS", *set(map(str, bench.runner.limiter.groups.parents.values())), flush=True)
    print("RESULTS", *[(await build).result for build in builds], flush=True)
    await bench.runner.close()

asyncio.run(main())
"""


class Executor(NamedTuple):
    """Run a process with two builds that have begun."""

    process: subprocess.Popen[str]
    builds: list[str]
    network: int
    groups: list[Path]

    @staticmethod
    def begun(root: Path, builds: Path, script: str) -> Executor:
        root.mkdir()
        command = [sys.executable, "-c", EXECUTOR, str(root), str(builds), script]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
        lines: dict[str, list[str]] = {}
        assert process.stdout is not None
        while "GROUPS" not in lines:
            line = process.stdout.readline()
            assert line, "the executor ended"
            word, *rest = line.split()
            lines.setdefault(word, []).extend(rest)
        return Executor(process, lines["BUILD"], int(lines["NETWORK"][0]), [Path(name) for name in lines["GROUPS"]])

    @property
    def pids(self) -> list[int]:
        """Return all processes in groups of its builds."""
        files = (file for group in self.groups for file in group.glob("*/cgroup.procs"))
        return sorted({int(pid) for file in files for pid in file.read_text().split()})

    def left(self, builds: Path) -> dict[str, list[str]]:
        """Return its remains."""
        return {
            "directories": [name for name in self.builds if (builds / name).exists()],
            "interfaces": re.findall(rf"hg{self.network}-\d+", _output("ip", "-o", "link")),
            "tables": re.findall(rf"headgate{self.network}\n", _output("nft", "list", "tables")),
            "groups": [str(group) for group in self.groups if group.exists()],
            "processes": [str(pid) for pid in self.pids],
        }


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("also", [False, True], ids=["the executor alone", "with all that would end its builds"])
async def test_the_next_executor_ends_processes_of_a_killed_one_and_spares_those_of_running_ones(
    tmp_path: Path, world: World, also: bool
) -> None:
    if not Groups.found().complete:
        pytest.skip("no control group can be made here")
    builds, job = tmp_path / "builds", JOB.format(address=world.address, port=PORT)
    async with AsyncExitStack() as stack:
        victim, neighbour = (Executor.begun(tmp_path / name, builds, job) for name in ("victim", "neighbour"))
        stack.callback(victim.process.kill)
        stack.callback(neighbour.process.kill)
        before = neighbour.left(builds)
        assert all(before.values()) and all(victim.left(builds).values())
        jobs = victim.pids
        # Somebody uses the networks, and a process stays in the groups, as when the kernel cannot end a process yet.
        spaces = {os.stat(f"/proc/{pid}/ns/net").st_ino: pid for pid in jobs}
        for pid in spaces.values():
            stack.callback(os.close, os.open(f"/proc/{pid}/ns/net", os.O_RDONLY))
        stays = stack.enter_context(_sleeping())
        stack.callback(stays.kill)
        (next(victim.groups[0].glob("*/")) / "cgroup.procs").write_text(str(stays.pid))

        with _held(victim.groups):
            _kill(victim, also=also)
            wait_for("the builds have ended with their executor", lambda: victim.pids == [stays.pid])
            left = victim.left(builds)
        assert all(left.values()) and left["processes"] == [str(stays.pid)], left

        (tmp_path / "following").mkdir()
        following = Bench(tmp_path / "following", "bwrap")
        stack.push_async_callback(following.runner.close)
        following.runner.root = builds
        await following.runner.sweep()
        left = victim.left(builds)
        assert not any(left.values()), left
        assert stays.wait(DEADLINE_S) == -9
        assert not _in_spaces(set(spaces) - {os.stat("/proc/self/ns/net").st_ino})

        assert neighbour.left(builds) == before
        stack.enter_context(greeter("::", PORT, "ip", "netns", "exec", world.name))
        assert neighbour.process.stdout is not None
        assert neighbour.process.stdout.read() == "RESULTS SUCCESS SUCCESS\n"
        assert neighbour.process.wait(DEADLINE_S) == 0 and not any(neighbour.left(builds).values())


@contextmanager
def _held(groups: Sequence[Path]) -> Iterator[None]:
    """Lock control groups like a living executor: every executor that starts on this machine sweeps the others."""
    with ExitStack() as stack:
        for group in groups:
            stack.callback(os.close, lock := os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _kill(executor: Executor, *, also: bool) -> None:
    """Kill it at once, or first stop everything between it and its jobs, so that nothing can end them in order."""
    process = psutil.Process(executor.process.pid)
    inside = set(executor.pids)
    between = [child for child in process.children(recursive=True) if child.pid not in inside] if also else []
    for one in (process, *between):
        one.suspend()
    for one in (process, *between):
        with suppress(psutil.NoSuchProcess):
            one.kill()
    executor.process.wait()


def _sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "300"])


def _in_spaces(inodes: set[int]) -> list[int]:
    """Return the processes in these networks."""
    found = []
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdigit() and os.stat(f"{entry.path}/ns/net").st_ino in inodes:
                found.append(int(entry.name))
    return found
