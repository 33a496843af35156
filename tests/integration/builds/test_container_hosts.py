"""Test playbooks whose host is the container of their job."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.testing.servers.images import shell

from .bench import Bench
from .imaged import Images, fetched_images, images

__all__ = ["fetched_images", "images"]

HOME = "/root"
"""The home directory of the container's user."""
FIRST = """
- hosts: all
  gather_facts: false
  tasks:
    - copy: {content: of the first, dest: ~/kept}
    - shell: echo $(id -un) in $(pwd) reads $(cat {{ zuul.executor.src_root }}/h/code/README); cat /proc/self/uid_map
    - shell: "touch {{ zuul.executor.work_root }}/mine"
      register: wrote
      failed_when: wrote.rc == 0
    - shell: sleep 300 > /dev/null 2>&1 & echo started
    - {shell: "test -e /usr/bin/bwrap || echo without the programs of the machine"}
- hosts: localhost
  gather_facts: false
  tasks: [{shell: "echo beside it: $(ls {HOME}/kept 2>&1 | tail -c 26)"}]
- hosts: container
  tasks:
    - debug: {msg: "{{ ansible_distribution }} of {{ ansible_user_id }}"}
"""
AFTER = """
- hosts: all
  gather_facts: false
  tasks:
    - shell: "cat ~/kept; echo; ls {{ zuul.executor.work_root }} || echo sees no work tree; ps | grep -c '[s]leep 300'"
      ignore_errors: true
"""


@pytest.mark.long
async def test_a_playbook_has_the_container_as_its_host(tmp_path: Path, images: Images) -> None:
    bench = Bench(tmp_path, "container", images=images.supply)
    post = replace(bench.script("post.yaml", AFTER), trusted=True)
    program = bench.script("program", f"cat {HOME}/kept")
    outcome = await bench.build(
        run=(bench.script("first.yaml", FIRST.replace("{HOME}", HOME)), program), post_run=(post,), image=images.system
    )
    assert outcome.result == "SUCCESS" and outcome.image.startswith(images.system), bench.log
    for line in (
        "container | root in /root reads x", "container | started", "container | without the programs of the machine",
        "localhost | beside it: No such file or directory", "container | of the first", "container | sees no work tree",
        "container | 0\n",
    ):  # fmt: skip
        assert f"| {line}" in bench.log, f"{line}\n{bench.log}"
    assert " of root\n" in bench.log and "\nof the first" not in bench.log and "| of the first" in bench.log
    assert "container |          0 1900100000" in bench.log, "its root is nobody outside"


@pytest.mark.long
async def test_unsupported_features_in_a_container_are_reported(tmp_path: Path, images: Images) -> None:
    image = images.registry.put("team/bare", shell())
    bench = Bench(tmp_path, "container", images=images.supply)
    raw = "- hosts: all\n  gather_facts: false\n  tasks: [{raw: echo raw works}, {command: 'true'}]\n"
    outcome = await bench.build(run=(bench.script("play.yaml", raw),), image=image)
    assert outcome.result == "FAILURE" and "container | raw works" in bench.log
    assert "the image of this job has no Python" in bench.log, bench.log
    sync = "- hosts: all\n  gather_facts: false\n  tasks: [{synchronize: {src: /a, dest: /b}}]\n"
    outcome = await bench.build(run=(bench.script("sync.yaml", sync),), image=image)
    assert outcome.result == "FAILURE" and "needs the collection ansible.posix" in bench.log, bench.log
    for kill in ("kill -9 -1", "(kill -9 -1); echo on"):  # the second one ends the command itself first
        dies = f"- hosts: all\n  gather_facts: false\n  tasks: [{{raw: {kill}}}, {{raw: echo again}}]\n"
        outcome = await bench.build(run=(bench.script("dies.yaml", dies),), image=image, attempts_max=1)
        assert outcome.result == "RETRY_LIMIT" and "UNREACHABLE: " in bench.log and "again" not in bench.log, bench.log
    own = "- hosts: all\n  gather_facts: false\n  tasks: [{raw: kill -9 $$}]\n"
    outcome = await bench.build(run=(bench.script("own.yaml", own),), image=image, attempts_max=1)
    assert outcome.result == "FAILURE" and "FAILED, exit status -9" in bench.log, bench.log
