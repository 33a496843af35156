"""Test that no process of a build outlives it, and that nothing it writes does harm."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.adapters.metrics.capacity import SHY_S, DiskRoom
from headgate.adapters.process import runner
from headgate.adapters.process.processes import processes_of
from headgate.adapters.work.directory import remove
from headgate.config.model import Playbook
from headgate.testing.clock import DEADLINE_S
from tests.waiting import nothing_happens, slow

from .bench import PROJECT, Alone, Bench, end_of

BOTH = pytest.mark.parametrize("sandbox", ["none", "bwrap"])

DAEMON = """python3 -c '
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print("daemon begun", flush=True)
time.sleep(300)'
"""


@pytest.mark.long
@BOTH
@pytest.mark.parametrize(
    "begins",
    ["setsid sleep 300 & echo away", "(trap '' TERM HUP; sleep 300 & wait) & echo away", DAEMON],
    ids=["session", "deaf", "daemon"],
)
async def test_processes_that_outlive_their_parent_are_ended(tmp_path: Path, sandbox: str, begins: str) -> None:
    bench = Bench(tmp_path, sandbox)
    outcome = await bench.build(run=(bench.script("run", f"{begins}\nexit 0"),))
    assert outcome.result == "SUCCESS" and not processes_of(bench.id)


@pytest.mark.long
@BOTH
async def test_cancelling_ends_every_descendant_and_only_cleans_up(tmp_path: Path, sandbox: str) -> None:
    bench, cancel = Bench(tmp_path, sandbox), asyncio.Event()
    run = bench.script("run", f"trap '' TERM\nsetsid sleep 300 & {DAEMON}\nsleep 300 & echo begun; wait; wait")
    bench.script("tidy", "echo tidied")
    bench.script("after", "echo after")
    tidy = Playbook(PROJECT, "local", "master", "tidy", cleanup=True)
    after = Playbook(PROJECT, "local", "master", "after")
    building = bench.start(cancel, run=(run,), post_run=(after, tidy))
    await bench.says("begun")
    cancel.set()
    async with asyncio.timeout(DEADLINE_S):
        outcome = await building
    assert outcome.result == "CANCELED" and not processes_of(bench.id)
    assert "tidied" in bench.log and "| after" not in bench.log


async def test_a_command_that_receives_sigterm_may_end_itself(tmp_path: Path) -> None:
    bench, cancel = Bench(tmp_path), asyncio.Event()
    run = bench.script("run", "trap 'echo heard; exit 3' TERM; echo begun; sleep 300 & wait")
    building = bench.start(cancel, run=(run,))
    await bench.says("begun")
    cancel.set()
    assert (await building).result == "CANCELED" and "heard" in bench.log


async def test_the_end_of_the_preparation_of_a_build_is_reported(tmp_path: Path) -> None:
    bench, contact = Bench(tmp_path), Alone()
    book = bench.script("long", "echo running; sleep 60")
    building = bench.start(run=(book,), contact=contact)
    assert not contact.commands_begun
    await bench.says("running")
    assert contact.commands_begun == 1, "and it runs still"
    building.cancel()
    with suppress(asyncio.CancelledError):
        await building


async def test_a_build_cancelled_before_it_began_runs_nothing(tmp_path: Path) -> None:
    bench, cancel = Bench(tmp_path), asyncio.Event()
    cancel.set()
    outcome = await bench.build(cancel=cancel, run=(bench.script("run", "echo never"),))
    assert outcome.result == "CANCELED" and "never" not in bench.log


async def test_dropping_a_build_ends_it_without_an_answer(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    begins = "trap '' TERM; setsid sleep 300 & echo begun; while :; do sleep 0.01; date >> written; done"
    building = bench.start(run=(bench.script("run", begins),))
    await bench.says("begun")
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert not processes_of(bench.id) and not (bench.runner.root / bench.id).exists()


async def test_a_dropped_build_cleans_up_undisturbed_and_its_directory_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, begun, may_go = Bench(tmp_path), asyncio.Event(), threading.Event()
    wound_down, removing = list[str](), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def logged(*_: object) -> None:
        (bench.runner.root / bench.id / "work").mkdir()
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await slow(0.2)
            wound_down.append(bench.id)

    def slowly(directory: Path) -> None:
        loop.call_soon_threadsafe(removing.set)
        may_go.wait(DEADLINE_S)
        remove(directory)

    monkeypatch.setattr(bench.runner, "_logged", logged)
    monkeypatch.setattr(runner, "remove", slowly)
    building = bench.start()
    await begun.wait()
    for _ in range(3):
        building.cancel()
        await nothing_happens(building.done, for_s=0.02)
    async with asyncio.timeout(DEADLINE_S):
        await removing.wait()
    assert wound_down == [bench.id]
    for _ in range(2):
        building.cancel()
        await nothing_happens(building.done, for_s=0.02)  # it is removed nevertheless
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert not (bench.runner.root / bench.id).exists()


def test_the_end_of_the_executor_is_the_end_of_its_commands(tmp_path: Path) -> None:
    """Killed without any chance to report: the supervisors notice that nobody listens."""
    script = tmp_path / "run"
    script.write_text("#!/bin/sh\ntrap '' TERM\nsetsid sleep 300 &\necho begun\nsleep 300\n")
    script.chmod(0o755)
    program = """
