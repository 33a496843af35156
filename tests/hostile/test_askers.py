"""Test that readers of the pages, however many and expensive, use no more than a share of the gate's processor time."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_for

from .arena import ATTACKER, Arena
from .test_peers import UPGRADE, Peer

JOBS, ASKERS, READERS = 600, 60, 100
NIGHTLY = """
- pipeline: {name: nightly, manager: independent, trigger: {local: [{event: ref-updated, ref: ^refs/tags/n}]}}
"""
DEAR = "/api/tenant/example/pipeline/nightly/project/code/api/branch/master/freeze-jobs"
TALKS = """#!/bin/sh
while :; do echo more; sleep 0.05; done
"""


def many_jobs() -> str:
    """A project with hundreds of jobs, each the child of another."""
    jobs = "".join(
        f"- job: {{name: j{n}, parent: {f'j{n - 1}' if n % 20 else 'base'}, run: jobs/unit, vars: {{v{n}: {n}}}}}\n"
        for n in range(JOBS)
    )
    names = ", ".join(f"j{n}" for n in range(JOBS))
    return f"{NIGHTLY}{jobs}- project: {{name: {ATTACKER}, nightly: {{jobs: [{names}]}}}}\n"


@contextlib.contextmanager
def asking(peer: Peer, path: str) -> Iterator[None]:
    """Send the same request from many clients, again and again; continue after each has sent one."""
    stop, request = threading.Event(), f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()

    def ask(number: int) -> None:
        while not stop.is_set():
            with contextlib.suppress(ConnectionError), peer.connected() as there:
                there.settimeout(0.2)
                there.sendall(request)
                seen.add(number)
                answer = b"?"
                while answer and not stop.is_set():
                    with contextlib.suppress(TimeoutError):
                        answer = there.recv(65_536)

    seen: set[int] = set()
    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(ASKERS)]
    for thread in threads:
        thread.start()
    try:
        wait_for("each has asked", lambda: len(seen) == ASKERS)
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.long
def test_a_flood_of_expensive_requests_delays_nobody(tmp_path: Path) -> None:
    """Computing the jobs of a project with hundreds of jobs takes a fifth of a second, and anybody may request it."""
    with Arena(tmp_path, config=many_jobs()) as arena:
        peer = Peer(arena)
        wait_for("the pipelines are known", lambda: arena.headgate.get("/api/tenant/example/pipelines"))
        assert peer.status("GET", DEAR) == 200
        with asking(peer, DEAR):
            arena.neighbours_land()
            assert peer.status("GET", "/api/tenant/example/status") == 200, "other questions have their turn"
            assert peer.status("GET", "/health/live") == 200


def running(arena: Arena) -> str:
    """Return the id of the attacker's build, once it runs."""

    def found() -> list[Any]:  # JSON
        jobs = [job for item in arena.headgate.items("check") for job in item["jobs"]]
        return [job["uuid"] for job in jobs if job["name"] == "attack" and job["uuid"]]

    (build,) = wait_for("it is under way", found)
    return str(build)


@pytest.mark.long
def test_a_crowd_of_followers_of_one_log_delays_nobody(tmp_path: Path) -> None:
    """The more followers there are, the less often each is updated."""
    with Arena(tmp_path) as arena, contextlib.ExitStack() as stack:
        peer = Peer(arena)
        arena.attack("talks", TALKS)
        wanted = json.dumps({"uuid": running(arena), "logfile": "console.log"}).encode()
        frame = b"\x81" + bytes([0x80 | len(wanted)]) + bytes(4) + wanted
        readers: list[socket.socket] = []
        for _ in range(READERS):
            there = stack.enter_context(peer.connected())
            there.sendall(UPGRADE.format(path="/api/tenant/example/console-stream").encode())
            assert b" 101 " in there.recv(4_096)
            there.sendall(frame)
            there.setblocking(False)
            readers.append(there)
        waiting = {*readers}
        wait_for("all are told", lambda: not waiting.difference_update(readable(readers)) and not waiting)
        began, messages = time.monotonic(), list[socket.socket]()
        wait_for(
            "they are told for a while", lambda: messages.extend(readable(readers)) or time.monotonic() - began >= 3
        )
        took_s = time.monotonic() - began
        assert 0 < len(messages) / READERS < 6 * took_s, "each looks about three times a second, and usually ten times"
        arena.neighbours_land()


def readable(readers: list[socket.socket]) -> list[socket.socket]:
    """Read from those that have data."""
    found = []
    for one in readers:
        with contextlib.suppress(BlockingIOError):
            if one.recv(65_536):
                found.append(one)
    return found
