"""Run two tenants in one process with virtual time, on a store in which any entry may turn into garbage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.base.tasks import end, run_until
from headgate.base.zstd import compress
from headgate.config.operator.model import Connection, Tenant
from headgate.gate.state.change import Change
from headgate.map.places import Map
from headgate.map.state import load
from headgate.map.tree import locate
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context, ProcessSettings
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.membership import Body, serve
from headgate.services.merger import Merger
from headgate.services.recorder import Recorder
from headgate.services.scheduler.scheduler import Scheduler
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import At, Entry, Op, Put
from headgate.testing.backends import WrappedBackend
from headgate.testing.gate import Remembered
from headgate.testing.layouts import parse_tenants
from headgate.testing.sim.doubles import SimForge, SimGit, SimRunner
from headgate.testing.sim.kinds import CHECK, SERVED
from headgate.testing.sim.worlds import BRANCH, HOST, SimWorld

TENANTS = """
- global-semaphore: {name: one, max: 2}
- tenant:
    name: t
    semaphores: [one]
    source: {sim: {config-projects: [config], untrusted-projects: [a, d]}}
- tenant:
    name: v
    semaphores: [one]
    source: {sim: {config-projects: [beside], untrusted-projects: [b]}}
"""
"""The tenants share the connection, the semaphore and all data that belongs to no single tenant."""
CONFIG = SERVED.replace("- semaphore: {name: one, max: 2}\n", "") + CHECK
NEIGHBOURS = frozenset({"v", f"{HOST}/beside", f"{HOST}/b"})
LANDS_WITHIN_S = 300.0
"""Virtual."""

Spoil = Callable[[bytes], bytes]

POINTER = b'{"type":"blob","digest":"%s","pieces":%d,"size_bytes":1}'
GARBAGE: Mapping[str, Spoil] = {
    "nothing": lambda value: b"",
    "no text": lambda value: b"\xff\xfe\x00",
    "another type": lambda value: b"[1, 2, 3]",
    "no object": lambda value: b"null",
    "no members": lambda value: b"{}",
    "cut short": lambda value: value[: len(value) // 2],
    "deep": lambda value: b"[" * 100_000,
    "half a character": lambda value: b'{"id":"\\ud800","name":"\\ud800","key":"\\ud800","error":"\\ud800"}',
    "a bomb": lambda value: compress(bytes(100_000_000)),
    "damaged while compressed": lambda value: compress(value)[:-3] + b"abc",
    "without its pieces": lambda value: POINTER % (b"0" * 32, 2),
    "in too many pieces": lambda value: POINTER % (b"0" * 32, 10**15),
}


class SpoiledBackend(WrappedBackend):
    """Replace the first entry of a template that is not the neighbour's at the moment when it appears."""

    def __init__(self, inner: MemoryBackend, template: str, spoil: Callable[[Entry], bytes]) -> None:
        super().__init__(inner)
        self._template, self._spoil = template, spoil
        self.templates: dict[str, Entry] = {}
        """All written templates, with one entry of each."""
        self.spoiled: Entry | None = None
        """The original entry."""
        self.done = asyncio.Event()

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        written = await self.inner.commit(checks, ops)
        for entry in written:
            if entry is None:
                continue
            found = locate(Map, Map().path, entry.path)
            if found is None or found.place is None or not NEIGHBOURS.isdisjoint(found.keys.values()):
                continue
            self.templates.setdefault(found.template, entry)
            if found.template == self._template and self.spoiled is None:
                put = Put(entry.path, self._spoil(entry), entry.lease)
                (self.spoiled,) = await self.inner.commit([], [put])
                self.done.set()
        return written


@dataclass(slots=True)
class Town:
    """Run the two tenants and the one process that serves them."""

    backend: SpoiledBackend
    config: str = CONFIG
    """Of both tenants."""
    more: str = ""
    """Further projects of the tenant t."""
    builds_max: int = 4
    """At a time."""
    world: SimWorld = field(init=False)
    history: Remembered = field(default_factory=Remembered)
    life: asyncio.Task[None] | None = None
    context: Context = field(init=False)
    """Tasks of the running process."""

    def __post_init__(self) -> None:
        self.world = SimWorld(
            random.Random(1),
            self.config + self.more,
            self.config,
            gating=("unit", "together") if self.config == CONFIG else ("unit",),
            pipelines={"check": "t", "gate": "t"},
            served=("together",) if self.config == CONFIG else (),
            returned={"much": "x" * 200_000} if self.config == CONFIG else {},
        )
        self.world.heads[f"{HOST}/d"] = "h"

    def start(self) -> None:
        self.life = asyncio.ensure_future(self._live())

    async def kill(self) -> None:
        if self.life is not None:
            await end(self.life)

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        store = Store(self.backend)
        context = Context(
            store, Mirror(store, Map().path), lambda: int((loop.time() + 1e6) * 1000), ProcessSettings("here")
        )
        self.context = context
        scheduler = Scheduler.of(context, TENANTS, _parsed(), "tenants.yaml", {"sim": SimForge(self.world)})
        bodies: dict[str, Body] = {
            "scheduler": scheduler.run,
            "web": Recorder(context, self.history).run,
            "executor": Executor(context, SimRunner(self.world, flaky=0.0), ExecutorSettings(self.builds_max)).run,
            "merger": Merger(context, SimGit(self.world)).run,
        }
        stop = asyncio.Event()
        await run_until(
            stop, context.mirror.run(), *(serve(context, kind, body, stop) for kind, body in bodies.items())
        )

    def propose(self, project: str, topic: str, *, approved: bool = True) -> Change:
        ref = f"refs/for/{BRANCH}/{topic}"
        change = Change("sim", f"{HOST}/{project}", BRANCH, topic, commit=f"c-{topic}", ref=ref, files=("x",))
        self.world.propose(change, approved=approved)
        return change

    async def waiting(self) -> int:
        """Return the items in pipelines."""
        return sum([await self.begun(pipeline, begun=False) for pipeline in ("check", "gate", "release")])

    async def begun(self, pipeline: str, *, begun: bool = True) -> int:
        """Return the items in a pipeline of t, by name."""
        place = Map().tenant("t").pipeline(pipeline)
        items = [item for _, item in load(place, await self.backend.list(place.path)).state.items()]
        return sum(item.buildset is not None or not begun for item in items)

    async def aside(self) -> list[Entry]:
        return list(await self.backend.list(Map().quarantine.path))

    async def lands(self, change: Change, within_s: float = LANDS_WITHIN_S) -> bool:
        try:
            async with asyncio.timeout(within_s):
                while change not in self.world.landed:
                    assert self.life is not None and not self.life.done(), f"the process ended: {self.life}"
                    await asyncio.sleep(1.0)
        except TimeoutError:
            return False
        return True


def _parsed() -> dict[str, Tenant]:
    return parse_tenants(TENANTS, "tenants.yaml", {"sim": Connection("sim", HOST)})
