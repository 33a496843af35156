"""Run random operations and failures on a backend and its model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from headgate.store.types import Append, At, Backend, Delete, Lease, Op, Put
from headgate.testing.stores.twin import Twin

# `-` and `.` sort before `/`, and `0` right after it: a prefix search that forgets the slash finds too much here.
PATHS = ("/a", "/a/b", "/a/b/c", "/a-b", "/a.b", "/a0", "/ü/x")
LEAVES = ("/l/x", "/l/y", "/a/l")
"""Paths of entries with a lease: nothing is put below them."""
TTL_S = 600.0

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end, on a loop that persists."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Describe a kind of backend, and what can be done to it."""

    runner: Callable[[], AbstractContextManager[Run]]
    open: Callable[[], Awaitable[Backend]]
    """Returns an empty backend for each run of the machine."""
    gap: Callable[[Backend], Awaitable[None]] | None = None
    """Makes watches of the backend miss the next events."""
    lapse: Callable[[Backend, Lease, float], Awaitable[None]] | None = None
    """Lets the lease expire, while others that are kept alive stay; the last argument is its ttl in seconds."""


PLACE = st.one_of(st.sampled_from((*PATHS, *LEAVES)), st.integers(0, 7))
"""A path, or the number of an appended entry."""
VALUE = st.binary(max_size=3)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PLACE, VALUE),
        st.tuples(st.just("append"), st.sampled_from(PATHS), VALUE),
        st.tuples(st.just("delete"), PLACE, VALUE),
    ),
    max_size=5,
)
CHECKS = st.lists(st.tuples(PLACE, st.one_of(st.none(), st.integers(0, 3))), max_size=3)
"""A place, and the number of writes since the version to check; None: the entry must be absent."""


def machine(subject: Subject) -> type[StoreMachine]:
    """Return a machine for `hypothesis.stateful.run_state_machine_as_test`."""
    return type("Machine", (StoreMachine,), {"subject": subject})


