"""The key that opens a build's machines is used by its playbooks and read by none, nor by another build."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.testing.servers.sshd import Lab, program
from tests.e2e.contract.conftest import SSHD_MISSING
from tests.e2e.contract.stage import Stage

LOOKS = """
- hosts: localhost
  gather_facts: false
  tasks:
    - shell: |
        ssh-add -L | grep -c ^ssh-
        ssh-add -T %(lab)s/key.pub 2>&1 | head -1
        cat %(lab)s/key $SSH_AUTH_SOCK 2>&1 | grep -c PRIVATE
        grep -rlsa 'OPENSSH PRIVAT[E]' /run /tmp /etc /dev/shm ~ {{ zuul.executor.work_root }}/..
        for memory in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do grep -la 'ssh-agen[t]' $memory 2>/dev/null; done
        rm -f $SSH_AUTH_SOCK 2>/dev/null && echo REMOVED
        mv $(dirname $SSH_AUTH_SOCK) /tmp/x 2>/dev/null && echo MOVED
        ls -d %(root)s/plain/builds/*/agent/agent 2>&1
        cd %(neighbour)s && SSH_AUTH_SOCK=agent ssh-add -L
        true
- hosts: all
  gather_facts: false
  tasks: [{raw: echo reached}]
"""


async def test_the_key_of_a_machine_is_read_by_no_playbook_and_no_other_build_has_its_agent(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip(SSHD_MISSING)
    lab = Lab(tmp_path / "lab")
    with lab.server() as port:
        stage = Stage(tmp_path, lab, port)
        neighbour = tmp_path / "plain/builds/neighbour/agent"
        neighbour.mkdir(parents=True)
        said = {"lab": lab.root, "root": tmp_path, "neighbour": neighbour}
        words = "-D", "-a", "agent"
        other = await asyncio.create_subprocess_exec("ssh-agent", *words, cwd=neighbour, stdout=asyncio.subprocess.PIPE)
        assert other.stdout is not None and await other.stdout.readline()
        try:
            await stage.build(run=(stage.book("play.yaml", LOOKS % said),))
        finally:
            other.kill()
            await other.wait()
    told = [line.partition("localhost | ")[2] for line in stage.log.splitlines() if "localhost | " in line]
    assert told[0] == "1" and "No such file" in told[1] and told[2] == "0", stage.log
    assert not [line for line in told[3:] if line.startswith(("/run", "/tmp/", "/proc", "REMOVED", "MOVED", "ssh-"))]
    assert "one | reached" in stage.log
