"""Test that a gate that an earlier release left in the middle of its work continues under this one."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from headgate.base.tasks import end
from headgate.cli.launch.components import add_everything
from headgate.cli.launch.process import Process, process
from headgate.cli.settings import read
from headgate.ports.history import HistoryQuery, PastBuildset
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import run_git
from tests.releases.record import LANDED, PROJECT, WAITING

LOOK_S = 0.2
STATES = sorted((Path(__file__).parents[1] / "releases").glob("state-*.tar.xz"))


@asynccontextmanager
async def started(root: Path) -> AsyncIterator[tuple[Process, str]]:
    """Run `headgate run` on the content of the directory, and provide the URL of its pages."""
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with process(read(root / "headgate.conf"), stop) as gate:
        await add_everything(gate, bound.set_result)
        running = asyncio.ensure_future(gate.run())
        try:
            yield gate, f"http://127.0.0.1:{await bound}"
        finally:
            stop.set()
            await end(running)


async def landing(process: Process, topic: str) -> PastBuildset:
    question = HistoryQuery({"change": (topic,), "pipeline": ("gate",), "result": ("SUCCESS", "FAILURE")})
    async with asyncio.timeout(DEADLINE_S):
        while True:
            moves = process.context.mirror.moves
            if found := await process.history.buildsets("example", question):
                return found[0]
            with suppress(TimeoutError):  # the row may come a moment after the last entry has gone
                async with asyncio.timeout(LOOK_S):
                    await process.context.mirror.moved(moves)


@pytest.mark.long
@pytest.mark.parametrize("state", STATES, ids=[path.name.removesuffix(".tar.xz") for path in STATES])
async def test_the_gate_of_an_earlier_release_continues(state: Path, tmp_path: Path) -> None:
    with tarfile.open(state) as packed:
        packed.extractall(tmp_path, filter="data")
    hub = tmp_path / "hub" / PROJECT
    before = run_git("rev-parse", "master", at=hub)
    assert run_git("log", "--format=%s", "-1", "master", at=hub) == "Merge 'greet' into master"

    async with started(tmp_path) as (gate, url), httpx.AsyncClient(base_url=url) as client:
        earlier = await landing(gate, LANDED)
        later = await landing(gate, WAITING)
        answer = (await client.get(f"/api/tenant/example/buildset/{earlier.uuid}")).json()
        log = await client.get(answer["builds"][0]["log_url"] + "job-output.txt", follow_redirects=True)

    assert (earlier.result, later.result) == ("SUCCESS", "SUCCESS")
    assert later.id > earlier.id, "rows are numbered on"
    assert "tested by the unit job" in log.text, "the link of an old build still leads to its log"
    assert run_git("rev-parse", "master^", at=hub) == before
    assert run_git("log", "--format=%s", "-1", "master", at=hub) == "Merge 'wait' into master"
