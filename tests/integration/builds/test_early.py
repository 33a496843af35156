"""Test signs that a build fails before it has ended."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.testing.clock import DEADLINE_S

from .bench import Alone, Bench

ANSIBLE = """
- hosts: localhost
  gather_facts: false
  tasks:
    - block:
        - command: "false"
      rescue:
        - command: echo all is well
    - command: "false"
      ignore_errors: true
    - command: echo FAILED, says a test that passed
    - debug: {msg: so far nothing}
"""
FAILS = """
    - block:
        - command: "false"
      always:
        - shell: read x < %s
"""


async def test_a_line_that_matches_failure_output_fails_the_build_immediately(tmp_path: Path) -> None:
    bench, contact, go = Bench(tmp_path), Alone(), tmp_path / "go"
    os.mkfifo(go)
    script = f"echo nothing yet; echo tests: 3 FAILED of 7; read x < {go}; echo done"
    running = bench.start(contact=contact, run=(bench.script("run", script),), failure_output=("^never$", r"\d FAILED"))
    async with asyncio.timeout(DEADLINE_S):
        await contact.failing.wait()
    assert not running.done()
    go.write_text("x\n")
    outcome = await running
    assert outcome.result == "FAILURE" and 'matches failure-output: "tests: 3 FAILED of 7"' in outcome.error


async def test_lines_of_pre_run_and_of_cleanup_do_not_count(tmp_path: Path) -> None:
    bench, contact = Bench(tmp_path), Alone()
    loud = bench.script("loud", "echo BOOM")
    tidy = replace(loud, cleanup=True, ignore_result=True)
    quiet = bench.script("quiet", "echo fine")
    outcome = await bench.start(
        contact=contact, pre_run=(loud,), run=(quiet,), post_run=(tidy,), failure_output=("BOOM",)
    )
    assert outcome.result == "SUCCESS" and not contact.failing.is_set()
    outcome = await bench.start(contact=contact, run=(quiet,), post_run=(loud,), failure_output=("BOOM",))
    assert outcome.result == "FAILURE" and contact.failing.is_set()


async def test_a_sign_of_failure_is_found_although_the_log_is_full_and_the_line_has_no_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, log_size_max_bytes=2_000)
    much = bench.script("run", "yes filler | head -2000; printf BOOM")
    assert (await bench.build(run=(much,), failure_output=("^BOOM",))).result == "FAILURE"


@pytest.mark.long
async def test_a_failed_task_makes_the_build_count_as_failing_unless_it_is_rescued(tmp_path: Path) -> None:
    bench, contact, go = Bench(tmp_path), Alone(), tmp_path / "go"
    outcome = await bench.start(contact=contact, run=(bench.script("good.yaml", ANSIBLE),))
    assert outcome.result == "SUCCESS" and not contact.failing.is_set(), bench.log
    os.mkfifo(go)
    running = bench.start(contact=contact, run=(bench.script("bad.yaml", ANSIBLE + FAILS % go),))
    async with asyncio.timeout(DEADLINE_S):
        await contact.failing.wait()
    assert not running.done()
    go.write_text("x\n")
    assert (await running).result == "FAILURE"
    assert "a task failed" not in bench.log and "HEADGATE" not in bench.log
    assert not [line for line in bench.log.splitlines() if len(line.rpartition("| ")[2]) == 32], (
        "nobody reads the token"
    )


@pytest.mark.long
async def test_output_of_a_task_matches_without_its_host(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    play = "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - command: echo FATAL error\n"
    outcome = await bench.build(run=(bench.script("play.yaml", play),), failure_output=("^FATAL",))
    assert outcome.result == "FAILURE"


@pytest.mark.parametrize(
    "patterns", [(f"(?:{'x' * 999}){{999}}",), tuple(f"[a-z]{{{n}}}[α-ω]{{900}}" for n in range(900))]
)
async def test_patterns_that_are_too_large_together_are_an_error_of_the_job(
    tmp_path: Path, patterns: tuple[str, ...]
) -> None:
    bench = Bench(tmp_path)
    outcome = await bench.build(run=(bench.script("run", "true"),), failure_output=patterns)
    assert outcome.result == "ERROR" and "failure-output together are too large" in outcome.error
