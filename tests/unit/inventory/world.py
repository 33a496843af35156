"""Provide an inventory on a store in memory, with two partitions and two types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headgate.inventory.model import Caller, ObjectType, Partition
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.fsck import InventoryFinding, examine
from headgate.services.inventory.inventory import Inventory
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Backend
from tests.unit.inventory.objects import PARTITIONS

ADMIN = Caller("root", "blue", PARTITIONS[0], frozenset({"admin"}))
ALICE = Caller("alice", "blue", PARTITIONS[0])


class World:
    """`inventory` is one process; `another()` is a second one on the same store."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.store = Store(backend)
        self.places = InventoryMap()
        self.inventory = Inventory(self.store, self.places, lambda: 1_000)

    def another(self) -> Inventory:
        return Inventory(self.store, self.places, lambda: 2_000)

    async def findings(self) -> list[InventoryFinding]:
        return examine(self.places, await self.store.list(self.places.path))


@asynccontextmanager
async def running(*inventories: Inventory) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(one.journal.run()) for one in inventories]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def a_world(backend: Backend | None = None) -> AsyncIterator[World]:
    world = World(backend or MemoryBackend())
    await world.inventory.begin()
    async with running(world.inventory):
        for number, uuid in enumerate(PARTITIONS):
            await world.inventory.admin.create_partition(ADMIN, Partition(uuid, f"part{number}"))
        await world.inventory.admin.set_object_type(ADMIN, ObjectType("runm.image", "", True))
        yield world
