"""ZooKeeper servers: one alone, or an ensemble of three.  Needs Debian's package `zookeeper`."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.base.ids import fresh
from headgate.store.types import Put
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.servers.certificates import GeneratedCertificates
from headgate.testing.servers.program import Program, free_ports

JARS = ":".join(
    f"/usr/share/java/{name}.jar"
    for name in ("zookeeper-jute", "zookeeper", "slf4j-simple", "netty-codec", "netty-resolver")
)
"""Class path; the manifests of these archives name the rest."""
JAVA = ["java", "-Dzookeeper.forceSync=no"]
"""Command of a server without fsync: acknowledged writes survive its end, not that of the machine."""
QUICK = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
"""Options for a quick start."""
SMALL, MIDDLE = ["-Xmx96m", *QUICK], ["-Xmx256m", *QUICK]
"""Options of a single server, and of a member of an ensemble that serves a whole gate: deleted entries remain for ten
minutes as nodes without data, some 20 MB for 300 changes, and more is on its way to processes that rejoin.
"""
LARGE = ["-Xms2g", "-Xmx2g", "-XX:+UseG1GC"]
TICK_MS = 200
SESSION_LEAST_S = 0.4
SESSION_MOST_S = 60.0


def installed() -> bool:
    return bool(shutil.which("java")) and Path("/usr/share/java/zookeeper.jar").exists()


@dataclass(frozen=True, slots=True)
class ServerKind:
    """State what the servers require of clients."""

    certificates: GeneratedCertificates | None = None
    """Certificates of a server that accepts only TLS with a client certificate; None: it accepts plain connections."""
    users: tuple[tuple[str, str], ...] = ()
    """Names and passwords of a server that accepts only SASL; empty: it does not require it."""
    large: bool = False
    """Whether the servers have memory for a million nodes."""


class ZooKeeper:
    """Run one server. `port` is for clients, with TLS if the kind says so."""

    def __init__(self, directory: Path, kind: ServerKind, port: int, id: int = 1, peers: Sequence[str] = ()) -> None:
        self.port, self.id = port, id
        self._kind, self._peers = kind, peers
        directory.mkdir(parents=True, exist_ok=True)
        self._configure(directory)
        login = [f"-Djava.security.auth.login.config={directory / 'jaas.conf'}"] if kind.users else []
        # The admin server would take port 8080, of which there is one for all servers.
        options = [*login, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.admin.enableServer=false"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        heap = LARGE if kind.large else MIDDLE if peers else SMALL
        self.program = Program([*JAVA, *heap, *options, "-cp", JARS, main, str(directory / "zoo.cfg")], directory)

    def _configure(self, directory: Path) -> None:
        (directory / "data").mkdir(exist_ok=True)
        (directory / "data" / "myid").write_text(str(self.id))
        lines = [
            f"tickTime={TICK_MS}",
            f"dataDir={directory / 'data'}",
            # Two ticks, as ZooKeeper has it by default: it looks for expired sessions once a tick.
            f"minSessionTimeout={SESSION_LEAST_S * 1000:.0f}",
            f"maxSessionTimeout={SESSION_MOST_S * 1000:.0f}",
            # The default permits 60 connections from one address, and all clients of the tests have the same.
            "maxClientCnxns=0",
            # Only `srvr` is permitted otherwise.
            "4lw.commands.whitelist=srvr,ruok,mntr",
            "initLimit=50",
            "syncLimit=20",
            *self._peers,
        ]
        if (files := self._kind.certificates) is not None:
            lines += [
                f"secureClientPort={self.port}",
                "secureClientPortAddress=127.0.0.1",
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"ssl.keyStore.location={files.server}",
                "ssl.keyStore.type=PEM",
                f"ssl.trustStore.location={files.authority}",
                "ssl.trustStore.type=PEM",
                "ssl.clientAuth=need",
            ]
        else:
            lines += [f"clientPort={self.port}", "clientPortAddress=127.0.0.1"]
        if self._kind.users:
            lines += [
                "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
                "sessionRequireClientSASLAuth=true",
            ]
            users = " ".join(f'user_{name}="{password}"' for name, password in self._kind.users)
            module = "org.apache.zookeeper.server.auth.DigestLoginModule"
            (directory / "jaas.conf").write_text(f"Server {{ {module} required {users}; }};\n")
        (directory / "zoo.cfg").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        self.program.start()

    def ready(self) -> None:
        """Wait until the server serves."""
        self.program.until(self.serves)

    def serves(self) -> bool:
        if self._kind.certificates is None:
            return "Mode:" in self.status()
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def status(self, word: str = "srvr") -> str:
        """Return what the server reports of itself: with `Mode: leader`, `follower` or `standalone` when it serves;
        with the word `mntr`, its figures."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(2)
                connection.sendall(word.encode())
                answer = b""
                # The server closes the connection after its answer, which has no other end.
                while piece := connection.recv(4096):
                    answer += piece
                return answer.decode()
        except OSError:
            return ""

    @property
    def leads(self) -> bool:
        return "Mode: leader" in self.status()


@contextmanager
def zookeeper(directory: Path, kind: ServerKind | None = None) -> Iterator[ZooKeeper]:
    """Provide one server, ready."""
    server = ZooKeeper(directory, kind or ServerKind(), free_ports(1)[0])
    server.start()
    try:
        server.ready()
        yield server
    finally:
        server.program.kill()


async def chroot(server: ZooKeeper) -> str:
    """Return the path of a new, empty node, to be a tree of its own."""
    root = await ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{server.port}")
    try:
        path = f"/{fresh()}"
        await root.commit([], [Put(path, b"")])
        return path
    finally:
        await root.close()


@contextmanager
def ensemble(directory: Path, count: int = 3) -> Iterator[list[ZooKeeper]]:
    """Start servers that form one store, and yield them when ready. The store survives the loss of a minority."""
    ports = free_ports(3 * count)
    clients, quorum, election = ports[:count], ports[count : 2 * count], ports[2 * count :]
    peers = [f"server.{n + 1}=127.0.0.1:{quorum[n]}:{election[n]}" for n in range(count)]
    servers = [ZooKeeper(directory / str(n + 1), ServerKind(), clients[n], n + 1, peers) for n in range(count)]
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.ready()
        yield servers
    finally:
        for server in servers:
            server.program.kill()
