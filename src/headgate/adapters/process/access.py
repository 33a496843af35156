"""Give a build access to its machines: Ansible's inventory, an ssh-agent with keys, and kubeconfigs."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headgate.adapters.process.bounds import machine
from headgate.adapters.process.confinement.users import BuildUser
from headgate.adapters.process.containers.box import CONNECTION
from headgate.adapters.process.context.hostvars import LOCALHOST
from headgate.adapters.process.network.sockets import NetworkTarget
from headgate.adapters.process.processes import ProcessKeeper
from headgate.adapters.process.sandbox import AGENT_SOCKET, Spaces
from headgate.base.errors import ExecutionError
from headgate.base.files import bytes_of
from headgate.config.model import FrozenJob
from headgate.ports.clouds import HOST_KEY_VARIABLE

KEY_VARIABLES = ("ansible_ssh_private_key_file", "ansible_private_key_file")
INTERPRETER = "ansible_python_interpreter"
UNREACHABLE = "zuul_unreachable"
"""Group of the hosts that an earlier playbook could not reach."""
_ELSEWHERE = {"ansible_remote_tmp": "~/.ansible/tmp", "ansible_async_dir": "~/.ansible_async"}
_CONNECTION_PORTS = {"winrm": 5986, "psrp": 5986}
"""Kind of connection -> default port; ssh for all others."""
_BESIDE = ("local", CONNECTION, "kubectl", "kubernetes.core.kubectl")
"""Kinds of connection that do not use the host's address."""
_UNKNOWN = dict.fromkeys(("az", "cloud", "provider", "region", "host_id", "external_id", "slot"))
AGENT_PROGRAM = "ssh-agent"
SOCKET_VARIABLE = "SSH_AUTH_SOCK"
START_MAX_S = 20.0
KEY_SIZE_MAX_BYTES = 65_536
_INPUT = 100
"""Descriptor that programs read their input from."""
KEYS_MAX = 50
"""Maximum number of keys that may remain after a playbook with secrets, and maximum number that are removed one by
one."""
_LISTED = 'keys=$(ssh-add -L) || test "$keys" = "The agent has no identities." || exit 1; printf "%s\\n" "$keys"'
"""`ssh-add -L` exits with 1 when there are no keys, and also when there are too many to list."""
_SIGNING = (
    f"ssh-add -L | head -n {KEYS_MAX} | while IFS= read -r key; do"
    ' printf "%s\\n" "$key" | ssh-add -T /dev/stdin >&2 && printf "%s\\n" "$key"; done; true'
)
_KEY_KINDS = ("ssh-", "ecdsa-", "sk-")
CLUSTER_SECRET = "kubernetes"
"""Key under which a node's secrets contain the access to its cluster."""
_CLUSTER_PORTS = {"https": 443, "http": 80}

Hosts = Mapping[str, Mapping[str, Any]]
"""Host name -> Ansible variables for the connection to it. JSON."""
Secrets = Mapping[str, Any]
"""Secrets of one node, for its build alone. JSON."""


@dataclass(frozen=True, slots=True)
class AnsibleInventory:
    """Describe the hosts of one job to Ansible."""

    job: FrozenJob
    hosts: Hosts
    user: str
    """User as whom commands run on this machine; on other machines, the default is the executor's own user name."""

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
        """Return the inventory with the `values` of each host; other hosts get the values of this machine. JSON."""
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
    """Return the variables of one host.  On this machine, Ansible uses our own Python, and stores its files in the work
    directory; in a container, it uses the Python of the image."""
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
    elif connection not in _CONNECTION_PORTS:
        variables |= _ELSEWHERE
    # Only if the provider reports the host key can ssh refuse a machine that pretends to be this one.
    if found.get(HOST_KEY_VARIABLE):
        variables["ansible_ssh_host_key_checking"] = True
    # The provider's own variables come last, and override what is guessed from the kind of connection.
    variables |= found
    # Playbooks may still use the older name.
    if variables.get("ansible_user"):
        variables.setdefault("ansible_ssh_user", variables["ansible_user"])
    known = {"label": label, **_UNKNOWN, **_addresses(address), "node_properties": {}, **found.get("nodepool", {})}
    node = {**known, "uuid": known["external_id"], "reuse": not is_local, **found.get("zuul_node", {})}
    return {**variables, "nodepool": known, "zuul_node": node}


