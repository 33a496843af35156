"""Test that `headgate run` alone serves the gate, the queues and the inventory, and that one token is valid for all
of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jwt
import pytest
from playwright.sync_api import expect, sync_playwright

from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories
from headgate.testing.servers.program import free_ports
from tests.e2e.browser import CHROMIUM, patient
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .headgate import SETTINGS, Headgate

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serve-everything.md"
SECRET = "0123456789abcdef0123456789abcdef"
FRONT = """
[messages]
[inventory]
port = 0
[connection bus]
driver = queue
partitions = 1
[auth people]
driver = HS256
issuer_id = issuer
client_id = headgate
secret = %(secret)s
allow_authz_override = true
"""
ORDERS = (
    PIPELINES
    + """
- pipeline:
    name: orders
    manager: serial
    trigger: {bus: [{queue: orders, project: code/api}]}
    success: {bus: {queue: answers}}
    failure: {bus: {queue: answers}}
- job: {name: pack, run: jobs/pack.yaml}
- project: {name: code/api, orders: {jobs: [pack]}}
"""
)
PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - copy:
        content: "{{ zuul.trigger.body }}|{{ zuul.trigger.queue }}|{{ zuul.project.short_name }}"
        dest: "{{ zuul.executor.log_root }}/told"
"""
EVIL = "{{ lookup('pipe', 'id') }}\x1b[2J{% for x in [1] %}!unsafe"


