"""Test jobs that attack the fleet, this machine, each other and clouds' metadata, and the network itself."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.adapters.process.network.networks import own_addresses
from headgate.testing.clock import DEADLINE_S
from tests.integration.builds.world import World, greeter
from tests.waiting import wait_for

from .arena import ATTACKER, Arena
from .ordinary import may_tunnel, play_as_ordinary_user

WORLD_VARIABLE = "HEADGATE_TEST_WORLD"
"""The outside world that root has made for an ordinary user's play."""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 and WORLD_VARIABLE not in os.environ, reason="needs root, who makes the world outside"
)

PROBE_SCRIPT = """#!/usr/bin/env python3
import concurrent.futures, ctypes, os, re, socket, subprocess, sys

def said(place):
    host, _, port = place.rpartition(":")
    patience_s = 60 if place in {outside!r} else 3
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=patience_s) as found:
            found.settimeout(patience_s)
            found.sendall(b"GET /api/tenants HTTP/1.0\\r\\n\\r\\n" if place in {pages!r} else b"")
            return found.recv(9)
    except OSError as error:
        return b""

def tell(names):
    # At once: what is dropped on the way is waited for.
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for name, found in zip(names.values(), pool.map(said, names)):
            print("REACHED" if found else "MISSED", name, flush=True)

tell({{place: place for place in {places!r}}})

def told(*words):
    return subprocess.run(words, capture_output=True, text=True).stdout

def link_local(address):
    # What the machine on the link calls itself unasked, made of the address of its interface.
    parts = [int(part, 16) for part in address.split(":")]
    parts = [parts[0] ^ 2, *parts[1:3], 0xFF, 0xFE, *parts[3:]]
    return "fe80::" + ":".join(f"{{parts[n] << 8 | parts[n + 1]:x}}" for n in range(0, 8, 2)) + "%eth0"

for version in "46":
    gateway = told("ip", f"-{{version}}", "route", "show", "default").split()[2:3]
    links = re.findall(r"lladdr ([0-9a-f:]+)", told("ip", f"-{{version}}", "neigh", "show", "dev", "eth0"))
    near = (*gateway, *map(link_local, links), "ff02::1%eth0")
    tell({{f"[{{address}}]:{{port}}": f"the link at {{address}}" for address in near for port in {ports!r}}})

def tried(name, action):
    try:
        action()
        print("DONE", name, flush=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print("FAILED", name, error, flush=True)

def abstract():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect({abstract!r})

def sent(address, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.settimeout(2)
        one.connect((address, {udp}))
        one.send(b"hello")
        one.recv(9)

def bound(address):
    with socket.socket() as one:
        one.bind((address, 0))

def transparent():
    with socket.socket() as one:
        one.setsockopt(socket.SOL_IP, 19, 1)

def program(*words):
    subprocess.run(words, check=True, capture_output=True)

def user_namespace():
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x40000000):
        raise OSError(ctypes.get_errno(), "unshare")

tried("abstract", abstract)
for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
    tried(f"packet {{kind}}", lambda: socket.socket(socket.AF_PACKET, kind).close())
for protocol in (1, 6, 17, 255):
    tried(f"raw {{protocol}}", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol).close())
    tried(f"raw6 {{protocol}}", lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, protocol).close())
tried("spoof", lambda: bound({gateway!r}))
tried("transparent", transparent)
for words in {programs!r}:
    tried(words, lambda: program(*words.split()))
tried("user namespace", user_namespace)
for address in {hidden!r}:
    tried(f"udp {{address}}", lambda: sent(address))
print("END", flush=True)
"""
PROGRAMS = (
    "ip route add 127.9.9.0/24 dev eth0", "ip route replace default dev lo", "ip addr add 203.0.113.250/32 dev lo",
    "ip link set eth0 address 02:00:00:00:00:01", "ip link add d0 type dummy", "ip rule add from all lookup 5",
    "ip neigh add 203.0.113.9 lladdr 02:00:00:00:00:02 dev eth0", "nft flush ruleset", "nft list ruleset",
    "sysctl -w net.ipv4.ip_forward=1", "ip netns add other",
)  # fmt: skip
LISTEN = """#!/bin/sh
ip -4 -o addr show scope global | grep -o 'inet [0-9.]*' | sed 's/^inet/ADDRESS/'
ip -6 -o addr show scope global | grep -o 'inet6 [0-9a-f:]*' | sed 's/^inet6 /ADDRESS [/; s/$/]/'
exec python3 -c '
import socket
with socket.create_server(("::", 4321), family=socket.AF_INET6, dualstack_ipv6=True) as s:
    print("LISTENING", flush=True)
    s.settimeout(60)
    s.accept()[0].sendall(b"hello")
'
"""


