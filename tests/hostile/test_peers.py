"""Test that any input to a server is refused with a reason or served: it never fails, never hangs, and blocks
nobody."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from headgate.testing.clock import DEADLINE_S
from headgate.web.app import ROUTES

from .arena import ATTACKER, Arena

ANSWER_MAX_S = 60.0
ENQUEUE = "/api/tenant/example/project/code/api/enqueue"
ODD = (
    "%00", "a%00b", "%ff", "%c0%af", "..%2f..%2fetc", "%2e%2e/%2e%2e", "%0d%0aX: y", "%1b[31m", "%ed%a0%80", "%", "%zz",
    "a" * 300, quote("ünïcödé"), quote("\U0001f600"), "'", "%22", "%5c", "%3Cscript%3E", "*", "{}", "-1", "~",
    "9" * 400, "%E2%80%AE", "%F4%90%80%80", "//", "code%2Fapi", "code/api", "example", "e" * 32, "job-output.txt", "0",
)  # fmt: skip
BODIES = (
    b"", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"null", b"[]", b'"x"', b"1e999", b"{}", b'{"pipeline": 1}',
    b'{"pipeline": "gate", "change": "\\u0000"}', b'{"pipeline": "gate", "change": "\\ud800"}', b"9" * 10_000,
    b'{"pipeline": "%s", "change": "x"}' % (b"g" * 100_000), b'{"pipeline": "gate", "changes": []}', b"{" * 5, b"\x00",
    b'{"pipeline": "gate", "changes": ["\\u0000", "x"], "reason": "\\u0000\\u001b[2J"}', b'{"projects": ["\\u0000"]}',
    b'{"state": "paused"}', b'{"pipeline": "gate", "change": "a", "change": "b"}', b'{"projects": ["x", "x"]}',
)  # fmt: skip
SHAPES = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /?" + b"a=1&" * 2_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 2_000 + b"\r\n",
    b"GET /api/tenants HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
    b"GET /api/tenants HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a.b.c\r\n\r\n",
    b"GET /api/tenants HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + b"W" * 20_000 + b"\r\n\r\n",
    b"GET /api/tenants HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    b"GET /api/tenant/example/status HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: \xff\r\nCookie: \xff\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\nHost: localhost\n\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00" * 1_000,
    b"GET /api/tenant/example/console-stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
)
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
FRAMES = (
    b"\x81\x80\x00\x00\x00\x00", b"\x82\x82\x00\x00\x00\x00\xff\xfe", b"\x81\x82\x00\x00\x00\x00\xff\xfe",
    b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\xf1\x80\x00\x00\x00\x00", b"\x83\x80\x00\x00\x00\x00",
    b"\x01\x81\x00\x00\x00\x00{", b"\x89\xfe\xff\xff", b"\x88\x80\x00\x00\x00\x00", b"\x81\x02{}",
    b"\x81\xfe\x80\x00\x00\x00\x00\x00" + b"[" * 32_768,
    b"\x81\xfe\x80\x00\x00\x00\x00\x00" + b'{"x":' + b"[" * 32_763,
    b"\x81\xa4\x00\x00\x00\x00" + b'{"uuid": "\\u0000", "offset": -5    }'[:36],
    b"\x81\x9a\x00\x00\x00\x00" + b'{"uuid":"x","token":"\\ud80'[:26],
)  # fmt: skip


class Peer:
    """Speak to the server of an arena, byte by byte."""

    def __init__(self, arena: Arena) -> None:
        self.port = int(arena.looked_at().headgate.url.rpartition(":")[2])
        self.token = (arena.headgate.root / "state" / "token").read_text().strip()

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_MAX_S)

    def says(self, data: bytes) -> bytes:
        """Return the beginning of the answer; empty when the connection ends."""
        with self.connected() as there:
            with contextlib.suppress(OSError):
                there.sendall(data)
            with contextlib.suppress(ConnectionError):
                return there.recv(4_096)
            return b""

    def status(self, verb: str, path: str, body: bytes | None = None, *, as_json: bool = True) -> int:
        head = f"{verb} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Authorization: Bearer {self.token}\r\n"
        if body is not None:
            kind = "application/json" if as_json else "application/octet-stream"
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        return number(self.says(f"{head}\r\n".encode() + (body or b"")))


def number(answer: bytes) -> int:
    """Return the status; 0: the connection ended."""
    found = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    return int(found[1]) if found else 0


def paths(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Return (verb, path) of every route, with something odd in each place."""
    for route in ROUTES:
        if not route.methods:
            continue
        for template in route.paths:
            for _ in range(6):
                path = re.sub(r"\{tenant:str\}", lambda _: rng.choice(("example", *ODD)), template)
                path = re.sub(r"\{\w+:\w+\}", lambda _: rng.choice(ODD), path)
                if rng.random() < 0.5:
                    names = ("limit", "skip", "project", "uuid", "voting", "offset", "branch", rng.choice(ODD))
                    path += "?" + "&".join(f"{rng.choice(names)}={rng.choice(ODD)}" for _ in range(rng.randrange(4)))
                verb = rng.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", *sorted(route.methods)))
                if not path.partition("?")[0].endswith("/events"):  # an endless stream
                    yield verb, path


