"""An etcd server.  Needs Debian's package `etcd-server`."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.testing.servers.program import Program, free_ports


def installed() -> bool:
    return shutil.which("etcd") is not None


class Etcd:
    """One server, that is nobody's but ours; what it acknowledges survives its own end."""

    def __init__(self, directory: Path) -> None:
        self.port, peers = free_ports(2)
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peers}"
        self.program = Program(
            [
                "etcd", "--data-dir", str(directory / "data"), "--log-level", "warn", "--logger", "zap",
                "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
            ],
            directory,
        )  # fmt: skip

    def serves(self) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def etcd(directory: Path) -> Iterator[Etcd]:
    """One server, ready."""
    server = Etcd(directory)
    server.program.start()
    try:
        server.program.until(server.serves)
        yield server
    finally:
        server.program.kill()