@pytest.fixture
def headgate(tmp_path: Path) -> Iterator[Headgate]:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": ORDERS, "jobs/unit": "#!/bin/sh\n", "jobs/pack.yaml": PLAYBOOK})
    repositories.create("code/api", {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    settings = SETTINGS.replace("port = 0", f"port = {free_ports(1)[0]}", 1) + FRONT % {"secret": SECRET}
    running = Headgate(repositories, TENANTS, settings=settings)
    running.start()
    yield running
    running.stop()


def token(secret: str = SECRET, **claims: Any) -> str:
    payload = {"iss": "issuer", "aud": "headgate", "sub": "ann", "iat": time.time(), "exp": time.time() + 300, **claims}
    return jwt.encode(payload, secret, "HS256")


class Caller:
    """Use one token with every service."""

    def __init__(self, headgate: Headgate, token: str) -> None:
        self._headgate, self.token = headgate, token

    def __call__(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode() if body is not None else None
        authorization = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        kind = {"Content-Type": "text/plain" if isinstance(body, str) else "application/json"} if data else {}
        request = Request(self._headgate.url + path, data, {**authorization, **kind, **headers}, method=method)
        try:
            with urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except HTTPError as refused:
            return refused.code, json.loads(refused.read() or b"null")

    def answers(self, count: int) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            status, answer = self("GET", "/v1/queuey/answers?limit=100")
            return answer["messages"] if status == 200 and len(answer["messages"]) >= count else []

        return [json.loads(one["body"]) for one in wait_for(f"there are {count} answers", found)]


def test_one_process_one_port_and_one_token_for_gate_queues_and_inventory(headgate: Headgate) -> None:
    everything = {"projects": ["lab"], "roles": ["operator"], "partitions": ["*"], "applications": ["queuey"]}
    ann = Caller(headgate, token(**everything, zuul={"admin": ["example"]}))
    bob, nobody = Caller(headgate, token(sub="bob")), Caller(headgate, "")

    status, may = ann("GET", "/api/tenant/example/authorizations")
    assert status == 200 and may["zuul"]["admin"]
    assert "queues" in urlopen(f"{headgate.url}/queues/docs", timeout=DEADLINE_S).read().decode().lower()
    wait_for("the queue is there", lambda: ann("GET", "/v1/queuey/orders")[0] == 200)
    for refused in (bob("POST", "/v1/queuey/orders", "not mine"), nobody("POST", "/v1/queuey/orders", "nor mine")):
        assert refused[0] in (401, 403), "who may post to a queue is who may start its pipeline"
    status, posted = ann("POST", "/v1/queuey/orders", EVIL)
    assert status == 201, posted

    where = {"Headgate-Partition": "site1"}
    assert ann("PUT", "/inventory/v1/partitions", {"partition": {"name": "site1"}})[0] == 200
    step = {"create": {"type": "runm.machine", "name": "m1", "properties": {"rack": "r1"}}}
    assert ann("POST", "/inventory/v1/objects/apply", {"steps": [step]}, **where)[0] == 200
    assert nobody("POST", "/inventory/v1/objects/apply", {"steps": [step]}, **where)[0] == 401
    assert "Headgate" in urlopen(f"{headgate.url}/", timeout=DEADLINE_S).read().decode()
    for place in ("/inventory", "/inventory/static/inventory.js"):
        assert "nventory" in urlopen(f"{headgate.url}{place}", timeout=DEADLINE_S).read().decode()
    with sync_playwright() as playwright:
        page = patient(playwright.chromium.launch(**CHROMIUM).new_page())
        page.goto(f"{headgate.url}/tenants")
        page.get_by_role("link", name="Message queues").click()
        expect(page.locator("main")).to_contain_text("Log in")
        page.goto(f"{headgate.url}/tenants")
        page.get_by_role("link", name="Inventory").click()
        expect(page.locator("main")).to_contain_text("Enter the partition")
    address = re.search(r"gRPC is at (\S+):(\d+)", headgate.log.read_text())
    assert address is not None
    at = {"RUNM_HOST": address[1], "RUNM_PORT": address[2], "RUNM_USER": "ann", "RUNM_PROJECT": "lab"}
    shown = subprocess.run(
        [str(Path(sys.executable).with_name("headgate")), "inventory", "machine", "list"],
        env={**os.environ, **at, "RUNM_PARTITION": "site1", "HEADGATE_TOKEN": ann.token},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "m1" in shown.stdout, shown.stderr

    (first,) = ann.answers(1)
    assert first["answers"]["id"] == posted["messages"][0]["key"] and first["result"] == "SUCCESS", first
    build = first["builds"][0]["build"]
    text = (headgate.root / "state" / "logs" / build / "told").read_text()
    assert text == f"{EVIL}|orders|api", "a message is text, and no template"

    a_job_of_a_queue_holds_a_machine(headgate, ann, f"{address[1]}:{address[2]}")
    headgate.kill()
    headgate.start()
    assert ann("POST", "/v1/queuey/orders", '{"n": 2}')[0] == 201
    both = ann.answers(2)
    assert len({one["answers"]["id"] for one in both}) == len(both) == 2, "each has one answer, whoever was killed"


def a_job_of_a_queue_holds_a_machine(headgate: Headgate, ann: Caller, inventory: str) -> None:
    """Use the example of the page."""
    where = {"Headgate-Partition": "site1"}
    step = {"create": {"type": "runm.machine", "name": "b1", "tags": ["board"]}}
    assert ann("POST", "/inventory/v1/objects/apply", {"steps": [step]}, **where)[0] == 200
    program = headgate.root / "flash.py"
    (code,) = re.findall(r"```python\n(# flash\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    program.write_text(code)
    key = (headgate.root / "state" / "messages.key").read_text().strip()
    at = {"QUEUES": f"{headgate.url}/v1/queuey/", "KEY": key, "INVENTORY": inventory, "TOKEN": ann.token}
    assert (
        ann("POST", "/v1/queuey", "queue_name=flash", **{"Content-Type": "application/x-www-form-urlencoded"})[0] == 201
    )
    assert ann("POST", "/v1/queuey/flash", '{"image": "one"}')[0] == 201
    log = headgate.root / "flash.log"
    with open(log, "wb") as out:
        worker = subprocess.Popen([sys.executable, str(program)], env={**os.environ, **at}, stdout=out, stderr=out)
    try:
        wait_for("it is flashed", lambda: "flashed one on b1" in log.read_text())
        none = ((200, {}), (200, {"leases": []}))
        wait_for("the lease is over", lambda: ann("GET", "/inventory/v1/leases", **where) in none)
    finally:
        worker.terminate()
        assert worker.wait(DEADLINE_S) == 0, log.read_text()


@pytest.mark.long
def test_keys_are_replaced_while_everything_runs(headgate: Headgate) -> None:
    """On SIGHUP, although nothing else shows a change: size and time of the file are the same."""
    file = headgate.root / "headgate.conf"
    file.write_text(file.read_text() + "[application_keys]\nqueuey = old-key\n")
    old = wait_for("the file is followed", lambda: _status(headgate, "Application old-key") == 200) and file.stat()
    fresh = SECRET[::-1]
    file_now = file.read_text().replace("old-key", "new-key").replace(SECRET, fresh)
    with file.open("r+") as same:
        same.write(file_now)
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert headgate.process is not None
    headgate.process.send_signal(signal.SIGHUP)
    wait_for("the new key is good", lambda: _status(headgate, "Application new-key") == 200)
    assert _status(headgate, "Application old-key") == 401
    claims = {"applications": ["queuey"], "projects": ["lab"]}
    assert _status(headgate, f"Bearer {token(**claims)}") == 401
    assert _status(headgate, f"Bearer {token(fresh, **claims)}") == 200
    assert headgate.get("/api/tenants"), "the gate goes on"


def _status(headgate: Headgate, who: str) -> int:
    """Return the status of a request for the queues of the application."""
    return Caller(headgate, "")("GET", "/v1/queuey", Authorization=who)[0]
