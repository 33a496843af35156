"""Lend builds this executor's own machines: slots on its host, or machines from a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from headgate.base.errors import CloudError, UserError
from headgate.base.files import reason, text_of
from headgate.base.hints import did_you_mean
from headgate.base.texts import yaml_fault
from headgate.config.model import Nodeset
from headgate.map.records import OwnMachine
from headgate.ports.clouds import HOST_KEY_VARIABLE, Machine

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
"""Key that other formats use -> key in the file of machines."""
ANNOUNCED_MAX = 200
"""Limit on the machines of one executor that are announced to other components."""


class NoNode(CloudError):
    """Report that this executor's machines can never serve a nodeset."""


@dataclass(frozen=True, slots=True)
class ListedMachine:
    name: str
    labels: tuple[str, ...]
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Ansible variables: `ansible_host`, `ansible_user`, `ansible_port`… JSON."""


class TakenMachines(NamedTuple):
    nodeset: Nodeset
    hosts: dict[str, dict[str, Any]]
    """Node name -> Ansible variables. JSON."""
    machines: tuple[str, ...] = ()
    """Names of the machines."""


class ListedMachines:
    """Lend machines from a list. Without a list, every node of a nodeset is this machine itself."""

    def __init__(self, machines: tuple[ListedMachine, ...] = ()) -> None:
        self._all = machines
        self._free = list(machines)
        self._reserved: frozenset[str] = frozenset()
        """Names of machines that are reserved for people, and therefore not lent."""
        self._builds: dict[str, str] = {}
        """Name of a machine -> id of the build that uses it."""
        self._moved = asyncio.Condition()

    def listed_now(self) -> tuple[OwnMachine, ...]:
        """Return the machines and the builds that use them; see `ports.work.OwnMachines`."""
        return tuple(
            OwnMachine(
                one.name,
                one.labels,
                str(one.variables.get("ansible_host", one.name)),
                str(one.variables.get("ansible_user", "")),
                self._builds.get(one.name, ""),
                one.name in self._reserved,
            )
            for one in sorted(self._all, key=lambda one: one.name)[:ANNOUNCED_MAX]
        )

    async def changed(self, seen: tuple[OwnMachine, ...]) -> tuple[OwnMachine, ...]:
        """Wait until the machines differ from `seen`, and return them; see `ports.work.OwnMachines`."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.listed_now() != seen)
            return self.listed_now()

    async def keep(self, names: Collection[str]) -> None:
        """Reserve these machines, and release all others."""
        # A machine that is lent stays with its build; only the next build does not get it.
        self._reserved = frozenset(names)
        async with self._moved:
            self._moved.notify_all()

    @asynccontextmanager
    async def take(
        self, *nodesets: Nodeset, build: str = "", say: Callable[[str], None] = lambda _: None
    ) -> AsyncIterator[TakenMachines]:
        """Lend a build the machines of the first nodeset that they can serve: for all of its nodes together. Wait for
        machines that are in use, and report that with `say`. Raise NoNode."""
        if not self._all:
            names = [name for name, _ in _wanted(nodesets[0])]
            yield TakenMachines(nodesets[0], {name: {"ansible_connection": "local"} for name in names})
            return
        nodeset = next((one for one in nodesets if _assigned(_wanted(one), self._all) is not None), None)
        if nodeset is None:
            # Fails immediately: a machine that is not in the list cannot become free.
            labels = "; nor of ".join(", ".join(sorted({label for _, label in _wanted(one)})) for one in nodesets)
            raise NoNode(f"this executor's machines cannot serve the labels of the nodeset: {labels}")
        wanted = _wanted(nodeset)
        async with self._moved:
            if self._found(wanted) is None:
                say(self._why(wanted))
            while (found := self._found(wanted)) is None:
                await self._moved.wait()
            for machine in found.values():
                # There is no await between `_found` and here, so no other build sees these machines as free.
                self._free.remove(machine)
                self._builds[machine.name] = build
            self._moved.notify_all()
        try:
            hosts = {name: {"ansible_host": m.name, **m.variables} for name, m in found.items()}
            yield TakenMachines(nodeset, hosts, tuple(m.name for m in found.values()))
        finally:
            # Appended to the end of the list, so that machines take turns.
            self._free += found.values()
            for machine in found.values():
                self._builds.pop(machine.name, None)
            async with self._moved:
                self._moved.notify_all()

    def _found(self, wanted: list[tuple[str, str]]) -> dict[str, ListedMachine] | None:
        return _assigned(wanted, [one for one in self._free if one.name not in self._reserved])

    def _why(self, wanted: Sequence[tuple[str, str]]) -> str:
        """Return the state of the awaited machines, without the names of other builds, which may be private."""
        labels = {label for _, label in wanted}
        fit = [one for one in self.listed_now() if labels & set(one.labels)]
        has = (f"{one.name} {'is taken' if one.build else 'is held' if one.held else 'is free'}"
               for one in fit)  # fmt: skip
        return f"Waiting for machines of this executor with the labels {', '.join(sorted(labels))}: {', '.join(has)}"


