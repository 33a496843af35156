"""Test the examples of docs/operations.md, with only hosts, ports and directories replaced."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headgate.cli.launch.run import NEEDS_A_HAND
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories
from headgate.testing.servers import databases
from headgate.testing.servers.databases import new_database
from headgate.testing.servers.program import Program, free_ports
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

BIN = Path(sys.executable).parent
PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
BLOCKS = [text for _, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
NAMES = ("one", "two", "three")
QUORUM = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


def block(begins: str) -> str:
    """Return the one block of the page that begins with this text."""
    (found,) = (text for text in BLOCKS if text.startswith(begins))
    return found


def put(text: str, changes: dict[str, str]) -> str:
    """Each old text must occur."""
    for old, new in changes.items():
        assert old in text, f"the page says {old!r} no longer"
        text = text.replace(old, new)
    return text


@contextmanager
def keepers(root: Path) -> Iterator[list[int]]:
    """Run three servers of ZooKeeper with the page's settings; return the ports for clients."""
    ports = free_ports(9)
    peers = {f"{n}:2888:3888": f"127.0.0.1:{ports[3 + i]}:{ports[6 + i]}" for i, n in enumerate(NAMES)}
    with ExitStack() as stack:
        programs = []
        for i, name in enumerate(NAMES):
            home = root / name
            (home / "data").mkdir(parents=True)
            (home / "data" / "myid").write_text(f"{i + 1}\n")
            here = {"/var/lib/zookeeper": str(home / "data"), "clientPort=2181": f"clientPort={ports[i]}"}
            (home / "zoo.cfg").write_text(put(block("tickTime"), {**peers, **here}) + "clientPortAddress=127.0.0.1\n")
            (home / "jaas.conf").write_text(block("Server {"))
            text = put(block("JAVA_OPTS="), {"/etc/zookeeper/conf": str(home)}).partition('"')[2].rpartition('"')[0]
            options = [*text.split(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
            options.append("-Dzookeeper.admin.enableServer=false")
            java = [*databases.ZOOKEEPER_JAVA, *databases.SMALL_HEAP, *options, "-cp", databases.ZOOKEEPER_JARS]
            programs.append(Program([*java, QUORUM, str(home / "zoo.cfg")], home))
            stack.callback(programs[-1].kill)
            programs[-1].start()
        for program, port in zip(programs, ports[:3], strict=True):
            program.until(lambda port=port: serves(port))
        yield ports[:3]


def serves(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"srvr")
            return b"Mode: " in connection.makefile("rb").read()
    except OSError:
        return False


def settings(root: Path, ports: list[int], dburi: str) -> str:
    """Return the page's headgate.conf; the first four of `ports` are ours, the others those of the store."""
    own = ("prometheus_port = 9101", "prometheus_port = 9102", "prometheus_port = 9103", "port = 9000")
    return put(
        block("[scheduler]"),
        {
            "/etc/headgate": str(root),
            "/var/lib/headgate": str(root / "state"),
            "one:2181,two:2181,three:2181": ",".join(f"127.0.0.1:{port}" for port in ports[4:]),
            "postgresql+psycopg://headgate:PASSWORD@database/headgate": dburi,
            "ssh://git@git.example/srv/git": f"{root / 'hub'}\ncanonical_hostname = git.example",
            "0.0.0.0": "127.0.0.1",
            **{line: f"{line.rpartition(' ')[0]} {port}" for line, port in zip(own, ports, strict=False)},
        },
    )


def unit(root: Path) -> configparser.RawConfigParser:
    """Return the systemd unit that the page installs, checked by systemd if it is installed."""
    assert "packaging/systemd/headgate@.service" in block("install -D -m 644 -t /etc/systemd/system packaging")
    file = Path(__file__).parents[2] / "packaging/systemd/headgate@.service"
    text = put(file.read_text(), {"/opt/headgate/bin": str(BIN), "/etc/headgate": str(root), "User=headgate\n": ""})
    if shutil.which("systemd-analyze"):
        file = root / "headgate@scheduler.service"
        file.write_text(text)
        command = ["systemd-analyze", "verify", "--man=no", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "headgate" not in done.stderr, done.stderr
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as typeshed would have it
    parser.read_string(text)
    return parser


@pytest.mark.long
def test_the_instructions_for_headgate_on_zookeeper_work(tmp_path: Path, postgres_server: str) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\n"})
    for project in ("code/api", "code/lib"):
        repositories.create(project, {"README": "x\n"})
    (tmp_path / "tenants.yaml").write_text(TENANTS)
    service = unit(tmp_path)["Service"]
    assert int(service["RestartPreventExitStatus"]) == NEEDS_A_HAND
    kinds = re.findall(r"headgate@(\w+)", block("systemctl enable --now"))
    assert sorted(kinds) == ["executor", "merger", "scheduler", "web"]

    def headgate(*words: str) -> str:
        command = [str(BIN / "headgate"), *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        return done.stdout + done.stderr

    with keepers(tmp_path / "zookeeper") as store_ports, ExitStack() as stack:
        dburi = new_database(postgres_server).replace("postgresql:", "postgresql+psycopg:")
        (tmp_path / "headgate.conf").write_text(settings(tmp_path, [*free_ports(4), *store_ports], dburi))
        for kind in kinds:
            program = Program(service["ExecStart"].replace("%i", kind).split(), tmp_path / kind)
            stack.callback(program.kill)
            program.start()
        wait_for("all take part", lambda: headgate("components").count(" running ") == len(kinds))
        commit = repositories.propose("code/api", "first", {"a": "x\n"})
        repositories.approve("code/api", "first")
        wait_for("a change lands", lambda: "Landed" in repositories.note("code/api", commit))
        (name,) = re.findall(r"executor/\w+", headgate("components"))
        assert headgate("components", "pause", name) == f"{name} will be paused.\n"
        wait_for("status says that nobody builds", lambda: "no executor is running" in headgate("status", "--once"))
        bare = f"zookeeper://127.0.0.1:{store_ports[0]}"
        assert "requires a login" in headgate("map", "tree", "--store", bare), "nobody reads without the password"
        looked = subprocess.run([str(BIN / "headgate"), "map", "check"], cwd=tmp_path, capture_output=True, check=False)
        assert looked.returncode == 0, looked.stdout


@pytest.mark.long
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
def test_the_instructions_for_etcd_work(tmp_path: Path) -> None:
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    peer_ports = dict(zip(NAMES, free_ports(3), strict=True))
    with ExitStack() as stack:
        for name in NAMES:
            *own, cluster, mode, retention = block("ETCD_NAME").splitlines()
            lines = [re.sub(r"\bone\b", name, line) for line in own]
            cluster = put(cluster, {f"http://{n}:2380": f"http://127.0.0.1:{peer_ports[n]}" for n in NAMES})
            lines = put(
                "\n".join(lines),
                {
                    "/var/lib/etcd": str(tmp_path / name),
                    "0.0.0.0": "127.0.0.1",
                    f"//{name}:": "//127.0.0.1:",
                    ":2379": f":{ports[name]}",
                    ":2380": f":{peer_ports[name]}",
                },
            ).splitlines()
            environment = dict(line.split("=", 1) for line in (*lines, cluster, mode, retention))
            assert all(key.startswith("ETCD_") for key in environment)
            program = Program(["etcd"], tmp_path / f"{name}.d", environment)
            stack.callback(program.kill)
            program.start()

        def members() -> list[dict[str, object]]:
            url = f"http://127.0.0.1:{ports['one']}/v3/cluster/member/list"
            try:
                with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=DEADLINE_S) as answer:
                    return list(json.load(answer)["members"])
            except OSError:
                return []

        wait_for("three are one", lambda: len([m for m in members() if m.get("clientURLs")]) == len(NAMES))
        at = f"127.0.0.1:{ports['one']}"
        for line in block("etcdctl user add root").splitlines():
            etcdctl, *words = line.split()
            subprocess.run([etcdctl, f"--endpoints=http://{at}", *words], check=True, capture_output=True)
        store = f"etcd://headgate:STORE-PASSWORD@{at}/headgate"
        for url, message in ((store, "the store has no entries"), (f"etcd://{at}/headgate", "user")):
            command = [str(BIN / "headgate"), "map", "tree", "--store", url]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
            assert message in done.stderr, done.stderr
