"""Test every component as a separate process, on ZooKeeper or etcd: work moves when one dies, is paused, or stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories
from headgate.testing.servers.databases import Etcd, etcd, zookeeper
from headgate.testing.servers.program import Program, free_ports
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .copies import CopiedProgram

BIN = Path(sys.executable).parent
UNIT = """#!/bin/sh
echo "testing $ZUUL_CHANGE"
while test -e HOLD && ! test -e RELEASE; do sleep 0.05; done
"""
SETTINGS = """
[scheduler]
tenant_config = {root}/tenants.yaml
state_dir = state
prometheus_port = 0
[merger]
prometheus_port = 0
[store]
url = {store}
session_timeout = {session_s}
[database]
dburi = sqlite:///{root}/history.sqlite
[connection local]
baseurl = {root}/hub
canonical_hostname = git.example
[web]
port = 0
[executor]
builds = 4
sandbox = none
[fingergw]
port = 0
listen_address = 127.0.0.1
[logs]
url = {root}/kept
upload_interval = 1
[log]
format = json
"""


def settings(root: Path, store: str) -> str:
    """Sessions are short: each process that dies is waited for as long.

    Etcd, which goes away in a test, is to be found silent before a third of a session has passed.
    """
    return SETTINGS.format(root=root, store=store, session_s=7 if store.startswith("etcd") else 5)


class Cluster:
    """The processes of one Headgate, by name."""

    def __init__(self, root: Path, store: str) -> None:
        self.root, self.store = root, store
        self.programs: dict[str, Program] = {}
        self.release = root / "release"
        self.repositories = Repositories(root)
        text = PIPELINES.replace("    check:\n      jobs: [unit]\n", "")
        unit = UNIT.replace("RELEASE", str(self.release))
        self.repositories.create("config", {"zuul.yaml": text, "jobs/unit": unit})
        self.repositories.create("code/api", {"README": "api\n"})
        self.repositories.create("code/lib", {"README": "lib\n"})
        (root / "tenants.yaml").write_text(TENANTS)

    def start(self, kind: str, name: str) -> Program:
        home = self.root / name
        home.mkdir(exist_ok=True)
        (home / "headgate.conf").write_text(settings(self.root, self.store))
        self.programs[name] = program = CopiedProgram([str(BIN / "headgate"), kind], home, {"PYTHONUNBUFFERED": "1"})
        program.start()
        return program

    def url(self, name: str) -> str:
        """Return the address of the pages, or of health and metrics."""

        def found() -> str:
            match = re.search(r"(?:pages|figures) are at (http://[^/\s]+)/", self.log(name))
            return match[1] if match else ""

        return str(wait_for(f"{name} serves", found))

    def log(self, name: str) -> str:
        return self.programs[name].log.read_text(errors="replace")

    def get(self, name: str, path: str) -> Any:
        with urllib.request.urlopen(self.url(name) + path, timeout=DEADLINE_S) as answer:
            return json.load(answer)

    def health(self, name: str) -> tuple[int, Any]:
        try:
            return 200, self.get(name, "/health/ready")
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def headgate(self, *arguments: str) -> str:
        command = [str(BIN / "headgate"), *arguments]
        environment = {**os.environ, "HEADGATE_TOKEN": self.token("web")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def token(self, name: str) -> str:
        """Return the operator's token of one process: each has its own state directory here."""
        return (self.root / name / "state" / "token").read_text().strip()

    def approve(self, topic: str, *, hold: bool = False) -> None:
        files = {topic: "x\n", **({"HOLD": topic} if hold else {})}
        self.repositories.propose("code/api", topic, files)
        self.repositories.approve("code/api", topic)

    def log_of(self, build: str) -> str:
        """Return the output of a build, as the web shows it to a browser; empty: it has none."""
        try:
            with urllib.request.urlopen(
                f"{self.url('web')}/t/example/logs/{build}/job-output.txt", timeout=DEADLINE_S
            ) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            assert error.code == 404, error.read()
            return ""

    def running_at(self, kind: str) -> dict[str, int]:
        """Return component -> number of its works."""
        return {one["name"]: one["running"] for one in self.get("web", "/api/components").get(kind, [])}

    def landed(self, topic: str) -> Any:
        found = self.get("web", "/api/tenant/example/buildsets?complete=true&pipeline=gate")
        return next((b for b in found if b["refs"][0]["change"] == topic and b["result"] == "SUCCESS"), None)


@dataclass(frozen=True, slots=True)
class Server:
    """Entries of the store."""

    url: str
    program: Program
    serves: Callable[[], bool]

    def restart(self) -> None:
        self.program.start()
        self.program.until(self.serves)


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "zookeeper":
        with zookeeper(tmp_path / "store") as keeper:
            yield Server(f"zookeeper://127.0.0.1:{keeper.port}?session_s=5", keeper.program, keeper.serves)
    else:
        with etcd(tmp_path / "store") as one:
            yield Server(f"etcd://127.0.0.1:{one.port}", one.program, one.serves)


