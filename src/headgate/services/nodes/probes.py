"""Probe whether unused machines are healthy: a machine that does not answer is out of use until it does."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.base.tasks import end
from headgate.inventory.filters import Filter, PropertyConditions, PropertyFilter
from headgate.inventory.health import MISSED_MAX, NONE, PROBE, PROBE_INTERVAL, interval_s
from headgate.inventory.model import KIND, PROVIDER, STATIC, Object
from headgate.inventory.permissions import PROVIDED
from headgate.ports.clouds import Machine, MachineUnusable, Provider
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.pool import MACHINE, HealthMonitor
from headgate.services.nodes.search import LAUNCHER
from headgate.store.types import At

log = logging.getLogger("headgate.launcher")

PROBES_MAX = 20
"""Limit on the concurrent probes."""
AGAIN_S = 10.0
"""Time after which a machine that did not answer is probed again, until it counts as unhealthy."""
LISTED_INTERVAL_S = 30.0
"""Shortest interval between two listings of machines, which also take at most a twentieth of the time."""
WHY_MAX = 200
"""Limit on the stored characters of a failure."""


@dataclass(slots=True)
class _Known:
    """Hold a machine that is probed."""

    object: Object
    provider: Object
    interval_s: float
    due_s: float
    """Time of the next probe, in the loop's time."""


class Probing:
    """Probe unused machines. Call `run` under the launcher's lock; `inventory.journal.run()` must be running."""

    def __init__(
        self,
        inventory: Inventory,
        providers: Mapping[str, Provider],
        interval_s: float,
        taken: Callable[[], Collection[str]],
        guard: At,
    ) -> None:
        """Create a prober. `interval_s` applies to machines without their own interval; 0 means that these are not
        probed. `taken` returns the machines in use."""
        self._inventory, self._providers, self._interval_s = inventory, providers, interval_s
        self._taken, self._guard, self._healths = taken, guard, HealthMonitor(inventory)
        self._known: dict[str, _Known] = {}
        self._line: list[tuple[float, str]] = []
        """Times at which machines are due, the next one first."""
        self._running: dict[str, asyncio.Task[float]] = {}
        self._well: set[str] = set()
        """Machines that the store records as healthy."""
        self._listed, self._list_again_s = -1, 0.0
        """Revision of the list of machines, and the time from which it may be made again."""

    async def run(self) -> None:
        """Probe until cancelled.  Raise GuardLost, Unavailable, Stale."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                # The revision is read before the list, so that a change in the meantime causes another listing.
                seen = self._inventory.journal.latest
                if seen != self._listed and loop.time() >= self._list_again_s:
                    await self._list(seen)
                for uuid in [uuid for uuid, task in self._running.items() if task.done()]:
                    self._again(uuid, self._running.pop(uuid).result())
                self._begin()
                await self._wait()
        finally:
            await end(*self._running.values())

    async def _list(self, moment: int) -> None:
        """Load the list of machines; new ones are due immediately."""
        loop = asyncio.get_running_loop()
        began_s, found = loop.time(), dict[str, _Known]()
        for partition, _ in await self._inventory.admin.partitions():
            async for provider in self._every(partition.uuid, PROVIDER, PropertyFilter(KIND, STATIC)):
                async for one in self._every(partition.uuid, MACHINE, PropertyFilter(PROVIDED, provider.name)):
                    if (pause_s := self._pause_s(one, provider)) > 0:
                        found[one.uuid] = _Known(one, provider, pause_s, self._due_s(one.uuid, pause_s, began_s))
        self._known, self._well = found, self._well & found.keys()
        # Machines whose probe is under way come back to the line when it ends.
        self._line = [(one.due_s, uuid) for uuid, one in found.items() if uuid not in self._running]
        heapq.heapify(self._line)
        self._listed = moment
        self._list_again_s = loop.time() + max(LISTED_INTERVAL_S, 20 * (loop.time() - began_s))

    async def _every(self, partition: str, type: str, item: PropertyFilter) -> AsyncIterator[Object]:
        wanted = Filter((partition,), (type,), wanted=PropertyConditions(require_items=(item,)))
        async for found in self._inventory.every(replace(LAUNCHER, partition=partition), [wanted]):
            yield found.object

    def _due_s(self, uuid: str, pause_s: float, now_s: float) -> float:
        known = self._known.get(uuid)
        # A shorter interval applies immediately, a longer one after the next probe.
        return min(known.due_s, now_s + pause_s) if known else now_s

    def _pause_s(self, machine: Object, provider: Object) -> float:
        """Return the seconds until the next probe of the machine; 0: it is not probed."""
        properties = {**provider.properties, **{key: value for key, value in machine.properties.items() if value}}
        if properties.get(PROBE) == NONE:
            return 0.0
        try:
            return interval_s(properties.get(PROBE_INTERVAL, ""), self._interval_s)
        except ValueError as error:
            log.error("machine %s: %s", machine.name, error)
            return self._interval_s

    def _begin(self) -> None:
        """Probe machines that are due, within the limit; machines in use are due later."""
        now_s, taken = asyncio.get_running_loop().time(), self._taken()
        while self._line and self._line[0][0] <= now_s and len(self._running) < PROBES_MAX:
            _, uuid = heapq.heappop(self._line)
            one = self._known[uuid]
            # A build may reboot its machine, so machines in use are not probed.
            if uuid in taken:
                self._again(uuid, one.interval_s)
            else:
                self._running[uuid] = asyncio.ensure_future(self._probe(one))

    async def _probe(self, one: _Known) -> float:
        """Probe the machine; return the seconds until its next probe."""
        uuid, why = one.object.uuid, ""
        machine = Machine(one.object.name, one.object.properties, one.provider.properties, "")
        try:
            await self._providers[STATIC].probe(machine)
        except MachineUnusable as error:
            why = str(error)[:WHY_MAX] or "it does not answer"
        # A machine that was taken during the probe may have been rebooted by its user, and an unchanged result needs no
        # write.
        if uuid in self._taken() or (not why and uuid in self._well):
            return one.interval_s
        self._well.discard(uuid)
        health = await self._healths.probed(uuid, why, [self._guard])
        if not why:
            self._well.add(uuid)
        # A failure is confirmed quickly, but a machine that counts as unhealthy is probed no more often than others.
        return AGAIN_S if why and health.missed < MISSED_MAX else one.interval_s

    def _again(self, uuid: str, pause_s: float) -> None:
        if (one := self._known.get(uuid)) is not None:
            one.due_s = asyncio.get_running_loop().time() + min(pause_s, one.interval_s)
            heapq.heappush(self._line, (one.due_s, uuid))

    async def _wait(self) -> None:
        """Wait until a probe is due or has ended, or until machines may be listed again because something changed."""
        loop, moves = asyncio.get_running_loop(), list[asyncio.Future[object]]()
        ends = [self._line[0][0]] if self._line and len(self._running) < PROBES_MAX else []
        if self._inventory.journal.latest != self._listed:
            ends.append(self._list_again_s)
        else:
            moves.append(asyncio.ensure_future(self._inventory.journal.passed(self._inventory.journal.revision)))
        waits: list[asyncio.Future[object]] = [*moves, *self._running.values()]  # type: ignore[list-item]  # of anything
        timeout_s = max(0.0, min(ends) - loop.time()) if ends else None
        try:
            if waits:
                await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(timeout_s or 0.0)
        finally:
            await end(*moves)
