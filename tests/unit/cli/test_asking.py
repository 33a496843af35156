"""Test that the command line calls the API like the client of Zuul's API."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError

import pytest
from click.testing import CliRunner, Result

from headgate.base.errors import UserError
from headgate.cli.identity.pages import _refused
from headgate.cli.main import group

REF = {"project": "host/code", "branch": "master", "change": 12, "patchset": "a" * 40, "ref": "r", "ref_url": None}
BUILD = {
    "uuid": "b1", "job_name": "unit\x1b[2J", "result": None, "start_time": None, "end_time": None, "duration": None,
    "voting": True, "final": False, "log_url": "http://elsewhere/t/x/logs/b1/", "nodeset": None, "error_detail": None,
    "pipeline": "gate", "event_id": "e", "ref": REF, "buildset": {"uuid": "s1"}, "artifacts": [],
}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "/api/tenants": [{"name": "one"}],
    "/api/tenant/one/builds": [BUILD],
    "/api/tenant/one/build/b1": BUILD,
    "/api/tenant/one/pipeline/gate/project/host/code/branch/stable/1/freeze-jobs": [
        {"name": "unit", "dependencies": [{"name": "lint", "soft": True}]}
    ],
    "/api/tenant/one/state": None,
    "/api/tenant/other/builds": [],
}


class Server(ThreadingHTTPServer):
    requests: list[tuple[str, str, str, Any]]
    """Method, path with query, Authorization, body."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.requests.append((self.command, self.path, self.headers.get("Authorization", ""), body))
        path = self.path.partition("?")[0]
        if path == "/t/x/logs/b1/job-output.txt":
            content = b"hello \x1b[31mred\n"
        else:
            content = json.dumps(ANSWERS[path]).encode() if path in ANSWERS else b'{"description": "none"}'
        self.send_response(200 if path in ANSWERS or "/logs/" in path else 404)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HEADGATE_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    found = Server(("127.0.0.1", 0), Handler)
    found.requests = []
    thread = Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def run(server: Server, *words: str) -> Result:
    return CliRunner().invoke(group, ["--url", f"http://127.0.0.1:{server.server_port}", *words])


def done(server: Server, *words: str) -> str:
    found = run(server, *words)
    assert found.exit_code == 0, f"{found.output} {found.exception!r}"
    return found.output


def profiled(server: Server, place: Path, mode: int = 0o600) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{server.server_port}/"
    place.write_text(f"[mine]\nurl = {url}\ntenant = other\nauth_token = 100%secret\n[bare]\n")
    place.chmod(mode)


@pytest.mark.parametrize(
    ("status", "description", "shown"),
    [
        (404, "tenant one has no pipeline 'x'", "tenant one has no pipeline 'x'"),
        (409, "the changes are already at the head", "the changes are already at the head"),
        (404, "Not Found", "http://127.0.0.1:9000/x: Not Found"),
        (401, "this token has expired", "http://127.0.0.1:9000/x: this token has expired"),
    ],
)
def test_a_refused_request_is_explained_without_its_address(status: int, description: str, shown: str) -> None:
    url, body = "http://127.0.0.1:9000/x", io.BytesIO(json.dumps({"description": description}).encode())
    error = HTTPError(url, status, HTTPStatus(status).phrase, Message(), body)
    assert str(_refused(url, error)) == shown


def test_without_settings_the_options_are_named_that_replace_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for words, url in ((["builds"], True), (["try", "unit"], False)):
        refused = CliRunner().invoke(group, words).exception
        assert isinstance(refused, UserError) and "headgate init" in str(refused) and "--config FILE" in str(refused)
        assert ("--url URL" in str(refused)) == url


def test_builds_are_listed_as_text_and_as_json(server: Server) -> None:
    text = done(server, "builds", "--job", "u*", "--job-name", "x", "--voting", "--limit", "5")
    assert server.requests[-1][1] == "/api/tenant/one/builds?job_name=u%2A&job_name=x&voting=true&limit=5&skip=0"
    assert "12,aaaaaaaa" in text and "running" in text and "\x1b" not in text
    for words in (("--format", "json", "builds"), ("builds", "--format", "json")):
        output = done(server, *words)
        assert json.loads(output)[0]["uuid"] == "b1" and "\x1b" not in output


