"""Test the variables that every playbook receives, trusted or not: names that roles use without a check."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.adapters.process.access import AnsibleInventory
from headgate.adapters.process.variables import zuul
from headgate.config.model import FrozenJob, JobRole, NodeGroup, Nodeset
from headgate.gate.rules.refs import variables
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import BuildSpec, RepoState
from headgate.testing.servers.program import free_ports

from .stage import NODES, Stage

pytestmark = pytest.mark.sampled

VARIABLES = """
- hosts: all
  gather_facts: false
  tasks:
    - name: the machine
      assert:
        that:
          - ansible_host == '127.0.0.1'
          - ansible_port | int > 0
          - ansible_user | length > 0
          - ansible_ssh_user == ansible_user
          - ansible_python_interpreter | length > 0
          - nodepool.label == 'any'
          - nodepool.interface_ip == nodepool.public_ipv4 == nodepool.private_ipv4 == '127.0.0.1'
          - nodepool.keys() | sort == %(nodepool)r
          - zuul_node.label == 'any' and zuul_node.reuse is boolean
    - name: groups and variables
      assert:
        that:
          - groups['web'] == ['one'] and groups['zuul_unreachable'] == []
          - group_names == ['web']
          - of_group == 'group' and of_host == 'host' and of_job == 'job' and of_all == 'all'
          - live == 'job and host'
          - texts == ['1.10', 'yes', '2026-01-01', '', '~', '=', '1e3', '0x1f', '1_0', '-', '.inf']
    - name: the build
      assert:
        that:
          - zuul.build | length == 32 and zuul.job == 'job' and zuul.pipeline == 'gate'
          - zuul.project.src_dir == 'src/h/code'
          - zuul.projects['h/code'].checkout == 'master'
          - zuul['items'] | length == 1
          - zuul.resources == {}
          - zuul.ref == 'refs/for/master/topic'
          - zuul.ansible_version == '11'
          - zuul.deduplicate == 'auto' and zuul.image_build_name == 'debian'
          - zuul.executor.hostname | length > 0
          - zuul.executor.src_root == zuul.executor.work_root ~ '/src'
          - zuul.executor.log_root == zuul.executor.work_root ~ '/logs'
          - zuul.executor.result_data_file == zuul.executor.work_root ~ '/results.json'
          - "zuul.build in lookup('file', zuul.executor.inventory_file)"
    - name: its playbooks
      vars:
        context: "{{ zuul.playbook_context }}"
        mine: "{{ (context.post_playbooks if zuul_execution_phase == 'post' else context.playbooks)[0].roles }}"
      assert:
        that:
          - context.playbook_projects.values() | map(attribute='canonical_name') | unique | sort == ['h/code', 'h/lib']
          - context.playbook_projects.values() | map(attribute='commit') | unique == [40 * '1']
          - context.playbooks[0].path == 'h/code/told.yaml' and context.post_playbooks[0].trusted
          - mine[0].checkout == 'master' and mine[0].role_path is directory
          - context.pre_playbooks == []
    - include_role: {name: helper}
