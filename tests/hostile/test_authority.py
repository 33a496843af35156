"""Test that access to this machine permits no writes: not for a job, a local user, a foreign page or a proxy."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jwt
import pytest

from headgate.testing.clock import DEADLINE_S
from headgate.web.app import ROUTES
from tests.waiting import wait_for

from .arena import ATTACKER, TENANTS, Arena

ENQUEUE = "/api/tenant/example/project/code/api/enqueue"
JOB = """#!/usr/bin/env python3
import json, os, pathlib, urllib.error, urllib.request

URL, BODY = "{url}{path}", json.dumps({body}).encode()
ROOTS = [pathlib.Path("{root}"), *pathlib.Path.cwd().parents, pathlib.Path.home() / ".config/headgate"]
FILES = ("state/token", "token", "headgate.conf", "state/messages.key")
stolen = [os.environ.get("HEADGATE_TOKEN", "")]
for root in ROOTS:
    for file in FILES:
        try:
            stolen += (root / file).read_text().split()
        except (OSError, UnicodeError):
            pass
print("stolen", len(set(stolen) - set([""])))
DISGUISES = [{{}}, {{"X-Forwarded-For": "127.0.0.1"}}, {{"Host": "localhost"}}, {{"X-Real-IP": "127.0.0.1"}},
             {{"Forwarded": "for=127.0.0.1"}}, {{"Authorization": "Bearer "}}, {{"Authorization": "Basic Og=="}},
             *({{"Authorization": "Bearer " + one}} for one in stolen)]
for headers in DISGUISES:
    asked = urllib.request.Request(URL, BODY, {{"Content-Type": "application/json", **headers}})
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            print("answered", answer.status)
    except urllib.error.HTTPError as error:
        print("answered", error.code)
    except OSError as error:
        print("unreachable", error)
"""


def status_of(url: str, body: Any, headers: dict[str, str] | None = None, method: str = "POST") -> int:
    """Return the status of the answer."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, json.dumps(body).encode(), sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_job_that_asks_for_its_own_change_to_be_landed_is_refused(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        body = {"pipeline": "gate", "change": "attack"}
        script = JOB.format(url=arena.headgate.url, path=ENQUEUE, body=body, root=arena.headgate.root)
        commit = arena.attack("attack", script)
        assert "Build succeeded" in arena.note_section(ATTACKER, commit, "check")
        log = arena.job_log("example", "attack")
        assert ("answered 401" in log or "unreachable" in log) and "answered 200" not in log, log
        assert not arena.headgate.items("gate") and not arena.landed(ATTACKER, "jobs/attack")
        arena.neighbours_land()


