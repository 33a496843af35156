"""Send commits as multis and translate the answers, and delete the nodes that commits leave empty."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from headgate.base.tasks import end
from headgate.store.model import ancestors, check_commit
from headgate.store.types import Append, At, Conflict, Entry, Op, Put, StoreError, Unavailable
from headgate.store.zookeeper import nodes
from headgate.store.zookeeper.address import ZooKeeperAddress
from headgate.store.zookeeper.plan import Plan, ZooKeeperUnread, failing, needs
from headgate.store.zookeeper.session import ZooKeeperSession
from headgate.store.zookeeper.view import View
from headgate.store.zookeeper.wire import jute
from headgate.store.zookeeper.wire.connection import ZooKeeperConnectionLost, ZooKeeperMultiResult

log = logging.getLogger("headgate.store.zookeeper")

ATTEMPTS_MAX = 30
"""Limit on the attempts at a commit whose nodes other processes keep changing."""

SWEPT_MAX = 400
"""Limit on the nodes that one sweep deletes."""
WAITING_MAX = 200_000
"""Limit on the nodes that wait for a sweep; others stay empty until they are found again."""

Read = Callable[[Sequence[str], bool], Awaitable[dict[str, jute.ZooKeeperNodeRead | None]]]
Send = Callable[[Sequence[jute.ZooKeeperOperation]], Awaitable[ZooKeeperMultiResult]]


class ZooKeeperCommits:
    """Write commits. `read` reads nodes, in their newest state on request; `state` returns the last zxid seen on the
    connection from which it reads."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        facts: nodes.Facts,
        views: Mapping[str, View],
        read: Read,
        state: Callable[[], int],
    ) -> None:
        self._address, self._facts, self._views, self._read, self._state = address, facts, views, read, state
        self._emptied: list[tuple[str, int]] = []
        self._making: dict[str, asyncio.Event] = {}
        """Node that a commit in progress creates -> event that is set once that commit has ended."""

    def take_emptied(self) -> list[tuple[str, int]]:
        """Return the paths of the nodes that commits have left without data since the last call, each with its zxid."""
        emptied, self._emptied = self._emptied, []
        return emptied

    async def commit(self, checks: Sequence[At], ops: Sequence[Op], owner: int, send: Send) -> list[Entry | None]:
        """Send a commit and return what it wrote. `owner` is the session id of the lease, or 0; `send` uses that
        session's connection."""
        check_commit(checks, ops)
        sure = False
        for _ in range(ATTEMPTS_MAX):
            while missing := needs(checks, ops, self._known):
                await self._learn(sorted(missing), newest=False)
            if (check := failing(checks, self._known)) is not None:
                # Cached facts may be old. Only a state that was read after a sync justifies a Conflict.
                if sure:
                    raise Conflict(check)
                await self._learn_all(checks, ops, owner)
                sure = True
                continue
            introduced = owner in self._facts.introduced
            root, rights = self._address.chroot, jute.acl(self._address.user)
            plan = Plan(checks, ops, self._known, self._facts.counters, introduced, root, owner, rights)
            plan.build()
            if not plan.parts:
                return [None] * len(ops)
            # If it were sent now, this commit would create the same node a second time, and fail as a whole.
            if (other := self._making_the_same(plan)) is not None:
                await other.wait()
                continue
            codes = await self._sent(plan, send, owner)
            if isinstance(codes, list):
                return codes
            await self._learn_all(checks, ops, owner)
            sure = True
            self._refuse(codes, ops)
        raise Unavailable(f"{self._address}: other processes keep writing the same nodes; nothing was written")

    async def _sent(self, plan: Plan, send: Send, owner: int) -> list[Entry | None] | set[int]:
        """Send a multi, and return the written entries, or the error codes if nothing was written."""
        paths = plan.touched()
        # A lease has its own connection, and its answers have no order relative to the events on the connection of the
        # views.
        views = [] if owner else list(self._views.values())
        ended = asyncio.Event()
        self._making |= dict.fromkeys(plan.made, ended)
        for view in views:
            view.begin(paths)
        # After Unavailable, cached facts may be outdated. That is safe: a commit that depends on them fails as a whole,
        # and reads again.
        done, found = None, dict[str, jute.ZooKeeperNodeRead | None]()
        try:
            done = await send(plan.parts)
            codes = {answer for answer in done.answers if isinstance(answer, int)}
            if codes:
                return codes
            found = dict(plan.learned(done.zxid, done.answers))
            if owner:
                self._facts.introduced.add(owner)
            self._facts.counted(dict(plan.counted(done.answers)))
            self._remember(found, done.zxid)
            self._emptied += [(path, done.zxid) for path in plan.emptied]
            return plan.written(done.zxid, done.answers)
        finally:
            for view in views:
                view.end(paths, found, done.events if done else 0)
            for path in plan.made:
                del self._making[path]
            ended.set()

    def _making_the_same(self, plan: Plan) -> asyncio.Event | None:
        """Return the event of another commit of this process that is creating one of the same nodes, or None."""
        return next((self._making[path] for path in plan.made if path in self._making), None)

    def _remember(self, found: Mapping[str, jute.ZooKeeperNodeRead | None], zxid: int) -> None:
        """Cache nodes, unless another connection has seen a later state: then their counters may have been read after
        the nodes."""
        at_s = asyncio.get_running_loop().time()
        for path, node in found.items():
            if self._state() <= zxid:
                self._facts.know(path, node, at_s)
            else:
                self._facts.forget([path])

    def _refuse(self, codes: set[int], ops: Sequence[Op]) -> None:
        """Raise an error that no retry can fix."""
        if jute.Code.NO_AUTH in codes:
            raise StoreError(f"{self._address}: no access to a node that this writes: its ACL allows only other users")
        leased = [op.path for op in ops if isinstance(op, Put) and op.lease is not None]
        blocked = jute.Code.NOT_EMPTY in codes and any((f := self._known(p)) and f.stat.children for p in leased)
        if jute.Code.EPHEMERAL_PARENT in codes or blocked:
            raise ValueError("an entry with a lease can have no entries below it")

    # --- what is known

    def _known(self, path: str) -> nodes.Fact | None:
        views = [view for view in self._views.values() if view.covers(path)]
        settled = any(view.settled(path) for view in views)
        if path in self._facts.nodes:
            fact = self._facts.nodes[path]
            # Absence may be cached for any time: the commit proves it by creating the node.
            if settled or fact is None or asyncio.get_running_loop().time() - fact.at_s < nodes.AGE_MAX_S:
                return fact
        # A view that is up to date knows every node below its prefix, so a node that it lacks does not exist.
        elif settled and nodes.OWN not in path and not any(view.has(path) for view in views):
            return None
        raise ZooKeeperUnread(path)

    async def _learn_all(self, checks: Sequence[At], ops: Sequence[Op], owner: int) -> None:
        """Read the newest state of everything that the commit depends on."""
        places = [*(check.path for check in checks), *(op.parent if isinstance(op, Append) else op.path for op in ops)]
        paths = dict.fromkeys(up for place in places for up in (place, *ancestors(place)))
        counters = dict.fromkeys(nodes.birth_path(place) for place in places)
        numbered = [nodes.numbered_path(op.parent) for op in ops if isinstance(op, Append)]
        own = [nodes.lease_path(owner)] if owner else []
        await self._learn([*counters, *own, *paths, *numbered], newest=True)

    async def _learn(self, paths: Sequence[str], *, newest: bool) -> None:
        """Read counters before nodes: if a counter were read after a node, a rebirth of the node between the two reads
        would go unnoticed."""
        at_s = asyncio.get_running_loop().time()
        found = await self._read(list(dict.fromkeys(paths)), newest)
        counts = dict[str, int]()
        for path, node in found.items():
            if path.startswith(f"{nodes.LEASES}/") and node is not None:
                self._facts.introduced.add(node.stat.owner)
            elif path.startswith(f"{nodes.BIRTHS}/") and node is not None:
                counts[path] = node.stat.version
        self._facts.recount(counts)
        for path, node in found.items():
            if not path.startswith(f"{nodes.OWN}/"):
                self._facts.know(path, node, at_s)


