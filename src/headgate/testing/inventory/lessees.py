"""Simulate leases under random schedules and crashes: same seed, same run.

Several servers serve several users; they die and lose their connection at random requests.  After every commit, all
active leases are added up from the records: together they hold no more of an object than it has, an exclusive lease is
the only one of its object, and no project exceeds its quota.  In the end every lease is returned.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction

from headgate.base.ids import drawn_from
from headgate.base.tasks import run_until, unless
from headgate.inventory.leases import ENDED, HELD, WAITING, ObjectLease, Quota
from headgate.inventory.model import ADMIN, Caller, Object, Partition
from headgate.inventory.names import Invalid
from headgate.map.inventory.places import InventoryMap
from headgate.services.inventory.draft import Create
from headgate.services.inventory.errors import InventoryError
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.leases import ObjectLeasing
from headgate.services.inventory.quotas import Quotas
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import At, Backend, Entry, Op, StoreError
from headgate.testing.backends import SimFault, SimLink
from headgate.testing.clock import run_virtual

PARTITION = "c" * 32
ROOT = Caller("root", "lab", PARTITION, frozenset({ADMIN}))
TYPE = "runm.provider"
SERVERS, USERS, TURNS = 3, 5, 6
TIME_MAX_S = 3_000.0
LOOK_INTERVAL_S = 10.0
DEATHS_MAX = 2
SURVIVED = tuple(fault for fault in SimFault if fault is not SimFault.DEATH)
QUOTA = 40
"""Quota of the property space, for each project at a time."""


class LeaseInvariantBroken(AssertionError):
    """Report that an invariant does not hold."""


def judge(tree: Sequence[Entry], places: InventoryMap) -> None:  # noqa: C901 - one rule after the other
    """Add up the leases that are held. Raise LeaseInvariantBroken."""
    capacity: dict[str, dict[str, str]] = {}
    held: dict[str, list[ObjectLease]] = {}
    spaces: dict[str, Fraction] = {}
    for entry in tree:
        if entry.path.startswith(f"{places.objects.by_uuid.path}/"):
            one = Object.from_wire(entry.value)
            capacity[one.uuid] = dict(one.properties)
        elif entry.path.startswith(f"{places.leases.active.path}/"):
            lease = places.leases.active.lease("_").record.decode(entry.value)
            if lease.state != WAITING:
                held.setdefault(lease.object, []).append(lease)
    for uuid, several in held.items():
        # A lease without amounts takes the entire object.
        if any(not lease.amounts for lease in several) and len(several) > 1:
            raise LeaseInvariantBroken(f"{uuid} is leased exclusively, and to {[lease.user for lease in several]}")
        for key in {key for lease in several for key in lease.amounts}:
            taken = sum((Fraction(lease.amounts.get(key, "0")) for lease in several), Fraction())
            if taken > Fraction(capacity[uuid].get(key, "0")):
                raise LeaseInvariantBroken(f"{taken} {key} of {uuid} are given, which has {capacity[uuid].get(key)}")
        for lease in several:
            space = lease.amounts.get("space", "0") if lease.amounts else capacity[uuid].get("space", "0")
            # Fractions, since a sum of floats could exceed a limit that it only reaches.
            spaces[lease.project] = spaces.get(lease.project, Fraction()) + Fraction(space)
    if over := {project: space for project, space in spaces.items() if space > QUOTA}:
        raise LeaseInvariantBroken(f"projects have more than {QUOTA}: {over}")


class LeaseOracle(MemoryBackend):
    """Check everything after every commit."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[LeaseInvariantBroken] = []
        self.most = 0
        """Largest number of leases held at a time."""

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        written = await super().commit(checks, ops)
        places = InventoryMap()
        try:
            judge(self.tree.under(""), places)
        except LeaseInvariantBroken as broken:
            self.wrong.append(broken)
        # Do not count the directory of the leases, which is itself an entry.
        self.most = max(self.most, len(self.tree.under(places.leases.active.path)) - 1)
        return written


MakeLeasing = Callable[[Inventory], ObjectLeasing]


