"""Write under a lock as fast as possible, until the process learns that it has lost the lock.

`python -m tests.faults.holder URL TTL_S guarded|unguarded` (the latter shows the defect that guards prevent).
"""

from __future__ import annotations

import asyncio
import sys

from headgate.recipes.lock import lock
from headgate.recipes.patience import answered
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.store import GuardLost, Store
from headgate.store.types import Append, At, Backend, SessionLost
from headgate.store.zookeeper.backend import ZooKeeperBackend

LOCK, PLACE = "/lock", "/place"
HELD, REFUSED, NOTICED = "it is ours", "refused: ", "noticed: "


async def open_store(url: str) -> Backend:
    return await (ZooKeeperBackend if url.startswith("zookeeper") else EtcdBackend).open(url)


async def write(store: Store, *, guarded: bool) -> None:
    """Write under the lock endlessly. Raise GuardLost, SessionLost."""
    async with store.session("old") as session, lock(store, session, LOCK).hold() as guard:
        print(HELD, flush=True)
        guards: list[At] = [guard] if guarded else []
        number = 0
        while True:
            append = Append(PLACE, b"old %d" % number)
            await answered(session, lambda: store.commit([], [append], guards=guards))  # noqa: B023 - awaited here
            number += 1


async def main(url: str, ttl_s: float, *, guarded: bool) -> None:
    backend = await open_store(url)
    try:
        await write(Store(backend, ttl_s=ttl_s), guarded=guarded)
    except GuardLost as lost:
        print(REFUSED, lost, flush=True)
    except SessionLost as lost:
        print(NOTICED, lost, flush=True)
    finally:
        await backend.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), guarded=sys.argv[3] == "guarded"))
