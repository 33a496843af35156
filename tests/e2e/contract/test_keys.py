"""Test keys: the operator's opens the machines, a build's own may replace it, and no playbook can read either."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.builds.test_secrets import Keys, with_secret

from .stage import Stage

EXCHANGE = """
- hosts: localhost
  gather_facts: false
  tasks:
    - command: ssh-keygen -q -t ed25519 -N '' -C build -f {{ zuul.executor.work_root }}/{{ zuul.build }}_id
    - shell: ssh-add -L | wc -l && test ! -e %(key)s
- hosts: all
  gather_facts: false
  tasks:
    - name: the machine takes the key of the build
      lineinfile:
        path: %(authorized)s
        line: "{{ lookup('file', zuul.executor.work_root ~ '/' ~ zuul.build ~ '_id.pub') }}"
- hosts: localhost
  gather_facts: false
  tasks:
    - shell: |
        ssh-add -D 2>&1
        ssh-add -q {{ zuul.executor.work_root }}/{{ zuul.build }}_id
        rm {{ zuul.executor.work_root }}/{{ zuul.build }}_id
"""
USES = """
- hosts: localhost
  gather_facts: false
  tasks: [{shell: "ssh-add -L | cut -d' ' -f3; find / -xdev -name '*_id' -o -xdev -path '*/lab/key' 2>/dev/null"}]
- hosts: all
  gather_facts: false
  tasks: [{raw: "echo still reached in {{ zuul_execution_phase }}"}]
"""


@pytest.mark.long
async def test_the_build_s_own_key_takes_the_place_of_the_operator_s(far: Stage) -> None:
    stage, lab = far, far.lab
    assert lab is not None
    authorized = (stage.user.home / ".ssh/authorized_keys") if stage.user else lab.root / "key.pub"
    pre = stage.book("pre.yaml", EXCHANGE % {"key": lab.key, "authorized": authorized}, trusted=True)
    run, post = stage.book("run.yaml", USES), stage.book("post.yaml", USES, trusted=True)
    await stage.build(pre_run=(pre,), run=(run,), post_run=(post,))
    assert "localhost | 1\n" in stage.log and stage.log.count("localhost | build\n") == 2, stage.log
    assert "still reached in run" in stage.log and "still reached in post" in stage.log
    assert "_id\n" not in stage.log and "/lab/key\n" not in stage.log


ADDS = """
- hosts: localhost
  gather_facts: false
  tasks:
    - shell: ssh-keygen -q -t ed25519 -N '' -C of-secrets -f ~/key && ssh-add -q ~/key && ssh-add -L | cut -d' ' -f3
"""
LISTS = """
- hosts: localhost
  gather_facts: false
  tasks: [{shell: "ssh-add -L | cut -d' ' -f3 | tr of TU; ls -ld $SSH_AUTH_SOCK | cut -c1-10"}]
"""


@pytest.mark.long
async def test_a_key_that_a_playbook_with_secrets_adds_is_removed_when_it_has_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.opened(Keys())
    first = stage.book("first.yaml", ADDS.replace("of-secrets", "common"))
    own = with_secret(stage.book("own.yaml", ADDS))
    other = stage.book("other.yaml", LISTS, trusted=True)
    await stage.build(run=(first, own), post_run=(other,))
    assert "localhost | of-secrets" in stage.log and "localhost | cTmmTn" in stage.log, stage.log
    assert "TU-secrets" not in stage.log and "localhost | srw-------" in stage.log
