"""A job that would change the Ansible which runs the playbooks of others."""

from __future__ import annotations

import shlex
from pathlib import Path

from headgate.adapters.ansible.environments import MARK, PYTHON, Environments
from tests.integration.builds.bench import Bench

PROGRAM = """#!/bin/sh
touch {place}/planted {root}/planted 2>/dev/null && echo PLANTED
echo evil >>{place}/bin/ansible-playbook && echo WRITTEN
rm -f {place}/{mark} && echo REMOVED
chmod 777 {place} && echo OPENED
ls {root} | grep -v -x {name} | sed 's/^/SEES /'
echo "$PATH" | grep -q "^{place}/bin:" && echo READS
"""


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
    job = {"run": (bench.script("x.yaml", "- hosts: all\n"),), "ansible_version": "9", "ansible_asked": True}
    outcome = await bench.start(**job)
    said = [line.partition(" | ")[2] for line in bench.log.splitlines()]
    assert outcome.result == "SUCCESS" and "READS" in said, bench.log
    assert not [line for line in said if line.startswith(("PLANTED", "WRITTEN", "REMOVED", "OPENED", "SEES"))]
    assert program.read_text() == text and (place / MARK).exists() and here.find("9") is not None
    assert {one.name for one in here.root.iterdir()} == {place.name, other.name}
    await bench.runner.close()
