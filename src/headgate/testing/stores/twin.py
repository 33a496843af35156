"""Run the same steps on a backend and its model; raise AssertionError if they differ."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.store import types
from headgate.store.model import Model, ancestors, inside, order
from headgate.testing.backends import UnsureBackend
from headgate.testing.clock import DEADLINE_S


@dataclass(slots=True)
class WatcherView:
    """Hold the state that a watcher knows."""

    backend: types.Backend
    prefix: str
    known: dict[str, types.Entry] = field(default_factory=dict)
    snapshots: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Future[object] | None = None

    async def run(self) -> None:
        newest = 0
        watch = self.backend.watch(self.prefix)
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            async for change in watch:
                match change:
                    case types.Snapshot(entries):
                        assert list(entries) == sorted(entries, key=order), "a snapshot is in order"
                        self.known = {entry.path: entry for entry in entries}
                        self.snapshots += 1
                        newest = 0
                    case types.EntryChanged(entry):
                        assert entry.version >= newest, f"{entry} was reported after version {newest}"
                        newest = entry.version
                        self.known[entry.path] = entry
                    case types.EntryGone(path):
                        assert path in self.known, f"{path} is gone, and was never there"
                        del self.known[path]
                self.moved.set()

    async def shows(self, entries: Sequence[types.Entry]) -> None:
        """Wait until the watcher shows these entries."""
        wanted = {entry.path: entry for entry in entries}
        assert self.task is not None, "it is watching"
        try:
            async with asyncio.timeout(DEADLINE_S):
                while self.known != wanted:
                    self.moved.clear()
                    change: asyncio.Future[object] = asyncio.ensure_future(self.moved.wait())
                    either: list[asyncio.Future[object]] = [change, self.task]
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    change.cancel()
                    if self.task.done():
                        # A watch ends only with an error, which this raises.
                        await self.task
        except TimeoutError:
            raise AssertionError(f"a watch of {self.prefix!r} shows {self.known}, not {wanted}") from None


@dataclass(slots=True)
class Twin:
    """Run steps on a backend and on the model, and compare them."""

    backend: types.Backend
    model: Model = field(default_factory=Model)
    names: dict[str, str] = field(default_factory=dict)
    """Appended path in the model -> path in the backend."""
    leases: list[tuple[types.Lease, types.Lease]] = field(default_factory=list)
    """Leases that are alive: the model's, the backend's."""
    dead: list[tuple[types.Lease, types.Lease]] = field(default_factory=list)
    views: list[WatcherView] = field(default_factory=list)
    _versions: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Path -> all its versions so far: the model's, the backend's."""
    _unordered: set[str] = field(default_factory=set)
    """Entries that may count as created by another commit."""
    _numbers: dict[str, int] = field(default_factory=dict)

    @property
    def appended(self) -> list[str]:
        return list(self.names)

    def version(self, path: str, age: int | None) -> int | None:
        """Return the model's version of `path` before the last `age` writes; None: absent, or never written."""
        known = self._versions.get(self._name(path), [])
        return None if age is None or not known else known[-1 - age % len(known)][0]

    def at(self, path: str) -> types.At:
        """Return a check that holds."""
        entry = self.model.entries.get(path)
        return types.At(path, entry.version if entry else None)

    async def commit(self, checks: Sequence[types.At], ops: Sequence[types.Op], fate: str = "answers") -> None:
        """Commit to both. `checks` and `ops` are in the model's terms; `fate` is as in UnsureBackend."""
        unsure = UnsureBackend(self.backend)
        unsure.next_commit = fate
        theirs = [types.At(self._name(check.path), self._theirs(check)) for check in checks]
        lost = any(lease in self.dead for op in ops if (lease := self._lease_of(op)) is not None)
        try:
            after, expected = self.model.commit(checks, ops)
        except types.Conflict as conflict:
            await self._conflicts(theirs, ops, theirs[list(checks).index(conflict.check)])
            return
        try:
            written = await unsure.commit(theirs, [self._op(op) for op in ops])
            assert fate == "answers" and not lost, f"a commit must fail: {fate=} {lost=}"
            self._adopt(after, ops, expected, written)
        except types.SessionLost:
            assert lost, "a commit reported the lease as lost, but it is not"
        except types.Unavailable:
            assert fate != "answers", "nothing stood in the way"
            if fate == "unanswered":
                self._adopt(after, ops, expected, await self._found(expected))
        await self.compare()

    async def compare(self) -> None:
        """Compare all entries together, and each entry separately."""
        entries = await self.backend.list("")
        found = {e.path: (e.value, e.lease) for e in entries}
        leases = {ours: theirs for ours, theirs in (*self.leases, *self.dead)}
        model = {
            self._name(e.path): (e.value, leases[e.lease] if e.lease else None) for e in self.model.entries.values()
        }
        assert found == model
        assert list(entries) == sorted(entries, key=order)
        ordered = [e.path for e in entries if e.path not in self._unordered]
        assert ordered == [p for e in self.model.under("") if (p := self._name(e.path)) not in self._unordered]
        for entry in entries:
            assert self._versions[entry.path][-1][1] == entry.version, f"{entry} changed without a commit"

    async def part(self, path: str) -> None:
        """Compare one place, and what is below it, with separate requests."""
        path = self._name(path)
        everything = await self.backend.list("")
        assert list(await self.backend.list(path)) == [e for e in everything if inside(e.path, path)]
        assert await self.backend.get(path) == next((e for e in everything if e.path == path), None)

    async def grant(self, ttl_s: float) -> None:
        self.leases.append((types.Lease(f"lease {len(self.leases) + len(self.dead)}"), await self.backend.grant(ttl_s)))

    def end(self, pair: tuple[types.Lease, types.Lease]) -> None:
        """End a lease in the model; the caller ends the backend's."""
        self.leases.remove(pair)
        self.dead.append(pair)
        self.model = self.model.expire(pair[0])

    async def revoke(self, pair: tuple[types.Lease, types.Lease]) -> None:
        await self.backend.revoke(pair[1])
        self.end(pair)
        await self.compare()

    async def watch(self, prefix: str) -> None:
        view = WatcherView(self.backend, prefix)
        task: asyncio.Future[object] = asyncio.ensure_future(view.run())
        view.task = task
        self.views.append(view)

    async def settle(self) -> None:
        """Wait until every watcher knows everything."""
        for view in self.views:
            await view.shows(await self.backend.list(view.prefix))

    async def close(self) -> None:
        for view in self.views:
            assert view.task is not None, "it is watching"
            view.task.cancel()
            await asyncio.gather(view.task, return_exceptions=True)

    async def _conflicts(self, checks: Sequence[types.At], ops: Sequence[types.Op], failed: types.At) -> None:
        try:
            await self.backend.commit(checks, [self._op(op) for op in ops])
        except types.Conflict as conflict:
            assert conflict.check == failed
        else:
            raise AssertionError(f"{failed} does not hold, and was committed")
        await self.compare()

    async def _found(self, expected: Sequence[types.Entry | None]) -> list[types.Entry | None]:
        """Read back what an unanswered commit wrote."""
        return [None if entry is None else await self.backend.get(self._name(entry.path)) for entry in expected]

    def _adopt(
        self,
        after: Model,
        ops: Sequence[types.Op],
        expected: Sequence[types.Entry | None],
        written: Sequence[types.Entry | None],
    ) -> None:
        for op, ours, theirs in zip(ops, expected, written, strict=True):
            assert (ours is None) == (theirs is None), f"{op} wrote {theirs}"
            if ours is None or theirs is None:
                continue
            if isinstance(op, types.Append):
                self._name_appended(op, ours.path, theirs.path)
            assert theirs.path == self._name(ours.path) and theirs.value == ours.value
            old = self.model.entries.get(ours.path)
            if old is not None and old.lease != ours.lease:
                # On ZooKeeper, a node cannot change its lease: it is deleted and created, and gets another place in the
                # order.
                self._unordered.add(theirs.path)
            past = self._versions.setdefault(theirs.path, [])
            # The guarantee that guards rest on: a lock that was lost and taken again has another version.
            assert theirs.version not in [version for _, version in past], f"a version of {theirs.path} came back"
            past.append((ours.version, theirs.version))
            self._unordered.update(self._name(up) for up in ancestors(ours.path))
        self.model = after

    def _name_appended(self, op: types.Append, ours: str, theirs: str) -> None:
        start = f"{op.parent}/{op.prefix}"
        number = theirs.removeprefix(start)
        assert theirs.startswith(start) and len(number) == 10 and number.isdigit(), f"{theirs} was appended"
        assert int(number) > self._numbers.get(op.parent, -1), f"{theirs} is numbered before an earlier child"
        self._numbers[op.parent] = int(number)
        self.names[ours] = theirs

    def _name(self, path: str) -> str:
        return self.names.get(path, path)

    def _theirs(self, check: types.At) -> int | None:
        pairs: Mapping[int, int] = dict(self._versions.get(self._name(check.path), []))
        return None if check.version is None else pairs[check.version]

    def _lease_of(self, op: types.Op) -> tuple[types.Lease, types.Lease] | None:
        ours = None if isinstance(op, types.Delete) else op.lease
        return next((pair for pair in (*self.leases, *self.dead) if pair[0] == ours), None)

    def _op(self, op: types.Op) -> types.Op:
        if isinstance(op, types.Delete):
            return types.Delete(self._name(op.path))
        pair = self._lease_of(op)
        op = replace(op, lease=pair[1] if pair else None)
        return replace(op, path=self._name(op.path)) if isinstance(op, types.Put) else op
