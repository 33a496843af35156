"""Test the stored output of a build for people and programs: lines with task, host and item, and the same as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.process import joboutput
from tests.integration.builds.test_secrets import TOKEN, Keys, with_secret

from .stage import NODES, Stage

PLAY = """
- name: the play
  hosts: all
  gather_facts: false
  tasks:
    - name: loops
      command: echo {{ item }}
      loop: [one-item, other-item]
    - name: hidden
      command: echo treasure
      no_log: true
    - name: fails
      command: "false"
      ignore_errors: true
    - import_role: {name: polite}
    - pause: {seconds: 1}
    - name: old conditions, as roles have them
      debug: {msg: it holds}
      when: text
- hosts: localhost
  gather_facts: false
  tasks:
    - name: the executor writes among the logs
      shell: mkdir {{ zuul.executor.log_root }}/sub && echo '<p>' > {{ zuul.executor.log_root }}/sub/page.html
    - command: test -s {{ zuul.executor.log_root }}/job-output.json
"""


@pytest.mark.long
@pytest.mark.sampled
async def test_events_are_logged_as_lines_and_as_json(stage: Stage) -> None:
    stage.file("roles/polite/tasks/main.yaml", "- name: greets\n  debug: {msg: 'to {{ item }}'}\n  loop: [all]\n")
    run = stage.book("play.yaml", PLAY)
    await stage.build(pre_run=(stage.book("first", "true"),), run=(run,), vars={"text": "some text"})
    stamped = [line.partition(" | ") for line in stage.log.splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", stamp) for stamp, _, _ in stamped)
    lines = [re.sub(r", took .*", "", text) for _, _, text in stamped]
    wanted = [
        "TASK [loops]",
        "one | one-item",
        "one | changed: one-item",
        "one | changed: other-item",
        "one | it holds",
        "TASK [polite : greets]",
        "one | to all",
    ]
    assert [line for line in wanted if line not in lines] == [], stage.log
    first, first_play = stage.bench.log_json("job-output.json")
    assert (first["phase"], first["plays"], first["stats"]) == ("pre", [], {})
    assert (first_play["phase"], first_play["index"], first_play["playbook"]) == ("run", "0", "h/code/play.yaml")
    assert (first_play["branch"], first_play["trusted"]) == ("master", False)
    assert first_play["stats"]["one"] == {
        "ok": 6, "changed": 3, "failures": 0, "unreachable": 0, "skipped": 0, "rescued": 0, "ignored": 1
    }  # fmt: skip
    play = first_play["plays"][0]
    assert play["play"]["name"] == "the play" and play["play"]["duration"]["start"] < play["play"]["duration"]["end"]
    results = {task["task"]["name"]: task["hosts"]["one"] for task in play["tasks"]}
    (of_role,) = (task for task in play["tasks"] if "role" in task)
    assert (of_role["task"]["name"], of_role["role"]["name"]) == ("greets", "polite")
    assert of_role["role"]["path"].endswith("roles/polite") and of_role["role"]["id"] != of_role["task"]["id"]
    assert [item["stdout"] for item in results["loops"]["results"]] == ["one-item", "other-item"]
    assert results["fails"]["rc"] == 1 and results["fails"]["failed"] and results["fails"]["action"].endswith("command")
    assert results["hidden"].keys() <= {"changed", "censored", "action", "failed", "rc"}
    assert "treasure" not in json.dumps(first_play) + stage.log and "Failure using method" not in stage.log
    tree = stage.bench.log_json("zuul-manifest.json")["tree"]
    assert [one["name"] for one in tree] == ["sub", "zuul-info", "job-output.json", "job-output.txt"]
    (page,) = tree[0]["children"]
    assert (page["name"], page["mimetype"], page["size"]) == ("page.html", "text/html", 4)


SAYS = """
- hosts: all
  gather_facts: false
  tasks:
    - command: printf %s {{ pypi.token | quote }}
    - command: cat
      args: {stdin: "{{ pypi.user }} given"}
      loop: [1]
"""


@pytest.mark.long
async def test_the_output_contains_no_secret_of_a_playbook_and_no_argument_of_a_task(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.opened(Keys())
    await stage.build(run=(with_secret(stage.book("play.yaml", SAYS)),))
    assert TOKEN in stage.log, "where the job wants its log as it is"
    text = json.dumps(stage.bench.log_json("job-output.json"))
    assert TOKEN not in text and "[redacted]" in text and "invocation" not in text and "stdin_add" not in text


BECOMES = """
- hosts: all
  gather_facts: false
  tasks:
    - raw: id -un
      become: true
      become_user: nobody
      become_method: ansible.builtin.su
      become_flags: -s /bin/sh
"""


@pytest.mark.long
@pytest.mark.sampled
async def test_become_works_on_a_machine_and_gives_a_reason_where_it_does_not(stage: Stage) -> None:
    run = stage.book("become.yaml", BECOMES)
    if not stage.is_here:
        stage.as_this_user()
        await stage.build(run=(run,))
        assert "one | nobody" in stage.log
    else:
        outcome = await stage.bench.start(run=(run,), nodeset=NODES)
        assert outcome.result == "FAILURE" and "become does not work here: on the executor itself" in stage.log


THROUGH_SUDO = """
- hosts: all
  gather_facts: false
  tasks:
    - {{name: itself, command: id -un}}
    - name: the other
      command: sh -c 'id -un; touch "$HOME/made"'
      become: true
      become_user: "{other}"
    - {{name: what it made, stat: {{path: "{home}/made"}}, become: true, become_user: "{other}", register: made}}
    - {{name: whose it is, assert: {{that: made.stat.pw_name == "{other}"}}}}
    - {{name: again itself, command: "cat {home}/made", register: hidden, failed_when: hidden.rc == 0}}
    - {{name: nobody else, command: id -un, become: true, become_user: root, ignore_errors: true}}
"""


@pytest.mark.long
async def test_an_account_without_rights_becomes_only_accounts_that_it_may_become(far: Stage) -> None:
    if far.user is None or not far.user.becomes:
        pytest.skip("needs root to make accounts, and Debian's package sudo")
    other, home = far.user.becomes, far.user.home.parent / "other"
    text = THROUGH_SUDO.format(other=other, home=home)
    await far.build(run=(far.book("become.yaml", text),))
    assert f"one | {far.user.name}\n" in far.log and f"one | {other}\n" in far.log, far.log
    assert "one | root" not in far.log and "sudo password" in far.log, far.log
    assert "become does not work here" not in far.log


def event(**data: Any) -> str:
    return json.dumps(data)


PLAYED = event(play={"id": "p", "name": "x"}, at="1")


@pytest.mark.parametrize(
    "lines",
    [
        ["", "[]", "{", "\x00", event(play=1), event(task={"id": "t", "name": "no play"})],
        [PLAYED, event(of="nothing", host="h", result={}), event(stats={"h": 1, "g": {"ok": "x", "changed": [1]}})],
        [PLAYED, event(task={"id": "t", "name": "y"}), '{"of": "t", "host": "h", "result": ' + "[" * 5_000],
        [PLAYED, event(task={"id": "t", "name": "y"}), event(of="t", host="h", result={"a": 1})[:-5]],
    ],
)
def test_the_log_file_is_json_whatever_a_playbook_writes_to_it(tmp_path: Path, lines: list[str]) -> None:
    found: dict[str, Any] = {"plays": [], "stats": {}}
    joboutput._take(found, joboutput._events("\n".join(lines).encode()))
    assert json.dumps(found)
    assert all(counts == {} for counts in found["stats"].values())
