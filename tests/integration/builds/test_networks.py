"""Test what builds reach, and what they do not."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.blocklist import read_nets
from headgate.adapters.process.network.networks import NetworkChoice
from headgate.adapters.process.network.sockets import NetworkTarget
from headgate.config.model import Node, Nodeset

from .bench import Bench
from .world import World, greeter

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a world outside")

TRY = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=3) as found:
            said = found.recv(9)
    except OSError as error:
        said = str(error)
    print("reached" if said == b"hello\\n" else "missed", place, said)
"""


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture
def here() -> Iterator[int]:
    """Open a port on which this machine answers hello, on every address."""
    with greeter("::", 0) as port:
        yield port


async def reached(bench: Bench, *places: str, **job: Any) -> set[str]:
    run = bench.script("run", f"cat > try.py <<'E'\n{TRY}E\npython3 try.py {' '.join(places)}")
    outcome = await bench.build(run=(run,), **job)
    assert outcome.result == "SUCCESS", bench.log
    assert all(f"reached {place} " in bench.log or f"missed {place} " in bench.log for place in places), bench.log
    return {place for place in places if f"reached {place} " in bench.log}


@pytest.mark.long
async def test_the_world_is_reached_and_this_machine_is_not(tmp_path: Path, world: World, here: int) -> None:
    bench, outside = Bench(tmp_path, "bwrap"), f"{world.address}:{world.port}"
    own = ["127.0.0.1", "localhost", world.gateway, "[::1]", "[::ffff:127.0.0.1]", f"[::ffff:{world.gateway}]"]
    own += [f"[{world.gateway6}]", "0.0.0.0", "[::]", "127.9.9.9"]
    assert await reached(bench, outside, *(f"{address}:{here}" for address in own)) == {outside}


@pytest.mark.long
async def test_builds_reach_allowed_addresses_and_no_denied_ones(tmp_path: Path, world: World, here: int) -> None:
    outside, own = f"{world.address}:{world.port}", f"127.0.0.1:{here}"
    choice = NetworkChoice(deny=tuple(read_nets("203.0.113.0/24")), allow=(NetworkTarget("127.0.0.1", here),))
    assert await reached(Bench(tmp_path, "bwrap", network=choice), outside, own) == {own}


@pytest.mark.parametrize(("kind", "expected"), [("none", set()), ("host", {"outside", "own"})])
async def test_the_other_kinds_of_networks(
    tmp_path: Path, world: World, here: int, kind: str, expected: set[str]
) -> None:
    places = {"outside": f"{world.address}:{world.port}", "own": f"127.0.0.1:{here}"}
    bench = Bench(tmp_path, "bwrap", network=NetworkChoice(kind, kind))
    assert await reached(bench, *places.values()) == {places[name] for name in expected}


@pytest.mark.parametrize("kind", ["none", "outside"])
async def test_the_nodes_of_a_build_are_reached_where_they_are(
    tmp_path: Path, world: World, here: int, kind: str
) -> None:
    choice = NetworkChoice(kind, kind, deny=tuple(read_nets(world.address)))
    bench = Bench(tmp_path, "bwrap", network=choice)
    nodes = {"one": NetworkTarget("127.0.0.1", here), "two": NetworkTarget(world.address, world.port)}
    hosts = {name: {"ansible_host": node.host, "ansible_port": node.port} for name, node in nodes.items()}
    nodeset = Nodeset(nodes=tuple(Node((name,), "any") for name in nodes))
    places = {f"{node.host}:{node.port}" for node in nodes.values()}
    other = f"{world.gateway}:{here}"
    assert await reached(bench, *places, other, nodeset=nodeset, spec={"hosts": hosts}) == places


async def test_builds_do_not_reach_each_other(tmp_path: Path, world: World) -> None:
    bench = Bench(tmp_path, "bwrap")
    listen = "ip -4 -o addr show eth0 | grep -o '198[0-9.]*' | head -1; exec python3 -c '\n"
    listen += 'import socket; s = socket.create_server(("", 4321)); print("listening", flush=True); s.accept()\n\''
    cancel = asyncio.Event()
    building = bench.start(cancel, run=(bench.script("listen", listen),))
    await bench.says("| listening")
    address = next(line.split("| ")[1] for line in bench.log.splitlines() if "| 198." in line)
    assert await reached(bench, f"{address}:4321") == set()
    cancel.set()
    assert (await building).result == "CANCELED"


async def test_nothing_is_left_of_networks(tmp_path: Path, world: World) -> None:
    bench = Bench(tmp_path, "bwrap")
    assert await reached(bench, f"{world.address}:{world.port}")
    number = bench.runner.cells._networks._way._number  # type: ignore[union-attr]  # begun by the build
    assert f"hg{number}-" not in output_of("ip", "-o", "link") and f"headgate{number}\n" in output_of(
        "nft", "list", "tables"
    )
    await bench.runner.close()
    assert f"headgate{number}\n" not in output_of("nft", "list", "tables")


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