class Sweeper:
    """Delete nodes without data and children. `later` and `found` name candidates; they are read again after SWEEP_S,
    and deleted only if they are still empty."""

    def __init__(
        self, chroot: str, facts: nodes.Facts, session: ZooKeeperSession, wait_s: float = nodes.SWEEP_S
    ) -> None:
        self._chroot, self._facts, self._session, self._wait_s = chroot, facts, session, wait_s
        self._due: dict[str, tuple[float, int]] = {}
        """Path -> time at which the node is due, and zxid of the write that emptied it; soonest first."""
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)

    def later(self, emptied: Iterable[tuple[str, int]]) -> None:
        """Add the paths of deleted entries, each with its zxid, to the candidates."""
        at_s = asyncio.get_running_loop().time() + self._wait_s
        for path, zxid in emptied:
            if len(self._due) < WAITING_MAX:
                self._due.pop(path, None)
                self._due[path] = at_s, zxid
                self._some.set()

    def found(self, path: str, stat: jute.Stat) -> None:
        """Add a node that another process left empty to the candidates."""
        if path not in self._due:
            self.later([(path, stat.mzxid)])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._due:
                self._some.clear()
                await self._some.wait()
            at_s = next(iter(self._due.values()))[0]
            # The random part keeps processes from sweeping the same nodes at the same time, and delays attempts after
            # an error.
            await asyncio.sleep(max(0.0, at_s - loop.time()) + random.uniform(0, self._wait_s / 10))
            with suppress(ZooKeeperConnectionLost, Unavailable, nodes.Denied):
                await self._sweep(loop.time())

    async def _sweep(self, now_s: float) -> None:
        link = await self._session.link()
        due = dict([one for one in self._due.items() if one[1][0] <= now_s][:SWEPT_MAX])
        found = await nodes.read(link, self._chroot, list(due))
        good = [path for path, (_, zxid) in due.items() if _empty(found[path], zxid)]
        # The version proves that no process has used the node since it was read.
        parts = [jute.delete(self._chroot + path, found[path].stat.version) for path in good]  # type: ignore[union-attr]  # checked by _empty
        again = set[str]()
        if parts:
            answers = (await link.multi(jute.Do.MULTI, parts)).answers
            refused = [path for path, answer in zip(good, answers, strict=True) if answer not in (None, jute.Code.OK)]
            if refused:
                # A multi fails at its first bad part, and reports nothing about the parts after it.
                again, good = set(good) - {refused[0]}, []
                log.debug("%s is in use again; %d other nodes are checked later", refused[0], len(again))
        self._facts.forget(good)
        for path, noted in due.items():
            # A node that was emptied again in the meantime has a new entry here, and must wait the full time.
            if path not in again and self._due[path] is noted:
                del self._due[path]
        # A directory exists only for the nodes below it, so directories become empty from the bottom up.
        parents = dict.fromkeys(path.rpartition("/")[0] for path in good)
        await self._look_at([path for path in parents if path])

    async def _look_at(self, parents: list[str]) -> None:
        """Add parents that became empty to the candidates."""
        link = await self._session.link()
        for path, found in (await nodes.read(link, self._chroot, parents)).items():
            if found is not None and _empty(found, found.stat.mzxid):
                self.later([(path, found.stat.mzxid)])


def _empty(found: jute.ZooKeeperNodeRead | None, zxid: int) -> bool:
    return found is not None and found.value is None and not found.stat.children and found.stat.mzxid == zxid
