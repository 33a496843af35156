"""Test a typical base job: sources are copied to the node before the job, and logs are fetched afterwards, whatever
the result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.config.model import IncludeVars, JobRole
from tests.integration.builds.bench import PROJECT

from .stage import Stage

pytestmark = pytest.mark.sampled

PREPARE = """
- hosts: all
  gather_facts: false
  roles: [prepares]
- hosts: localhost
  gather_facts: false
  tasks:
    - add_host: {name: another, ansible_connection: local, groups: [added]}
- hosts: added
  gather_facts: false
  tasks: [{debug: {msg: "added {{ inventory_hostname }}"}}]
"""
PREPARES = """
- name: places of the job's output
  shell: mkdir -p ~/PLACE/zuul-output/{logs,artifacts,docs} ~/PLACE/{{ zuul.project.src_dir }}
  args: {executable: /bin/bash}
- name: the sources
  copy:
    src: "{{ zuul.executor.work_root }}/{{ zuul.project.src_dir }}/README"
    dest: "~/PLACE/{{ zuul.project.src_dir }}/README"
- import_role: {name: starts}
- meta: flush_handlers
"""
STARTS = """
- command: echo began
  notify: told
"""
HANDLERS = "- {name: told, debug: {msg: 'handled {{ starts_default }}'}}\n"
RUN = """
- hosts: all
  gather_facts: false
  vars_files: [vars/of_play.yaml]
  tasks:
    - include_vars: {file: of_task.yaml}
    - name: the sources are where they belong
      shell: test -f README
      args: {chdir: "~/PLACE/{{ zuul.project.src_dir }}"}
    - debug: {msg: "{{ of_play }} {{ of_task }} {{ of_file }} {{ of_parent }}"}
    - shell: sleep 0.2; echo slow
      async: 30
      poll: 1
    - block:
        - command: "false"
      rescue:
        - debug: {msg: rescued}
    - copy: {content: "result of {{ inventory_hostname }}", dest: "~/PLACE/zuul-output/logs/result.txt"}
    - zuul_return:
        data:
          zuul:
            warnings: [one warning]
            file_comments: {README: [{line: 1, message: look here, level: warning}]}
      delegate_to: localhost
    - zuul_return: {data: {zuul: {warnings: [another warning]}}}
    - zuul_return: {file: "{{ zuul.executor.work_root }}/returned.json", data: {name: value}}
"""
COLLECT = """
- hosts: all
  gather_facts: false
  tasks:
    - fetch: {src: "~/PLACE/zuul-output/logs/result.txt", dest: "{{ zuul.executor.log_root }}/", flat: true}
    - debug: {msg: "success {{ zuul_success | bool }}"}
- hosts: localhost
  gather_facts: false
  tasks: [{zuul_return: {data: {zuul: {artifacts: [{name: Result, url: result.txt}]}}}}]
"""


UPLOAD = """
- hosts: localhost
  gather_facts: false
  tasks:
    - debug: {msg: it is carried away}
    - command: grep -c 'it is carried awa[y]' {{ zuul.executor.log_root }}/job-output.txt
      register: found
      until: found.rc == 0
      retries: 600
      delay: 0.05
    - shell: cp -a {{ zuul.executor.log_root }}/. ../server && gzip {{ zuul.executor.log_root }}/job-output.json
      args: {chdir: "{{ zuul.executor.log_root }}"}
"""
UPLOADED = """
cd ../../..; for f in server/job-output.*; do test ! -h $f && test -f $f || echo no file: $f; done
grep -c 'it is carried awa[y]' server/job-output.txt; grep -c 'of_ru[n]' server/job-output.json; ls logs
"""


PLACE = f"headgate-contract-{os.getpid()}"


@pytest.fixture
def place(stage: Stage) -> Iterator[str]:
    """Below the home directory of the node's user, who may be the current one."""
    yield PLACE
    shutil.rmtree(stage.home / PLACE, ignore_errors=True)


@pytest.mark.long
async def test_a_job_with_a_base_job_does_what_it_says(stage: Stage, place: str) -> None:
    trusted = not stage.is_here  # here playbooks with the same trust share a home
    for name, text in (("prepares", PREPARES), ("starts", STARTS)):
        stage.file(f"roles/{name}/tasks/main.yaml", text.replace("PLACE", place))
    stage.file("roles/starts/handlers/main.yaml", HANDLERS)
    stage.file("roles/starts/defaults/main.yaml", "starts_default: by default\n")
    stage.file("play/vars/of_play.yaml", "of_play: playbook\n")
    stage.file("play/of_task.yaml", "of_task: task\n")
    stage.file("included.yaml", "of_file: file\n")
    roles = (JobRole("h/roles", "local", "roles"),)
    pre = stage.book("base/pre.yaml", PREPARE, trusted=trusted, roles=roles)
    first = stage.book("first", """echo '{"from_file": 1}' > $ZUUL_SRC_ROOT/../returned.json""")
    post = stage.book("base/post.yaml", COLLECT.replace("PLACE", place), trusted=trusted)
    outcome = await stage.build(
        pre_run=(pre,), run=(first, stage.book("play/run.yaml", RUN.replace("PLACE", place))), post_run=(post,),
        include_vars=(IncludeVars("included.yaml", PROJECT, "local"),), spec={"parent_data": {"of_parent": "parent"}},
    )  # fmt: skip
    for line in (
        "one | handled by default", "another | added another", "one | playbook task file parent", "one | slow",
        "one | rescued", "one | success True",
    ):  # fmt: skip
        assert f"| {line}" in stage.log, f"{line}\n{stage.log}"
    assert (stage.bench.runner.log_root / stage.bench.id / "result.txt").read_text() == "result of one"
    assert outcome.data == {
        "name": "value",
        "from_file": 1,
        "zuul": {
            "warnings": ["one warning", "another warning"],
            "file_comments": {"README": [{"line": 1, "message": "look here", "level": "warning"}]},
            "artifacts": [{"name": "Result", "url": "result.txt"}],
        },
    }


@pytest.mark.long
async def test_playbooks_that_upload_logs_find_the_log_of_the_build_as_a_file(tmp_path: Path) -> None:
    """Upload like roles that copy links as links, and like roles that compress the files."""
    stage = Stage(tmp_path)
    says = "- hosts: localhost\n  gather_facts: false\n  tasks: [{name: of_run, debug: {}}]\n"
    post = stage.book("upload.yaml", UPLOAD, trusted=True), stage.book("uploaded", UPLOADED)
    await stage.build(run=(stage.book("says.yaml", says),), post_run=post)
    text = stage.log.partition("uploaded@master")[2]
    assert "no file" not in text and text.count("| 1\n") == 2, stage.log
    assert "job-output.json.gz" in text and "job-output.json\n" not in text, stage.log
    assert stage.bench.log_json("job-output.json")[1]["plays"], "what is kept is no job's"
