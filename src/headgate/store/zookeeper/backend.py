"""Keep the tree in ZooKeeper, 3.6 or newer. Reads go to one server, and return everything that this process wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from headgate.base.tasks import end
from headgate.store.model import order
from headgate.store.types import At, Backend, Change, Entry, Lease, Op, SessionLost, StoreError, Unavailable
from headgate.store.zookeeper.address import parse
from headgate.store.zookeeper.commits import Sweeper, ZooKeeperCommits
from headgate.store.zookeeper.nodes import Denied, Facts, Scan, claim, entry_of, glance, hidden, read
from headgate.store.zookeeper.session import ZooKeeperLeaseTerm, ZooKeeperSession, attach
from headgate.store.zookeeper.view import View
from headgate.store.zookeeper.wire import connection, jute

T = TypeVar("T")

ANSWER_S = 10.0
"""Time limit for an answer."""
READ_ATTEMPTS_MAX = 3


class ZooKeeperBackend:
    """Implement the backend on ZooKeeper; create one with `await ZooKeeperBackend.open(url)`."""

    def __init__(self, url: str) -> None:
        self.address = parse(url)
        self.traffic = connection.ZooKeeperTraffic()
        self._session = ZooKeeperSession(self.address, self.traffic, self._on_event, self._attached, self._detached)
        self._facts = Facts()
        self._views: dict[str, View] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._terms: dict[Lease, ZooKeeperLeaseTerm] = {}
        self._newest = 0
        """Newest zxid that this process has seen on any connection."""
        self._commits = ZooKeeperCommits(
            self.address, self._facts, self._views, self._read_nodes, lambda: self._session.identity.zxid
        )
        self._sweeper = Sweeper(self.address.chroot, self._facts, self._session)
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> ZooKeeperBackend:
        """Connect and check the tree. Raise StoreError, which says what is wrong and what to do, or Unavailable if no
        server answers."""
        backend = cls(url)
        await backend._session.start()
        backend._sweeper.start()
        return backend

    async def get(self, path: str) -> Entry | None:
        found = await self._reading(lambda link: read(link, self.address.chroot, [path]))
        return None if hidden(path) else entry_of(path, found[path])

    async def list(self, prefix: str) -> Sequence[Entry]:
        # A view that covers the prefix already has all its nodes, and only has to catch up.
        nodes = None
        if self._covering(prefix) is None:
            nodes = await self._reading(lambda link: glance(link, self.address.chroot, prefix))
        if nodes is not None:
            entries = [entry for path, node in nodes.items() if (entry := entry_of(path, node)) is not None]
            return sorted(entries, key=order)
        view = await self._use(prefix)
        try:
            await self._caught_up(view, always=True)
            return view.tree.under(prefix)
        finally:
            await self._leave(view)

    async def get_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        found = await self._reading(lambda link: read(link, self.address.chroot, list(dict.fromkeys(paths))))
        return [None if hidden(path) else entry_of(path, found[path]) for path in paths]

    async def scan(self, directory: str, *, begins: str, after: str, limit: int) -> Sequence[Entry]:
        chroot = self.address.chroot
        return await self._reading(lambda link: Scan(link, chroot, directory, begins=begins, after=after).first(limit))

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        term = self._term_of(ops)
        # A commit must not overtake an unanswered one of this process, which may concern the same paths.
        await self._settled()
        if term is None:
            written = await self._commits.commit(checks, ops, 0, self._multi)
        else:
            written = await self._commits.commit(checks, ops, term.identity.session, lambda p: self._leased(term, p))
        self._sweeper.later(self._commits.take_emptied())
        return written

    async def watch(self, prefix: str) -> AsyncIterator[Change]:
        view = await self._use(prefix)
        try:
            await self._caught_up(view)
            changes = view.tree.watch(prefix)
            async with aclosing(changes):  # type: ignore[type-var]  # an async generator behind its protocol
                async for change in changes:
                    if self._closed:
                        raise Unavailable(f"{self.address}: closed")
                    yield change
        finally:
            await self._leave(view)

    async def grant(self, ttl_s: float) -> Lease:
        term = ZooKeeperLeaseTerm(self.address, self.traffic, ttl_s, self._saw)
        await term.begin()
        self._terms[term.lease] = term
        return term.lease

    async def keep_alive(self, lease: Lease) -> None:
        term = self._terms.get(lease)
        if term is None:
            raise SessionLost(f"the lease {lease} has expired")
        try:
            await term.keep_alive()
        except SessionLost:
            self._terms.pop(lease, None)
            raise

    async def revoke(self, lease: Lease) -> None:
        term = self._terms.get(lease)
        if term is not None:
            await term.end()
            self._terms.pop(lease, None)

    async def close(self) -> None:
        """Close the sessions. Leases that were not revoked expire."""
        if self._closed:
            return
        self._closed = True
        await self._sweeper.stop()
        for view in self._views.values():
            # Callers that wait for the view or for its changes wake up and find the backend closed.
            view.loaded.set()
            view.tree.gap()
        await end(*self._keepers.values())
        for term in self._terms.values():
            term.drop()
        await self._session.close()

    # --- connections

    async def _attached(self, link: connection.ZooKeeperLink) -> None:
        """Prepare a new connection: make sure that no request on an earlier one is still in flight, and load the
        views."""
        await link.call(jute.Do.SYNC, jute.text(self.address.chroot or "/"))
        try:
            # This reads the counters before any node, for the reason that `ZooKeeperCommits._learn` gives.
            await claim(link, self.address, self._facts)
            for view in list(self._views.values()):
                await view.load(link)
        except Denied as denied:
            raise StoreError(f"{self.address}: no access to {denied}: its ACL allows only other users") from denied

    def _detached(self) -> None:
        for view in self._views.values():
            view.lose(self._session.identity.zxid)

    def _on_event(self, kind: int, path: str, number: int) -> None:
        chroot = self.address.chroot
        if path.startswith(chroot):
            path = path[len(chroot) :] if path != "/" else ""
            for view in self._views.values():
                view.on_event(kind, path, number)

    def _saw(self, zxid: int) -> None:
        self._newest = max(self._newest, zxid)

    async def _reading(self, ask: Callable[[connection.ZooKeeperLink], Awaitable[T]]) -> T:
        """Read a state that is not older than any that this process knows; repeat the read if the connection breaks."""
        await self._settled()
        for attempt in range(READ_ATTEMPTS_MAX):
            link = await self._session.link()
            try:
                async with asyncio.timeout(ANSWER_S):
                    found = await ask(link)
                    if self._newest <= self._session.identity.zxid:
                        return found
                    # This server is behind. The sync is not awaited: a server handles the requests of one connection in
                    # order, so the next read comes after the sync.
                    link.call(jute.Do.SYNC, jute.text(self.address.chroot or "/"))
                    return await ask(link)
            except Denied as denied:
                raise StoreError(f"{self.address}: no access to {denied}: its ACL allows only other users") from denied
            except connection.ZooKeeperConnectionLost as lost:
                if attempt == READ_ATTEMPTS_MAX - 1:
                    raise Unavailable(f"{self.address}: {lost}") from lost
            except TimeoutError:
                # Answers come in order, so every later request on this connection waits for this one, too.
                link.abort("the server did not answer in time")
                raise Unavailable(f"{self.address}: no answer for {ANSWER_S} s") from None
        raise AssertionError("the loop returns or raises")

    async def _read_nodes(self, paths: Sequence[str], newest: bool) -> dict[str, jute.ZooKeeperNodeRead | None]:
        """Read nodes; with `newest`, return their newest state, even if the connected server is behind."""

        async def ask(link: connection.ZooKeeperLink) -> dict[str, jute.ZooKeeperNodeRead | None]:
            if newest:
                link.call(jute.Do.SYNC, jute.text(self.address.chroot or "/"))
            return await read(link, self.address.chroot, paths)

        return await self._reading(ask)

    async def _multi(self, parts: Sequence[jute.ZooKeeperOperation]) -> connection.ZooKeeperMultiResult:
        link = await self._session.link()
        try:
            async with asyncio.timeout(ANSWER_S):
                return await link.multi(jute.Do.MULTI, parts)
        except (connection.ZooKeeperConnectionLost, TimeoutError) as error:
            # The sync on the next connection (`_attached`) proves that no request of this one is still in flight.
            link.abort("the server did not answer in time")
            raise Unavailable(f"{self.address}: the outcome of a commit is unknown: {error or 'no answer'}") from error

    async def _leased(
        self, term: ZooKeeperLeaseTerm, parts: Sequence[jute.ZooKeeperOperation]
    ) -> connection.ZooKeeperMultiResult:
        try:
            done = await term.multi(parts)
        except SessionLost:
            self._terms.pop(term.lease, None)
            raise
        except connection.ZooKeeperConnectionLost as error:
            raise Unavailable(f"{self.address}: the outcome of a commit is unknown: {error}") from error
        self._saw(done.zxid)
        return done

    def _term_of(self, ops: Sequence[Op]) -> ZooKeeperLeaseTerm | None:
        for op in ops:
            lease = getattr(op, "lease", None)
            if lease is not None:
                if lease not in self._terms:
                    raise SessionLost(f"the lease {lease} has expired")
                return self._terms[lease]
        return None

    async def _settled(self) -> None:
        """Wait until no commit of unknown outcome can still take effect. Raise Unavailable."""
        for lease, term in list(self._terms.items()):
            if term.unsettled:
                with suppress(SessionLost):
                    await term.settle()
                    continue
                self._terms.pop(lease, None)

    # --- views

    def _covering(self, prefix: str) -> View | None:
        return next((view for view in self._views.values() if view.covers(prefix)), None)

    async def _use(self, prefix: str) -> View:
        """Return a loaded view of the prefix. Release it with `_leave`. Raise Unavailable."""
        view = self._covering(prefix)
        if view is None:
            view = self._views[prefix] = View(self.address.chroot, prefix, self._seen, self._compare)
            self._keepers[prefix] = asyncio.ensure_future(view.run(self._session.connected))
        first = view.enter()
        try:
            # The first user loads the view; users that come in the meantime wait for that.
            if first:
                await self._reading(view.ensure)
            else:
                async with asyncio.timeout(ANSWER_S):
                    await view.loaded.wait()
        except TimeoutError:
            await self._leave(view)
            raise Unavailable(f"{self.address}: {prefix or '/'} could not be read within {ANSWER_S} s") from None
        except BaseException:
            await self._leave(view)
            raise
        return view

    async def _caught_up(self, view: View, *, always: bool = False) -> None:
        """Wait until the view shows all changes that this process knows of or, with `always`, all changes that exist.
        Raise Unavailable."""
        if always or self._newest > self._session.identity.zxid:
            await self._reading(lambda link: link.call(jute.Do.SYNC, jute.text(self.address.chroot or "/")))
        try:
            async with asyncio.timeout(ANSWER_S):
                await view.calm()
        except TimeoutError:
            raise Unavailable(f"{self.address}: {view.prefix or '/'} was not read within {ANSWER_S} s") from None

    async def _leave(self, view: View) -> None:
        if not view.leave() or self._closed:
            return
        del self._views[view.prefix]
        await end(self._keepers.pop(view.prefix))
        link = self._session.present
        # While the keeper task ended, another caller may have started a view here, which needs the watch.
        if link is not None and view.prefix not in self._views:
            where = self.address.chroot + view.prefix or "/"
            link.call(jute.Do.REMOVE_WATCHES, jute.text(where) + jute.number(jute.ANY_WATCH))

    async def _compare(self, since: int, pieces: Sequence[Sequence[str]]) -> None:
        """Compare as `View` requires. This uses a separate session, because the servers keep every watch that
        SET_WATCHES sets until the session ends. Raise ZooKeeperConnectionLost."""
        identity = connection.ZooKeeperSessionIdentity(
            int(self.address.session_s * 1000), zxid=self._session.identity.zxid
        )
        link = await attach(self.address, identity, self.traffic, self._on_event)
        try:
            async with asyncio.timeout(ANSWER_S):
                for paths in pieces:
                    await link.call(jute.Do.SET_WATCHES, jute.set_watches(since, paths))
                with suppress(connection.ZooKeeperConnectionLost):
                    await link.call(jute.Do.CLOSE)
        except TimeoutError:
            raise connection.ZooKeeperConnectionLost(f"no answer for {ANSWER_S} s") from None
        finally:
            link.close()

    def _seen(self, path: str, found: jute.ZooKeeperNodeRead | None) -> None:
        self._facts.know(path, found, asyncio.get_running_loop().time())
        if found is not None and found.value is None and not found.stat.children and path:
            self._sweeper.found(path, found.stat)


async def connect(url: str) -> Backend:
    """Open the tree that a URL names.  Raise what `ZooKeeperBackend.open` raises."""
    return await ZooKeeperBackend.open(url)
