"""Test that a build with its own network can read files of earlier builds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.process.network.networks import NetworkChoice

from .bench import Bench

FETCH = """
import http.client, json, os
artifacts = json.load(open(os.environ["HEADGATE_VARS"]))["zuul"]["artifacts"]
print("URLS", *(one["url"] for one in artifacts))
host = artifacts[0]["url"].split("/")[2]

def asked(method, path):
    connection = http.client.HTTPConnection(host, timeout=180)
    connection.request(method, path)
    answer = connection.getresponse()
    print(method, path, answer.status, answer.read()[:40], flush=True)

asked("GET", "/logs/" + artifacts[0]["url"].partition("/logs/")[2])
asked("HEAD", "/logs/earlier/doc/a%20b.txt")
for path in ("earlier/none", "foreign/doc/a%20b.txt", "earlier/../foreign/x", "earlier/%2e%2e/foreign/x", "earlier"):
    asked("GET", "/logs/" + path)
asked("GET", "//[x/logs/earlier/a")  # an address that cannot be taken apart
for method in ("POST", "DELETE", "PUT"):
    asked(method, "/logs/earlier/doc/a%20b.txt")
"""
ARTIFACTS = [
    {"name": "doc", "url": "http://gate.example/t/t/logs/earlier/doc/a%20b.txt", "build": "earlier"},
    {"name": "other", "url": "http://gate.example/t/t/logs/foreign/doc/a%20b.txt", "build": "earlier"},
    {"name": "elsewhere", "url": "https://files.example/x", "build": "earlier"},
]


async def read(build: str, path: str) -> AsyncGenerator[bytes, None]:
    if path != "doc/a b.txt":
        raise LookupError(f"{build} has no {path}")
    for piece in (b"of ", build.encode()):
        yield piece


@pytest.mark.long
@pytest.mark.parametrize("kind", ["none", "outside"])
async def test_a_build_reads_only_files_of_builds_that_it_was_given(tmp_path: Path, kind: str) -> None:
    bench = Bench(tmp_path, "bwrap", read_log=read, network=NetworkChoice(kind, kind))
    run = bench.script("run", f"cat > fetch.py <<'E'\n{FETCH}E\npython3 fetch.py")
    zuul = {"pipeline": "gate", "job": "job", "artifacts": ARTIFACTS}
    assert (await bench.build(run=(run,), spec={"zuul": zuul})).result == "SUCCESS", bench.log
    urls = next(line.partition("| URLS ")[2].split() for line in bench.log.splitlines() if "| URLS" in line)
    assert urls == ["http://127.72.71.1/logs/earlier/doc/a%20b.txt", *(one["url"] for one in ARTIFACTS[1:])]
    lines = [line.partition(" | ")[2] for line in bench.log.splitlines()]
    assert "GET /logs/earlier/doc/a%20b.txt 200 b'of earlier'" in lines
    assert "HEAD /logs/earlier/doc/a%20b.txt 200 b''" in lines
    assert len([line for line in lines if line.startswith("GET") and " 404 " in line]) == 6, lines
    assert len([line for line in lines if line.startswith(("POST", "DELETE", "PUT")) and " 405 " in line]) == 3


@pytest.mark.parametrize(("artifacts", "listeners"), [([], 0), (ARTIFACTS, 1)])
async def test_only_a_build_with_artifacts_has_a_server_for_them(
    tmp_path: Path, artifacts: list[Any], listeners: int
) -> None:
    bench = Bench(tmp_path, "bwrap", read_log=read, network=NetworkChoice("none", "none"))
    run = bench.script("run", "echo $(tail -n +2 /proc/net/tcp | wc -l) listeners")
    assert (await bench.build(run=(run,), spec={"zuul": {"artifacts": artifacts}})).result == "SUCCESS", bench.log
    assert f"| {listeners} listeners\n" in bench.log


async def test_in_the_network_of_the_machine_they_are_where_the_gate_says(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap", read_log=read, network=NetworkChoice("host", "host"))
    run = bench.script("run", "cat $HEADGATE_VARS")
    assert (await bench.build(run=(run,), spec={"zuul": {"artifacts": ARTIFACTS}})).result == "SUCCESS", bench.log
    assert "http://gate.example/t/t/logs/earlier/doc" in bench.log and "127.72.71.1" not in bench.log
