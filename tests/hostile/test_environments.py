"""Test a job that tries to change the Ansible that runs the playbooks of others."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shlex
from pathlib import Path

import pytest

from headgate.adapters.ansible.install import AnsibleSupply
from headgate.adapters.ansible.versions import MARK, PYTHON, Environments
from headgate.testing.clock import DEADLINE_S
from tests.integration.builds.bench import Bench
from tests.waiting import nothing_happens

PROGRAM = """#!/bin/sh
touch {place}/planted {root}/planted 2>/dev/null && echo PLANTED
echo evil >>{place}/bin/ansible-playbook && echo WRITTEN
rm -f {place}/{mark} && echo REMOVED
chmod 777 {place} && echo OPENED
ls {root} | grep -v -x {name} | sed 's/^/SEES /'
echo "$PATH" | grep -q "^{place}/bin:" && echo READS
"""


@pytest.mark.long
async def test_a_job_reads_the_ansible_that_it_asks_for_and_changes_nothing_of_it(tmp_path: Path) -> None:
    here = Environments(tmp_path / "state" / "ansible")
    place, other = here.place("9"), here.place("11")
    for version, at in (("9", place), ("11", other)):
        (at / "bin").mkdir(parents=True)
        (at / MARK).write_text(f'{{"version": "{version}", "core": "0", "python": "{PYTHON}"}}')
    names = {"place": place, "root": here.root, "mark": MARK, "name": place.name}
    text = PROGRAM.format(**{name: shlex.quote(str(value)) for name, value in names.items()})
    program = place / "bin" / "ansible-playbook"
    program.write_text(text)
    program.chmod(0o755)
    bench = Bench(tmp_path, "bwrap", ansible=here, hidden=(tmp_path / "state",))
    job = {"run": (bench.script("x.yaml", "- hosts: all\n"),), "ansible_version": "9", "ansible_is_named": True}
    outcome = await bench.start(**job)
    lines = [line.partition(" | ")[2] for line in bench.log.splitlines()]
    assert outcome.result == "SUCCESS" and "READS" in lines, bench.log
    assert not [line for line in lines if line.startswith(("PLANTED", "WRITTEN", "REMOVED", "OPENED", "SEES"))]
    assert program.read_text() == text and (place / MARK).exists() and here.find("9") is not None
    assert {one.name for one in here.root.iterdir()} == {place.name, other.name}
    await bench.runner.close()


async def test_a_lock_on_a_version_delays_only_builds_that_need_it(tmp_path: Path) -> None:
    here = Environments(tmp_path)
    place = here.place("9")
    place.mkdir()
    (place / MARK).write_text(f'{{"version": "9", "core": "0", "python": "{PYTHON}"}}')
    supply = AnsibleSupply(here, manages=False)

    async def taken() -> str:
        async with supply.taken("9", requested=True, say=print) as found:
            return found.name if found else ""

    fd = os.open(place, os.O_RDONLY)  # as everybody may
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        building = asyncio.ensure_future(taken())
        await nothing_happens(building.done, for_s=0.03, every_s=0.01)
        cancelled = asyncio.ensure_future(taken())
        await asyncio.sleep(0)
        cancelled.cancel()
        assert isinstance((await asyncio.gather(cancelled, return_exceptions=True))[0], asyncio.CancelledError)
    finally:
        os.close(fd)
    async with asyncio.timeout(DEADLINE_S):
        assert await building == "Ansible 9 (ansible-core 0)"
    await supply.close()
