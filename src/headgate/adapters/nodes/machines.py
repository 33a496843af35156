"""Machines of this executor's own, by label: a file names them, and a build has them for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from headgate.base.errors import UserError
from headgate.config.model import Nodeset
from headgate.ports.provider import HOST_KEY_VARIABLE

MEANT = {
    "label": "labels",
    "host": "ansible_host",
    "address": "ansible_host",
    "port": "ansible_port",
    "connection-port": "ansible_port",
    "user": "ansible_user",
    "username": "ansible_user",
    "key": "ansible_ssh_private_key_file",
    "host-key": HOST_KEY_VARIABLE,
    "host_key": HOST_KEY_VARIABLE,
    "python-path": "ansible_python_interpreter",
}
"""What others call it -> the key of the file of machines."""


class NoNode(Exception):
    """No machine will ever have this label."""


@dataclass(frozen=True, slots=True)
class ListedMachine:
    name: str
    labels: tuple[str, ...]
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Of Ansible: `ansible_host`, `ansible_user`, `ansible_port`…  JSON."""


class TakenMachines(NamedTuple):
    nodeset: Nodeset
    hosts: dict[str, dict[str, Any]]
    """Node name -> variables of Ansible.  JSON."""
    machines: tuple[str, ...] = ()
    """Their names."""


class ListedMachines:
    """Without any, every node of a nodeset is this machine itself."""

    def __init__(self, machines: tuple[ListedMachine, ...] = ()) -> None:
        self._all = machines
        self._free = list(machines)
        self._kept: frozenset[str] = frozenset()
        """Names of those that nobody gets."""
        self._moved = asyncio.Condition()

    async def keep(self, names: Collection[str]) -> None:
        """Give these to nobody from now on, and others again."""
        self._kept = frozenset(names)
        async with self._moved:
            self._moved.notify_all()

    @asynccontextmanager
    async def take(self, *nodesets: Nodeset) -> AsyncIterator[TakenMachines]:
        """Provide the first of the nodesets that the machines can serve at all; all its nodes or none.  Waits for them.
        Raises NoNode."""
        if not self._all:
            names = [name for name, _ in _wanted(nodesets[0])]
            yield TakenMachines(nodesets[0], {name: {"ansible_connection": "local"} for name in names})
            return
        nodeset = next((one for one in nodesets if _assigned(_wanted(one), self._all) is not None), None)
        if nodeset is None:
            asked = "; nor of ".join(", ".join(sorted({label for _, label in _wanted(one)})) for one in nodesets)
            raise NoNode(f"this executor's machines cannot serve the labels of the nodeset: {asked}")
        wanted = _wanted(nodeset)
        async with self._moved:
            while (found := _assigned(wanted, [m for m in self._free if m.name not in self._kept])) is None:
                await self._moved.wait()
            for machine in found.values():
                self._free.remove(machine)
        try:
            hosts = {name: {"ansible_host": m.name, **m.variables} for name, m in found.items()}
            yield TakenMachines(nodeset, hosts, tuple(m.name for m in found.values()))
        finally:
            self._free += found.values()
            async with self._moved:
                self._moved.notify_all()


def _wanted(nodeset: Nodeset) -> list[tuple[str, str]]:
    """(name, label) of every node."""
    return [(name, node.label) for node in nodeset.nodes for name in node.name]


def _assigned(wanted: list[tuple[str, str]], machines: Any) -> dict[str, ListedMachine] | None:
    """The first machine with the label for each node; None when they do not suffice."""
    left, found = list(machines), dict[str, ListedMachine]()
    for name, label in wanted:
        machine = next((m for m in left if label in m.labels), None)
        if machine is None:
            return None
        left.remove(machine)
        found[name] = machine
    return found


def read_machines(path: Path) -> tuple[ListedMachine, ...]:
    """`- name: HOST`, `labels: [LABEL…]`, variables of Ansible, and others under `vars`.  Raises UserError."""
    found = read_yaml(path)
    if not isinstance(found, list):
        raise UserError(f"{path}: expected a list of machines, each with name and labels")
    machines = []
    for number, entry in enumerate(found, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise UserError(f"{path}: machine {number} has no name")
        labels = entry.get("labels")
        if not isinstance(labels, list) or not labels:
            raise UserError(f"{path}: machine {entry['name']} needs a list of labels")
        variables = _variables(f"{path}: machine {entry['name']}", entry)
        machines.append(ListedMachine(entry["name"], tuple(str(label) for label in labels), variables))
    return tuple(machines)


def _variables(where: str, entry: dict[Any, Any]) -> dict[str, Any]:
    """Return what Ansible is told of a machine.  Raise UserError."""
    others = entry.get("vars") or {}
    if not isinstance(others, dict):
        raise UserError(f"{where}: vars: expected variables, NAME: VALUE")
    own = {key: value for key, value in entry.items() if key not in ("name", "labels", "vars")}
    for key in own:
        if key != HOST_KEY_VARIABLE and not str(key).startswith("ansible_"):
            meant = MEANT.get(str(key), "")
            hint = f"; did you mean {meant!r}?" if meant else ", but name, labels, vars, and variables of Ansible"
            raise UserError(f"{where}: there is no key {key!r}{hint}; a variable of your own belongs under `vars`")
    return {**others, **own}


def read_variables(path: Path) -> dict[str, Any]:
    """Return the site's variables: a mapping.  Raises UserError."""
    found = read_yaml(path) or {}
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected variables, NAME: VALUE")
    return found


def read_yaml(path: Path) -> Any:
    """Return whatever it holds.  Raises UserError."""
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: this is no YAML: {' '.join(str(error).split())}") from error
