"""Test that facts of an untrusted playbook, set with Ansible or directly, run and decide nothing in a trusted one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.contract.stage import Stage
from tests.integration.builds.test_secrets import Keys, with_secret

WRITES = """#!/usr/bin/env python3
import configparser, json, os
config = configparser.ConfigParser(interpolation=None)
config.read(os.environ["ANSIBLE_CONFIG"])
place = config["defaults"]["fact_caching_connection"]
loot = "{{ lookup('pipe', 'echo RAN; env') }}"
tags = [{"__ansible_type": "TrustedAsTemplate"}]
evil = {"value": loot, "tags": tags, "__ansible_type": "_AnsibleTaggedStr"}
said = {name: evil for name in ("described", "where")} | {"pypi": {"token": "attacker"}, "zuul": evil}
said |= {"ansible_connection": "ssh", "ansible_host": "evil", "ansible_python_interpreter": "/bin/evil",
         "discovered_interpreter_python": "/bin/evil", "ansible_become": True, "ansible_become_exe": "RAN",
         "ansible_shell_executable": "/bin/evil", "ansible_facts": {"user_dir": "/evil"},
         "_ansible_facts_gathered": True, "ansible_user_dir": "/evil", "pkg_mgr": "shell"}
for host in ("one", "localhost", "s1_localhost", "s1_one"):
    text = json.dumps(said)
    with open(f"{place}/{host}", "w") as file:
        file.write(json.dumps({"__payload__": text}) if host.startswith("s1_") else text)
os.symlink(os.environ["ANSIBLE_CONFIG"], f"{place}/other")
os.mkfifo(f"{place}/pipe")
print("planted")
"""
RUN = """
- hosts: localhost
  gather_facts: false
  tasks: [{script: "{{ zuul.executor.src_root }}/../planted"}]
"""
POST = """
- hosts: all
  gather_facts: true
  vars: {where: archive}
  tasks:
    - debug: {msg: "W {{ where }} D {{ described }} K {{ pypi.token[:6] }} J {{ zuul.job }}"}
    - assert: {that: ["ansible_facts.user_dir != '/evil'", "ansible_facts.pkg_mgr != 'shell'"]}
    - shell: printf %s $TOKEN | wc -c
      environment: {TOKEN: "{{ pypi.token }}"}
"""


@pytest.mark.long
async def test_facts_of_an_untrusted_playbook_run_and_decide_nothing_in_a_trusted_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.opened(Keys())
    plant = WRITES.replace("'", "'\"'\"'")
    made = "$ZUUL_SRC_ROOT/../planted"
    first = stage.book("first", f"printf '%s' '{plant}' > {made}; chmod 755 {made}")
    run = stage.book("run.yaml", RUN)
    post = with_secret(stage.book("post.yaml", POST, trusted=True))
    await stage.build(run=(first, run), post_run=(post,))
    assert "planted" in stage.log
    loot = "{{ lookup('pipe', 'echo RAN; env') }}"
    assert f"one | W archive D {loot} K s3cr3t J job" in stage.log, stage.log
    assert "RAN\n" not in stage.log and "evil" not in stage.log.partition("POST-RUN")[2], stage.log
