"""Programs of other people against the service: Python with our client, with generated code alone, and Node."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.cli.main import group
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.stock import Stock, StockRefused
from tests.integration.inventory.served import ALICE, served
from tests.integration.inventory.test_http import served as served_over_http

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "use-the-inventory.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


NODE = shutil.which("node")


def block(begins: str) -> str:
    """The one block of the page that begins so."""
    (found,) = (text for _, text in BLOCKS if text.startswith(begins))
    return found


async def test_the_client_searches_changes_watches_and_leases() -> None:
    async with served() as client:
        await client.SetPartition(partition=pb.Partition(name="site"))
        await asyncio.to_thread(_walk, client.target)


def _walk(address: str) -> None:
    with Stock.connect(address, **ALICE) as stock, Stock.connect(address, **{**ALICE, "user": "bob"}) as other:
        for number in range(30):
            tags = ("gpu",) if number == 7 else ()
            stock.create("runm.machine", f"m{number:02}", {"memory": str(number)}, tags)
        assert sorted(one.name for one in stock.search("memory>=28", "name=m03")) == ["m03", "m28", "m29"]
        by_number = stock.search("type=runm.machine", sort=["-numbers.memory"], limit=2)
        assert [one.name for one in by_number] == ["m29", "m28"]
        with pytest.raises(StockRefused, match="ALREADY_EXISTS") as refused:
            stock.create("runm.machine", "m01")
        assert refused.value.number == 6
        with stock.lease("tag:gpu", hours=0.5, note="a test") as lease:
            assert (lease.name, lease.state) == ("m07", pb.Lease.HELD)
            with pytest.raises(TimeoutError, match="tag:gpu was not there in 1 s"), other.lease("tag:gpu", wait_s=1):
                raise AssertionError("nobody has what another has")
            assert len(other.call("ListLeases").leases) == 1, "who gave up waits no longer"
        with other.lease("tag:gpu") as lease:
            assert lease.user == "bob"
        assert not stock.call("ListLeases").leases
        told = next(stock.watch(revision=1))
        assert told.changes[0].new.name == "m00"
        with pytest.raises(StockRefused, match="at most 100"):
            next(stock.watch(any=[pb.Filter(name="x")] * 101))


def generated(directory: Path) -> None:
    """As the page says: from what `headgate inventory proto` prints, and nothing else of ours."""
    from grpc_tools import protoc

    printed = CliRunner().invoke(group, ["inventory", "proto"])
    assert printed.exit_code == 0, printed.output
    (directory / "inventory.proto").write_text(printed.output)
    out = [f"-I{directory}", f"--python_out={directory}", f"--grpc_python_out={directory}"]
    assert protoc.main(["", *out, str(directory / "inventory.proto")]) == 0


async def test_a_client_made_of_the_published_definitions_alone(tmp_path: Path) -> None:
    generated(tmp_path)
    (tmp_path / "program.py").write_text(block("# program.py"))
    async with served() as client:
        await client.SetPartition(partition=pb.Partition(name="site"))
        machine = pb.Object(type="runm.machine", name="m1", properties={"memory": "64"})
        await client.Apply(steps=[pb.Step(create=machine)])
        said = await asyncio.to_thread(_run, [sys.executable, "program.py", client.target], tmp_path)
    assert "m1 has 64" in said


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
async def test_a_program_in_node(tmp_path: Path) -> None:
    """It needs no packages: the JSON is at a port of HTTP."""
    (tmp_path / "lease.mjs").write_text(block("// lease.mjs"))
    async with served_over_http() as web:
        assert (await web("PUT", "/v1/partitions", {"partition": {"name": "site"}}))[0] == 200
        steps = [{"create": {"type": "runm.machine", "name": "m1", "tags": ["gpu"]}}]
        assert (await web("POST", "/v1/objects/apply", {"steps": steps}))[0] == 200
        said = await asyncio.to_thread(_run, [str(NODE), "lease.mjs", web.root, "site", "blue", "ann"], tmp_path)
        assert json.loads(said)["name"] == "m1"
        assert (await web("GET", "/v1/leases"))[1] == {}, "it was given back"


def _run(command: list[str], directory: Path) -> str:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(directory)}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