@pytest.fixture
def world() -> Iterator[World]:
    with World(os.environ.get(WORLD_VARIABLE, "")) as made:
        yield made


@pytest.mark.long
def test_a_job_reaches_the_world_and_nothing_of_the_fleet(tmp_path: Path, world: World) -> None:
    with ExitStack() as stack:
        here = stack.enter_context(greeter("::", 0))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0headgate-play-{os.getpid()}")
        abstract.listen()
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("0.0.0.0", 0))
        arena = stack.enter_context(Arena(tmp_path, settings=f"sandbox_network_deny = {world.other}/32 10.1.0.0/16\n"))
        page = int(arena.headgate.url.rpartition(":")[2])
        own = {
            "127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "127.1", "2130706433",
            "0x7f000001", "0177.0.0.1", "127.255.255.254", world.gateway, f"[{world.gateway6}]",
            f"[::ffff:{world.gateway}]", f"[64:ff9b::{world.gateway}]", socket.gethostname(),
        }  # fmt: skip
        own |= {f"[{address}]" for address in own_addresses() if address.version == 6 and not address.is_link_local}
        listening = arena.attack("listen", LISTEN)
        logs = arena.headgate.root / "state/logs"
        line = str(wait_for("a neighbour listens", lambda: next(_listening(logs), "")))
        neighbours = [found for found in re.findall(r"ADDRESS (\S+)", line)]
        outside = f"{world.address}:{world.port}"
        outside6 = {f"[{address}]:{world.port}" for address in (world.address6, world.local6)}
        denied = [*(f"{name}:{port}" for name in sorted(own) for port in (here, page))]
        denied += [f"{address}:4321" for address in neighbours]
        addresses = world.other, world.link, f"[::ffff:{world.link}]", f"[{world.metadata6}]", "[fd00:ec2::254]"
        denied += [f"{address}:{world.port}" for address in addresses]
        for place in (outside, *outside6, f"[{world.metadata6}]:{world.port}"):
            assert greeted(place), f"this machine itself reaches {place}"
        reached = [*([outside] if may_tunnel() else []), *(outside6 if os.geteuid() == 0 else [])]
        script = PROBE_SCRIPT.format(
            places=[outside, *outside6, *denied], outside=reached, ports=(here, page),
            pages=[place for place in denied if place.endswith(f":{page}")],
            abstract=abstract.getsockname(), gateway=world.gateway, programs=PROGRAMS, udp=udp.getsockname()[1],
            hidden=["127.0.0.1", world.gateway],
        )  # fmt: skip
        commit = arena.attack("reach", script)
        arena.neighbours_land()
        arena.note_section(ATTACKER, commit, "check")
        log = next(text for file in logs.glob("*/job-output.txt") if "| END" in (text := file.read_text()))
        assert listening and bool(neighbours) == may_tunnel()
    allowed = {outside} if may_tunnel() else set()
    assert {place for place in (outside, *denied) if f"| REACHED {place}\n" in log} == allowed, log
    reached6 = {place for place in outside6 if f"| REACHED {place}\n" in log}
    if os.geteuid() == 0:
        assert reached6 == outside6 and re.search(r"\| MISSED the link at fe80::.*%eth0\n", log), log
    assert "REACHED the link" not in log, log
    assert ("/dev/net/tun" in arena.log) != may_tunnel(), arena.log
    assert not re.search(r"\| DONE ", log), log
    assert log.count("| FAILED ") == 3 + 8 + 2 + len(PROGRAMS) + 1 + 2, log


def greeted(place: str) -> bool:
    """Return whether this machine's greeting is received there."""
    host, _, port = place.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=DEADLINE_S) as found:
        return found.recv(9) == b"hello\n"


def _listening(logs: Path) -> Iterator[str]:
    for file in logs.glob("*/job-output.txt"):
        text = file.read_text(errors="replace")
        if "| LISTENING" in text:
            yield text


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("tunnels", [True, False])
@pytest.mark.skipif(shutil.which("pasta") is None and shutil.which("slirp4netns") is None, reason="needs passt")
def test_a_job_of_an_ordinary_users_executor_reaches_the_world_and_nothing_of_the_fleet(
    world: World, tunnels: bool
) -> None:
    test = "test_network.py::test_a_job_reaches_the_world_and_nothing_of_the_fleet"
    play_as_ordinary_user(test, tunnels=tunnels, **{WORLD_VARIABLE: world.tell()})
