"""Test the path of a secret from a person's terminal to the job that may use it, and nowhere else."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from headgate.testing.repositories import Repositories
from tests.waiting import wait_for

from .headgate import Headgate

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


def ran(headgate: Headgate, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("headgate"))
    return subprocess.run(
        [program, *words], cwd=headgate.root, input=given, capture_output=True, text=True, check=False
    )


def command(headgate: Headgate, *words: str, given: str = "") -> str:
    done = ran(headgate, *words, given=given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def failed(headgate: Headgate, *words: str) -> str:
    done = ran(headgate, *words)
    assert done.returncode != 0, done.stdout
    return done.stderr


def either(headgate: Headgate, *words: str) -> str:
    done = ran(headgate, *words)
    return done.stdout + done.stderr


def note_section(repositories: Repositories, commit: str, pipeline: str, project: str = "code/api") -> str:
    return repositories.note(project, commit).partition(f"Headgate ({pipeline}):")[2]


def with_keys(repositories: Repositories) -> Headgate:
    """Provide one that is not started; `code/api` has the key of `exported.json`."""
    headgate = Headgate(repositories, TENANTS)
    with open(headgate.root / "headgate.conf", "a") as settings:
        settings.write(f"[keystore]\npassword = {PASSWORD}\n")
    exported = json.loads(EXPORTED.read_text())
    exported["keys"][0] |= {"connection": "local", "project": "code/api"}
    (headgate.root / "keys.json").write_text(json.dumps(exported))
    command(headgate, "keys", "import", "keys.json")
    return headgate


def encrypted(headgate: Headgate) -> str:
    """Return the token as a secret, encrypted with the newest key."""
    (headgate.root / "api.pub").write_text(command(headgate, "keys", "show", "code/api"))
    words = ["--public-key", "api.pub", "--secret-name", "pypi", "--field-name", "token"]
    return command(headgate, "encrypt", *words, given=TOKEN)


def lands(repositories: Repositories, headgate: Headgate, topic: str, files: dict[str, str]) -> None:
    """Run the job that needs the secret."""
    commit = repositories.propose("code/api", topic, files)
    repositories.approve("code/api", topic)
    note = wait_for(f"{topic} has an end", lambda: note_section(repositories, commit, "gate"))
    assert "Landed on master as" in note, note + headgate.log.read_text()


@pytest.mark.long
def test_a_key_is_rotated_and_the_old_one_retired_while_everything_runs(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": OPS})
    headgate = with_keys(repositories)
    files = {"jobs/before": BEFORE, "jobs/publish": PUBLISH, "jobs/publish.yaml": PLAYBOOK}
    repositories.create("code/api", {"zuul.yaml": APP + (secret := encrypted(headgate)), **files})
    repositories.create("code/lib", {"README": "x\n"})
    headgate.start()
    try:
        assert "code/api now has key 2" in command(
            headgate, "keys", "rotate", "--url", headgate.url, "--reason", "it leaked", "code/api"
        )
        retire = ("keys", "retire", "--url", headgate.url, "code/api", "1")
        lands(repositories, headgate, "old", {"README": "x\n"})
        refused = failed(headgate, *retire)
        assert "key 1 of code/api is needed to decrypt pypi (git.example/code/api master zuul.yaml" in refused
        lands(repositories, headgate, "new", {"zuul.yaml": APP + encrypted(headgate)})
        assert secret not in repositories.show("code/api", "zuul.yaml")
        wait_for("the new secret is known", lambda: "Remaining keys of code/api: 2." in either(headgate, *retire))
        assert "there is no older key 1" in failed(headgate, *retire)
        verbs = {("rotate-key", True), ("retire-key", True), ("retire-key", False)}

        def done() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = headgate.get("/api/tenant/example/actions")
            return found if {(one["verb"], one["outcome"] == "done") for one in found} >= verbs else []

        assert any(one["reason"] == "it leaked" for one in wait_for("what was done is history", done))
        assert headgate.process is not None
        assert psutil.Process(headgate.process.pid).rlimit(psutil.RLIMIT_CORE)[0] == 0
        lands(repositories, headgate, "last", {"README": "y\n"})
    finally:
        assert headgate.stop() == 0


def test_a_secret_reaches_the_job_that_may_use_it_and_nothing_else(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": OPS})
    headgate = with_keys(repositories)
    secret = encrypted(headgate)
    files = {"jobs/before": BEFORE, "jobs/publish": PUBLISH, "jobs/publish.yaml": PLAYBOOK}
    repositories.create("code/api", {"zuul.yaml": APP + secret, **files})
    repositories.create("code/lib", {"zuul.yaml": "- project: {gate: {jobs: [publish]}}\n"})
    headgate.start()
    try:
        commit = repositories.propose("code/api", "ship", {"README": "x\n"})
        repositories.approve("code/api", "ship")
        note = wait_for("the change has an end", lambda: note_section(repositories, commit, "gate"))
        assert "Landed on master as" in note, note + headgate.log.read_text()
        found = wait_for(
            "the history has it", lambda: headgate.get("/api/tenant/example/builds?complete=true&job_name=publish")
        )
        (build,) = found
        log = (tmp_path / "state/logs" / build["uuid"] / "job-output.txt").read_text()
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        assert f"| executable {digest}" in log and f"| localhost | playbook {digest}" in log
        place = "/api/tenant/example/pipeline/gate/project/code/api/branch/master/freeze-job/publish"
        shown = [book["secrets"] for book in headgate.get(place)["playbooks"]]
        assert shown == [{"pypi": "REDACTED"}] * 2

        other = repositories.propose("code/lib", "steal", {"README": "x\n"})
        repositories.approve("code/lib", "steal")
        note = wait_for("the other change has an end", lambda: note_section(repositories, other, "gate", "code/lib"))
        assert "its allowed-projects do not include it" in note
        early = repositories.propose("code/api", "early", {"zuul.yaml": (APP + secret).replace("noop", "publish")})
        note = wait_for("the early change has an end", lambda: note_section(repositories, early, "check"))
        assert "is post-review, but pipeline check is not" in note
    finally:
        assert headgate.stop() == 0
    for file in tmp_path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"pypi-8ae2f1" not in content and b"and a second line" not in content, file
