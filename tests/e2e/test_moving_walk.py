"""Test docs/how-to/move-from-zuul.md step by step: on a ZooKeeper that others use, with exported keys."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories
from headgate.testing.servers.databases import ZooKeeper
from tests.integration.conftest import PIPELINES, TENANTS
from tests.integration.test_moving_keys import OLD, a_key, encrypted, path_of, record
from tests.waiting import wait_for

from .copied import BIN, Page

PAGE = Page("move-from-zuul.md", __file__)
block, lines = PAGE.block, PAGE.lines
CONF = """
[zookeeper]
hosts = 127.0.0.1:%(zookeeper)s
[keystore]
password = %(password)s
[scheduler]
tenant_config = tenants.yaml
log_config = logging.conf
[statsd]
server = localhost
[executor]
private_key_file = /var/lib/zuul/.ssh/id_rsa
finger_port = 7900
[web]
port = 0
[fingergw]
port = 79
[connection local]
driver = git
baseurl = hub
canonical_hostname = git.example
[connection cloud]
driver = azure
access_key_id = x
"""


def headgate(command: str, root: Path, status: int = 0) -> str:
    """Return the output of a line of the page."""
    words = [str(BIN / "headgate"), *command.split()[1:]]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_an_installation_is_moved(tmp_path: Path, zookeeper_server: ZooKeeper) -> None:
    repositories, pem = Repositories(tmp_path), a_key()
    secret = f"- secret: {{name: login, data: {{token: !encrypted/pkcs1-oaep [{encrypted(pem, 'x', tmp_path)}]}}}}\n"
    repositories.create("config", {"zuul.yaml": PIPELINES + secret, "jobs/unit": "#!/bin/sh\n"})
    repositories.create("code/api", {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    values = {"zookeeper": str(zookeeper_server.port), "password": OLD}
    (tmp_path / "zuul.conf").write_text(CONF % values)
    (tmp_path / "tenants.yaml").write_text(TENANTS)
    (check,), (beside,) = (
        lines("headgate check --config zuul.conf\n"),
        lines("headgate check --config zuul.conf --repos"),
    )
    take, show = lines("headgate keys import")
    (start,) = lines("headgate run")

    output = headgate(check, tmp_path, status=1)
    assert "config (local) has no key here" in output
    for text in ("private_key_file", "ansible_ssh_private_key_file", "[fingergw]", "/metrics", "Not supported"):
        assert text in output
    assert "2 jobs" in headgate(beside.replace("/srv/git", "hub"), tmp_path)

    exported = {path_of("local", "config"): record(pem), path_of("local", "config", "ssh"): record(pem)}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": exported}))
    assert "Left out /keystorage/local/config/config/ssh" in headgate(take, tmp_path)
    assert "config (local)  version 1" in headgate(show, tmp_path)
    assert "has no key here" not in headgate(check, tmp_path), "its secret opens, and nothing else is wrong"
    (tmp_path / "keys.json").write_text(json.dumps({"keys": {path_of("local", "config"): record(a_key())}}))
    headgate(f"{take} --overwrite", tmp_path)
    assert "a secret of config (local) cannot be decrypted" in headgate(check, tmp_path, status=1)

    log = tmp_path / "run.log"
    environment, command = {**os.environ, "PYTHONUNBUFFERED": "1"}, [str(BIN / "headgate"), *start.split()[1:]]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=-3, stdout=out, stderr=out)
    try:
        wait_for("its pages are served", lambda: re.search(r"pages are at http://\S+/", log.read_text()))
        assert "these options have no effect" in log.read_text() and "[statsd]" in log.read_text()
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def test_every_block_runs_except_those_that_need_a_zuul() -> None:
    """tests/integration/test_against.py tests the comparison with a running server against a stand-in."""
    compared, exported = PAGE.left_out
    assert "--against" in compared and "export-keys" in exported