"""
NODEPOOL = [
    "az", "cloud", "external_id", "host_id", "interface_ip", "label", "node_properties", "private_ipv4", "private_ipv6",
    "provider", "public_ipv4", "public_ipv6", "region", "slot",
]  # fmt: skip
TEXTS = ["1.10", "yes", "2026-01-01", "", "~", "=", "1e3", "0x1f", "1_0", "-", ".inf"]
"""Strings that look like other types in YAML."""


@pytest.mark.long
async def test_every_playbook_has_variables_for_its_machines_its_build_and_itself(stage: Stage) -> None:
    stage.file("roles/helper/tasks/main.yaml", "- debug: {msg: 'helped {{ inventory_hostname }}'}\n")
    roles = (JobRole("h/lib", "local", "lib"),)
    run = stage.book("told.yaml", VARIABLES % {"nodepool": NODEPOOL}, roles=roles)
    post = stage.book("post.yaml", VARIABLES % {"nodepool": NODEPOOL}, roles=roles, trusted=True)
    await stage.build(
        run=(run,), post_run=(post,), ansible_version="11", image_build_name="debian",
        vars={"of_job": "job", "texts": TEXTS, "of_host": "x", "live": "{{ of_job }} and {{ of_host }}"},
        group_vars={"web": {"of_group": "group"}, "all": {"of_all": "all"}}, host_vars={"one": {"of_host": "host"}},
    )  # fmt: skip
    assert stage.log.count("one | helped one") == 2
    stored = stage.bench.log_json("zuul-info/inventory.yaml")["all"]
    assert (stored["hosts"]["one"]["nodepool"]["label"], stored["hosts"]["one"]["of_host"]) == ("any", "host")
    assert (stored["vars"]["zuul"]["job"], stored["vars"]["of_job"]) == ("job", "job")
    assert stored["children"]["web"]["hosts"] == {"one": {}} and "private_key" not in json.dumps(stored)


@pytest.mark.long
async def test_facts_that_a_job_sets_reach_playbooks_with_more_rights(stage: Stage) -> None:
    """The variable is `{{ ansible_user_dir }}/zuul-output`, as base jobs and their children write it; it does not
    name the executor itself, where each kind of playbook has its own home."""
    play = """
- hosts: all
  tasks: [{debug: {msg: "{{ out | default('nothing') }} for {{ ansible_user_dir }}/out; {{ later | default('-') }}"}}]
"""
    variables = {"out": "{{ ansible_user_dir }}/out", "later": "{{ nobody_says_it }}"}
    await stage.build(run=(stage.book("says.yaml", play, trusted=True),), vars=variables)
    out, _, home = re.search(r"one \| (\S+)( for )(\S+); -", stage.log).groups()  # type: ignore[union-attr]
    assert out == ("nothing" if stage.is_here else home), stage.log
    assert "later is left out" in stage.log


@pytest.mark.long
async def test_variables_of_the_job_are_available_next_to_those_of_a_playbook(stage: Stage) -> None:
    """A playbook's own variable of the same name does not hide the job's. A playbook with more rights evaluates no
    template of the job, not even when it prints all variables of a host."""
    play = """
- hosts: all
  gather_facts: false
  vars: {word: own}
  tasks:
    - debug: {msg: "NAME {{ word }} {{ unsafe_vars.word }} {{ unsafe_vars.two }} {{ unsafe_vars.here }}."}
"""
    shows = """    - debug: {msg: "{{ hostvars[inventory_hostname] | to_json | length > 9 }}"}\n"""
    program = "{{ lookup('pipe', 'echo ' ~ nobody_says_it) }}"
    variables = {"word": "theirs", "two": "{{ 1 + 1 }}", "here": "all", "program": program}
    live = stage.book("live.yaml", play.replace("NAME", "live"))
    careful = stage.book("careful.yaml", play.replace("NAME", "careful") + shows, trusted=True)
    await stage.build(run=(live, careful), vars=variables, host_vars={"one": {"here": "one"}})
    assert "live own theirs 2 one." in stage.log, stage.log
    assert "careful own theirs 2 one." in stage.log, stage.log


@pytest.mark.long
async def test_an_unreachable_machine_is_no_fault_of_variables_that_name_its_facts(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    (port,) = free_ports(1)
    hosts = {"one": {"ansible_host": "127.0.0.1", "ansible_port": str(port)}}
    play = stage.book("says.yaml", "- hosts: all\n", trusted=True)
    outcome = await stage.bench.start(
        run=(play,), vars={"out": "{{ ansible_user_dir }}"}, nodeset=NODES, spec={"hosts": hosts}
    )
    assert outcome.result is None and "there are no facts of the host" in stage.log, "it is tried again"


@pytest.mark.long
async def test_commands_run_as_the_user_that_the_inventory_names(stage: Stage) -> None:
    play = """
- hosts: all
  gather_facts: false
  tasks: [{shell: 'test "$(id -un)" = {{ ansible_user }} && echo $HOME'}]
