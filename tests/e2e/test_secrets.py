"""A secret on its way from a person's terminal to the job that may use it, and nowhere else."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from headgate.testing.repositories import Repositories

from .headgate import Headgate, wait_for

EXPORTED = Path(__file__).parents[1] / "unit/adapters_keys/exported.json"
PASSWORD = "correct horse"
TOKEN = "pypi-8ae2f1 with {{ braces }}\nand a second line"
OPS = """
- pipeline:
    name: gate
    manager: dependent
    post-review: true
    trigger: {local: [{event: change-approved}]}
    success: {local: {land: true}}
    failure: {local: {}}
- pipeline:
    name: check
    manager: independent
    trigger: {local: [{event: change-proposed}]}
    success: {local: {}}
    failure: {local: {}}
    config-error: {local: {}}
- job: {name: base, parent: null, abstract: true}
"""
APP = """
- job:
    name: publish
    pre-run: jobs/before
    run: [jobs/publish, jobs/publish.yaml]
    secrets: [pypi]
- project:
    check: {jobs: [noop]}
    gate: {jobs: [publish]}
"""
BEFORE = "#!/bin/sh\necho before\n"
PUBLISH = """#!/usr/bin/env python3
import hashlib, json, os, subprocess
token = json.load(open(os.environ["HEADGATE_VARS"]))["pypi"]["token"]
print("executable", hashlib.sha256(token.encode()).hexdigest())
subprocess.run(["headgate-return", f"length={len(token)}"], check=True)
"""
PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - command: "echo playbook {{ pypi.token | hash('sha256') }}"
"""
TENANTS = """
- tenant:
    name: example
    source: {local: {config-projects: [config], untrusted-projects: [code/api, code/lib]}}
"""


def command(headgate: Headgate, *words: str, given: str = "") -> str:
    program = str(Path(sys.executable).with_name("headgate"))
    done = subprocess.run(
        [program, *words], cwd=headgate.root, input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def told(repositories: Repositories, commit: str, pipeline: str) -> str:
    return repositories.note("code/api", commit).partition(f"Headgate ({pipeline}):")[2]


def test_a_secret_reaches_the_job_that_may_use_it_and_nothing_else(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": OPS})
    headgate = Headgate(repositories, TENANTS)
    with open(tmp_path / "headgate.conf", "a") as settings:
        settings.write(f"[keystore]\npassword = {PASSWORD}\n")
    exported = json.loads(EXPORTED.read_text())
    exported["keys"][0] |= {"connection": "local", "project": "code/api"}
    (tmp_path / "keys.json").write_text(json.dumps(exported))
    command(headgate, "keys", "import", "keys.json")
    (tmp_path / "api.pub").write_text(command(headgate, "keys", "show", "code/api"))
    secret = command(
        headgate, "encrypt", "--public-key", "api.pub", "--secret-name", "pypi", "--field-name", "token", given=TOKEN
    )
    files = {"jobs/before": BEFORE, "jobs/publish": PUBLISH, "jobs/publish.yaml": PLAYBOOK}
    repositories.create("code/api", {"zuul.yaml": APP + secret, **files})
    repositories.create("code/lib", {"zuul.yaml": "- project: {gate: {jobs: [publish]}}\n"})
    headgate.start()
    try:
        commit = repositories.propose("code/api", "ship", {"README": "x\n"})
        repositories.approve("code/api", "ship")
        note = wait_for("the change has an end", lambda: told(repositories, commit, "gate"))
        assert "Landed on master as" in note, note + headgate.log.read_text()
        found = wait_for("the history has it", lambda: headgate.get("/api/tenant/example/builds?job_name=publish"))
        (build,) = found
        log = (tmp_path / "state/logs" / build["uuid"] / "job-output.txt").read_text()
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        assert f"| executable {digest}" in log and f"| localhost | playbook {digest}" in log
        place = "/api/tenant/example/pipeline/gate/project/code/api/branch/master/freeze-job/publish"
        shown = [book["secrets"] for book in headgate.get(place)["playbooks"]]
        assert shown == [[{"name": "pypi", "data": "REDACTED"}]] * 2

        other = repositories.propose("code/lib", "steal", {"README": "x\n"})
        repositories.approve("code/lib", "steal")
        note = wait_for("the other change has an end", lambda: repositories.note("code/lib", other))
        assert "its allowed-projects do not name it" in note
        early = repositories.propose("code/api", "early", {"zuul.yaml": (APP + secret).replace("noop", "publish")})
        note = wait_for("the early change has an end", lambda: told(repositories, early, "check"))
        assert "post-review; pipeline check runs before review" in note
    finally:
        assert headgate.stop() == 0
    for file in tmp_path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"pypi-8ae2f1" not in content and b"and a second line" not in content, file
