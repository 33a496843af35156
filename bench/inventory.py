"""The inventory: what things cost, beside reading everything and filtering, and beside the store's own limit."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from headgate.base.ids import fresh
from headgate.inventory.filters import Filter, Item, Wanted
from headgate.inventory.model import ADMIN, Caller, Object, Partition
from headgate.map.inventory import entries
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.draft import Create
from headgate.services.inventory.inventory import Inventory
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.sqlite import SqliteBackend
from headgate.store.store import Store
from headgate.store.types import OPS_MAX, Backend, Op, Put
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.servers import etcd
from headgate.testing.servers.zookeeper import chroot, installed
from headgate.testing.servers.zookeeper import zookeeper as served

PARTITION = "a" * 32
CALLER = Caller("bench", "blue", PARTITION, frozenset({ADMIN}))
TYPE = "runm.image"
ROUNDS = 20
SIZES = (1_000, 10_000, 100_000)
LARGE = 20_000
"""More than this only on stores that hold it in reasonable time."""


def an_object(number: int, size: int) -> Object:
    """A hundred share `a`, a tenth `b`, ten both; half have the tag."""
    groups = max(1, size // 100)
    properties = {
        "a": str(number % groups),
        "b": str(number // groups % 10),
        "rack": f"r{number % 7}",
        "note": "x" * 60,
    }
    return Object(PARTITION, TYPE, "blue", f"{number:032x}", f"name-{number:07}", properties, (f"t{number % 2}",))


async def fill(store: Store, places: InventoryMap, size: int) -> None:
    """As the service would, but many objects a commit."""
    ops: list[Op] = []
    for number in range(size):
        one = an_object(number, size)
        record = places.objects.by_uuid(one.uuid).record
        puts = [Put(path, value) for path, value in entries.indexes(places, one, True).items()]
        if len(ops) + len(puts) >= OPS_MAX - 1:
            await store.commit([], ops)
            ops = []
        ops += [record.put(one), *puts]
    await store.commit([], ops)


async def median_ms(work: Callable[[int], Awaitable[object]], rounds: int = ROUNDS) -> float:
    found = []
    for number in range(rounds):
        began = time.perf_counter()
        await work(number)
        found.append((time.perf_counter() - began) * 1000)
    return statistics.median(found)


class Measured:
    """One inventory of a size; each method answers milliseconds."""

    def __init__(self, inventory: Inventory, size: int) -> None:
        self.inventory, self.size, self.store = inventory, size, inventory.facts.store

    def _new(self) -> Object:
        uuid = fresh()
        one = an_object(1, self.size)
        return Object(PARTITION, TYPE, "blue", uuid, f"new-{uuid}", one.properties, one.tags)

    async def create(self) -> float:
        return await median_ms(lambda _: self.inventory.apply(CALLER, [Create(self._new())]))

    async def raw_create(self) -> float:
        """One transaction of the same entries."""

        async def one(_: int) -> None:
            new = self._new()
            found = entries.indexes(self.inventory.places, new, True)
            record = self.inventory.places.objects.by_uuid(new.uuid).record.put(new)
            history = Put(self.inventory.places.history.object(new.uuid).record.path, new.to_wire())
            told = [
                Put(f"{self.inventory.places.path}/raw/{new.uuid}", new.to_wire()),
                Put(f"{self.inventory.places.path}/raw", b""),
            ]
            await self.store.commit([], [record, history, *told, *(Put(p, v) for p, v in found.items())])

        return await median_ms(one)

    async def get(self) -> float:
        return await median_ms(lambda n: self.inventory.get_named(CALLER, TYPE, "", f"name-{n * 7 % self.size:07}"))

    async def raw_get(self) -> float:
        return await median_ms(lambda n: self.store.get(self.inventory.places.objects.by_uuid(f"{n:032x}").path))

    async def search(self, *keys: str, tag: bool = False) -> tuple[float, int, int]:
        """Milliseconds, matches, reads of the store."""
        items = tuple(Item(key, "3") for key in keys)
        wanted = Wanted(require_items=items, require_tags=("t1",) if tag else ())
        one = Filter((PARTITION,), (TYPE,), "blue", wanted=wanted)
        await self.inventory.page(CALLER, [one], limit=1_000)
        before = self.store.counts.reads
        matches = len((await self.inventory.page(CALLER, [one], limit=1_000)).objects)
        reads = self.store.counts.reads - before
        return await median_ms(lambda _: self.inventory.page(CALLER, [one], limit=1_000)), matches, reads

    async def page(self) -> float:
        one = Filter((PARTITION,), (TYPE,), "blue")
        return await median_ms(lambda _: self.inventory.page(CALLER, [one], limit=100))

    async def scan(self) -> float:
        """The way of reading every object and looking at each."""
        wanted = Wanted(require_items=(Item("a", "3"), Item("b", "3")))

        async def one(_: int) -> None:
            found = await self.store.list(self.inventory.places.objects.path)
            [o for o in (Object.from_wire(entry.value) for entry in found) if wanted.holds(o)]

        return await median_ms(one, 3)

    async def watch(self) -> float:
        """From the answer to a change until a watcher is told of it; negative: it was told before."""
        found = []
        for _ in range(ROUNDS):
            told = asyncio.ensure_future(self._told(await self.inventory.journal.now()))
            await asyncio.sleep(0)
            await self.inventory.apply(CALLER, [Create(self._new())])
            began = time.perf_counter()
            found.append((await told - began) * 1000)
        return statistics.median(found)

    async def _told(self, revision: int) -> float:
        async for changes, _ in self.inventory.changes(CALLER, [], revision, quiet_s=10):
            if changes:
                return time.perf_counter()
        raise AssertionError("a watch does not end")


@asynccontextmanager
async def sqlite() -> AsyncIterator[Backend]:
    with tempfile.TemporaryDirectory() as name:
        backend = await SqliteBackend.open(Path(name) / "store.sqlite")
        yield backend
        await backend.close()


@asynccontextmanager
async def zookeeper() -> AsyncIterator[Backend]:
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as server:
        backend = await ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{server.port}{await chroot(server)}")
        yield backend
        await backend.close()


@asynccontextmanager
async def on_etcd() -> AsyncIterator[Backend]:
    with tempfile.TemporaryDirectory() as name, etcd.etcd(Path(name)) as server:
        backend = await EtcdBackend.open(f"etcd://127.0.0.1:{server.port}")
        yield backend
        await backend.close()


@asynccontextmanager
async def filled(backend: Backend, size: int) -> AsyncIterator[Measured]:
    store = Store(backend)
    inventory = Inventory(store, InventoryMap(), lambda: int(time.time() * 1000))
    await inventory.begin()
    running = asyncio.ensure_future(inventory.journal.run())
    try:
        await inventory.admin.create_partition(CALLER, Partition(PARTITION, "site"))
        await fill(store, inventory.places, size)
        await inventory.journal.reach(await inventory.journal.now())
        yield Measured(inventory, size)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def row(name: str, size: int) -> dict[str, str]:
    """Figure -> value, for people."""
    async with STORES[name]() as backend, filled(backend, size) as measured:
        two, matches, reads = await measured.search("a", "b")
        one = await measured.search("a")
        tagged = await measured.search("a", "b", tag=True)
        create, raw = await measured.create(), await measured.raw_create()
        scan = await measured.scan()
        rss = psutil.Process(os.getpid()).memory_info().rss
        return {
            "store": name,
            "objects": f"{size:,}",
            "create ms": f"{create:.2f} ({create / raw:.2f}x)",
            "get by name": f"{await measured.get():.2f} (raw get {await measured.raw_get():.2f})",
            f"one property ({one[1]})": f"{one[0]:.1f}",
            f"two ({matches})": f"{two:.1f}, {reads} reads",
            f"two and a tag ({tagged[1]})": f"{tagged[0]:.1f}",
            "page of 100": f"{await measured.page():.1f}",
            "watch": f"{await measured.watch():.1f}",
            "read all and filter": f"{scan:.0f} ({scan / two:.0f}x)",
            "RSS MB": f"{rss / 1e6:.0f}",
        }


STORES = {
    "sqlite": sqlite,
    **({"etcd": on_etcd} if etcd.installed() else {}),
    **({"zookeeper": zookeeper} if installed() else {}),
}


def measure(sizes: tuple[int, ...] = SIZES) -> list[dict[str, str]]:
    found = []
    for name in STORES:
        for size in sizes:
            if name != "zookeeper" or size <= LARGE:
                found.append(asyncio.run(row(name, size)))
    return found


if __name__ == "__main__":
    for line in measure():
        print(line, flush=True)