def test_one_build_is_shown_with_its_log(server: Server) -> None:
    for words in (("b1",), ("--uuid", "b1")):
        assert "uuid:          b1" in done(server, "build-info", *words)
    log = done(server, "build-info", "b1", "--show-job-output")
    assert log.startswith("hello ") and "\x1b" not in log, "it is asked of this server, and moves no cursor"
    assert run(server, "build-info").exit_code != 0


@pytest.mark.parametrize(
    ("log_url", "url"),
    [
        ("http://elsewhere/logs/b1/", ""),
        ("http://elsewhere/t/x/y/logs/b1/", ""),
        ("http://elsewhere/t/x/logs/b1b1/", ""),
        ("http://elsewhere/gate/t/t/logs/b1/", "/t/t/logs/b1/job-output.txt"),
    ],
)
def test_a_log_is_requested_where_this_server_serves_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, log_url: str, url: str
) -> None:
    monkeypatch.setitem(ANSWERS, "/api/tenant/one/build/b1", {**BUILD, "log_url": log_url})
    monkeypatch.setitem(ANSWERS, "/t/t/logs/b1/job-output.txt", "hello")
    result = run(server, "build-info", "b1", "--show-job-output")
    if url:
        assert result.exit_code == 0 and server.requests[-1][1] == url
    else:
        assert isinstance(result.exception, UserError) and "is on another server" in str(result.exception)


def test_the_graph_of_a_branch_is_shown(server: Server) -> None:
    words = ("--pipeline", "gate", "--project", "host/code", "--branch", "stable/1")
    assert "lint (soft)" in done(server, "job-graph", *words)
    assert json.loads(done(server, "job-graph", *words, "--format", "json"))[0]["name"] == "unit"


@pytest.mark.parametrize(
    ("state", "flags"),
    [
        ("normal", (False, False, False)),
        ("pause-trigger", (False, True, False)),
        ("discard-trigger", (True, False, False)),
        ("pause-result", (False, True, True)),
    ],
)
def test_events_are_managed_with_all_three_flags(server: Server, state: str, flags: tuple[bool, bool, bool]) -> None:
    assert f"one: {state}." in done(server, "manage-events", state, "--reason", "why", "--all-tenants")
    names = ("trigger_queue_discarding", "trigger_queue_paused", "result_queue_paused")
    assert server.requests[-1][3] == {**dict(zip(names, flags, strict=True)), "reason": "why"}


@pytest.mark.parametrize("file", ["config/headgate/client.conf", "config/zuul/client.conf", ".zuul.conf"])
def test_a_profile_names_address_tenant_and_token(server: Server, tmp_path: Path, file: str) -> None:
    profiled(server, tmp_path / file)
    found = CliRunner().invoke(group, ["--use-config", "mine", "builds"])
    assert found.exit_code == 0, f"{found.output} {found.exception!r}"
    assert server.requests[-1][1].startswith("/api/tenant/other/builds?")
    assert server.requests[-1][2] == "Bearer 100%secret"


def test_the_token_of_a_profile_goes_where_the_profile_says_alone(server: Server, tmp_path: Path) -> None:
    profiled(server, tmp_path / ".zuul.conf")
    elsewhere = f"http://localhost:{server.server_port}"
    for words in (
        ("--url", elsewhere, "--use-config", "mine", "builds"),
        ("--use-config", "mine", "builds", "--url", elsewhere),
    ):
        found = CliRunner().invoke(group, list(words))
        assert found.exit_code == 0, found.output
        assert server.requests[-1][2] == "", words


def test_a_profile_that_cannot_be_used_is_named(server: Server, tmp_path: Path) -> None:
    for file, mode, name, why in (
        (None, 0, "mine", "no profile file"),
        (".zuul.conf", 0o644, "mine", "chmod 600"),
        (".zuul.conf", 0o600, "none", "there are mine, bare"),
        (".zuul.conf", 0o600, "bare", "needs a url"),
    ):
        if file:
            profiled(server, tmp_path / file, mode)
        found = CliRunner().invoke(group, ["--use-config", name, "builds"])
        assert isinstance(found.exception, UserError) and why in str(found.exception), found.exception
