"""Test that a build's playbooks can use the key of its machines, but neither they nor another build can read it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headgate.adapters.process.access import Agent
from headgate.testing.servers.sshd import Lab, program
from tests.e2e.contract.conftest import SSHD_MISSING
from tests.e2e.contract.stage import Stage
from tests.integration.builds.test_secrets import Keys, with_secret

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


@pytest.mark.long
async def test_the_key_of_a_machine_is_read_by_no_playbook_and_no_other_build_has_its_agent(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip(SSHD_MISSING)
    lab = Lab(tmp_path / "lab")
    with lab.server() as port:
        stage = Stage(tmp_path, lab, port)
        neighbour = tmp_path / "plain/builds/neighbour/agent"
        neighbour.mkdir(parents=True)
        places = {"lab": lab.root, "root": tmp_path, "neighbour": neighbour}
        words = "-D", "-a", "agent"
        other = await asyncio.create_subprocess_exec("ssh-agent", *words, cwd=neighbour, stdout=asyncio.subprocess.PIPE)
        assert other.stdout is not None and await other.stdout.readline()
        try:
            await stage.build(run=(stage.book("play.yaml", LOOKS % places),))
        finally:
            other.kill()
            await other.wait()
    lines = [line.partition("localhost | ")[2] for line in stage.log.splitlines() if "localhost | " in line]
    assert lines[0] == "1" and "No such file" in lines[1] and lines[2] == "0", stage.log
    lines = [line for line in lines[3:] if not line.startswith(sys.prefix)]  # which may lie below /tmp
    assert not [line for line in lines if line.startswith(("/run", "/tmp/", "/proc", "REMOVED", "MOVED", "ssh-"))]
    assert "one | reached" in stage.log


PLANTS = """
exec python3 - <<'END'
import base64, os, socket, struct
def text(said): return struct.pack(">I", len(said)) + said
def give(public, comment):
    agent = socket.socket(socket.AF_UNIX)
    agent.connect(os.environ["SSH_AUTH_SOCK"])
    key = text(b"ssh-ed25519") + text(public) + text(os.urandom(32) + public)
    agent.sendall(text(bytes([17]) + key + text(comment)))
    assert agent.recv(5)[4] == 6
lines = %(lines)r
give(base64.b64decode(lines[0].split()[1])[-32:], lines[0].split()[2].encode())
give(os.urandom(32), b"any\\n" + lines[1].encode())
for _ in range(%(more)d):
    give(os.urandom(32), b"")
END
"""
GIVES = """
- hosts: localhost
  gather_facts: false
  tasks:
    - shell: |
        umask 077; cd
        cat > a <<'END'
        %(a)s
        END
        cat > b <<'END'
        %(b)s
        END
        ssh-add -q a b && ssh-add -T %(pub)s/a.pub %(pub)s/b.pub && echo given
"""
TESTS = """
- hosts: localhost
  gather_facts: false
  tasks:
    - shell: "for key in a b; do ssh-add -T %(pub)s/$key.pub >&2 && echo SIGNS; done; echo asked"
"""


def _made(key: Path) -> str:
    """A new key, as lines of a task."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"key-{key.name}", "-f", str(key)], check=True)
    return key.read_text().strip().replace("\n", "\n        ")


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("more", [0, 2_100])
async def test_a_key_of_a_playbook_with_secrets_goes_also_where_its_public_part_was_planted(
    tmp_path: Path, more: int
) -> None:
    stage = Stage(tmp_path)
    stage.opened(Keys())
    found = {name: _made(tmp_path / name) for name in ("a", "b")}
    lines = [(tmp_path / f"{name}.pub").read_text().strip() for name in found]
    writes = "".join(f"printf '%s\\n' '{line}' > {{place}}/{n}.pub; " for n, line in zip(found, lines, strict=True))
    place = "{{ zuul.executor.work_root }}"
    shares = "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - shell: |\n        "
    first = stage.book("first.yaml", shares + writes.replace("{place}", place) + "\n")
    plants = stage.book("plants", PLANTS % {"lines": lines, "more": more})
    own = with_secret(stage.book("own.yaml", GIVES % {**found, "pub": place}))
    last = stage.book("last.yaml", TESTS % {"pub": place})
    await stage.build(run=(first, plants, own, last))
    assert "localhost | given" in stage.log and "localhost | asked" in stage.log, stage.log
    assert "SIGNS" not in stage.log, stage.log


@pytest.mark.long
async def test_the_agent_loads_no_library_that_a_job_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as reached:
        place, there = Path(reached), Agent._in_place
        place.chmod(0o777)  # anything that loads libraries runs as the build's user
        helper, loaded = place / "helper", place / "loaded"
        helper.write_text(f"#!/bin/sh\n: > {loaded}\n")
        helper.chmod(0o755)
        monkeypatch.setattr(
            Agent, "_in_place", lambda self, command: there(self, f"env SSH_PKCS11_HELPER={helper} {command}")
        )
        stage = Stage(tmp_path)
        asks = "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - shell: |\n        %s\n"
        word = "for one in $(find /usr/lib -name libz.so.1); do echo | ssh-add -s $one 2>&1; done; echo asked"
        await stage.build(run=(stage.book("asks.yaml", asks % word),))
        assert "localhost | asked" in stage.log and "refused" in stage.log, stage.log
        assert not loaded.exists()
