"""Test reports of a running Headgate by mail and webhook, also to receivers that were away, and reports that nobody
accepts."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from headgate.testing.repositories import Repositories
from headgate.testing.servers.program import free_ports
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .headgate import SETTINGS, Headgate
from .test_by_hand import say

REPORTERS = """    success:
      local: {}
      hook: {}
    failure:
      local: {}
      hook: {}
      elastic: {index: "ci-{tenant}"}
      mail:
        - subject: "{change} {result}"
        - to: nobody@example.org
"""
CONNECTIONS = f"""
[connection mail]
driver = smtp
server = 127.0.0.1
port = %(port)s
default_from = gate@example.org
default_to = team@example.org
[connection hook]
driver = http
url = %(url)s
secret = s3cret
[connection elastic]
driver = elasticsearch
uri = %(url)s
{SETTINGS}"""


class Mailbox:
    def __init__(self) -> None:
        self.mails: list[Envelope] = []

    async def handle_RCPT(self, server: Any, session: Any, envelope: Envelope, to: str, options: Any) -> str:
        if to.startswith("nobody@"):
            return "550 no such user"
        envelope.rcpt_tos.append(to)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        self.mails.append(envelope)
        return "250 OK"


Hook = tuple[str, list[tuple[dict[str, str], bytes]], list[Any]]


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Provide the address of a webhook, its calls, and the lines sent in bulk to Elasticsearch there."""
    calls, lines = list[tuple[dict[str, str], bytes]](), list[Any]()

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.startswith("/hook/_bulk"):
                lines.extend(map(json.loads, body.splitlines()))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"errors": false, "items": []}')
                return
            calls.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", calls, lines
    server.shutdown()
    server.server_close()


@pytest.mark.long
def test_reports_arrive_by_mail_and_webhook_whatever_was_unavailable(tmp_path: Path, hook: Hook) -> None:
    url, calls, lines = hook
    port, box = free_ports(1)[0], Mailbox()
    repositories = Repositories(tmp_path)
    usual = "    success:\n      local: {}\n    failure:\n      local: {}\n"
    assert usual in PIPELINES
    config = {"zuul.yaml": PIPELINES.replace(usual, REPORTERS, 1), "jobs/unit": "#!/bin/sh\ntest ! -e BROKEN\n"}
    repositories.create("config", config)
    repositories.create("code/api", {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    headgate = Headgate(repositories, TENANTS, settings=CONNECTIONS % {"port": port, "url": url})
    headgate.start()
    try:
        repositories.propose("code/api", "good", {"a": "x\n"})
        commit = repositories.propose("code/api", "bad", {"BROKEN": "x\n"})
        wait_for("both are told by webhook", lambda: len(calls) == 2)
        wait_for("Elasticsearch has the buildset and its build", lambda: len(lines) == 4)
        assert [one["index"]["_index"] for one in lines[::2]] == ["ci-example"] * 2
        assert [(one["build_type"], one["result"]) for one in lines[1::2]] == [
            ("buildset", "FAILURE"),
            ("build", "FAILURE"),
        ]
        wait_for("the note is there, whoever else is away", lambda: repositories.note("code/api", commit))
        place = "/api/tenant/example/reports"
        mail = wait_for(
            "it is said that mail waits",
            lambda: next(
                (o for o in headgate.get(place)["outboxes"] if o["connection"] == "mail" and o["problem"]), None
            ),
        )
        assert mail["waiting"] == 2 and f"127.0.0.1:{port}" in mail["problem"]
        status, output = say(headgate, "reports", "list", "--url", headgate.url)
        assert status == 0 and "mail: 2 reports wait" in output and "hook: nothing waits" in output
        controller = Controller(box, hostname="127.0.0.1", port=port)
        controller.start()
        assert say(headgate, "reports", "retry", "--url", headgate.url, "mail")[0] == 0
        [undelivered] = wait_for("one is taken, the other by nobody", lambda: headgate.get(place)["undelivered"])
        wait_for("the mail is there", lambda: box.mails)
        assert "550 no such user" in undelivered["error"] and undelivered["kind"] == "report"
        assert say(headgate, "reports", "drop", "--url", headgate.url, undelivered["id"])[0] == 0
        assert headgate.get(place)["undelivered"] == []
        controller.stop()
    finally:
        headgate.stop()
    content = box.mails[0].content
    assert isinstance(content, bytes) and f"Subject: bad,{commit[:8]} FAILURE".encode() in content
    assert box.mails[0].rcpt_tos == ["team@example.org"] and len(box.mails) == 1
    for headers, body in calls:
        signed = headers["x-headgate-timestamp"].encode() + b"." + body
        assert headers["x-headgate-signature"] == f"sha256={hmac.new(b's3cret', signed, hashlib.sha256).hexdigest()}"
    assert {json.loads(body)["result"] for _, body in calls} == {"SUCCESS", "FAILURE"}