@pytest.mark.long
def test_any_input_of_a_peer_is_refused_with_a_reason(  # noqa: C901 - every kind of rubbish in turn
    tmp_path: Path,
) -> None:
    with Arena(tmp_path) as arena:
        peer, rng = Peer(arena), random.Random(14)
        wrong: list[object] = []
        for shape in SHAPES:
            answer = peer.says(shape)
            if number(answer) >= 500:
                wrong.append((shape[:200], answer))
        for verb, path in paths(rng):
            status = peer.status(verb, path, rng.choice(BODIES) if verb not in ("GET", "HEAD") else None)
            if status >= 500 or status == 0:
                wrong.append((verb, path, status))
        for route in (ENQUEUE, "/api/tenant/example/promote", "/api/tenant/example/reconfigure", "/api/component/x/y"):
            for body in BODIES:
                for as_json in (True, False):
                    status = peer.status("POST", route, body, as_json=as_json)
                    if not (200 <= status < 500):
                        wrong.append((route, body[:200], status))
        for frame in FRAMES:
            answer = peer.says(UPGRADE.format(path="/api/tenant/example/console-stream").encode() + frame)
            if number(answer) not in (101, 400):
                wrong.append((frame, answer))
        assert not wrong, "\n".join(str(one)[:300] for one in wrong)
        assert "Traceback" not in arena.log, arena.log
        arena.neighbours_land()


def descriptors(arena: Arena) -> int:
    assert arena.headgate.process is not None
    return len(os.listdir(f"/proc/{arena.headgate.process.pid}/fd"))


def health(arena: Arena) -> float:
    """Return the seconds until the server reports that it lives."""
    began = time.monotonic()
    with urllib.request.urlopen(f"{arena.headgate.url}/health/live", timeout=ANSWER_MAX_S) as answer:
        assert json.load(answer) == {"alive": True}
    return time.monotonic() - began


def endless(peer: Peer, stop: threading.Event) -> None:
    """Send an endless body, in pieces, to every route that accepts one."""
    with contextlib.suppress(OSError), peer.connected() as there:
        head = f"POST {ENQUEUE} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {peer.token}\r\n"
        there.sendall(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        while not stop.wait(0.001):
            there.sendall(b"8000\r\n" + b"[" * 0x8000 + b"\r\n")


@pytest.mark.long
def test_connections_without_progress_keep_nobody_out(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena, contextlib.ExitStack() as stack:
        peer, stop = Peer(arena), threading.Event()
        before = descriptors(arena)
        threads = [threading.Thread(target=endless, args=(peer, stop)) for _ in range(3)]
        for thread in threads:
            thread.start()
        held: list[socket.socket] = []
        stream = b"GET /api/tenant/example/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        upgrade = UPGRADE.format(path="/api/tenant/example/console-stream").encode()
        try:
            for n in range(1_500):
                there = stack.enter_context(peer.connected())
                held.append(there)
                beginnings = (
                    b"",
                    b"GET / HT",
                    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
                    stream,
                    upgrade,
                    stream[:-2],
                )
                with contextlib.suppress(OSError):
                    there.sendall(beginnings[n % len(beginnings)])
                if n % 300 == 0:
                    assert health(arena) < ANSWER_MAX_S
            assert descriptors(arena) - before < 1_100, "they are bounded"
            arena.neighbours_land()
            assert health(arena) < ANSWER_MAX_S
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.long
def test_a_slow_peer_is_not_waited_for(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        peer = Peer(arena)
        with peer.connected() as silent, peer.connected() as slow, peer.connected() as pipelined:
            slow.sendall(b"GET / HTTP/1.1\r\n")
            pipelined.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2_000)
            arena.neighbours_land()
            end = time.monotonic() + 2 * DEADLINE_S
            for waiting in (silent, slow):
                while time.monotonic() < end:
                    with contextlib.suppress(OSError):
                        waiting.sendall(b"X: a\r\n" if waiting is slow else b"")
                        waiting.settimeout(0.5)
                        if waiting.recv(1_000) == b"":
                            break
                        continue
                    if isinstance(_broken(waiting), ConnectionError):
                        break
                else:
                    raise AssertionError("it is kept for ever")
        commit = arena.propose(ATTACKER, "after", {"after": "x\n"})
        assert arena.note_section(ATTACKER, commit, "check")


def _broken(there: socket.socket) -> BaseException | None:
    """Send, and return the resulting error, if any."""
    try:
        there.sendall(b"X")
        there.sendall(b"X")
    except OSError as error:
        return error
    return None


@pytest.mark.long
def test_pages_of_other_origins_read_nothing_from_a_local_server(tmp_path: Path) -> None:
    """A browser on this machine would request it."""
    with Arena(tmp_path) as arena:
        peer = Peer(arena)
        asks = "GET /api/tenants HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        upgrade = UPGRADE.format(path="/api/tenant/example/console-stream")
        for request, good in ((f"{asks}\r\n", 200), (upgrade, 101)):
            assert number(peer.says(request.encode())) == good
            for origin in ("http://localhost:3000", f"http://127.0.0.1:{peer.port}", "http://[::1]"):
                line = f"\r\nOrigin: {origin}\r\nHost"
                assert number(peer.says(request.replace("\r\nHost", line).encode())) == good, origin
            for origin in (
                "https://evil.example",
                "null",
                "http://localhost.evil.example",
                "http://evil.example:80",
                "x",
            ):
                line = f"\r\nOrigin: {origin}\r\nHost"
                answer = peer.says(request.replace("\r\nHost", line).encode())
                assert number(answer) == 403 and b"example/" not in answer, (origin, answer)
        assert arena.neighbours_land() > 0
