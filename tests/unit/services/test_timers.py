"""Test when timers of pipelines fire: each once, whatever else fires or changes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from headgate.config.cron import put_off, schedule
from headgate.map.places import Map
from headgate.map.records import BranchCache, ForPipeline
from headgate.recipes import blob, codec
from headgate.recipes.mirror import Mirror
from headgate.services.configuration import Configuration
from headgate.services.context import Context
from headgate.services.scheduler.timers import Timers
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Put
from headgate.testing.clock import run_virtual

START = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)
NOON = START + timedelta(hours=1)
PIPELINES = ("first", "second", "third")


def configuration(times: Mapping[str, str]) -> Configuration:
    """Return the timer settings of a tenant with one project of one branch."""
    pipelines = {
        name: SimpleNamespace(triggers=[SimpleNamespace(more={"time": (text,)})]) for name, text in times.items()
    }
    landed = SimpleNamespace(pipelines=pipelines, branches={"p": ("master",)}, takes_part=lambda *_: True)
    tenant = SimpleNamespace(projects=[SimpleNamespace(connection="git", project="p")])
    return cast(Configuration, SimpleNamespace(layouts=SimpleNamespace(landed=landed), tenant=tenant))


class Clockwork:
    """Simulate a store with the head of one branch, and timers in virtual time."""

    def __init__(self, times: Mapping[str, str]) -> None:
        self.store = Store(MemoryBackend())
        self.started_s = asyncio.get_running_loop().time()
        self.ahead = timedelta()
        mirror = Mirror(self.store, Map().path)
        self.context = Context(self.store, mirror, lambda: round((self.now + self.ahead).timestamp() * 1000))
        self.timers = Timers(self.context, {"t": configuration(times)})

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time() - self.started_s)

    async def until(self, moment: datetime) -> None:
        await asyncio.sleep((moment - self.now).total_seconds())

    async def run(self) -> None:
        places = self.context.map
        heads = msgspec.json.encode(BranchCache({"p": {"refs/heads/master": "c1"}}))
        await self.store.commit([], blob.ops(places.cache.connection("git").branches.data.path, heads))
        async with self.store.session("scheduler") as session, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.context.mirror.run())]
            await self.context.mirror.ready()
            tasks.append(group.create_task(self.timers.run(session)))
            await self.until(NOON + timedelta(hours=1))
            for task in tasks:
                task.cancel()

    async def layout_changes(self) -> None:
        await self.store.commit([], [Put(f"{self.context.map.layout.path}/any", str(self.now).encode())])

    async def fired(self) -> list[str]:
        entries = await self.store.list(self.context.map.events.tenant("t").path)
        found = (codec.readable(entry, ForPipeline) for entry in entries)
        return sorted(one.pipeline for one in found if one is not None)


def test_timers_of_one_time_all_go_off_though_jitter_parts_them() -> None:
    async def main() -> None:
        work = Clockwork(dict.fromkeys(PIPELINES, "0 12 * * * 0 600"))
        await work.run()
        assert await work.fired() == sorted(PIPELINES)

    run_virtual(main())


@pytest.mark.parametrize("jump_s", [0, 5], ids=["before its end", "after its end"])
def test_a_layout_that_changes_around_the_end_of_the_jitter_loses_no_timer(jump_s: int) -> None:
    text = "0 12 * * * 0 600"
    late = put_off(schedule(text), NOON, "t first")

    async def main() -> None:
        work = Clockwork({"first": text})

        async def change() -> None:
            await work.until(late - timedelta(seconds=1))
            # As after a pause of the process: it notices the layout before the timer.
            work.ahead = timedelta(seconds=jump_s)
            await work.layout_changes()

        await asyncio.gather(work.run(), change())
        assert await work.fired() == ["first"]

    run_virtual(main())
