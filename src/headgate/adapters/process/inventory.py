"""Ansible's inventory of a build: addresses, users, groups, and where the machines come from."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.adapters.process.bounds import machine
from headgate.adapters.process.containers.node import CONNECTION
from headgate.adapters.process.context.values import LOCALHOST
from headgate.adapters.process.network.listeners import NetworkTarget
from headgate.config.model import FrozenJob
from headgate.ports.provider import HOST_KEY_VARIABLE

Hosts = Mapping[str, Mapping[str, Any]]
"""Host name -> Ansible variables that say how to reach it. JSON."""

KEY_VARIABLES = ("ansible_ssh_private_key_file", "ansible_private_key_file")
INTERPRETER = "ansible_python_interpreter"
UNREACHABLE = "zuul_unreachable"
"""Group of the hosts that an earlier playbook could not reach."""
_ELSEWHERE = {"ansible_remote_tmp": "~/.ansible/tmp", "ansible_async_dir": "~/.ansible_async"}
_PORTS = {"winrm": 5986, "psrp": 5986}
"""Kind of connection -> default port; ssh for all others."""
_BESIDE = ("local", CONNECTION, "kubectl", "kubernetes.core.kubectl")
"""Kinds of connection that do not use the host's address."""
_UNKNOWN = dict.fromkeys(("az", "cloud", "provider", "region", "host_id", "external_id", "slot"))


@dataclass(frozen=True, slots=True)
class AnsibleInventory:
    """Describe the hosts of one job to Ansible."""

    job: FrozenJob
    hosts: Hosts
    user: str
    """User whom commands run as on this machine; the executor's own user logs in elsewhere if no user is named."""

    def live(self, everywhere: Mapping[str, Any], unreachable: Iterable[str]) -> dict[str, Any]:
        """Return the inventory with the job's variables unevaluated. JSON."""
        host_vars, groups = self.job.host_vars, self.job.nodeset.groups
        hosts = {name: {**own, **host_vars.get(name, {})} for name, own in self._machine_variables().items()}
        for name in self._with_interpreter(everywhere) - {
            host for host, own in host_vars.items() if INTERPRETER in own
        }:
            hosts[name].pop(INTERPRETER, None)
        more = {group.name: {"vars": self.job.group_vars.get(group.name, {})} for group in groups}
        children = {name: {**group, **more.get(name, {})} for name, group in self._groups(unreachable).items()}
        return {"all": {"hosts": hosts, "children": children, "vars": dict(everywhere)}}

    def flat(self, values: Mapping[str, Any], unreachable: Iterable[str] = ()) -> dict[str, Any]:
        """Return the inventory with the `values` of each host; hosts outside of it get those of this machine.
        JSON."""
        hosts = {name: {**values[name], **own} for name, own in self._machine_variables().items()}
        return {"all": {"hosts": hosts, "children": self._groups(unreachable), "vars": values[LOCALHOST]}}

    def _with_interpreter(self, everywhere: Mapping[str, Any]) -> set[str]:
        """Return the hosts for which the job sets the path of Python, for all hosts or for one of their groups."""
        if INTERPRETER in everywhere:
            return set(self.hosts)
        groups = (group for group in self.job.nodeset.groups if INTERPRETER in self.job.group_vars.get(group.name, {}))
        return {name for group in groups for name in group.nodes if name in self.hosts}

    def _groups(self, unreachable: Iterable[str]) -> dict[str, Any]:
        named = {group.name: group.nodes for group in self.job.nodeset.groups}
        every = {**named, UNREACHABLE: [name for name in unreachable if name in self.hosts]}
        return {name: {"hosts": {host: {} for host in hosts}} for name, hosts in every.items()}

    def _machine_variables(self) -> dict[str, dict[str, Any]]:
        labels = {name: node.label for node in self.job.nodeset.nodes for name in node.name}
        return {name: _host(name, found, labels.get(name), self.user) for name, found in self.hosts.items()}


def _host(name: str, found: Mapping[str, Any], label: str | None, user: str) -> dict[str, Any]:
    """Return the variables of one host.  On this machine Python is our own, and Ansible keeps its things in the work
    directory; in a container Python is what the image has."""
    connection = str(found.get("ansible_connection") or "ssh")
    is_local = connection in ("local", CONNECTION)
    address = str(found.get("ansible_host") or ("127.0.0.1" if is_local else name))
    variables: dict[str, Any] = {"ansible_host": address}
    if connection == "local":
        variables |= {"ansible_port": 22, "ansible_user": user, "ansible_python_interpreter": sys.executable}
    elif connection in ("ssh", "paramiko", "smart"):
        own_user = machine.JobUser.this().name
        variables |= {"ansible_port": 22, "ansible_user": own_user, "ansible_python_interpreter": "auto", **_ELSEWHERE}
    elif connection == CONNECTION:
        variables |= {"ansible_port": 22, "ansible_python_interpreter": "auto_silent", **_ELSEWHERE}
    elif connection not in _PORTS:
        variables |= _ELSEWHERE
    # The key is known from the provider: only then can ssh refuse a machine that pretends to be this one.
    if found.get(HOST_KEY_VARIABLE):
        variables["ansible_ssh_host_key_checking"] = True
    # The provider's own words come last and win over what is guessed from the kind of connection.
    variables |= found
    if variables.get("ansible_user"):
        variables.setdefault("ansible_ssh_user", variables["ansible_user"])
    known = {"label": label, **_UNKNOWN, **_addresses(address), "node_properties": {}, **found.get("nodepool", {})}
    node = {**known, "uuid": known["external_id"], "reuse": not is_local, **found.get("zuul_node", {})}
    return {**variables, "nodepool": known, "zuul_node": node}


def _addresses(address: str) -> dict[str, Any]:
    """Return an address under each of its names; a host name is `interface_ip` only, since it was not resolved."""
    version = 0
    with suppress(ValueError):
        version = ipaddress.ip_address(address).version
    four, six = (address if version == wanted else None for wanted in (4, 6))
    return {
        "interface_ip": address,
        "public_ipv4": four,
        "private_ipv4": four,
        "public_ipv6": six,
        "private_ipv6": six,
    }


def targets(hosts: Hosts) -> Iterator[NetworkTarget]:
    """Yield the addresses that Ansible connects to."""
    for name, found in hosts.items():
        if found.get("ansible_connection") not in _BESIDE:
            port = str(found.get("ansible_port") or _PORTS.get(str(found.get("ansible_connection")), 22))
            if port.isdigit():
                yield NetworkTarget(str(found.get("ansible_host") or name), int(port))


def keys(hosts: Hosts, site: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the paths of the private keys for ssh that the variables of the hosts and of the `site` name."""
    for found in (*hosts.values(), site):
        for name in KEY_VARIABLES:
            if found.get(name):
                yield Path(str(found[name]))


def without_keys(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a host without the names of files that no playbook can read: the agent has the keys."""
    return {name: value for name, value in found.items() if name not in KEY_VARIABLES}


def known_host(name: str, found: Mapping[str, Any]) -> str:
    """Return lines for ssh's known_hosts: the expected keys of the host, if they are known."""
    host, port = found.get("ansible_host") or name, str(found.get("ansible_port") or 22)
    # The form that ssh looks for in known_hosts.
    where = host if port == "22" else f"[{host}]:{port}"
    return "".join(f"{where} {key}\n" for key in str(found.get(HOST_KEY_VARIABLE, "")).split("\n") if key)
