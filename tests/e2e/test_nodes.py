"""Test a job on two machines of the inventory, reached over ssh: from the label to the clean machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.testing.repositories import Repositories
from headgate.testing.servers.sshd import Lab
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .headgate import SETTINGS, Headgate

LABELS = """
    max-nodes-per-project: 2
    labels:
      - {name: debian, project: "*", search: "image=debian !broken", partition: lab}
      - {name: fast, project: "*", search: "tag:fast", partition: lab}
"""
JOB = """
- job:
    name: unit
    run: jobs/pair.yaml
    nodeset:
      nodes:
        - {name: first, label: debian}
        - {name: second, label: fast}
"""
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - shell: |
        echo "$SSH_CONNECTION" | cut -d' ' -f4
        touch {{ headgate_dir }}/trace
        echo {{ inventory_hostname }} is {{ headgate_machine }}
        echo in {{ headgate_dir }}.
"""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab")


@pytest.fixture
def headgate(tmp_path: Path, lab: Lab) -> Iterator[Headgate]:
    repositories = Repositories(tmp_path)
    job = re.sub(r"- job:\n    name: unit\n    run: jobs/unit\n", JOB, PIPELINES)
    repositories.create("config", {"zuul.yaml": job, "jobs/pair.yaml": PLAYBOOK})
    repositories.create("code/api", {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    running = Headgate(repositories, TENANTS.replace("    name: example\n", f"    name: example{LABELS}", 1))
    (tmp_path / "headgate.conf").write_text(SETTINGS + "[inventory]\nport = 0\n")
    running.start()
    yield running
    running.stop()


class Shell:
    def __init__(self, headgate: Headgate) -> None:
        address = wait_for("gRPC", lambda: re.search(r"gRPC is at (\S+):(\d+)", headgate.log.read_text()))
        self._environment = {
            **os.environ, "RUNM_HOST": address[1], "RUNM_PORT": address[2], "RUNM_USER": "root",
            "RUNM_PROJECT": "lab", "RUNM_PARTITION": "lab",
            "HEADGATE_TOKEN": (headgate.root / "state/token").read_text().strip(),
        }  # fmt: skip

    def __call__(self, command: str, stdin: str = "") -> str:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("headgate")), "inventory", *command.split()],
            input=stdin, capture_output=True, text=True, env=self._environment, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


def machine(name: str, port: int, lab: Lab, more: str) -> str:
    settings = {"provider": "racks", **lab.properties(port)}
    properties = "".join(f"  {key}: {value!r}\n" for key, value in settings.items())
    return f"name: {name}\nproperties:\n{properties}{more}"


@pytest.mark.long
def test_a_job_runs_on_two_labelled_machines_and_leaves_them_clean(headgate: Headgate, lab: Lab) -> None:
    shell = Shell(headgate)
    with ExitStack() as stack:
        ports = [stack.enter_context(lab.server()) for _ in range(2)]
        shell("partition create --name lab")
        shell("provider create", "name: racks\nprovider_type: static\n")
        shell("machine create", machine("one", ports[0], lab, "  image: debian\n"))
        shell("machine create", machine("two", ports[1], lab, "tags: [fast]\n"))

        def listed() -> dict[str, list[str]]:
            found = headgate.get("/api/tenant/example/nodes")
            return {one["id"]: one["type"] for one in found if one["connection_type"] != "local"}

        wait_for("they are listed", lambda: listed() == {"one": ["debian"], "two": ["fast"]})
        headgate.repositories.propose("code/api", "greet", {"hello": "hi\n"})

        def ended() -> str:
            builds = headgate.get("/api/tenant/example/builds?complete=true&job_name=unit")
            return str(builds[0]["uuid"]) if builds and builds[0]["result"] else ""

        uuid = wait_for("the build ends", ended)
        log = (headgate.root / "state" / "logs" / uuid / "job-output.txt").read_text()
        assert "RESULT: SUCCESS" in log, log
        for node, name, port in (("first", "one", ports[0]), ("second", "two", ports[1])):
            assert f"{node} | {node} is {name}" in log and f"{node} | {port}" in log, log
        traces = {Path(found) for found in re.findall(r" in (\S+)\.", log)}
        assert traces, log
        wait_for("the machines are clean", lambda: not any(trace.exists() for trace in traces))
        store = str(headgate.root / "state" / "headgate.sqlite")
        command = [str(Path(sys.executable).with_name("headgate")), "map", "tree", "--store", store, "/zuul/nodes"]
        wait_for("nothing is claimed", lambda: "claims/" not in _output(command))


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
