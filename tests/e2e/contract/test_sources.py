"""Test that `synchronize` copies sources to a machine and logs back, and that a key of the build's own gives access,
with the collection ansible.posix, in an environment of Ansible 9."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headgate.adapters.ansible.versions import Environments
from headgate.gate.state.works import RepoState
from headgate.ports.work import CheckedOut
from headgate.testing.repositories import run_git
from tests.e2e.ansible import fetched, with_posix
from tests.integration.builds.bench import Copies

from .stage import Stage

HOME = "/root"
"""The home directory of a container's user."""

PREPARE = """
- hosts: localhost
  gather_facts: false
  tasks:
    - command: ssh-keygen -q -t ed25519 -N '' -C build -f {{ zuul.executor.work_root }}/{{ zuul.build }}_id
- hosts: all
  gather_facts: false
  tasks:
    - authorized_key:
        user: "{{ ansible_ssh_user }}"
        key: "{{ lookup('file', zuul.executor.work_root ~ '/' ~ zuul.build ~ '_id.pub') }}"
- hosts: localhost
  gather_facts: false
  tasks:
    - shell: |
        ssh-add -D 2>&1
        ssh-add -q {{ zuul.executor.work_root }}/{{ zuul.build }}_id
- hosts: all
  gather_facts: false
  tasks:
    - file: {path: "~/{{ item }}", state: directory}
      loop: [zuul-output/logs, "{{ zuul.project.src_dir }}"]
    - synchronize:
        src: "{{ zuul.executor.work_root }}/{{ zuul.project.src_dir }}/"
        dest: "~/{{ zuul.project.src_dir }}/"
        owner: false
        group: false
"""
RUN = """
- hosts: all
  gather_facts: false
  tasks:
    - shell: cat README && pwd && echo made > ~/zuul-output/logs/made.txt
      args: {chdir: "~/{{ zuul.project.src_dir }}"}
"""
LOOKS = """
- hosts: all
  gather_facts: false
  tasks:
    - shell: git fsck --strict && git log --format='commit %s' && git status --porcelain | wc -l
      args: {chdir: "~/{{ zuul.project.src_dir }}"}
"""
COLLECT = """
- hosts: localhost
  gather_facts: false
  tasks:
    - command: ssh -o BatchMode=yes -p {{ one.ansible_port }} {{ one.ansible_user }}@{{ one.ansible_host }} echo direct
      vars: {one: "{{ hostvars['one'] }}"}
- hosts: all
  gather_facts: false
  tasks:
    - synchronize:
        src: "~/zuul-output/logs/"
        dest: "{{ zuul.executor.log_root }}/"
        mode: pull
        verify_host: true
        owner: false
        group: false
"""


class Sharing(Copies):
    """Provide a checkout that shares objects, like those of repositories."""

    async def checkout(
        self, state: RepoState, project: str, branch: str, dest: Path, *, speculative: bool = True, files: bool = True
    ) -> CheckedOut:
        if not (self.source / ".git").exists():
            for words in ("init -q -b master", "add -A", "commit -q -m tested"):
                run_git(*words.split(), at=self.source)
        run_git("clone", "-q", "--shared", str(self.source), str(dest), at=self.source)
        return CheckedOut(run_git("rev-parse", "HEAD", at=dest), (self.source / ".git/objects",))


@pytest.fixture
def posix(tmp_path: Path) -> Environments:
    (tmp_path / "locks").mkdir()
    return with_posix(fetched(tmp_path / "locks"))


@pytest.mark.long
async def test_sources_and_logs_are_synchronized_with_a_container(contained: Stage, posix: Environments) -> None:
    contained.opened(ansible=posix)
    places = PREPARE[PREPARE.index("- hosts: all\n  gather_facts: false\n  tasks:\n    - file:") :]
    collect = COLLECT[COLLECT.index("- hosts: all") :]
    pre = contained.book("pre.yaml", places.replace("synchronize:", "ansible.posix.synchronize:"), trusted=True)
    run = contained.book("run.yaml", RUN)
    await contained.build(
        pre_run=(pre,), run=(run,), post_run=(contained.book("post.yaml", collect, trusted=True),), ansible_version="9"
    )
    assert "one | x\n" in contained.log and f"one | {HOME}/src/h/code\n" in contained.log
    assert (contained.bench.runner.log_root / contained.bench.id / "made.txt").read_text() == "made\n"


@pytest.mark.long
async def test_sources_and_logs_are_synchronized(far: Stage, posix: Environments) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("needs Debian's package rsync")
    far.opened(ansible=posix, copying=Sharing)
    pre, post = (far.book(f"{name}.yaml", text, trusted=True) for name, text in (("pre", PREPARE), ("post", COLLECT)))
    run = far.book("run.yaml", RUN), far.book("looks.yaml", LOOKS)
    await far.build(pre_run=(pre,), run=run, post_run=(post,), ansible_version="9", workspace_checkout=True)
    assert "one | commit tested\n" in far.log and "one | 0\n" in far.log, "git works in what was carried there"
    assert "localhost | direct\n" in far.log
    assert "one | x\n" in far.log and f"one | {far.home}/src/h/code\n" in far.log
    assert (far.bench.runner.log_root / far.bench.id / "made.txt").read_text() == "made\n"
