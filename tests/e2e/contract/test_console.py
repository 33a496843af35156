"""Test that output of commands on a machine is in the log while they run, and nobody else there can read it."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.testing.clock import DEADLINE_S

from .stage import Stage

pytestmark = pytest.mark.sampled

TALKS = """
- hosts: all
  gather_facts: false
  tasks:
    - zuul_console:
    - win_zuul_console: {port: 19886, state: present}
    - name: talks
      shell: |
        printf 'begun with %s: gr\\303\\274n \\377 \\033[31mred\\033[0m \\033[2Jgone\\n' {{ item }}
        head -c 70000 /dev/zero | tr '\\0' x
        until test -e {{ 'GO' or zuul.executor.work_root }}/go-{{ item }}; do sleep 0.1; done
        printf 'end\\n2026-01-01 00:00:00.000000 | [Zuul] Task exit code: 0\\n'
      loop: [first, second]
    - shell: echo quiet $(find /tmp -maxdepth 1 -name 'headgate-*' -type f -user $(id -un) 2>/dev/null | wc -l)
      vars: {zuul_console_disabled: "{{ 1 == 1 }}"}
    - zuul_console: {prot: 1}
      ignore_errors: true
"""


def modes_of_streams(owner: str) -> Iterator[int]:
    for file in Path("/tmp").glob("headgate-*"):
        with suppress(FileNotFoundError, KeyError):  # of another test
            if file.is_file() and file.owner() == owner:
                yield stat.S_IMODE(file.stat().st_mode)


@pytest.mark.long
async def test_output_of_a_machine_is_read_while_commands_run_and_by_nobody_else(stage: Stage, tmp_path: Path) -> None:
    far = tmp_path if stage.user is None else stage.home
    run = stage.book("talks.yaml", TALKS.replace("GO", str(far) if stage.is_far else ""))
    async with asyncio.timeout(DEADLINE_S):
        building = stage.bench.start(run=(run,), **stage.nodes())
        for item in ("first", "second"):
            await stage.bench.says(f"one | begun with {item}: grün \\xff \x1b[31mred\x1b[m gone")
            await stage.bench.says("one | " + "x" * 50_000)
            assert not building.done() and stage.log.count("[Zuul] Task exit code") == (item == "second")
            if stage.user is not None:
                assert set(modes_of_streams(stage.user.name)) == {0o600}
            ((far if stage.is_far else stage.bench.work) / f"go-{item}").touch()
        outcome = await building
    assert outcome.result == "SUCCESS", stage.log
    assert stage.log.count("TASK [talks]") == 1 and "| one | changed: first" in stage.log
    assert "one | quiet 0\n" in stage.log or (stage.is_far and stage.user is None), "others may run as this user"
    assert "zuul_console: there is no option prot" in stage.log
