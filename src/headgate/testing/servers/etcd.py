"""etcd servers: one alone, or a cluster of three.  Needs Debian's package `etcd-server`."""

from __future__ import annotations

import shutil
import socket
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headgate.testing.servers.certificates import GeneratedCertificates
from headgate.testing.servers.program import Program, free_ports

LEASE_LEAST_S = 2.0


def installed() -> bool:
    return shutil.which("etcd") is not None


class Etcd:
    """Run one server. `port` is for clients; with certificates, it speaks TLS."""

    def __init__(
        self,
        directory: Path,
        port: int,
        peer_port: int,
        *,
        name: str = "one",
        peers: Sequence[str] = (),
        certificates: GeneratedCertificates | None = None,
    ) -> None:
        self.port, self.name = port, name
        scheme = "https" if certificates else "http"
        client, peer = f"{scheme}://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
        command = [
            "etcd", f"--name={name}", f"--data-dir={directory / 'data'}", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster={','.join(peers) or f'{name}={peer}'}",
            # Half of etcd's defaults: tests that kill a leader wait for the election of the next one.
            "--logger=zap", "--log-level=warn", "--heartbeat-interval=50", "--election-timeout=500",
        ]  # fmt: skip
        if certificates:
            command += [
                f"--cert-file={certificates.server}",
                f"--key-file={certificates.server}",
                f"--trusted-ca-file={certificates.authority}",
                "--client-cert-auth",
            ]
        self.program = Program(command, directory)

    def start(self) -> None:
        self.program.start()

    def ready(self) -> None:
        """Wait until the server listens for clients, which it does once it is a member."""
        self.program.until(self.serves)

    def serves(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    @property
    def leads(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as metrics:
            return b"\netcd_server_is_leader 1\n" in metrics.read()


@contextmanager
def etcd(directory: Path, certificates: GeneratedCertificates | None = None) -> Iterator[Etcd]:
    """Provide one server, ready."""
    server = Etcd(directory, *free_ports(2), certificates=certificates)
    server.start()
    try:
        server.ready()
        yield server
    finally:
        server.program.kill()


@contextmanager
def cluster(directory: Path, count: int = 3) -> Iterator[list[Etcd]]:
    """Start servers that form one store, and yield them when ready. The store survives the loss of a minority."""
    ports = free_ports(2 * count)
    peers = [f"n{n}=http://127.0.0.1:{ports[count + n]}" for n in range(count)]
    servers = [Etcd(directory / str(n), ports[n], ports[count + n], name=f"n{n}", peers=peers) for n in range(count)]
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.ready()
        yield servers
    finally:
        for server in servers:
            server.program.kill()
