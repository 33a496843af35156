"""Playbooks of Ansible: found, configured, given an inventory."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.adapters.keys.clear import Clear, for_ansible, write_private
from headgate.adapters.process.workspace import Workspace
from headgate.ports.provider import HOST_KEY_VARIABLE

PLUGINS = Path(__file__).parent / "ansible_plugins"
MISSING = "this playbook needs Ansible, which is not installed; install it with: pip install 'headgate[ansible]'"
SOCKET_DIRECTORY_SIZE_MAX = 80
UNREACHABLE_VARIABLE = "HEADGATE_UNREACHABLE"

Hosts = Mapping[str, Mapping[str, Any]]
"""Host name -> how to reach it, in Ansible's variables.  JSON."""


def program() -> str | None:
    """ansible-playbook beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "ansible-playbook"
    return str(beside) if beside.exists() else shutil.which("ansible-playbook")


class Playbooks:
    """The playbooks of one build, one after the other."""

    def __init__(self, workspace: Workspace, hosts: Hosts) -> None:
        self._workspace, self._hosts = workspace, hosts
        self._count = 0
        self._secrets = workspace.root / "secrets.yaml"
        self._unreachable = workspace.work / "tmp" / "unreachable"

    def command(
        self, program: str, playbook: Path, roles: Sequence[Path], said: Mapping[str, Any], clear: Clear
    ) -> tuple[list[str], dict[str, str]]:
        """The command line, and what it needs in the environment.  No variable is on the command line.

        `clear` is in a file until `forget`."""
        workspace = self._workspace
        self._count += 1
        here = workspace.root / f"ansible_{self._count}"
        here.mkdir(parents=True, exist_ok=True)
        inventory, extra, config = workspace.root / "inventory.json", here / "vars.json", here / "ansible.cfg"
        inventory.write_text(json.dumps(self._inventory()))
        known = workspace.root / "known_hosts"
        known.write_text("".join(_known(name, host) for name, host in self._hosts.items()))
        extra.write_text(
            json.dumps({**workspace.spec.job.extra_vars, **workspace.site, **said, "zuul": workspace.zuul()})
        )
        config.write_text(_config(inventory, roles or [here], workspace.work, known))
        self._unreachable.unlink(missing_ok=True)
        environment = {
            "ANSIBLE_CONFIG": str(config),
            "ANSIBLE_HOME": str(workspace.work / "home/.ansible"),
            UNREACHABLE_VARIABLE: str(self._unreachable),
        }
        self._secrets = here / "secrets.yaml"
        if clear:
            write_private(self._secrets, for_ansible(clear))
        files = (self._secrets, extra) if clear else (extra,)
        told = [word for file in files for word in ("-e", f"@{file}")]
        return [program, "-i", str(inventory), *told, str(playbook)], environment

    def forget(self) -> None:
        """The secrets of the last one."""
        self._secrets.unlink(missing_ok=True)

    @property
    def unreachable(self) -> bool:
        """Could a host not be reached by the last one?"""
        return self._unreachable.exists()

    def _inventory(self) -> dict[str, Any]:
        job = self._workspace.spec.job
        hosts = {"localhost": {"ansible_connection": "local"}} if not self._hosts else self._hosts
        groups = {
            group.name: {"hosts": {name: {} for name in group.nodes}, "vars": job.group_vars.get(group.name, {})}
            for group in job.nodeset.groups
        }
        workspace = self._workspace
        plain = {**workspace.spec.parent_data, **workspace.included, **job.vars, **job.group_vars.get("all", {})}
        return {
            "all": {
                "hosts": {name: {**_host(found), **job.host_vars.get(name, {})} for name, found in hosts.items()},
                "children": groups,
                "vars": plain,
            }
        }


_ELSEWHERE = {"ansible_remote_tmp": "~/.ansible/tmp", "ansible_async_dir": "~/.ansible_async"}


def _host(found: Mapping[str, Any]) -> dict[str, Any]:
    """On this machine Python is our own and the work directory is where Ansible keeps its things."""
    local = found.get("ansible_connection") == "local"
    held = {"ansible_ssh_host_key_checking": True} if found.get(HOST_KEY_VARIABLE) else {}
    return {**({"ansible_python_interpreter": sys.executable} if local else _ELSEWHERE), **held, **found}


def _known(name: str, found: Mapping[str, Any]) -> str:
    """Lines of ssh's known hosts: the keys that the host must have, if that is known."""
    host, port = found.get("ansible_host") or name, str(found.get("ansible_port") or 22)
    where = host if port == "22" else f"[{host}]:{port}"
    return "".join(f"{where} {key}\n" for key in str(found.get(HOST_KEY_VARIABLE, "")).split("\n") if key)


def _sockets(work: Path) -> Path:
    """A directory of this build whose name is short enough for sockets in it."""
    near = work / "tmp/cp"
    return near if len(str(near)) <= SOCKET_DIRECTORY_SIZE_MAX else Path("/tmp", f"headgate-{work.parent.name[:12]}")


def _config(inventory: Path, roles: Sequence[Path], work: Path, known: Path) -> str:
    return (
        "[defaults]\n"
        f"inventory = {inventory}\nroles_path = {':'.join(str(role) for role in roles)}\n"
        f"library = {PLUGINS / 'modules'}\naction_plugins = {PLUGINS / 'action'}\n"
        f"callback_plugins = {PLUGINS / 'callback'}\nstdout_callback = headgate\n"
        f"local_tmp = {work}/tmp/local\nremote_tmp = {work}/tmp/remote\nasync_dir = {work}/tmp/async\n"
        "fact_caching = memory\nhost_key_checking = False\nretry_files_enabled = False\nnocows = True\nnocolor = True\n"
        "interpreter_python = auto_silent\ngathering = smart\ntimeout = 30\n"
        "[ssh_connection]\n"
        f"pipelining = True\ncontrol_path_dir = {_sockets(work)}\n"
        f"ssh_args = -o ControlMaster=auto -o ControlPersist=60s -o GlobalKnownHostsFile={known} "
        f"-o UserKnownHostsFile={work}/home/.ssh/known_hosts\n"
        "retries = 3\n"
    )
