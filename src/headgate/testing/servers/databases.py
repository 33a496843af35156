"""Start etcd and ZooKeeper, as one or three servers, and PostgreSQL, from Debian's packages."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.base.ids import fresh
from headgate.store.types import Put
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.certificates import GeneratedCertificates
from headgate.testing.servers.program import Program, free_ports

LEASE_LEAST_S = 2.0
"""Shortest lease that etcd grants."""
ZOOKEEPER_JARS = ":".join(
    f"/usr/share/java/{name}.jar"
    for name in ("zookeeper-jute", "zookeeper", "slf4j-simple", "netty-codec", "netty-resolver")
)
"""Class path; the manifests of these archives name the rest."""
ZOOKEEPER_JAVA = ["java", "-Dzookeeper.forceSync=no"]
"""Command of a server without fsync: acknowledged writes survive its end, not that of the machine."""
QUICK = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
"""Java's options for a quick start."""
SMALL_HEAP, MIDDLE_HEAP = ["-Xmx96m", *QUICK], ["-Xmx256m", *QUICK]
"""Options of a single server, and of a member of an ensemble that serves a whole gate: deleted entries remain for ten
minutes as nodes without data, some 20 MB for 300 changes, and more is on its way to processes that rejoin.
"""
LARGE_HEAP = ["-Xms2g", "-Xmx2g", "-XX:+UseG1GC"]
TICK_MS = 200
SESSION_LEAST_S, SESSION_MOST_S = 0.4, 60.0
"""Bounds of what ZooKeeper grants a session."""


def etcd_installed() -> bool:
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
        return _listens(self.port)

    @property
    def leads(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as metrics:
            return b"\netcd_server_is_leader 1\n" in metrics.read()


@contextmanager
def etcd(directory: Path, certificates: GeneratedCertificates | None = None) -> Iterator[Etcd]:
    """Provide one server, ready."""
    server = Etcd(directory, *free_ports(2), certificates=certificates)
    with _running([server]):
        yield server


@contextmanager
def etcd_cluster(directory: Path, count: int = 3) -> Iterator[list[Etcd]]:
    """Provide servers that form one store, ready. The store survives the loss of a minority."""
    ports = free_ports(2 * count)
    peers = [f"n{n}=http://127.0.0.1:{ports[count + n]}" for n in range(count)]
    servers = [Etcd(directory / str(n), ports[n], ports[count + n], name=f"n{n}", peers=peers) for n in range(count)]
    with _running(servers):
        yield servers


def zookeeper_installed() -> bool:
    return bool(shutil.which("java")) and Path("/usr/share/java/zookeeper.jar").exists()


@dataclass(frozen=True, slots=True)
class ZooKeeperKind:
    """State what the servers require of clients."""

    certificates: GeneratedCertificates | None = None
    """Certificates of a server that accepts only TLS with a client certificate; None: it accepts plain connections."""
    users: tuple[tuple[str, str], ...] = ()
    """Names and passwords of a server that accepts only SASL; empty: it does not require it."""
    large: bool = False
    """Whether the servers have memory for a million nodes."""


class ZooKeeper:
    """Run one server. `port` is for clients, with TLS if the kind says so."""

    def __init__(self, directory: Path, kind: ZooKeeperKind, port: int, id: int = 1, peers: Sequence[str] = ()) -> None:
        self.port, self.id = port, id
        self._kind, self._peers = kind, peers
        directory.mkdir(parents=True, exist_ok=True)
        self._configure(directory)
        login = [f"-Djava.security.auth.login.config={directory / 'jaas.conf'}"] if kind.users else []
        # The admin server would take port 8080, of which there is one for all servers.
        options = [*login, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.admin.enableServer=false"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        heap = LARGE_HEAP if kind.large else MIDDLE_HEAP if peers else SMALL_HEAP
        self.program = Program(
            [*ZOOKEEPER_JAVA, *heap, *options, "-cp", ZOOKEEPER_JARS, main, str(directory / "zoo.cfg")], directory
        )

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
        return "Mode:" in self.status() if self._kind.certificates is None else _listens(self.port)

    def status(self, word: str = "srvr") -> str:
        """Return the server's report about itself: with `Mode: leader`, `follower` or `standalone` when it serves; with
        the word `mntr`, its metrics."""
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
def zookeeper(directory: Path, kind: ZooKeeperKind | None = None) -> Iterator[ZooKeeper]:
    """Provide one server, ready."""
    server = ZooKeeper(directory, kind or ZooKeeperKind(), free_ports(1)[0])
    with _running([server]):
        yield server


async def chroot(server: ZooKeeper) -> str:
    """Return the path of a new, empty node for a separate tree."""
    root = await ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{server.port}")
    try:
        path = f"/{fresh()}"
        await root.commit([], [Put(path, b"")])
        return path
    finally:
        await root.close()


@contextmanager
def ensemble(directory: Path, count: int = 3) -> Iterator[list[ZooKeeper]]:
    """Provide servers that form one store, ready. The store survives the loss of a minority."""
    ports = free_ports(3 * count)
    clients, quorum, election = ports[:count], ports[count : 2 * count], ports[2 * count :]
    peers = [f"server.{n + 1}=127.0.0.1:{quorum[n]}:{election[n]}" for n in range(count)]
    servers = [ZooKeeper(directory / str(n + 1), ZooKeeperKind(), clients[n], n + 1, peers) for n in range(count)]
    with _running(servers):
        yield servers


@contextmanager
def _running(servers: Sequence[Etcd | ZooKeeper]) -> Iterator[None]:
    """Start servers, wait until they are ready, and kill them at the end."""
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.ready()
        yield
    finally:
        for server in servers:
            server.program.kill()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def postgres_programs() -> Path | None:
    """Return the directory of the newest initdb and postgres; None: there are none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def postgres(*, durable: bool = False) -> Iterator[str]:
    """Provide the URL of an empty database. With `durable`, it waits for the disk, as in production."""
    bin = postgres_programs()
    assert bin is not None, "PostgreSQL is not installed: apt-get install postgresql"
    root = Path(tempfile.mkdtemp(prefix="headgate-pg-"))
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() == 0:  # it refuses to run as root
        shutil.chown(root, user)
    (port,) = free_ports(1)
    data, as_user = root / "data", user if os.geteuid() == 0 else None
    initdb = [str(bin / "initdb"), "-D", str(data), "-U", "headgate", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
    subprocess.run(initdb, check=True, capture_output=True, user=as_user, cwd=root)
    command = [str(bin / "postgres"), "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
    command += ["-k", str(root), *([] if durable else ["-c", "fsync=off", "-c", "synchronous_commit=off"])]
    with open(root / "log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, user=as_user, cwd=root)
    try:
        _until_ready(bin, port, server, root / "log")
        yield f"postgresql://headgate@127.0.0.1:{port}/postgres"
    finally:
        # A fast shutdown: SIGTERM would wait for every client to leave.
        server.send_signal(signal.SIGINT)
        server.wait(DEADLINE_S)
        shutil.rmtree(root, ignore_errors=True)


def new_database(server: str) -> str:
    """Return the URL of an empty database on a server, whose own URL is given."""
    import psycopg

    name = f"d{fresh()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return f"{server.rpartition('/')[0]}/{name}"


def _until_ready(bin: Path, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    ready = [str(bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ready, check=False).returncode != 0:
        if time.monotonic() > end or server.poll() is not None:
            raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-500:]}")
        time.sleep(0.05)
