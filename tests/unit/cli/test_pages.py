"""Test that commands repeat a request only while the configuration is still being read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from headgate.base.errors import UserError
from headgate.cli.identity import pages
from headgate.cli.identity.pages import PageClient

EARLY = (503, "still being read", {"Retry-After": "0"})
DONE = (200, "done", dict[str, str]())


class Server(ThreadingHTTPServer):
    """Give the planned answers in order, the last one for ever."""

    answers: list[tuple[int, str, dict[str, str]]]
    requests: list[tuple[str, bytes]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, body))
        status, detail, headers = self.server.answers[min(len(self.server.requests), len(self.server.answers)) - 1]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps({"description": detail}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server(("127.0.0.1", 0), Handler)
    found.requests = []
    thread = Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def post(server: Server) -> str:
    return str(PageClient(f"http://127.0.0.1:{server.server_port}").post("/api/x", {"a": 1})["description"])


def test_a_page_that_is_still_loading_is_requested_again(server: Server) -> None:
    server.answers = [EARLY, EARLY, DONE]
    assert post(server) == "done"
    assert server.requests == [("/api/x", b'{"a": 1}')] * 3


@pytest.mark.parametrize(
    ("status", "headers"),
    [(503, {}), (503, {"Retry-After": "Wed, 21 Oct 2037 07:28:00 GMT"}), (503, {"Retry-After": "-1"}),
     (409, {"Retry-After": "0"}), (500, {})],
)  # fmt: skip
def test_a_request_that_may_have_taken_effect_is_not_repeated(
    server: Server, status: int, headers: dict[str, str]
) -> None:
    server.answers = [(status, "no scheduler took it up", headers), DONE]
    with pytest.raises(UserError, match="no scheduler took it up"):
        post(server)
    assert len(server.requests) == 1


def test_a_command_that_gives_up_reports_the_last_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "AGAIN_MAX_S", 0.1)
    server.answers = [EARLY, (503, "read it all", {"Retry-After": "100"})]
    with pytest.raises(UserError, match="read it all"):
        post(server)
    assert len(server.requests) == 2


def test_a_proxy_of_the_environment_is_shown_nothing_for_this_machine(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = [DONE]
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    for base in ("http://[::1]", "http://127.0.0.1", "http://[::1]:1"):
        with pytest.raises(UserError, match="Headgate does not answer"):
            PageClient(base, "secret").post("/api/x", {})
    assert server.requests == []


class Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to stderr."""


def test_another_server_at_the_url_is_named_as_the_likely_cause() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match="File not found; is this the URL of Headgate"):
            PageClient(f"http://127.0.0.1:{server.server_address[1]}").get("/api/tenants")
        server.shutdown()
