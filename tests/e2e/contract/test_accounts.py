"""Test accounts of a container, which tasks become without programs of the image, and the files that a playbook
leaves."""

from __future__ import annotations

import pytest

from .stage import Stage

pytestmark = pytest.mark.sampled

BECOMES = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: itself, command: id -un}
    - name: the other
      command: sh -c 'id -un; touch "$HOME/made"; cat /etc/shadow; grep NoNewPrivs /proc/self/status'
      become: true
      become_user: other
      failed_when: false
    - {name: what it made, stat: {path: /home/other/made}, become: true, become_user: other, register: made}
    - {name: whose it is, assert: {that: made.stat.pw_name == "other"}}
    - {name: again itself, command: touch /home/other/mine, register: kept, failed_when: kept.rc == 0}
    - {name: root, command: id -un, become: true, become_method: ansible.builtin.su}
    - {name: nobody, command: id -un, become: true, become_user: strange, ignore_errors: true}
"""


@pytest.mark.long
async def test_an_account_of_a_container_becomes_any_other(contained: Stage) -> None:
    make = "mkdir -p /home/one && chown one /home/one && chown other /home/other && chmod 700 /home/*"
    books = contained.book("home", make), contained.book("becomes.yaml", BECOMES)
    await contained.build(run=books, host_vars={"one": {"ansible_user": "one"}})
    for line in ("one\n", "other\n", "root\n", "NoNewPrivs:\t1\n"):
        assert f"one | {line}" in contained.log, f"{line}\n{contained.log}"
    assert "has no user strange" in contained.log


LEAVES = """
- hosts: all
  gather_facts: false
  tasks:
    - raw: echo kept > ~/headgate-left; echo kept > /tmp/headgate-left
    - raw: trap '' HUP; sleep 287 > /dev/null 2>&1 < /dev/null & echo left
"""
FINDS = """
- hosts: all
  gather_facts: false
  tasks:
    - raw: cat ~/headgate-left; rm ~/headgate-left; echo in home
    - raw: "cat /tmp/headgate-left && rm /tmp/headgate-left && echo in tmp || echo not in tmp"
    - raw: "pkill -f 'sleep 28[7]' && echo runs on || echo ended"
"""


@pytest.mark.long
async def test_files_and_processes_that_a_playbook_leaves_on_a_machine(stage: Stage) -> None:
    """On a separate machine all of it stays; elsewhere only files in the home do."""
    await stage.build(run=(stage.book("leaves.yaml", LEAVES), stage.book("finds.yaml", FINDS)))
    there = ("in tmp", "runs on") if stage.is_far else ("not in tmp", "ended")
    for line in ("kept", "in home", *there):
        assert f"one | {line}\n" in stage.log, f"{line}\n{stage.log}"