"""
    await stage.build(run=(stage.book("who.yaml", play),))
    assert f"one | {stage.home}\n" in stage.log or not stage.is_far, stage.log


def test_a_machine_of_windows_or_a_switch_has_nothing_of_ssh() -> None:
    hosts = {"win": {"ansible_connection": "winrm"}, "net": {"ansible_connection": "ansible.netcommon.network_cli"}}
    machines = AnsibleInventory(FrozenJob(name="j"), hosts, "me").flat({"localhost": {}, "win": {}, "net": {}})["all"][
        "hosts"
    ]
    for name in hosts:
        assert machines[name]["ansible_host"] == name and "ansible_python_interpreter" not in machines[name]
    assert "ansible_remote_tmp" not in machines["win"] and os.sep in machines["net"]["ansible_remote_tmp"]


def test_variables_of_a_made_machine_say_whether_the_next_build_gets_it_too() -> None:
    made = {"nodepool": {"external_id": "i-1", "label": "small"}, "zuul_node": {"uuid": "u-1", "reuse": False}}
    other = {"nodepool": {"external_id": "u-2"}}
    hosts = {"made": {"ansible_host": "192.0.2.1", **made}, "other": {"ansible_host": "192.0.2.2", **other}}
    machines = AnsibleInventory(FrozenJob(name="j"), hosts, "me").live({}, ())["all"]["hosts"]
    nodes = {name: machines[name]["zuul_node"] for name in hosts}
    assert {name: (node["uuid"], node["reuse"]) for name, node in nodes.items()} == {
        "made": ("u-1", False), "other": ("u-2", True),
    }  # fmt: skip
    assert (nodes["made"]["external_id"], nodes["made"]["label"]) == ("i-1", "small")


def test_the_python_interpreter_can_be_set_for_all_machines_or_for_a_group() -> None:
    """Variables of the machine do not decide this, because variables of the machine override both."""
    variables = {"ansible_python_interpreter": "/opt/python"}
    hosts = {"one": {"ansible_host": "192.0.2.1"}, "two": {"ansible_host": "192.0.2.2"}}
    nodeset = Nodeset(groups=(NodeGroup("web", ("one", "gone")),))

    def of(job: FrozenJob, **everywhere: Any) -> list[Any]:
        found = AnsibleInventory(replace(job, nodeset=nodeset), hosts, "me").live(everywhere, ())["all"]["hosts"]
        return [found[name].get("ansible_python_interpreter") for name in hosts]

    assert of(FrozenJob(name="j")) == ["auto", "auto"]
    assert of(FrozenJob(name="j"), **variables) == [None, None]
    assert of(FrozenJob(name="j", group_vars={"web": variables})) == [None, "auto"]
    assert of(FrozenJob(name="j", host_vars={"one": variables}), **variables) == ["/opt/python", None]


def test_changes_ahead_have_the_names_of_their_forge() -> None:
    """`change` and `patchset` are numbers on forges with numbered changes, as for the change itself."""
    pull = MergeItem("a", "github.com/acme/lib", "hub", "main", "refs/pull/12/head", "1" * 40, number="12", url="u:12")
    review = replace(pull, item="b", ref="refs/changes/11/4711/3", number="4711", patchset="3", topic="big")
    plain = MergeItem("c", "acme/lib", "local", "main", "refs/for/main/mend", "2" * 40, topic="mend")
    change = Change("hub", "github.com/acme/app", "main", commit="3" * 40, ref="refs/pull/1/head", number="1")
    spec = BuildSpec("build", "set", "t", "gate", "i", FrozenJob(name="j"), change, 1, zuul=variables(change))
    items = zuul(spec, RepoState(chain=(pull, review, plain)), {}, {})["items"]
    assert [(one["change"], one["patchset"], one["topic"], one["change_url"]) for one in items] == [
        ("12", "1" * 40, "", "u:12"),
        ("4711", "3", "big", "u:12"),
        ("mend", "2" * 40, "mend", ""),
        ("1", "3" * 40, "", ""),
    ]