@pytest.fixture
def cluster(tmp_path: Path, server: Server) -> Iterator[Cluster]:
    made = Cluster(tmp_path, server.url)
    for kind, name in (("scheduler", "s1"), ("scheduler", "s2"), ("merger", "m1"), ("web", "web")):
        made.start(kind, name)
    for name in ("e1", "e2"):
        made.start("executor", name)
    wait_for("all have joined", lambda: sum(len(v) for v in made.get("web", "/api/components").values()) == 6)
    wait_for("each knows that it has", lambda: all(made.health(name)[0] == 200 for name in made.programs))
    yield made
    made.release.touch()
    ends = {name: program.stop() for name, program in made.programs.items()}
    assert set(ends.values()) <= {0, -signal.SIGKILL}, {n: made.log(n) for n, end in ends.items() if end}


@pytest.mark.sampled
@pytest.mark.parametrize("server", ["zookeeper"], indirect=True)
def test_work_moves_when_processes_die_are_paused_or_stop(cluster: Cluster) -> None:
    cluster.approve("first")
    wait_for("a change lands", lambda: cluster.landed("first"))
    ended = wait_for("it is history", lambda: cluster.get("web", "/api/tenant/example/builds?complete=true"))
    build = ended[0]["uuid"]
    logs = {one["path"]: one for one in cluster.get("web", f"/api/tenant/example/build/{build}/logs")}
    log = logs["job-output.txt"]
    with urllib.request.urlopen(cluster.url("web") + log["url"], timeout=DEADLINE_S) as answer:
        assert b"testing first" in answer.read(), "the web shows the log that an executor has"

    cluster.approve("held", hold=True)
    busy = wait_for("a build runs", lambda: [n for n, count in cluster.running_at("executor").items() if count])
    parts = cluster.root / "kept/_parts"
    (cut_off,) = wait_for("a part of its log is kept", lambda: [p.name for p in parts.glob("*") if p.name != build])
    pids = {c["name"]: c["pid"] for c in cluster.get("web", "/api/components")["executor"]}
    killed = next(p for p in cluster.programs.values() if p.process is not None and p.process.pid == pids[busy[0]])
    killed.kill()
    wait_for(
        "another executor runs it",
        lambda: [n for n, c in cluster.running_at("executor").items() if c and n not in busy],
    )
    cluster.programs["s1"].kill()  # the pipelines that it had move to the other
    cluster.release.touch()
    wait_for("it lands nevertheless", lambda: cluster.landed("held"))
    wait_for("its log is of who ran it again", lambda: "RESULT: SUCCESS" in cluster.log_of(cut_off).splitlines()[-1])

    (left,) = cluster.running_at("executor")
    cluster.headgate("components", "--url", cluster.url("web"), "pause", left)
    wait_for("it is paused", lambda: cluster.get("web", "/api/components")["executor"][0]["state"] == "paused")
    cluster.approve("later")
    shown = cluster.headgate("components", "--url", cluster.url("web"))
    assert re.search(rf"{left}\s.*paused", shown), shown
    cluster.headgate("components", "unpause", left, "--url", cluster.url("web"))
    wait_for("and goes on", lambda: cluster.landed("later"))

    cluster.headgate("components", "--url", cluster.url("web"), "stop", left)
    stopped = next(p for p in cluster.programs.values() if p.process is not None and p.process.pid == pids[left])
    assert stopped.process is not None and stopped.process.wait(DEADLINE_S) == 0
    place = "/api/tenant/example/builds?complete=true&result=SUCCESS"
    wait_for("all are history", lambda: len(cluster.get("web", place)) == 3)
    for one in cluster.get("web", place):  # no executor is left
        assert f"testing {one['ref']['change']}" in cluster.log_of(one["uuid"]), cluster.log("web")
        assert one["log_url"].endswith(f"/t/example/logs/{one['uuid']}/")
    text = "no executor is running: no builds run until one starts"
    wait_for("it is said", lambda: text in cluster.headgate("components", "--url", cluster.url("web")))


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("server", ["etcd"], indirect=True)
def test_an_unavailable_store_is_reported_and_waited_for(cluster: Cluster, server: Server) -> None:
    assert cluster.health("e1")[0] == cluster.health("s1")[0] == cluster.health("web")[0] == 200
    server.program.kill()
    for name in ("e1", "s1", "web"):
        wait_for(f"{name} is not ready", lambda name=name: cluster.health(name)[0] == 503)
    status, output = cluster.health("e1")
    assert status == 503 and not output["store"]["reachable"] and output["store"]["error"]
    (problem,) = wait_for("it is shown", lambda: cluster.get("web", "/api/tenant/example/status")["problems"])
    assert problem["project"] == "the store", "the pages say so, too"
    shown = cluster.headgate("components", "--url", cluster.url("web"))
    assert "the store: it is unreachable, so events" in shown and "executor/" in shown
    server.restart()
    for name in ("e1", "s1", "web"):
        wait_for(f"{name} is ready again", lambda name=name: cluster.health(name)[0] == 200)
    cluster.approve("after")
    wait_for("a change lands", lambda: cluster.landed("after"))
    token = cluster.token("s1")
    request = urllib.request.Request(cluster.url("s1") + "/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        figures = answer.read().decode()
    assert re.search(r'outcome="(unavailable|given up)"', figures)
    for line in cluster.log("e1").splitlines():
        if '"build"' in line:
            assert {"tenant", "pipeline", "item", "buildset", "change", "job", "build"} <= json.loads(line).keys()


@pytest.mark.long
def test_a_process_waits_for_a_store_that_is_unavailable_at_the_start(tmp_path: Path) -> None:
    port, peer_port, health_port = free_ports(3)
    server = Etcd(tmp_path / "store", port, peer_port)
    text = settings(tmp_path, f"etcd://127.0.0.1:{port}")
    text = text.replace("[merger]\nprometheus_port = 0", f"[merger]\nprometheus_port = {health_port}")
    (tmp_path / "headgate.conf").write_text(text)
    (tmp_path / "hub").mkdir()
    program = CopiedProgram([str(BIN / "headgate"), "merger"], tmp_path, {"PYTHONUNBUFFERED": "1"})

    def health() -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{health_port}/health/ready", timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    program.start()
    try:
        status, output = wait_for("health says so", lambda: health() if health()[0] else None)
        assert status == 503 and not output["store"]["reachable"] and f"127.0.0.1:{port}" in output["store"]["error"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{health_port}/api/components", timeout=DEADLINE_S)
        assert refused.value.code == 503 and "waiting for it" in json.load(refused.value)["description"]
        server.start()
        wait_for("it takes part once there is a store", lambda: health()[0] == 200)
        assert program.stop() == 0
    finally:
        program.kill()
        server.program.kill()
    (waits,) = (line for line in program.log.read_text().splitlines() if "waiting for it" in line)
    assert json.loads(waits)["level"] == "warning"


@pytest.mark.long
def test_one_process_for_everything_shows_the_logs_of_executors_elsewhere(tmp_path: Path) -> None:
    with etcd(tmp_path / "store") as one:
        cluster = Cluster(tmp_path, f"etcd://127.0.0.1:{one.port}")
        cluster.start("run", "web")
        cluster.start("executor", "elsewhere")
        cluster.start("fingergw", "finger")
        try:
            members = wait_for("both have joined", lambda: _both(cluster))
            own = cluster.programs["web"].process
            (here,) = [member["name"] for member in members if own is not None and member["pid"] == own.pid]
            cluster.headgate("components", "--url", cluster.url("web"), "pause", here)
            wait_for("its own is paused", lambda: "paused" in [member["state"] for member in _both(cluster)])
            cluster.approve("held", hold=True)
            (build,) = wait_for("a build runs", lambda: _under_way(cluster))
            wait_for("its log is shown", lambda: "testing held" in cluster.log_of(build))
            assert "RESULT" not in cluster.log_of(build) and not (tmp_path / "web/state/logs" / build).exists()
            assert [one["state"] for one in cluster.get("web", "/api/components")["fingergw"]] == ["running"] * 2
            connections = [_finger(cluster, name, build) for name in ("web", "finger")]
            assert all(b"testing held" in one.recv(65_536) for one in connections)
            cluster.release.touch()
            wait_for("it lands", lambda: cluster.landed("held"))
            for one in connections:
                data = b""
                while piece := one.recv(65_536):
                    data += piece
                one.close()
                assert b"RESULT: SUCCESS" in data
            cluster.programs["elsewhere"].stop()
            assert "RESULT: SUCCESS" in cluster.log_of(build)
        finally:
            cluster.release.touch()
            for program in cluster.programs.values():
                program.stop()


def _finger(cluster: Cluster, name: str, build: str) -> socket.socket:
    """Run a client that has requested the log of a build."""
    found = wait_for("finger is served", lambda: re.search(r"over finger at port (\d+)", cluster.log(name)))
    connection = socket.create_connection(("127.0.0.1", int(found[1])), timeout=DEADLINE_S)
    connection.sendall(f"{build}\n".encode())
    return connection


def _both(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get("web", "/api/components").get("executor", [])
    return found if len(found) == 2 else []


def _under_way(cluster: Cluster) -> list[str]:
    found = cluster.get("web", "/api/tenant/example/builds?pipeline=gate")
    return [one["uuid"] for one in found if one["start_time"]]