def _wanted(nodeset: Nodeset) -> list[tuple[str, str]]:
    """Return (name, label) of every node."""
    return [(name, node.label) for node in nodeset.nodes for name in node.name]


def _assigned(wanted: Sequence[tuple[str, str]], machines: Sequence[ListedMachine]) -> dict[str, ListedMachine] | None:
    """Assign each node the first machine with its label, or another one if otherwise a node would get none. Return None
    if the machines do not suffice."""
    fit = [[m for m, machine in enumerate(machines) if label in machine.labels] for _, label in wanted]
    node_of = dict[int, int]()
    for node in range(len(wanted)):
        moved = _moved(node, fit, node_of)
        if not moved:
            return None
        node_of |= moved
    return {wanted[node][0]: machines[machine] for machine, node in sorted(node_of.items(), key=lambda one: one[1])}


def _moved(node: int, fit: Sequence[Sequence[int]], node_of: Mapping[int, int]) -> dict[int, int]:
    """Return machine -> node for `node` and all nodes that must move so that it gets a machine; empty if it cannot get
    one. `fit`: node -> machines that fit."""
    # An augmenting path of a bipartite matching, found breadth first: from a node to the machines that fit, and from an
    # assigned machine to its node, until a machine is free. A free machine that fits the node itself is found first.
    reached_from, pending = dict[int, int](), [node]
    for one in pending:
        for machine in fit[one]:
            if machine in reached_from:
                continue
            reached_from[machine] = one
            if machine in node_of:
                pending.append(node_of[machine])
                continue
            has, moved = {other: m for m, other in node_of.items()}, {machine: one}
            while one != node:
                machine, one = has[one], reached_from[has[one]]
                moved[machine] = one
            return moved
    return {}


def read_machines(path: Path) -> tuple[ListedMachine, ...]:
    """Read a list of machines: `- name: HOST`, with `labels: [LABEL…]`, Ansible variables, and other variables under
    `vars`. Raise UserError."""
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
    """Return the variables of a machine. Raise UserError."""
    others = entry.get("vars") or {}
    if not isinstance(others, dict):
        raise UserError(f"{where}: vars: expected variables, NAME: VALUE")
    own = {key: value for key, value in entry.items() if key not in ("name", "labels", "vars")}
    for key in own:
        if key != HOST_KEY_VARIABLE and not str(key).startswith("ansible_"):
            similar = MEANT.get(str(key), "")
            hint = f"; {did_you_mean([similar])}" if similar else ", only name, labels, vars, and Ansible variables"
            raise UserError(f"{where}: there is no key {key!r}{hint}; put your own variables under `vars`")
    return {**others, **own}


def read_variables(path: Path) -> dict[str, Any]:
    """Read the variables of the site.  Raise UserError if they are not a mapping."""
    found = read_yaml(path) or {}
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected variables, NAME: VALUE")
    return found


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Raise UserError."""
    try:
        return yaml.safe_load(text_of(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: this is not YAML: {yaml_fault(error)}") from error


class LocalProvider:
    """Provide slots on the executor's own host; see `ports.clouds.Provider`."""

    async def prepare(self, machine: Machine) -> dict[str, Any]:
        return {"ansible_connection": "local"}

    async def clean(self, machine: Machine) -> None:
        """Do nothing: the executor has removed the work directory."""

    async def probe(self, machine: Machine) -> None:
        """Return immediately: a slot is healthy if its executor runs."""