class LeasingSimulation:
    """Simulate leases with one seed."""

    def __init__(self, seed: int, leasing: MakeLeasing = ObjectLeasing) -> None:
        """Let the servers run `leasing`."""
        self.seed, self._leasing = seed, leasing
        self.deaths = self.given = self.most = 0

    def run(self) -> None:
        """Run the simulation. Raise LeaseInvariantBroken, naming the seed."""
        try:
            run_virtual(self._run())
        except LeaseInvariantBroken as broken:
            raise LeaseInvariantBroken(f"seed {self.seed}: {broken}") from broken

    async def _run(self) -> None:
        chance, backend, stop = random.Random(self.seed), LeaseOracle(), asyncio.Event()
        with drawn_from(chance.getrandbits):
            await self._play(chance, backend, stop)

    async def _play(self, chance: random.Random, backend: LeaseOracle, stop: asyncio.Event) -> None:
        await _furnish(backend, chance)
        processes = [self._server(backend, chance, stop) for _ in range(SERVERS)]
        running = asyncio.ensure_future(run_until(stop, *processes))
        users = asyncio.gather(*(self._user(number, backend, chance) for number in range(USERS)))
        try:
            async with asyncio.timeout(TIME_MAX_S):
                await users
                while len(backend.tree.under(InventoryMap().leases.active.path)) > 1:
                    await asyncio.sleep(LOOK_INTERVAL_S)
                    if running.done():
                        await running
        except TimeoutError:
            left = [entry.path for entry in backend.tree.under(InventoryMap().leases.active.path)]
            raise (backend.wrong or [LeaseInvariantBroken(f"not quiet after {TIME_MAX_S:.0f} s: {left}")])[0] from None
        finally:
            stop.set()
            await asyncio.gather(running, users, return_exceptions=True)
        self.most = backend.most
        if backend.wrong:
            raise backend.wrong[0]

    async def _server(self, inner: MemoryBackend, chance: random.Random, stop: asyncio.Event) -> None:
        """Run a server that meets faults, dies and is started again, a few times."""
        lives = chance.randrange(DEATHS_MAX + 1)
        while not stop.is_set():
            link = SimLink(inner, chance, _faults(chance, dies=lives > 0))
            lives -= 1
            try:
                await unless(link.died, self._life(link, stop))
            except Exception:
                if not link.died.is_set():
                    raise
            if not link.died.is_set():
                return
            self.deaths += 1

    async def _life(self, backend: Backend, stop: asyncio.Event) -> None:
        inventory = _inventory(backend)
        await run_until(stop, inventory.journal.run(), self._leasing(inventory).run())

    async def _user(self, number: int, inner: MemoryBackend, chance: random.Random) -> None:
        """Lease an object, keep it for a while, and return it or let the lease expire, in a loop."""
        link = SimLink(inner, chance, _faults(chance, dies=False))
        inventory = _inventory(link)
        journal = asyncio.ensure_future(inventory.journal.run())
        leasing = self._leasing(inventory)
        caller = Caller(f"u{number}", ("red", "blue")[number % 2], PARTITION)
        try:
            for _ in range(TURNS):
                with suppress(StoreError, InventoryError, Invalid):
                    await self._turn(leasing, caller, chance)
                await asyncio.sleep(chance.random() * 20)
        finally:
            journal.cancel()
            await asyncio.gather(journal, return_exceptions=True)

    async def _turn(self, leasing: ObjectLeasing, caller: Caller, chance: random.Random) -> None:
        amounts = chance.choice(({}, {"space": str(chance.randrange(1, 17))}, {"space": "8.5", "ports": "1"}))
        search = f"type={TYPE} {chance.choice(('', 'fast', 'space>=20'))}"
        wanted = ObjectLease("", "", "", "", search, chance.randrange(5, 60), 0, amounts=amounts)
        lease = await leasing.ask(caller, wanted, wait_s=chance.randrange(10, 200))
        await asyncio.sleep(chance.random() * 40)
        lease, _ = await leasing.get(caller, lease.id)
        if lease.state == HELD:
            self.given += 1
            if chance.random() < 0.3:
                await leasing.extend(caller, lease.id, chance.randrange(5, 60))
                await asyncio.sleep(chance.random() * 40)
        if chance.random() < 0.6:
            assert (await leasing.end(caller, lease.id)).state == ENDED


def _faults(chance: random.Random, *, dies: bool) -> dict[int, SimFault]:
    found: dict[int, SimFault] = {chance.randrange(3, 200): chance.choice(SURVIVED) for _ in range(3)}
    if dies:
        found[chance.randrange(3, 200)] = SimFault.DEATH
    return found


def _inventory(backend: Backend) -> Inventory:
    loop = asyncio.get_running_loop()
    return Inventory(Store(backend), InventoryMap(), lambda: 1_000_000 + int(loop.time() * 1_000))


async def _furnish(backend: MemoryBackend, chance: random.Random) -> None:
    """Create a few things with space, and a quota of it."""
    inventory = _inventory(backend)
    await inventory.begin()
    await inventory.admin.create_partition(ROOT, Partition(PARTITION, "site"))
    for number in range(chance.randrange(2, 4)):
        properties = {"space": chance.choice(("16", "24.5", "32")), "ports": "2", **({"fast": "yes"} if number else {})}
        await inventory.apply(ROOT, [Create(Object(PARTITION, TYPE, "", f"{number:032x}", f"t{number}", properties))])
    await Quotas(inventory).set(ROOT, Quota("space", PARTITION, project="*", property="space", most=str(QUOTA)))
