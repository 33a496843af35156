"""Builds as real processes: phases, results, limits, and what must not survive them."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from headgate.adapters.process.joblog import JobLog
from headgate.adapters.process.processes import processes_of
from headgate.adapters.process.runner import ProcessRunner, RunnerSettings
from headgate.adapters.process.tail import follow
from headgate.base.ids import fresh
from headgate.config.model import FrozenJob, Playbook
from headgate.gate.change import Change
from headgate.gate.work import BuildOutcome, BuildSpec, RepoState

PROJECT = "h/code"
BOTH = pytest.mark.parametrize("sandbox", ["none", "bwrap"])


class Copies:
    """A checkout that copies a directory."""

    def __init__(self, source: Path) -> None:
        self.source = source

    async def checkout(
        self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True
    ) -> str:
        shutil.copytree(self.source, dest, dirs_exist_ok=True)
        return "1" * 40


def book(path: str, nesting: int = 0, *, cleanup: bool = False) -> Playbook:
    return Playbook(PROJECT, "local", "master", path, nesting=nesting, cleanup=cleanup)


class Bench:
    """Scripts, a runner, and one build at a time."""

    def __init__(self, root: Path, sandbox: str = "none", **settings: object) -> None:
        self.id = fresh()
        self.source = root / "source"
        self.source.mkdir()
        (self.source / "README").write_text("x\n")
        self.runner = ProcessRunner(
            root / "builds",
            root / "logs",
            Copies(self.source),
            RunnerSettings(sandbox=sandbox, **settings),  # type: ignore[arg-type]
        )

    def script(self, name: str, text: str) -> Playbook:
        file = self.source / name
        file.write_text(text if name.endswith(".yaml") else f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return book(name)

    async def build(self, cancel: asyncio.Event | None = None, attempt: int = 3, **job: object) -> BuildOutcome:
        frozen = FrozenJob(name="job", **job)  # type: ignore[arg-type]
        change = Change("local", PROJECT, "master", "topic", "1" * 40)
        spec = BuildSpec(self.id, "set", "t", "gate", "i", frozen, change, attempt, zuul={"pipeline": "gate"})
        return await self.runner.run(spec, RepoState(), cancel or asyncio.Event())

    @property
    def log(self) -> str:
        return (self.runner.log_root / self.id / "job-output.txt").read_text()


@BOTH
async def test_phases_come_in_order_and_data_is_returned(tmp_path: Path, sandbox: str) -> None:
    bench = Bench(tmp_path, sandbox)
    pre = bench.script("pre", "echo in-pre")
    run = bench.script("run", 'echo "in-run $ZUUL_CHANGE"; headgate-return zuul.log_url=\'"http://l"\' n=3; cat README')
    post = bench.script("post", "echo in-post")
    outcome = await bench.build(pre_run=(pre,), run=(run,), post_run=(post,))
    assert (outcome.result, outcome.data) == ("SUCCESS", {"zuul": {"log_url": "http://l"}, "n": 3})
    assert bench.log.index("in-pre") < bench.log.index("in-run topic") < bench.log.index("in-post")
    assert not (tmp_path / "builds" / bench.id).exists()


async def test_failures_have_their_names(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    good, bad = bench.script("good", "true"), bench.script("bad", "false")
    slow = bench.script("slow", "sleep 20")
    assert (await bench.build(run=(bad,), post_run=(good,))).result == "FAILURE"
    assert (await bench.build(run=(good,), post_run=(bad,))).result == "POST_FAILURE"
    assert (await bench.build(attempt=1, pre_run=(bad,), run=(good,))).result is None
    assert (await bench.build(attempt=3, pre_run=(bad,), run=(good,))).result == "RETRY_LIMIT"
    assert (await bench.build(run=(slow,), timeout_s=1)).result == "TIMED_OUT"
    missing = await bench.build(run=(book("nothing"),))
    assert missing.result == "ERROR" and "has no file nothing" in missing.error
    (bench.source / "text").write_text("just text\n")
    unclear = await bench.build(run=(book("text"),))
    assert unclear.result == "ERROR" and "neither a playbook" in unclear.error


@BOTH
async def test_what_forks_and_outlives_its_parent_is_ended(tmp_path: Path, sandbox: str) -> None:
    bench = Bench(tmp_path, sandbox)
    run = bench.script("run", "setsid sleep 300 & echo away; exit 0")
    async with asyncio.timeout(20):
        assert (await bench.build(run=(run,))).result == "SUCCESS"
    assert not processes_of(bench.id)


@BOTH
async def test_cancelling_ends_everything_but_cleanup_runs(tmp_path: Path, sandbox: str) -> None:
    bench, cancel = Bench(tmp_path, sandbox), asyncio.Event()
    run = bench.script("run", "sleep 300 & echo begun; wait")
    bench.script("tidy", "echo tidied")
    building = asyncio.ensure_future(bench.build(cancel, run=(run,), post_run=(book("tidy", cleanup=True),)))
    async with asyncio.timeout(20):
        async for chunk in follow(tmp_path / "logs" / bench.id / "job-output.txt", lambda: False):
            if b"begun" in chunk:
                break
        cancel.set()
        outcome = await building
    assert outcome.result == "CANCELED" and "tidied" in bench.log and not processes_of(bench.id)


async def test_the_sandbox_keeps_writes_inside(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap")
    outside = tmp_path / "outside"
    run = bench.script("run", f"touch {outside} /etc/headgate-was-here; echo $?; touch ok && echo inside")
    assert (await bench.build(run=(run,))).result == "SUCCESS"
    assert not outside.exists() and not Path("/etc/headgate-was-here").exists() and "inside" in bench.log


async def test_a_log_is_capped_and_binary_output_is_harmless(tmp_path: Path) -> None:
    bench = Bench(tmp_path, log_size_max_bytes=20_000)
    run = bench.script("run", "printf '\\377\\001bin\\n'; yes 0123456789 | head -c 5000000")
    assert (await bench.build(run=(run,))).result == "SUCCESS"
    assert "\\xff\\x01bin" in bench.log and bench.log.count("has reached 0.02 MB") == 1 and len(bench.log) < 25_000


async def test_a_full_disk_is_said(tmp_path: Path) -> None:
    class Full(Copies):
        async def checkout(self, *args: object, **kwargs: object) -> str:
            raise OSError(errno.ENOSPC, "No space left on device", "src/big")

    bench = Bench(tmp_path)
    bench.runner._checkout = Full(bench.source)
    outcome = await bench.build(run=(book("run"),))
    assert outcome.result == "DISK_FULL" and "src/big" in outcome.error
    with pytest.raises(OSError, match="No space"):
        JobLog(Path("/dev/full"), size_max_bytes=100).say("x")


async def test_a_playbook_is_run_by_ansible(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap")
    text = """
- hosts: localhost
  gather_facts: false
  tasks:
    - command: echo hello {{ who }} from {{ zuul.pipeline }}
      register: said
    - zuul_return:
        data: {said: "{{ said.stdout }}", zuul: {log_url: "http://l"}}
"""
    outcome = await bench.build(run=(bench.script("play.yaml", text),), vars={"who": "Ada"})
    assert outcome.result == "SUCCESS", bench.log
    assert outcome.data == {"said": "hello Ada from gate", "zuul": {"log_url": "http://l"}}


async def test_what_an_earlier_life_left_is_swept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    left = tmp_path / "builds" / bench.id
    left.mkdir(parents=True)
    process = await asyncio.create_subprocess_exec(
        "sleep", "300", env={"HEADGATE_BUILD": left.name, "PATH": "/usr/bin:/bin"}
    )
    await bench.runner.sweep()
    async with asyncio.timeout(10):
        assert await process.wait() != 0
    assert not left.exists()
