"""Test that occasions that end without an answer free their places, and that paused pipelines start nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.git.forge import GitForge
from headgate.config.model import TriggerFilter
from headgate.gate.state.change import EventKind, Occasion
from headgate.map.connections import Begun
from headgate.map.queues import TenantState
from headgate.ports.forge import Sighting
from headgate.ports.occasions import NextOccasion, OccasionPartition
from headgate.recipes.codec import encode
from headgate.services.orders import ordered
from headgate.services.scheduler.occasions import runner
from headgate.store.memory import MemoryBackend
from headgate.store.types import Put
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from tests.waiting import nothing_happens

from .conftest import TENANTS
from .test_message_triggers import repositories

__all__ = ["repositories"]  # a fixture


@dataclass(slots=True)
class Lines:
    """Imitate `ports.occasions.OccasionSource` with one partition and consecutive numbers."""

    name: str = "bus"
    of_a_partition_max: int = 10
    numbers: int = 0
    stirred: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, count: int) -> None:
        self.numbers += count
        self.stirred.set()

    async def partitions(self, trigger: TriggerFilter) -> Sequence[OccasionPartition]:
        return [OccasionPartition("orders", "1")]

    async def start(self, trigger: TriggerFilter, partition: OccasionPartition) -> str:
        return "0"

    async def after(
        self, trigger: TriggerFilter, partition: OccasionPartition, position: str, limit: int
    ) -> Sequence[NextOccasion]:
        new = range(int(position) + 1, self.numbers + 1)[:limit]
        return [
            NextOccasion(str(n), EventKind.POSTED, Occasion("bus", "orders", "1", str(n), f"line {n}")) for n in new
        ]

    async def stirs(self) -> AsyncIterator[Collection[OccasionPartition] | None]:
        while True:
            yield None
            await self.stirred.wait()
            self.stirred.clear()


async def test_messages_that_arrive_before_the_first_poll_of_a_project_wait_for_it(
    tmp_path: Path, repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, look = asyncio.Event(), GitForge.sightings

    async def sightings(*arguments: Any) -> AsyncIterator[Sighting]:
        await seen.wait()
        async for one in look(*arguments):
            yield one

    monkeypatch.setattr(GitForge, "sightings", sightings)
    monkeypatch.setattr(runner, "PAUSE_FIRST_S", 0.05)
    lines = Lines()
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, watched={"bus": ("queue", lines)}) as running:
        problems, mirror = running.context.map.cache.connection("bus").problems.path, running.context.mirror
        lines.say(2)
        async with asyncio.timeout(DEADLINE_S):
            with mirror.part(problems) as part:
                while b"have not been read yet" not in getattr(mirror.get(problems), "value", b""):
                    await part.moved(part.moves)
            assert not running.runner.ran
            seen.set()
            await running.runner.begun(2)
        ran = [spec.change.occasion.id for spec in running.runner.ran if spec.change.occasion is not None]
        assert ran == ["1", "2"]


async def test_slots_of_lost_occasions_become_free_and_a_paused_or_discarding_tenant_starts_nothing(
    tmp_path: Path, repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LOOK_S", 0.05)
    lines = Lines()
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, watched={"bus": ("queue", lines)}) as running:
        context, mirror = running.context, running.context.mirror
        place = context.map.cache.connection("bus").occasions
        lost = [Begun("example", "orders", "orders", "1", f"x{n}") for n in range(8)]
        lost += [Begun("gone", "orders", "orders", "1", "y"), Begun("example", "none", "orders", "1", "z")]
        await context.store.commit([], [Put(f"{place.begun.path}/{n}", encode(one)) for n, one in enumerate(lost)])
        lines.say(3)
        async with asyncio.timeout(DEADLINE_S):
            await running.runner.begun(3)
            while mirror.under(place.begun.path):
                await mirror.moved(mirror.moves)

            await ordered(context, "example", lambda now: TenantState(trigger_queue_paused=True))
            lines.say(2)
            await nothing_happens(lambda: running.runner.ran[3:], for_s=0.2)  # it waits while the pipeline is paused
            await ordered(context, "example", lambda now: TenantState())
            lines.say(1)
            await running.runner.begun(6)

            await ordered(context, "example", lambda now: TenantState(trigger_queue_discarding=True))
            lines.say(2)
            (taken,) = mirror.under(place.taken.path)
            with mirror.part(place.taken.path) as part:
                while place.taken.decode(mirror.get(taken.path).value).position != "8":  # type: ignore[union-attr]  # it is there
                    await part.moved(part.moves)
            await ordered(context, "example", lambda now: TenantState())
            lines.say(1)
            await running.runner.begun(7)
        assert [spec.zuul["trigger"] for spec in running.runner.ran] == [{}] * 7
        ran = [spec.change.occasion.id for spec in running.runner.ran if spec.change.occasion is not None]
        assert ran == ["1", "2", "3", "4", "5", "6", "9"], "in order, each once, but for what was to be discarded"
