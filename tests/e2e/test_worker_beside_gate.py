"""Test `headgate worker` beside `headgate run` on one SQLite store: refused with the right setting in the message,
then working."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.base.errors import UserError
from headgate.cli.queue.queue import command as queue_command
from headgate.cli.queue.worker import command as worker_command
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .headgate import MAIN, SETTINGS, Headgate

FILE = """
[qdo-worker]
job = beside_jobs:job
drain = 20
[queuey]
connection = {url}/v1/queuey/
app_key = {key}
[store]
url = {store}
[retry]
attempts = 2
delay = 0.1
"""
JOBS = """
import pathlib, time

def job(message, context):
    print(f"began {message.body} {message.attempt}", flush=True)
    if message.body == "bad":
        raise ValueError("bad")
    while message.body == "long" and not pathlib.Path("go").exists():
        time.sleep(0.02)
    print(f"ended {message.body}", flush=True)
"""


@pytest.mark.long
def test_a_worker_next_to_a_gate_on_sqlite(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES})
    repositories.create("code/api", {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    gate = Headgate(repositories, TENANTS, settings=SETTINGS + "[messages]\n")
    gate.start()
    worker = None
    try:
        file, log = tmp_path / "worker.conf", tmp_path / "worker.log"
        key = (tmp_path / "state" / "messages.key").read_text().strip()
        (tmp_path / "beside_jobs.py").write_text(JOBS)

        def queue(name: str, *arguments: str) -> Result:
            return CliRunner().invoke(queue_command, [name, "-c", str(file), *arguments])

        file.write_text(FILE.format(url=gate.url, key=key, store=gate.store))
        refused = CliRunner().invoke(worker_command, ["-c", str(file)]).exception
        assert isinstance(refused, UserError) and "is in use by process" in str(refused), refused
        found = re.search(r"set `(url = .*?)` in \[store\] of ", str(refused))
        assert found, refused
        file.write_text(file.read_text().replace(f"url = {gate.store}", found[1]))

        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as out:
            command = [sys.executable, "-c", MAIN, "worker", "-c", "worker.conf"]
            worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=out)
        assert queue("post", "orders", "bad").exit_code == 0
        wait_for("it is tried again", lambda: "began bad 2" in log.read_text())
        assert queue("post", "orders", "long").exit_code == 0
        wait_for("the next is begun", lambda: "began long 1" in log.read_text())
        health = re.search(r"(http://\S+/health)", log.read_text())
        assert health
        with urllib.request.urlopen(health[1], timeout=DEADLINE_S) as answer:
            assert json.load(answer)["status"] == "ok"
        (listed,) = json.loads(queue("list", "--json").output)
        assert (listed["partition"], listed["state"]) == ("orders", "processed"), listed
        assert "the message server stores the workers' progress" in str(queue("pause", "orders").exception)
        (dead,) = json.loads(queue("dead", "--json").output)
        assert (dead["tries"], dead["error"]) == (2, "ValueError: bad")

        worker.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert worker.wait(DEADLINE_S) == 0
        assert "ended long" in log.read_text()
    finally:
        if worker is not None and worker.poll() is None:
            worker.kill()
            worker.wait()
        assert gate.stop() == 0
