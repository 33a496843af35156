"""Test playbooks with the real ansible-core."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.adapters.nodes.machines import ListedMachine
from headgate.config.model import Node, NodeGroup, Nodeset

from .bench import Bench

RETURNS = """
- hosts: all
  gather_facts: false
  roles: [greeter]
  tasks:
    - command: echo hello {{ who }} from {{ zuul.pipeline }} as {{ greeting }} in {{ zuul_execution_phase }}
      register: said
    - shell: |
        echo {{ flavour }} | tr a-z A-Z
        echo on stderr >&2
    - debug: {var: item}
      loop: [cherry]
    - name: hidden
      command: echo treasure
      no_log: true
    - zuul_return:
        data: {said: "{{ said.stdout }}", zuul: {log_url: "http://l", artifacts: [{name: doc, url: doc/}]}}
      delegate_to: localhost
"""


async def test_a_playbook_has_roles_variables_and_returns_data(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap")
    bench.script("roles/greeter/tasks/main.yaml", "- set_fact: {greeting: guest}\n")
    nodes = Nodeset(nodes=(Node(("one",), "any"),), groups=(NodeGroup("web", ("one",)),))
    outcome = await bench.build(
        run=(bench.script("play.yml", RETURNS),), vars={"who": "Ada"}, nodeset=nodes,
        group_vars={"web": {"flavour": "vanilla"}}, host_vars={"one": {"unused": 1}},
    )  # fmt: skip
    assert outcome.result == "SUCCESS", bench.log
    text = "hello Ada from gate as guest in run"
    assert outcome.data == {
        "said": text,
        "zuul": {"log_url": "http://l", "artifacts": [{"name": "doc", "url": "doc/"}]},
    }
    own = 'one |   "item": "cherry"'
    for line in ("PLAY [all]", "TASK [hidden]", f"one | {text}", "one | VANILLA", "one | on stderr", own, "PLAY RECAP"):
        assert f"| {line}" in bench.log
    assert "treasure" not in bench.log and "the output is hidden" in bench.log


OF_TEXTS = """
- hosts: localhost
  gather_facts: false
  vars:
    found: [{path: a.py, at: 3, says: "\\e[31mbad\\e[0m"}]
    whole: '{"zuul": {"warnings": ["\\u001b[1mcareful\\u001b[0m"]}, "as": "json"}'
  tasks:
    - zuul_return:
        data:
          zuul:
            retry: "{{ 'no' }}"
            redactions: ["{{ 'never' ~ 'shown' }}"]
            file_comments: "{{ {item.path: [{'line': item.at ~ '', 'message': item.says}]} }}"
      loop: "{{ found }}"
    - zuul_return: {data: "{{ whole | string }}"}
- hosts: localhost
  gather_facts: false
  tasks: [{zuul_return: {data: {zuul: {pause: [], file_comments: {"a.py": [{line: x1, message: m}]}}}}}]
"""


@pytest.mark.long
async def test_returned_values_keep_their_types_although_templates_make_texts_of_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    outcome = await bench.build(
        run=(bench.script("texts.yaml", OF_TEXTS), bench.script("wrong", "echo not reached")),
        post_run=(bench.script("after", "echo It was nevershown."),), secret_exposure="redact",
    )  # fmt: skip
    assert outcome.result == "FAILURE" and "Expected `int`, got `str`" in bench.log, bench.log
    assert "It was [redacted]." in bench.log and "nevershown" not in bench.log
    assert outcome.data == {
        "as": "json",
        "zuul": {
            "retry": False,
            "redactions": ["[redacted]"],
            "file_comments": {"a.py": [{"line": 3, "message": "bad"}]},
            "warnings": ["careful"],
        },
    }


STREAMS = """
- hosts: localhost
  gather_facts: false
  tasks:
    - shell: echo one; sleep 0.2; echo two >&2; sleep 0.2; echo three
      register: said
    - shell: echo silent >&2
      no_log: true
      register: hidden
    - zuul_return: {data: {out: "{{ said.stdout_lines }}", err: "{{ said.stderr_lines }}", none: "{{ hidden.stdout }}"}}
"""


@pytest.mark.long
async def test_a_job_says_whether_errors_are_registered_as_output(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    play = bench.script("play.yaml", STREAMS)
    for apart in (None, True):
        outcome = await bench.build(run=(play,), ansible_split_streams=apart)
        assert outcome.data == {"out": ["one", "three"], "err": ["two"], "none": ""}, bench.log
    outcome = await bench.build(run=(play,), ansible_split_streams=False)
    assert outcome.data == {"out": ["one", "two", "three"], "err": [], "none": "silent"}, bench.log
    assert "localhost | two" in bench.log and "_together" not in bench.log


@pytest.mark.long
async def test_output_of_commands_is_in_the_log_while_they_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    go = tmp_path / "go"
    os.mkfifo(go)
    play = (
        f"- hosts: localhost\n  gather_facts: false\n  tasks:\n    - shell: echo first; read x < {go}; echo second $x\n"
    )
    building = bench.start(run=(bench.script("play.yaml", play),))
    await bench.says("localhost | first")
    assert not building.done() and "second" not in bench.log
    await asyncio.to_thread(go.write_text, "heard\n")
    assert (await building).result == "SUCCESS" and bench.log.count("| second heard") == 1


@pytest.mark.long
async def test_failures_are_shown_where_they_happen(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    failing = """
- hosts: localhost
  gather_facts: false
  tasks:
    - name: compile
      command: sh -c 'echo no such header >&2; exit 2'
"""
    outcome = await bench.build(run=(bench.script("play.yaml", failing),))
    assert outcome.result == "FAILURE" and "play.yaml: exit status 2" in outcome.error
    assert "TASK [compile]" in bench.log and "localhost | no such header" in bench.log
    assert "localhost | FAILED, exit status 2" in bench.log


@pytest.mark.long
async def test_an_unreachable_host_causes_another_attempt(tmp_path: Path) -> None:
    nowhere = ListedMachine(
        "nowhere", ("far",), {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_retries": 0}
    )
    bench = Bench(tmp_path, machines=(nowhere,))
    play = "- hosts: all\n  gather_facts: false\n  tasks:\n    - command: echo never\n"
    nodes = Nodeset(nodes=(Node(("one",), "far"),))
    outcome = await bench.build(run=(bench.script("play.yaml", play),), nodeset=nodes)
    assert outcome.result is None and "a host could not be reached" in outcome.error and "UNREACHABLE" in bench.log
    missing = Nodeset(nodes=(Node(("one",), "vast"),))
    outcome = await bench.build(run=(bench.script("play.yaml", play),), nodeset=missing)
    assert outcome.result == "NODE_FAILURE" and "vast" in outcome.error


@pytest.mark.long
async def test_phases_mix_playbooks_and_executables(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    play = """
- hosts: localhost
  gather_facts: false
  tasks:
    - debug: {msg: "success {{ zuul_success }} level {{ from_run | default('none') }}"}
"""
    run = bench.script("run", "echo ran; exit 1")
    post = replace(bench.script("post.yaml", play), nesting=1)
    outcome = await bench.build(run=(run,), post_run=(post,))
    assert outcome.result == "FAILURE" and "| localhost | success False level none" in bench.log


async def test_without_ansible_an_error_names_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    bench = Bench(tmp_path)
    outcome = await bench.build(run=(bench.script("play.yaml", "- hosts: all\n"),))
    assert outcome.result == "ERROR" and "pip install 'headgate[ansible]'" in outcome.error
