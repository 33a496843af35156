"""Playbooks of Ansible: found, configured, given an inventory."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from headgate.adapters.process.workspace import Workspace

PLUGINS = Path(__file__).parent / "ansible_plugins"
MISSING = "this playbook needs Ansible, which is not installed; install it with: pip install 'headgate[ansible]'"


def program() -> str | None:
    """ansible-playbook beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "ansible-playbook"
    return str(beside) if beside.exists() else shutil.which("ansible-playbook")


def command(program: str, workspace: Workspace, playbook: Path, number: int) -> tuple[list[str], dict[str, str]]:
    """The command line, and what it needs in the environment."""
    here = workspace.root / f"ansible_{number}"
    here.mkdir(parents=True, exist_ok=True)
    scratch = workspace.root / "work" / "tmp"
    inventory, variables, config = here / "inventory.json", here / "vars.json", here / "ansible.cfg"
    inventory.write_text(json.dumps(_inventory(workspace)))
    variables.write_text(json.dumps(workspace.variables()))
    roles = [p / "roles" for p in (workspace.src / name for name in workspace.spec.job.roles)]
    roles += [parent / "roles" for parent in playbook.parents if (parent / "roles").is_dir()]
    config.write_text(
        "[defaults]\n"
        f"inventory = {inventory}\nroles_path = {':'.join(str(r) for r in roles if r.is_dir()) or here}\n"
        f"library = {PLUGINS / 'modules'}\naction_plugins = {PLUGINS / 'action'}\n"
        f"local_tmp = {scratch}/local\nremote_tmp = {scratch}/remote\nfact_caching = memory\n"
        "host_key_checking = False\nretry_files_enabled = False\nnocows = True\ninterpreter_python = auto_silent\n"
        "gathering = explicit\n"
    )
    return [program, "-i", str(inventory), "-e", f"@{variables}", str(playbook)], {"ANSIBLE_CONFIG": str(config)}


def _inventory(workspace: Workspace) -> dict[str, Any]:
    job = workspace.spec.job
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    names = [name for node in job.nodeset.nodes for name in node.name] or ["localhost"]
    hosts = {name: {**local, **job.host_vars.get(name, {})} for name in names}
    groups = {
        group.name: {"hosts": {name: {} for name in group.nodes}, "vars": job.group_vars.get(group.name, {})}
        for group in job.nodeset.groups
    }
    return {"all": {"hosts": hosts, "children": groups, "vars": job.group_vars.get("all", {})}}
