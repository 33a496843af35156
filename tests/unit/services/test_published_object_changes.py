"""Test messages about changes of the inventory: in order, each once, after any outage, and without contents of
objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from headgate.inventory.model import Object
from headgate.map.check import check
from headgate.map.places import Map
from headgate.ports.messages import PostedAlready, QueueGone, SourceDown
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.inventory import publication
from headgate.services.inventory.draft import Create, Remove, Update
from headgate.services.inventory.pool import MACHINE
from headgate.services.inventory.publication import ObjectPublisher, queue_of_partition
from headgate.services.membership import serve
from headgate.services.publisher import ServerPosts
from tests.unit.inventory.objects import PARTITIONS
from tests.unit.inventory.world import ADMIN, World, a_world


@dataclass(slots=True)
class Server:
    """Imitate a message server that accepts each post once, and loses every second answer."""

    queues: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    faltering: bool = False
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    _count: int = 0

    async def create(self, queue: str, partitions: int = 1) -> None:
        self.queues.setdefault(queue, [])

    async def partition_count(self, queue: str) -> int:
        if queue not in self.queues:
            raise QueueGone(queue)
        return 8

    async def post_many(
        self, queue: str, messages: Sequence[tuple[str, int | None]], key: str, *, ttl_s: int | None = None
    ) -> None:
        if key in self.keys:
            raise PostedAlready(key)
        self.keys.add(key)
        self.queues[queue] += [{**json.loads(body), "in": partition} for body, partition in messages]
        self.moved.set()
        self._count += 1
        if self.faltering and self._count % 2:
            raise SourceDown("its answer was lost")

    async def until(self, count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(60):
            while len(found := [one for some in self.queues.values() for one in some]) < count:
                self.moved.clear()
                await self.moved.wait()
        return found


@asynccontextmanager
async def publishing(world: World, server: Server) -> AsyncIterator[Context]:
    context, stop = Context(world.store, Mirror(world.store, Map().path), lambda: 1_000), asyncio.Event()
    publisher = ObjectPublisher(context, world.inventory, ServerPosts(server))
    tasks = [
        asyncio.ensure_future(context.mirror.run()),
        asyncio.ensure_future(serve(context, "scheduler", publisher.run, stop)),
    ]
    place = context.map.published_events.objects.published
    await context.mirror.ready()
    with context.mirror.part(place.path) as part:
        while context.mirror.get(place.path) is None:
            await part.moved(part.moves)
    yield context
    stop.set()
    await tasks[1]
    tasks[0].cancel()


def machine(number: int, at: int = 0) -> Object:
    return Object(PARTITIONS[at], MACHINE, "blue", f"{number:032x}", f"m{number}", {"secret": "s3cret"})


async def test_changes_are_published_once_in_order_and_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "PAUSE_FIRST_S", 0.001)
    server = Server(faltering=True)
    async with a_world() as world:
        await world.inventory.apply(ADMIN, [Create(machine(9))])
        async with publishing(world, server):
            await world.inventory.apply(ADMIN, [Create(machine(1)), Create(machine(2))])
            await world.inventory.apply(ADMIN, [Update(machine(1).uuid, add_tags=("good",))])
            await world.inventory.apply(ADMIN, [Remove(machine(2).uuid)])
            await server.until(4)
        await world.inventory.apply(ADMIN, [Remove(machine(1).uuid)])  # while nobody posts
        async with publishing(world, server) as context:
            found = await server.until(5)
            assert not check(context.mirror.under(context.map.path)).unknown
    assert list(server.queues) == ["inventory-part0"]
    assert [(one["kind"], one["name"], one["user"]) for one in found] == [
        ("object-created", "m1", "root"),
        ("object-created", "m2", "root"),
        ("object-updated", "m1", "root"),
        ("object-deleted", "m2", "root"),
        ("object-deleted", "m1", "root"),
    ]
    assert len({one["id"] for one in found}) == 5 and "s3cret" not in json.dumps(found)
    assert len({one["in"] for one in found if one["name"] == "m1"}) == 1, "all of an object keeps its order"


async def test_changes_that_the_journal_no_longer_has_are_skipped_and_later_ones_published() -> None:
    server = Server()
    async with a_world() as world:
        world.inventory.journal._entries_max = 2
        async with publishing(world, server):
            await world.inventory.apply(ADMIN, [Create(machine(1))])
            await server.until(1)
        for number in range(2, 12):
            written = await world.inventory.apply(ADMIN, [Create(machine(number))])
            await world.inventory.journal.wait_for(written.revision)
        async with publishing(world, server) as context:
            place = context.map.published_events.objects.published
            with context.mirror.part(place.path) as part:
                while place.decode(context.mirror.get(place.path).value).revision < written.revision:  # type: ignore[union-attr]  # it is there
                    await part.moved(part.moves)
            await world.inventory.apply(ADMIN, [Create(machine(20))])
            assert [one["name"] for one in await server.until(2)] == ["m1", "m20"]


def test_a_partition_of_any_name_has_a_queue() -> None:
    assert queue_of_partition("site1") == "inventory-site1"
    assert len(queue_of_partition("ein Ort " * 20)) <= 50 and queue_of_partition("a b") != queue_of_partition("a-b")