def _addresses(address: str) -> dict[str, Any]:
    """Return an address under each of its variable names; a host name is not resolved, so it is `interface_ip` only."""
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
            port = str(found.get("ansible_port") or _CONNECTION_PORTS.get(str(found.get("ansible_connection")), 22))
            # The port may be a template, which only Ansible evaluates.
            if port.isdigit():
                yield NetworkTarget(str(found.get("ansible_host") or name), int(port))


def keys(hosts: Hosts, site: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the paths of the private keys for ssh that the variables of the hosts and of the `site` name."""
    for found in (*hosts.values(), site):
        for name in KEY_VARIABLES:
            if found.get(name):
                yield Path(str(found[name]))


def without_keys(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a host without the paths of key files, which no playbook can read: the agent has the
    keys.
    """
    return {name: value for name, value in found.items() if name not in KEY_VARIABLES}


def known_host(name: str, found: Mapping[str, Any]) -> str:
    """Return lines for ssh's known_hosts: the expected keys of the host, if they are known."""
    host, port = found.get("ansible_host") or name, str(found.get("ansible_port") or 22)
    # The form that ssh looks for in known_hosts.
    where = host if port == "22" else f"[{host}]:{port}"
    return "".join(f"{where} {key}\n" for key in str(found.get(HOST_KEY_VARIABLE, "")).split("\n") if key)


class NoKey(ExecutionError):
    """Report that a key for a machine of the build cannot be used; the message is shown to users."""


class Agent:
    """Run an ssh-agent; `place` is its directory, with the socket.

    Playbooks cannot read the keys of their machines; they only get the agent's socket.  The agent runs as the build's
    user, outside of every sandbox, and is the same for all playbooks, so a base job may replace the operator's key
    with one of the build's own (`ssh-add`, `ssh-add -d`).  When a playbook with secrets has ended, the keys that it
    added are removed: all but those that could sign before it began.  A mere listing is not enough, since anyone who
    knows a public key can add it without the private one, or put it into the comment of another key.
    """

    def __init__(self, keeper: ProcessKeeper, spaces: Spaces, user: BuildUser | None, place: Path) -> None:
        self._keeper, self._spaces, self._user, self.place = keeper, spaces, user, place

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, keeper: ProcessKeeper, spaces: Spaces, user: BuildUser | None, place: Path
    ) -> AsyncIterator[Agent]:
        """Start an agent for the context. Raise OSError."""
        agent = cls(keeper, spaces, user, place)
        place.mkdir(mode=0o700)
        await agent._owned(user.inside if user else None)
        held = socket.socket(fileno=await agent._begun())
        try:
            held.setblocking(False)
            async with asyncio.timeout(START_MAX_S):
                if not await asyncio.get_running_loop().sock_recv(held, 1_000):
                    raise OSError(f"{AGENT_PROGRAM} does not start")
            yield agent
        finally:
            held.close()  # this ends the agent
            await agent._owned(0 if user else None)

    async def add(self, key: Path) -> None:
        """Add the key in a file that this process may read. Raise NoKey."""
        label = f"the key {key}, which logs in to a machine"
        try:
            text = bytes_of(key)[:KEY_SIZE_MAX_BYTES]
        except OSError as error:
            raise NoKey(f"{label}, cannot be read by the executor: {error.strerror}") from error
        try:
            await self._output("ssh-add -q " + (f"/proc/self/fd/{_INPUT}" if self._user else "-"), text)
        except OSError as error:
            raise NoKey(f"{label}, is not accepted; it must be a private key without a passphrase: {error}") from error

    async def signing(self) -> frozenset[str]:
        """Return the public keys with whose private keys the agent can sign. Raise OSError."""
        return _listed_keys(await self._output(_SIGNING))

    async def back_to(self, keys: frozenset[str]) -> None:
        """Remove all keys but these; if the others cannot be removed one by one, remove all. Raise OSError."""
        try:
            others = _listed_keys(await self._output(_LISTED)) - keys
            if len(others) > KEYS_MAX:
                raise OSError(f"the agent has {len(others)} more keys than before")
            for key in others:
                await self._output(f"ssh-add -q -d /proc/self/fd/{_INPUT}", f"{key}\n".encode())
        except OSError:
            await self._output("ssh-add -q -D")

    async def _begun(self) -> int:
        """Start the agent, and return the descriptor of a socket; closing it ends the agent.  Raise OSError."""
        # With -P '' the agent loads no library that a job names.
        words = self._in_place(f"{AGENT_PROGRAM} -P '' -D -a {AGENT_SOCKET}")
        made = (await self._keeper.errand(self._spaces, do="hold", command=words)).made
        assert made is not None, "this errand returns a descriptor"
        return made

    async def _output(self, command: str, text: bytes = b"") -> str:
        """Return the output of a command that reads `text`. Raise OSError."""
        inputs = {_INPUT: base64.b64encode(text).decode()} if text else {}
        words, stdin = self._in_place(f"sh -c {shlex.quote(command)}"), text.decode(errors="replace")
        done = await self._keeper.errand(self._spaces, do="program", command=words, stdin=stdin, inputs=inputs)
        return done.output

    def _in_place(self, command: str) -> list[str]:
        """Return the arguments that enter the directory and then run a command as the build's user, who may not access
        the directories above it."""
        script = f'cd "$0" && export {SOCKET_VARIABLE}={AGENT_SOCKET} && exec "$@" {command}'
        return ["sh", "-c", script, str(self.place), *(self._user.becoming() if self._user else ("env",))]

    async def _owned(self, owner: int | None) -> None:
        """Give the agent's directory to an owner, if there is one.  Raise OSError."""
        if owner is not None:
            words = ["chown", "--recursive", "--no-dereference", f"{owner}:{owner}", "--", str(self.place)]
            await self._keeper.program(self._spaces, words)