class StoreMachine(RuleBasedStateMachine):
    """Choose random operations and failures, and run each on a `Twin`."""

    subject: ClassVar[Subject]

    def __init__(self) -> None:
        super().__init__()
        self._entered = self.subject.runner()
        self.run = self._entered.__enter__()
        self.backend: Backend = self.run(_opened(self.subject))
        self.twin = Twin(self.backend)

    def teardown(self) -> None:
        try:
            self.run(self.twin.settle())
        finally:
            self.run(self.twin.close())
            self.run(self.backend.close())
            self._entered.__exit__(None, None, None)

    def _path(self, place: str | int) -> str:
        if isinstance(place, str):
            return place
        appended = self.twin.appended
        return appended[place % len(appended)] if appended else PATHS[0]

    def _ops(self, changes: list[tuple[str, str | int, bytes]], lease: Lease | None) -> list[Op]:
        """Return one operation per path, and every append, with a lease only where it may be."""
        ops: dict[str, Op] = {}
        for number, (kind, where, value) in enumerate(changes):
            path = self._path(where)
            if kind == "append":
                ops[str(number)] = Append(path, value, lease, "p" if value else "")
            elif kind == "put":
                ops[path] = Put(path, value, lease if path in LEAVES or path in self.twin.names else None)
            else:
                ops[path] = Delete(path)
        return list(ops.values())

    @rule(held=st.lists(PLACE, max_size=3), changes=CHANGES, lease=st.integers(0, 3))
    def commit(self, held: list[str | int], changes: list[tuple[str, str | int, bytes]], lease: int) -> None:
        leases = self.twin.leases
        under = leases[lease][0] if lease < len(leases) else None
        checks = {path: self.twin.at(path) for path in map(self._path, held)}
        self.run(self.twin.commit(list(checks.values()), self._ops(changes, under)))

    @rule(checks=CHECKS, changes=CHANGES)
    def commit_on_what_was(
        self, checks: list[tuple[str | int, int | None]], changes: list[tuple[str, str | int, bytes]]
    ) -> None:
        """Commit with checks of earlier versions, also of entries that were deleted and created again."""
        paths = {self._path(place): age for place, age in checks}
        old = [At(path, self.twin.version(path, age)) for path, age in paths.items()]
        self.run(self.twin.commit(old, self._ops(changes, None)))

    @rule(changes=CHANGES, fate=st.sampled_from(("lost", "unanswered")))
    def commit_without_an_answer(self, changes: list[tuple[str, str | int, bytes]], fate: str) -> None:
        # Nobody can know the number of an entry that was appended without an answer.
        known = [change for change in changes if change[0] != "append"]
        self.run(self.twin.commit([], self._ops(known, None), fate))

    @rule(place=PLACE)
    def make_again(self, place: str | int) -> None:
        """Create an entry again; its earlier version must not come back."""
        path = self._path(place)
        self.run(self.twin.commit([], [Delete(path)]))
        self.run(self.twin.commit([At(path, None)], [Put(path, b"again")]))

    @rule(place=PLACE)
    def look(self, place: str | int) -> None:
        self.run(self.twin.part(self._path(place)))

    @precondition(lambda self: len(self.twin.leases) < 3)
    @rule()
    def grant(self) -> None:
        self.run(self.twin.grant(TTL_S))

    @precondition(lambda self: self.twin.leases)
    @rule(which=st.integers(0, 2), place=st.sampled_from(LEAVES), value=VALUE)
    def hold(self, which: int, place: str, value: bytes) -> None:
        lease = self.twin.leases[which % len(self.twin.leases)][0]
        self.run(self.twin.commit([], [Put(place, value, lease), Append("/l/q", value, lease)]))

    @precondition(lambda self: self.twin.leases)
    @rule(which=st.integers(0, 2))
    def revoke(self, which: int) -> None:
        self.run(self.twin.revoke(self.twin.leases[which % len(self.twin.leases)]))

    @precondition(lambda self: self.twin.dead)
    @rule(place=st.sampled_from(LEAVES))
    def commit_under_a_lease_that_ended(self, place: str) -> None:
        self.run(self.twin.commit([], [Put(place, b"late", self.twin.dead[-1][0])]))

    @precondition(lambda self: len(self.twin.views) < 3)
    @rule(prefix=st.sampled_from(("", "/a", "/a/b", "/l")))
    def watch(self, prefix: str) -> None:
        self.run(self.twin.watch(prefix))

    @rule()
    def settle(self) -> None:
        self.run(self.twin.settle())

    @precondition(lambda self: self.subject.gap is not None and self.twin.views)
    @rule(changes=CHANGES)
    def miss_something(self, changes: list[tuple[str, str | int, bytes]]) -> None:
        assert self.subject.gap is not None
        self.run(_missed(self.subject.gap, self.twin, self._ops([*changes, ("put", "/a/b", b"!")], None)))

    @precondition(lambda self: self.subject.lapse is not None and self.twin.leases)
    @rule(which=st.integers(0, 2))
    def lapse(self, which: int) -> None:
        assert self.subject.lapse is not None
        pair = self.twin.leases[which % len(self.twin.leases)]
        self.run(_lapsed(self.subject.lapse, self.twin, pair))


async def _opened(subject: Subject) -> Backend:
    return await subject.open()


async def _missed(gap: Callable[[Backend], Awaitable[None]], twin: Twin, ops: list[Op]) -> None:
    """Commit `ops` between two gaps: watchers may learn of them only from a snapshot."""
    await gap(twin.backend)
    await twin.commit([], ops)
    await gap(twin.backend)


async def _called(call: Awaitable[None]) -> None:
    await call


async def _lapsed(
    lapse: Callable[[Backend, Lease, float], Awaitable[None]], twin: Twin, pair: tuple[Lease, Lease]
) -> None:
    """Renew the other leases until this one has expired."""
    ended = asyncio.ensure_future(_called(lapse(twin.backend, pair[1], TTL_S)))
    while not ended.done():
        for other in twin.leases:
            if other != pair:
                await twin.backend.keep_alive(other[1])
        await asyncio.wait([ended], timeout=TTL_S / 3)
    await ended
    twin.end(pair)
    await twin.compare()
