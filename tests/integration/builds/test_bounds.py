"""Test limits of builds on a machine without control groups, and the groups on one that has them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from headgate.adapters.process.bounds.limits import Groups, ProcessBounds
from headgate.adapters.process.bounds.watch import CommandWatch, Limiter

from .bench import Bench

HOG = "exec python3 -c 'import time; b = bytearray(b\"x\" * 400_000_000); time.sleep(600)'"
MANY = {
    "processes": "trap : EXIT; (for i in $(seq 100); do sleep 600 & done); sleep 600",
    "threads": """exec python3 -c '
import threading, time
try:
    for _ in range(100):
        threading.Thread(target=time.sleep, args=(600,)).start()
finally:
    time.sleep(600)
'""",
}
BOMB = """python3 -c '
import os, time
made = []
try:
    while True:
        made.append(os.fork() or time.sleep(600))
except OSError:
    pass
for pid in made:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
';"""
"""Fork until that is refused, and leave nothing behind: later commands can start."""


@pytest.fixture
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Groups, "found", staticmethod(lambda: Groups()))


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.usefixtures("no_groups")
@pytest.mark.parametrize("sandbox", ["none", "bwrap"])
async def test_without_control_groups_memory_and_processes_are_looked_at(tmp_path: Path, sandbox: str) -> None:
    bench = Bench(tmp_path, sandbox, bounds=ProcessBounds(memory_max_bytes=200_000_000, processes_max=60))
    outcome = await bench.build(run=(bench.script("hog", HOG),))
    assert (outcome.result, outcome.error) == ("FAILURE", "run: hog: memory limit of 200 MB reached")
    for name in ("processes", "threads"):
        outcome = await bench.build(run=(bench.script(name, MANY[name]),))
        assert (outcome.result, outcome.error) == ("FAILURE", f"run: {name}: limit of 60 processes reached")
    assert (await bench.build(run=(bench.script("fine", "true"),))).result == "SUCCESS"


@pytest.mark.long
@pytest.mark.parametrize(("end", "result"), [("true", "SUCCESS"), ("false", "FAILURE"), ("sleep 600", "FAILURE")])
async def test_a_build_reports_that_it_could_not_start_all_its_processes(tmp_path: Path, end: str, result: str) -> None:
    bench = Bench(tmp_path, bounds=ProcessBounds(processes_max=40))
    if not bench.runner.limiter.groups.complete:
        pytest.skip("no control group can be made here")
    time_s = 12 if end == "sleep 600" else 180
    outcome = await bench.build(run=(bench.script("bomb", f"{BOMB} {end}"),), timeout_s=time_s)
    assert bench.log.count("| limit of 40 processes reached: the build cannot start another process\n") == 1
    why = "" if result == "SUCCESS" else "run: bomb: limit of 40 processes reached"
    assert (outcome.result, outcome.error) == (result, why)


async def test_groups_end_with_their_builds(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    groups = bench.runner.limiter.groups
    if not groups.parents:
        pytest.skip("no control group can be made here")
    go = tmp_path / "go"
    building = bench.start(run=(bench.script("run", f"echo begun; until test -e {go}; do sleep 0.05; done"),))
    await bench.says("begun")
    assert any(list(parent.glob(f"{bench.id}-*")) for parent in groups.parents.values())
    go.touch()
    await building
    assert not any(list(parent.glob("*/")) for parent in groups.parents.values())
    await bench.runner.close()
    assert not any(parent.exists() for parent in groups.parents.values())


@pytest.mark.long
async def test_a_limit_in_pre_run_is_a_failure_and_not_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, bounds=ProcessBounds(output_max_bytes=1_000_000))
    outcome = await bench.build(pre_run=(bench.script("noise", "yes"),))
    assert (outcome.result, outcome.error) == ("FAILURE", "pre-run: noise: output limit of 1 MB reached")


def test_builds_together_leave_the_processors_to_headgate_where_they_are_scarce() -> None:
    limiter = Limiter()
    if "cpu" not in limiter.groups.parents:
        pytest.skip("no control group for processors can be made here")
    parent = limiter.groups.parents["cpu"]
    parts = {file.name: file.read_text().strip() for file in parent.glob("cpu.[ws]*") if file.name in USUAL}
    limiter.close()
    assert parts and all(int(part) * 2 == USUAL[name] for name, part in parts.items())


USUAL = {"cpu.weight": 100, "cpu.shares": 1_024}
"""Return the default limits of the kernel."""


def weights(*watches: CommandWatch) -> list[int]:
    """Return the processes of the build's groups, as the kernel lists them."""
    files = [Path(directory) / name for w in watches for directory in w.groups for name in ("cpu.weight", "cpu.shares")]
    return [int(file.read_text()) for file in files if file.exists()]


async def test_the_builds_of_a_project_share_one_part_of_the_processors(tmp_path: Path) -> None:
    limiter = Limiter()
    if "cpu" not in limiter.groups.parents:
        pytest.skip("no control group for processors can be made here")

    def around(build: str, whose: str) -> AbstractAsyncContextManager[CommandWatch]:
        return limiter.around(build, whose, tmp_path, list, print)

    async with around("n", "tenant neighbour") as neighbour, around("a", "tenant flood") as first:
        assert weights(neighbour, first) == [1000, 1000]
        async with around("b", "tenant flood") as second, around("c", "tenant flood") as third:
            assert weights(neighbour, first, second, third) == [1000, 333, 333, 333]
        assert weights(neighbour, first) == [1000, 1000]
    limiter.close()
