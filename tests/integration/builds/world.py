"""Provide an outside world: a machine in a separate network namespace, one hop from this one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headgate.adapters.process.confinement.users import claim_any

GREETER = """
import socket, sys
listening = socket.create_server((sys.argv[1], int(sys.argv[2])), family=socket.AF_INET6, dualstack_ipv6=True)
print(listening.getsockname()[1], flush=True)
while True:
    connection, _ = listening.accept()
    connection.sendall(b"hello\\n")
    connection.close()
"""


class World:
    """`address` is the machine outside. It answers hello at `port`, also at `address6`, at `local6` (a site-local
    address), at `other`, at `link` (a link-local address), and at `metadata6`, where clouds offer secrets to
    machines; `gateway` and `gateway6` are this machine as seen from there."""

    def __init__(self, state_json: str = "") -> None:
        """Return a world that another process made; see `tell`."""
        self._stack, self._state_json = ExitStack(), state_json

    def tell(self) -> str:
        return json.dumps({name: value for name, value in vars(self).items() if not name.startswith("_")})

    def __enter__(self) -> World:
        if self._state_json:
            vars(self).update(json.loads(self._state_json))
            return self
        found = claim_any("world", 0, 32)
        assert found is not None, "there are 32 of them"
        self._stack.callback(found.close)
        number = found.number
        self.name = f"world{number}"
        self.gateway, self.address, self.other = (f"203.0.113.{8 * number + n}" for n in (1, 2, 3))
        self.link = f"169.254.{100 + number}.254"
        self.gateway6, self.address6 = (f"2001:db8:{number:x}::{n}" for n in (1, 2))
        here6, self.local6 = (f"fd5a:7072:6f62:{number:x}::{n}" for n in (1, 2))
        self.metadata6 = f"fd00:ec2::{number:x}:254"
        self._end()
        self._ip(f"netns add {self.name}")
        self._stack.callback(self._end)
        self._ip(f"link add {self.name} type veth peer name eth0 netns {self.name}")
        for where, device, four, *sixes in (
            ("", self.name, self.gateway, self.gateway6, here6),
            (f"-n {self.name} ", "eth0", self.address, self.address6, self.local6),
        ):
            self._ip(f"{where}addr add {four}/29 dev {device}")
            for six in sixes:
                self._ip(f"{where}addr add {six}/64 dev {device} nodad")
            self._ip(f"{where}link set {device} up")
        self._ip(f"-n {self.name} addr add {self.other}/29 dev eth0")
        self._ip(f"-n {self.name} addr add {self.link}/32 dev eth0")
        self._ip(f"-n {self.name} addr add {self.metadata6}/128 dev eth0 nodad")
        self._ip(f"route add {self.link}/32 via {self.address}")
        self._ip(f"route add {self.metadata6}/128 via {self.address6}")
        self._ip(f"-n {self.name} link set lo up")
        self._ip(f"-n {self.name} route add default via {self.gateway}")
        self.port = self._stack.enter_context(greeter("::", 0, "ip", "netns", "exec", self.name))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        """The link is removed first: with its namespace it would disappear some time later, and its name could not be
        reused."""
        subprocess.run(["ip", "link", "del", self.name], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)

    @staticmethod
    def _ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True)


@contextmanager
def greeter(address: str, port: int, *prefix: str) -> Iterator[int]:
    """Answer hello to every client, over IPv4 and IPv6; return the port."""
    command = [*prefix, sys.executable, "-c", GREETER, address, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()
