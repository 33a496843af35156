"""Measure the inventory: costs, compared with reading and filtering everything, and with the store's own limit."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from headgate.base.ids import fresh
from headgate.inventory.filters import Filter, PropertyConditions, PropertyFilter
from headgate.inventory.journal import InventoryEvent, JournalKind, ObjectChange, ObjectHistory, Recorded
from headgate.inventory.model import ADMIN, Caller, Object, Partition
from headgate.map.inventory import entries
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.draft import Create
from headgate.services.inventory.inventory import Inventory
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.sqlite import SqliteBackend
from headgate.store.store import Store
from headgate.store.types import OPS_MAX, Backend, Op, Put, Unavailable
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.servers import databases
from headgate.testing.servers.databases import ZooKeeperKind as Zk
from headgate.testing.servers.databases import chroot, zookeeper_installed
from headgate.testing.servers.databases import zookeeper as served

PARTITION = "a" * 32
CALLER = Caller("bench", "blue", PARTITION, frozenset({ADMIN}))
TYPE = "runm.image"
ROUNDS = 20
SIZES = (1_000, 10_000, 100_000)
FILLING = 16
"""Simultaneous commits while an inventory is filled."""
LARGE_STORE = Zk(large=True)
"""A ZooKeeper with a large heap: it holds all data in memory."""


def an_object(number: int, size: int) -> Object:
    """Return an object: a hundred of them share `a`, a tenth share `b`, ten share both; half have the tag."""
    groups = max(1, size // 100)
    properties = {
        "a": str(number % groups),
        "b": str(number // groups % 10),
        "rack": f"r{number % 7}",
        "note": "x" * 60,
    }
    uuid = f"{number * 2_654_435_761 % 2**32:08x}{number:024x}"  # spread like random ones
    return Object(PARTITION, TYPE, "blue", uuid, f"name-{number:07}", properties, (f"t{number % 2}",))


async def fill(store: Store, places: InventoryMap, size: int) -> None:
    """Create objects as the service does, but many in one commit, and many commits at a time."""

    async def some(numbers: range) -> None:
        ops: list[Op] = []
        for number in numbers:
            one = an_object(number, size)
            indexes = entries.indexes(places, one, True)
            ops += [places.objects.by_uuid(one.uuid).record.put(one), *(Put(p, value) for p, value in indexes.items())]
        async with filling:
            while True:
                try:
                    await store.commit([], ops)
                    return
                except Unavailable:  # a server that collects garbage; writing it again changes nothing
                    await asyncio.sleep(1)

    filling = asyncio.Semaphore(FILLING)
    first = an_object(0, size)
    together = OPS_MAX // (1 + len(entries.indexes(places, first, True)))
    parts = [range(start, min(size, start + together)) for start in range(0, size, together)]
    # In parts: tens of thousands of coroutines at once would swell the process, whose memory is measured later.
    for start in range(0, len(parts), 100 * FILLING):
        await asyncio.gather(*(some(numbers) for numbers in parts[start : start + 100 * FILLING]))


async def median_ms(work: Callable[[int], Awaitable[object]], rounds: int = ROUNDS) -> float:
    found = []
    for number in range(rounds):
        began = time.perf_counter()
        await work(number)
        found.append((time.perf_counter() - began) * 1000)
    return statistics.median(found)


class Measured:
    """Measure an inventory of a certain size, in milliseconds."""

    def __init__(self, inventory: Inventory, size: int) -> None:
        self.inventory, self.size, self.store = inventory, size, inventory.facts.store

    def _new(self) -> Object:
        uuid = fresh()
        one = an_object(1, self.size)
        return Object(PARTITION, TYPE, "blue", uuid, f"new-{uuid}", one.properties, one.tags)

    async def create(self) -> tuple[float, float]:
        """Measure, in turns, a creation by the service and a transaction of the same entries without checks."""
        # In turns, so that whatever else the machine does hits both alike.
        created, raw = [], []
        for _ in range(3 * ROUNDS):
            new = self._new()
            began = time.perf_counter()
            await self.inventory.apply(CALLER, [Create(new)])
            created.append((time.perf_counter() - began) * 1000)
            ops = self._raw(self._new())
            began = time.perf_counter()
            await self.store.commit([], ops)
            raw.append((time.perf_counter() - began) * 1000)
        return statistics.median(created), statistics.median(raw)

    def _raw(self, new: Object) -> list[Op]:
        """Return this many operations of this many bytes."""
        places = self.inventory.places
        record = Recorded((ObjectChange(JournalKind.CREATED, None, new),), CALLER.user, CALLER.project, 1)
        past = ObjectHistory().and_then(InventoryEvent(JournalKind.CREATED, new, CALLER.user, CALLER.project, 1))
        return [
            places.objects.by_uuid(new.uuid).record.put(new),
            places.history.object(new.uuid).record.put(past),
            Put(f"{places.path}/raw/{new.uuid}", record.to_wire()),
            Put(f"{places.path}/raw", b""),
            *(Put(path, value) for path, value in entries.indexes(places, new, True).items()),
        ]

    async def get(self) -> float:
        return await median_ms(lambda n: self.inventory.get_named(CALLER, TYPE, "", f"name-{n * 7 % self.size:07}"))

    async def raw_get(self) -> float:
        return await median_ms(lambda n: self.store.get(self._record(n)))

    def _record(self, number: int) -> str:
        return self.inventory.places.objects.by_uuid(an_object(number, self.size).uuid).path

    async def search(self, *keys: str, tag: bool = False) -> tuple[float, int, int]:
        """Return the milliseconds of a search, its matches, and its reads of the store."""
        items = tuple(PropertyFilter(key, "3") for key in keys)
        wanted = PropertyConditions(require_items=items, require_tags=("t1",) if tag else ())
        one = Filter((PARTITION,), (TYPE,), "blue", wanted=wanted)
        # The first search may read what later ones have in memory; it is not counted.
        await self.inventory.page(CALLER, [one], limit=1_000)
        before = self.store.counts.reads
        matches = len((await self.inventory.page(CALLER, [one], limit=1_000)).objects)
        reads = self.store.counts.reads - before
        return await median_ms(lambda _: self.inventory.page(CALLER, [one], limit=1_000)), matches, reads

    async def page(self) -> float:
        one = Filter((PARTITION,), (TYPE,), "blue")
        return await median_ms(lambda _: self.inventory.page(CALLER, [one], limit=100))

    async def raw_page(self) -> float:
        """Measure the reading of a hundred names and their records."""
        places = self.inventory.places
        names = entries.names_of(places, PARTITION, TYPE, "blue")

        async def one(_: int) -> None:
            found = await self.store.scan(names, limit=100)
            await self.store.get_many([places.objects.by_uuid(name.value.decode()).record.path for name in found])

        return await median_ms(one)

    async def scan(self) -> float:
        """Measure the search that reads and filters all objects."""
        wanted = PropertyConditions(require_items=(PropertyFilter("a", "3"), PropertyFilter("b", "3")))

        async def one(_: int) -> None:
            found = await self.store.list(self.inventory.places.objects.path)
            [o for o in (Object.from_wire(entry.value) for entry in found) if wanted.holds(o)]

        # Three rounds only: each reads every object.
        return await median_ms(one, 3)

    async def watch(self) -> float:
        """Return the milliseconds from the answer to a change until a watcher receives it; negative if it receives it
        earlier."""
        found = []
        for _ in range(ROUNDS):
            event = asyncio.ensure_future(self._next_event_s(await self.inventory.journal.now()))
            # Let the watcher begin before the change.
            await asyncio.sleep(0)
            await self.inventory.apply(CALLER, [Create(self._new())])
            began = time.perf_counter()
            found.append((await event - began) * 1000)
        return statistics.median(found)

    async def _next_event_s(self, revision: int) -> float:
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
    with tempfile.TemporaryDirectory() as name, served(Path(name), LARGE_STORE) as server:
        backend = await ZooKeeperBackend.open(f"zookeeper://127.0.0.1:{server.port}{await chroot(server)}")
        yield backend
        await backend.close()


@asynccontextmanager
async def on_etcd() -> AsyncIterator[Backend]:
    with tempfile.TemporaryDirectory() as name, databases.etcd(Path(name)) as server:
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
        await inventory.journal.wait_for(await inventory.journal.now())
        yield Measured(inventory, size)
    finally:
        # The journal never ends on its own.
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def row(name: str, size: int) -> dict[str, str]:
    """Return figure -> value, for people; resident memory is measured before anything reads all objects."""
    async with STORES[name]() as backend, filled(backend, size) as measured:
        create, raw = await measured.create()
        get, raw_get = await measured.get(), await measured.raw_get()
        page, raw_page, watch = await measured.page(), await measured.raw_page(), await measured.watch()
        two, matches, reads = await measured.search("a", "b")
        one = await measured.search("a")
        tagged = await measured.search("a", "b", tag=True)
        rss = psutil.Process(os.getpid()).memory_info().rss
        scan = await measured.scan()
        return {
            "store": name,
            "objects": f"{size:,}",
            "create ms": f"{create:.2f} (raw transaction {raw:.2f}, {create / raw:.2f}x)",
            "get by name": f"{get:.2f} (raw get {raw_get:.2f})",
            f"one property ({one[1]})": f"{one[0]:.1f}",
            f"two ({matches})": f"{two:.1f}, {reads} reads",
            f"two and a tag ({tagged[1]})": f"{tagged[0]:.1f}",
            "page of 100": f"{page:.1f} (raw range and gets {raw_page:.1f})",
            "watch": f"{watch:.1f}",
            "read all and filter": f"{scan:.0f} ({scan / two:.0f}x)",
            "RSS MB": f"{rss / 1e6:.0f}",
        }


STORES = {
    "sqlite": sqlite,
    **({"etcd": on_etcd} if databases.etcd_installed() else {}),
    **({"zookeeper": zookeeper} if zookeeper_installed() else {}),
}


def measure(sizes: tuple[int, ...] = SIZES) -> list[dict[str, str]]:
    found = []
    for name in STORES:
        for size in sizes:
            found.append(apart(name, size))
    return found


def apart(name: str, size: int) -> dict[str, str]:
    """Measure in a separate process, so that other measurements' memory is not counted."""
    command = [sys.executable, "-m", "bench.inventory", name, str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(row(sys.argv[1], int(sys.argv[2])))))
