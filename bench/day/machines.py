"""Run the process whose builds take their time and execute nothing.

`python -m bench.day.machines URL PROJECTS CHANGES MINUTE_S`
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time

from headgate.base.tasks import run_until
from headgate.map.places import Map
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.executor import Executor, ExecutorSettings
from headgate.services.membership import serve
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.store import Store
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.day.people import DayMachines
from headgate.testing.day.plan import DayPlan

BUILDS_MAX = 2_000
"""Builds at a time; no build waits for a machine."""


async def main(url: str, plan: DayPlan, minute_s: float) -> None:
    """Work until SIGTERM, then print the number of builds and of their requests."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    kind = EtcdBackend if url.startswith("etcd") else ZooKeeperBackend
    backend = await kind.open(url)
    store = Store(backend)
    context = Context(store, Mirror(store, Map().path), lambda: int(time.time() * 1000))
    machines = DayMachines(plan, minute_s)
    executor = Executor(context, machines, ExecutorSettings(BUILDS_MAX))
    await run_until(stop, context.mirror.run(), serve(context, "executor", executor.run, stop))
    print(json.dumps({"builds": machines.ran, "requests": store.counts.commits + store.counts.reads}), flush=True)
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], DayPlan(int(sys.argv[2]), int(sys.argv[3])), float(sys.argv[4])))
