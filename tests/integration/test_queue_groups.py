"""Test the progress of each group of workers on the command line: groups with a store, and groups that lease
partitions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headgate.cli.queue.queue import command
from headgate.map.workers import QueueMap
from headgate.queueing import progress as steps
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.progress import NEW, Progress
from headgate.store.sqlite import SqliteBackend
from headgate.testing.queues.harness import APP, KEY
from tests.integration.queue_site import Site, site


class World(Site):
    """Provide a queue `q` of two partitions with three messages each; `ids` of the first."""

    root_dir: Path
    ids: tuple[str, ...] = ()

    async def lease(self, done: int, **options: Any) -> str:
        """Process so many messages under a lease, which is kept."""
        lease: str = (await self.ask("POST", "/q/lease", json=options))["lease"]["lease"]
        found = (await self.ask("GET", f"/q/lease/{lease}"))["messages"]
        await self.ask("POST", f"/q/lease/{lease}", json={"done": [one["message_id"] for one in found[:done]]})
        return lease

    async def keep(self, group: str, done: dict[int, str]) -> None:
        """Record progress like workers with a store: partition -> the last message that is done."""
        app = QueueMap().app(f"{APP}@{group}" if group else APP)
        backend = await SqliteBackend.open(self.root_dir / "workers.sqlite")
        ops = [
            app.progress(QueuePartition("q", n)).put(steps.done(NEW, id) if id else Progress(""))
            for n, id in done.items()
        ]
        await backend.commit([], ops)
        await backend.close()

    async def command_result(self, *arguments: str, store: str = "sqlite:///workers.sqlite", group: str = "") -> Result:
        file = self.root_dir / "worker.conf"
        section = f"[queuey]\nconnection = {self.url}\napp_key = {KEY}\n[store]\nurl = {store}\n"
        file.write_text(f"[qdo-worker]\ngroup = {group}\n{section}")
        name, *more = arguments
        return await asyncio.to_thread(CliRunner().invoke, command, [name, "-c", str(file), *more])

    async def rows(self, *arguments: str, **how: str) -> Any:
        result = await self.command_result(*arguments, "--json", **how)
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.output)


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with site(World, database_url) as found:
        found.root_dir = tmp_path
        await found.ask("POST", "", 201, data={"queue_name": "q", "partitions": "2"})
        for partition in (1, 2):
            batch = [{"body": f"{n}", "partition": partition} for n in range(3)]
            posted = (await found.ask("POST", "/q", 201, json={"messages": batch}))["messages"]
            found.ids = found.ids or tuple(one["key"] for one in posted)
        yield found
        await found.ask("DELETE", "/q")


async def test_every_group_is_listed_with_its_lag(world: World) -> None:
    await world.keep("", {1: world.ids[0], 2: ""})
    await world.keep("audit", {1: world.ids[2], 2: ""})
    await world.lease(2, worker="node 7", group="packers", partition=1)
    found = await world.rows("lag", "--groups")
    assert {(one["partition"], one["group"], one["kept_by"]): (one["worker"], one["waiting"]) for one in found} == {
        ("q", "-", "store"): ("", 2),
        ("q:2", "-", "store"): ("", 3),
        ("q", "audit", "store"): ("", 0),
        ("q:2", "audit", "store"): ("", 3),
        ("q", "packers", "server"): ("node 7", 1),
    }
    assert {0 <= one["oldest_s"] < 3600 for one in found} == {True}
    assert (await world.command_result("lag", "--groups", "--above", "2")).exit_code == 1
    assert (await world.command_result("lag", "--groups", "--above", "3")).exit_code == 0
    alone = await world.rows("lag")
    assert [(one["partition"], one["waiting"]) for one in alone] == [("q", 2), ("q:2", 3)] and "group" not in alone[0]


async def test_where_the_server_keeps_how_far_workers_are_the_commands_ask_it(world: World) -> None:
    before = await world.rows("lag", store="server:", group="packers")
    assert [(one["partition"], one["waiting"]) for one in before] == [("q", 3), ("q:2", 3)], "nobody has begun"
    lease = await world.lease(1, worker="node 7", group="packers", partition=2)
    await world.lease(3, worker="other", partition=2)
    listed = await world.rows("list", store="server:", group="packers")
    assert [(one["partition"], one["state"], one["worker"]) for one in listed] == [
        ("q", "waiting", ""), ("q:2", "processed", "node 7"),
    ]  # fmt: skip
    assert listed[1]["processed_until"].startswith("20") and not listed[0]["processed_until"]
    lags = await world.rows("lag", store="server:", group="packers")
    assert [(one["partition"], one["waiting"]) for one in lags] == [("q", 3), ("q:2", 2)]
    usual = await world.rows("lag", store="server:")
    assert [(one["partition"], one["waiting"]) for one in usual] == [("q", 3), ("q:2", 0)], "those that name no group"
    (failed,) = (await world.ask("GET", f"/q/lease/{lease}?limit=1"))["messages"]
    await world.ask("POST", f"/q/lease/{lease}", json={"failed": [{"message_id": failed["message_id"]}]})
    assert (await world.rows("lag", store="server:", group="packers"))[1]["retrying"] == 1
    every = await world.rows("lag", "--groups", store="server:")
    assert {(one["partition"], one["group"]) for one in every} == {("q:2", "packers"), ("q:2", "workers")}
    refused = await world.command_result("pause", "q", store="server:")
    assert refused.exit_code != 0 and "`headgate queue list` and `lag` show it" in str(refused.exception)


async def test_lag_is_reported_for_each_priority(world: World) -> None:
    assert (await world.command_result("post", "ranked", "x", "--priority", "low")).exit_code == 0
    rows = await world.rows("lag", store="server:")
    assert [(one["partition"], one["priority"], one["waiting"]) for one in rows] == [
        ("q", "", 3), ("q:2", "", 3), ("ranked", 1, 0), ("ranked:2", 2, 0), ("ranked:3", 3, 1),
    ]  # fmt: skip
    await world.ask("DELETE", "/ranked")
