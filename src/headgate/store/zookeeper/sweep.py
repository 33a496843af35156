"""Delete nodes without data and children, once nobody can mistake a later node for them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from contextlib import suppress

from headgate.base.tasks import end
from headgate.store.types import Unavailable
from headgate.store.zookeeper.facts import SWEEP_S, Facts
from headgate.store.zookeeper.nodes import Denied, read
from headgate.store.zookeeper.session import ZooKeeperSession
from headgate.store.zookeeper.wire import jute
from headgate.store.zookeeper.wire.jute import Code, Do, Stat, ZooKeeperNodeRead
from headgate.store.zookeeper.wire.link import ZooKeeperConnectionLost

log = logging.getLogger("headgate.store.zookeeper")

AT_ONCE_MAX = 400
WAITING_MAX = 200_000


class Sweeper:
    """Delete nodes without data and children. `later` and `found` name candidates, which are read again SWEEP_S
    later and deleted only if they are still empty."""

    def __init__(self, chroot: str, facts: Facts, session: ZooKeeperSession, wait_s: float = SWEEP_S) -> None:
        self._chroot, self._facts, self._session, self._wait_s = chroot, facts, session, wait_s
        self._due: dict[str, tuple[float, int]] = {}
        """Path -> time at which it is due, and zxid of the write that emptied it; soonest first."""
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)

    def later(self, emptied: Iterable[tuple[str, int]]) -> None:
        """Name the paths whose entries were deleted, each with its zxid, as candidates."""
        at_s = asyncio.get_running_loop().time() + self._wait_s
        for path, zxid in emptied:
            if len(self._due) < WAITING_MAX:
                self._due.pop(path, None)
                self._due[path] = at_s, zxid
                self._some.set()

    def found(self, path: str, stat: Stat) -> None:
        """Name a node that another process left empty as a candidate."""
        if path not in self._due:
            self.later([(path, stat.mzxid)])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._due:
                self._some.clear()
                await self._some.wait()
            at_s = next(iter(self._due.values()))[0]
            # The random part keeps processes from sweeping the same nodes together, and paces attempts after an error.
            await asyncio.sleep(max(0.0, at_s - loop.time()) + random.uniform(0, self._wait_s / 10))
            with suppress(ZooKeeperConnectionLost, Unavailable, Denied):
                await self._sweep(loop.time())

    async def _sweep(self, now_s: float) -> None:
        link = await self._session.link()
        due = dict([one for one in self._due.items() if one[1][0] <= now_s][:AT_ONCE_MAX])
        found = await read(link, self._chroot, list(due))
        good = [path for path, (_, zxid) in due.items() if _empty(found[path], zxid)]
        # The version proves that nobody has used the node since it was read.
        parts = [jute.delete(self._chroot + path, found[path].stat.version) for path in good]  # type: ignore[union-attr]  # _empty says it is there
        again = set[str]()
        if parts:
            answers = (await link.multi(Do.MULTI, parts)).answers
            refused = [path for path, answer in zip(good, answers, strict=True) if answer not in (None, Code.OK)]
            if refused:
                # A multi fails at its first bad part, and says nothing of those after it.
                again, good = set(good) - {refused[0]}, []
                log.debug("%s is in use again; %d other nodes are looked at later", refused[0], len(again))
        self._facts.forget(good)
        for path, noted in due.items():
            # A node that was emptied again meanwhile has been noted anew, and has to wait its whole time.
            if path not in again and self._due[path] is noted:
                del self._due[path]
        # Directories exist only for what is below them, so they empty from the bottom up.
        parents = dict.fromkeys(path.rpartition("/")[0] for path in good)
        await self._look_at([path for path in parents if path])

    async def _look_at(self, parents: list[str]) -> None:
        """Note parents that became empty as candidates."""
        link = await self._session.link()
        for path, found in (await read(link, self._chroot, parents)).items():
            if found is not None and _empty(found, found.stat.mzxid):
                self.later([(path, found.stat.mzxid)])


def _empty(found: ZooKeeperNodeRead | None, zxid: int) -> bool:
    return found is not None and found.value is None and not found.stat.children and found.stat.mzxid == zxid
