"""What every playbook is told, trusted or not: the names that roles use without looking."""

from __future__ import annotations

import os

from headgate.config.model import FrozenJob, JobRole

from .stage import Stage

TOLD = """
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
          - lookup('file', zuul.executor.inventory_file) | length > 0
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
"""That look like something else to YAML."""


async def test_every_playbook_is_told_of_its_machines_its_build_and_itself(stage: Stage) -> None:
    stage.file("roles/helper/tasks/main.yaml", "- debug: {msg: 'helped {{ inventory_hostname }}'}\n")
    roles = (JobRole("h/lib", "local", "lib"),)
    run = stage.book("told.yaml", TOLD % {"nodepool": NODEPOOL}, roles=roles)
    post = stage.book("post.yaml", TOLD % {"nodepool": NODEPOOL}, roles=roles, trusted=True)
    await stage.build(
        run=(run,), post_run=(post,), ansible_version="11", image_build_name="debian",
        vars={"of_job": "job", "texts": TEXTS, "of_host": "x", "live": "{{ of_job }} and {{ of_host }}"},
        group_vars={"web": {"of_group": "group"}, "all": {"of_all": "all"}}, host_vars={"one": {"of_host": "host"}},
    )  # fmt: skip
    assert stage.log.count("one | helped one") == 2


async def test_who_a_command_runs_as_is_who_the_inventory_says(stage: Stage) -> None:
    play = """
- hosts: all
  gather_facts: false
  tasks: [{shell: 'test "$(id -un)" = {{ ansible_user }} && echo $HOME'}]
"""
    await stage.build(run=(stage.book("who.yaml", play),))
    assert f"one | {stage.home}\n" in stage.log or not stage.is_far, stage.log


def test_a_machine_of_windows_or_a_switch_has_nothing_of_ssh() -> None:
    from headgate.adapters.process.inventory import AnsibleInventory

    hosts = {"win": {"ansible_connection": "winrm"}, "net": {"ansible_connection": "ansible.netcommon.network_cli"}}
    told = AnsibleInventory(FrozenJob(name="j"), hosts, "me").flat({"localhost": {}, "win": {}, "net": {}})["all"][
        "hosts"
    ]
    for name in hosts:
        assert told[name]["ansible_host"] == name and "ansible_python_interpreter" not in told[name]
    assert "ansible_remote_tmp" not in told["win"] and os.sep in told["net"]["ansible_remote_tmp"]