import asyncio, sys
from contextlib import suppress
from pathlib import Path
from headgate.adapters.process.joblog import JobLog
from headgate.adapters.process.processes import ProcessKeeper
from headgate.adapters.process.sandbox import Confined
log = JobLog(Path(sys.argv[1], "log"), size_max_bytes=1000)
log.say = print
log.write = lambda chunk: print(chunk.decode(), flush=True)
run = ProcessKeeper().run(Confined([sys.argv[1] + "/run"]), build="orphan-" + sys.argv[2], whose="t p",
    directory=Path(sys.argv[1]), root=Path(sys.argv[1]),
    environment={"PATH": "/usr/bin:/bin"}, log=log, cancel=asyncio.Event(), timeout_s=100)
asyncio.run(run)
"""
    mine = str(os.getpid())
    executor = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), mine], stdout=subprocess.PIPE)
    assert executor.stdout is not None
    with executor.stdout:
        assert b"begun" in executor.stdout.readline()
        executor.kill()
        executor.wait()
    assert end_of(f"orphan-{mine}")


async def test_a_lost_supervisor_fails_only_one_command(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    killing = bench.script("run", "setsid sleep 300 & kill -9 $PPID; sleep 300")
    outcome = await bench.build(run=(killing,))
    assert outcome.result == "FAILURE" and "supervisor of this command was killed" in bench.log
    assert end_of(bench.id)
    assert (await bench.build(run=(bench.script("run", "echo fine"),))).result == "SUCCESS"


async def test_the_log_streams_while_it_is_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    gate = tmp_path / "go"
    os.mkfifo(gate)
    building = bench.start(run=(bench.script("run", f"echo first; read line < {gate}; echo second $line"),))
    await bench.says("| first")
    assert not building.done() and "second" not in bench.log
    await asyncio.to_thread(gate.write_text, "heard\n")
    assert (await building).result == "SUCCESS" and "| second heard" in bench.log


async def test_a_log_is_capped_and_binary_output_is_harmless(tmp_path: Path) -> None:
    bench = Bench(tmp_path, log_size_max_bytes=20_000)
    run = bench.script("run", "printf '\\377\\001bin\\n'; yes 0123456789 | head -c 50000000")
    post = bench.script("post", "echo unheard")
    assert (await bench.build(run=(run,), post_run=(post,))).result == "SUCCESS"
    assert "\\xff\\x01bin" in bench.log and bench.log.count("has reached 0.02 MB") == 1 and len(bench.log) < 25_000
    assert bench.log.rstrip().endswith("RESULT: SUCCESS"), "our own lines are written always"


async def test_a_line_without_end_is_broken(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert (await bench.build(run=(bench.script("run", "head -c 200000 /dev/zero | tr '\\0' x"),))).result == "SUCCESS"
    assert max(len(line) for line in bench.log.splitlines()) < 70_000 and bench.log.count("x") >= 200_000


async def test_directories_and_processes_of_a_killed_executor_are_removed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    left = bench.runner.root / "left-from-before"
    (left / "work").mkdir(parents=True)
    (left / "work/locked").mkdir()
    (left / "work/locked/file").write_text("x")
    (left / "work/locked").chmod(0o500)
    same = {"HEADGATE_BUILD": left.name, "PATH": "/usr/bin:/bin"}
    orphan, elsewhere = [
        await asyncio.create_subprocess_exec(
            "sleep", "300", env={**same, "HOME": str(home / "work" / "home")}, start_new_session=True
        )
        for home in (left, tmp_path / "of-another-executor" / left.name)
    ]
    building = bench.start(run=(bench.script("run", "echo begun; sleep 300"),))
    await bench.says("begun")
    await bench.runner.sweep()
    async with asyncio.timeout(DEADLINE_S):
        assert await orphan.wait() == -signal.SIGKILL
    assert elsewhere.returncode is None, "the same build, begun anew by another executor"
    elsewhere.kill()
    await elsewhere.wait()
    assert not left.exists() and bench.work.exists() and not building.done(), "what runs is left alone"
    building.cancel()
    await asyncio.gather(building, return_exceptions=True)


async def test_a_full_disk_in_the_work_directory_is_tried_again_and_then_the_result(
    tmp_path: Path, small_disk: Path
) -> None:
    bench = Bench(tmp_path, disk=small_disk)
    fills = bench.script("run", "echo begun; dd if=/dev/zero of=big bs=1M count=8")
    outcome = await bench.build(run=(fills,))
    assert outcome.result is None and "no space is left on the executor's disk" in outcome.error
    outcome = await bench.build(run=(fills,), attempt=3)
    assert outcome.result == "DISK_FULL" and "no space is left on the executor's disk" in outcome.error
    assert "No space left on device" in bench.log and "RESULT: DISK_FULL" in bench.log
    assert not any(bench.runner.root.iterdir()), "and the space is free again"
    (bench.source / "large").write_bytes(b"x" * 5_000_000)
    assert (await bench.build(run=(fills,), attempt=3)).result == "DISK_FULL", "not even the checkout fits"
    (bench.source / "large").unlink()
    assert (await bench.build(run=(bench.script("run", "echo fine"),))).result == "SUCCESS"


async def test_a_build_that_fails_while_another_fills_the_disk_is_retried(tmp_path: Path, small_disk: Path) -> None:
    bench = Bench(tmp_path, disk=small_disk)
    beside = bench.start(run=(bench.script("beside", f"until test -e {tmp_path}/filled; do sleep 0.05; done; exit 1"),))
    await bench.build(run=(bench.script("run", "dd if=/dev/zero of=big bs=1M count=8"),))
    (tmp_path / "filled").touch()
    outcome = await beside
    assert outcome.result is None and "no space" in outcome.error, "the space is free again, but it was not"
    assert (await bench.build(run=(bench.script("run", "exit 1"),))).result == "FAILURE", "which began afterwards"


async def test_a_full_disk_for_the_log_is_the_result(tmp_path: Path, small_disk: Path) -> None:
    bench = Bench(tmp_path)
    bench.runner.log_root = small_disk / "logs"
    noisy = bench.script("run", "yes 0123456789abcdef | head -c 8000000; sleep 300")
    outcome = await bench.build(run=(noisy,), attempt=3)
    assert outcome.result == "DISK_FULL" and not processes_of(bench.id)


async def test_a_disk_too_full_for_the_repositories_is_reported(tmp_path: Path) -> None:
    class Full:
        async def branches(self, *_: object) -> tuple[str, ...]:
            return ("master",)

        async def checkout(self, *_: object, **__: object) -> str:
            raise OSError(28, "No space left on device", "src/big")

    bench = Bench(tmp_path)
    bench.runner._checkout = Full()
    playbooks = (Playbook(PROJECT, "local", "master", "run"),)
    outcome = await bench.build(run=playbooks, attempt=3)
    assert outcome.result == "DISK_FULL" and "src/big" in outcome.error
    assert (await bench.build(run=playbooks)).result is None, "elsewhere there may be some"


async def test_no_build_starts_without_free_space(tmp_path: Path, small_disk: Path) -> None:
    now_s = 1_000.0
    room = DiskRoom(lambda: (tmp_path, small_disk, tmp_path / "not yet"), now_s=lambda: now_s)
    assert f"{small_disk} is full" in room.refuses()
    elsewhere = DiskRoom(lambda: (tmp_path,), now_s=lambda: now_s)
    assert elsewhere.refuses() == "" and not elsewhere.gone(now_s)
    assert elsewhere.gone(now_s, "error: write error: No space left on device")
    assert "a moment ago" in elsewhere.refuses()
    now_s += SHY_S
    assert elsewhere.refuses() == "" and not elsewhere.gone(now_s)


async def test_a_build_without_a_work_directory_is_retried_elsewhere(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    shutil.rmtree(bench.source)
    (tmp_path / "builds").write_text("a file where a directory should be")
    outcome = await bench.build()
    assert outcome.result is None and "builds" in outcome.error