def _listed_keys(listing: str) -> frozenset[str]:
    return frozenset(line for line in listing.splitlines() if line.startswith(_KEY_KINDS))


def kubeconfig(secrets: Iterable[Secrets]) -> bytes:
    """Return a kubeconfig for the clusters of all nodes, with the first one's context as the current one; empty if
    there are none. It is JSON, which is also YAML."""
    every = [one[CLUSTER_SECRET] for one in secrets if one.get(CLUSTER_SECRET)]
    if not every:
        return b""
    clusters = {one["cluster"]: _cluster(one) for one in every}
    contexts = {
        one["context"]: {"cluster": one["cluster"], "user": one["user"], "namespace": one["namespace"]} for one in every
    }
    users = {one["user"]: {"token": one["token"]} for one in every}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "clusters": [{"name": name, "cluster": cluster} for name, cluster in clusters.items()],
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "contexts": [{"name": name, "context": context} for name, context in contexts.items()],
        "current-context": every[0]["context"],
    }
    return json.dumps(config, indent=1).encode() + b"\n"


def tokens(secrets: Iterable[Secrets]) -> Iterator[str]:
    """Yield the tokens, which must not appear in logs."""
    for secret in secrets:
        if secret.get(CLUSTER_SECRET):
            yield str(secret[CLUSTER_SECRET]["token"])


def servers(secrets: Iterable[Secrets]) -> Iterator[NetworkTarget]:
    """Yield the addresses of the clusters."""
    for one in secrets:
        if one.get(CLUSTER_SECRET):
            place = urlsplit(one[CLUSTER_SECRET]["server"])
            yield NetworkTarget(place.hostname or "", place.port or _CLUSTER_PORTS.get(place.scheme, 443))


def _cluster(cluster: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"server": cluster["server"]}
    if cluster.get("authority"):
        found["certificate-authority-data"] = base64.b64encode(str(cluster["authority"]).encode()).decode()
    if cluster.get("verified") is False:
        found["insecure-skip-tls-verify"] = True
    if cluster.get("called"):
        found["tls-server-name"] = cluster["called"]
    return found