def test_local_users_cannot_write_without_the_token_and_the_operator_has_it(tmp_path: Path) -> None:
    routes = [r for r in ROUTES if set(r.methods) - {"GET", "HEAD", "OPTIONS"}]
    disguises = ({}, {"X-Forwarded-For": "127.0.0.1"}, {"Origin": "http://127.0.0.1"}, {"Cookie": "token=x"})
    with Arena(tmp_path) as arena:
        url, token = arena.headgate.url, tmp_path / "state" / "token"
        for route in routes:
            for path in route.paths:
                path = path.replace("{tenant:str}", "example").replace("{rest:path}", "code/api/enqueue")
                path = path.replace("{kind:str}", "scheduler").replace("{name:str}", "x").replace("{zone:str}", "z")
                (method,) = set(route.methods) - {"OPTIONS"}
                for headers in disguises:
                    answer = status_of(url + path, {"pipeline": "gate", "state": "stopped"}, headers, method)
                    none = path in ("/api/connection/x/payload", "/logout")  # no such forge; nobody can log in here
                    assert answer in ((404,) if none else (400, 401)), path
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert status_of(url + ENQUEUE, {"pipeline": "gate", "change": "x"}, {"Authorization": "Bearer guessed"}) == 401
        wait_for("the pipelines are known", lambda: arena.headgate.get("/api/tenant/example/pipelines"))
        arena.propose(ATTACKER, "wanted", {"wanted": "x\n"})
        command = [str(Path(sys.executable).with_name("headgate")), "promote", "--url", url, "--tenant", "example"]
        words = [*command, "--pipeline", "gate", "git.example/code/api/master/none"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert "not in the pipeline" in done.stderr, "the command found the token by itself"
        other = {name: value for name, value in os.environ.items() if name != "HEADGATE_TOKEN"}
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "headgate.conf").write_text("[web]\n")
        done = subprocess.run(
            words, cwd=elsewhere, env=other, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert "a bearer token is needed" in done.stderr, done.stderr
        arena.neighbours_land()


SECRET = "a secret of thirty-two bytes, or more"
REALM = f"""
[auth ours]
driver = HS256
issuer_id = issuer
client_id = headgate
realm = ours
secret = {SECRET}
"""
RULES = "- authorization-rule: {name: ops, conditions: [{groups: ops}]}\n"
LABELS = "    disallowed-labels: [secret-.*]\n"
NODES = "- name: board.lab\n  labels: [secret-board]\n"


def borne(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def expiring(claims: dict[str, Any], life_s: int) -> dict[str, Any]:
    return {**claims, "exp": int(time.time()) + life_s}


@pytest.mark.long
def test_expired_and_revoked_tokens_and_those_of_other_tenants_are_refused(tmp_path: Path) -> None:
    arena = Arena(tmp_path, settings=f"nodes = nodes.yaml\n{REALM}")
    (tmp_path / "nodes.yaml").write_text(NODES)
    first, second = TENANTS.split("- tenant:\n    name: other\n")
    admins = "    admin-rules: [ops]\n"
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text(f"{RULES}{first}{LABELS}{admins}- tenant:\n    name: other\n{second}")
    with arena:
        place = f"{arena.headgate.url}{ENQUEUE}"
        wait_for("the pipelines are known", lambda: arena.headgate.get("/api/tenant/example/pipelines"))
        now = int(time.time())
        claims = {"iss": "issuer", "aud": "headgate", "sub": "ann", "groups": ["ops"], "iat": now, "exp": now + 3600}
        body = {"pipeline": "check", "change": "none"}
        operator = (arena.looked_at().headgate.root / "state/token").read_text().strip()
        long, life_s = jwt.encode(claims, SECRET, "HS256"), 2
        while status_of(place, body, borne(short := jwt.encode(expiring(claims, life_s), SECRET, "HS256"))) != 404:
            life_s *= 2  # the machine is slow
            assert life_s < 300, "ann is somebody, and there is no such change"
        labelled = {
            "zuul.yaml": "- job: {name: attack, run: look, nodeset: {nodes: [{name: n, label: secret-board}]}}\n"
            "- project: {check: {jobs: [attack]}}\n"
        }
        commit = arena.propose(ATTACKER, "label", labelled)
        assert "may not use the label 'secret-board'" in arena.note_section(ATTACKER, commit, "check")
        for used in (jwt.encode({**claims, "exp": now - 1}, SECRET, "HS256"), jwt.encode(claims, "", "none")):
            assert status_of(place, body, borne(used)) == 401
        wait_for("it has expired", lambda: status_of(place, body, borne(short)) == 401)
        assert status_of(place, body, borne(long)) == 404 and status_of(place, body, borne(operator)) == 404
        arena.headgate.stop()
        tenants.write_text(tenants.read_text().replace(admins, ""))
        (tmp_path / "state/token").unlink()
        arena.headgate.start()
        place = f"{arena.looked_at().headgate.url}{ENQUEUE}"
        assert status_of(place, body, borne(long)) == 403, "the rule was taken back"
        assert status_of(place, body, borne(operator)) == 401, "and so was the operator's token"
        assert status_of(place, body, borne((tmp_path / "state/token").read_text().strip())) == 404
        assert arena.neighbours_land() > 0
