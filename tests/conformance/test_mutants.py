"""Test that the state machine finds broken stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from headgate.store.memory import MemoryBackend
from headgate.store.types import At, Backend, Change, Conflict, Delete, Entry, EntryGone, Lease, Op, Put, Snapshot
from headgate.testing.clock import VirtualLoop
from headgate.testing.stores.machine import Run, Subject, machine


class VersionsRestart(MemoryBackend):
    """Restart versions for an entry that is made again, as ZooKeeper does."""

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        for check in checks:
            entry = await self.get(check.path)
            if (entry.version if entry else None) != check.version:
                raise Conflict(check)
        written = await super().commit([], ops)
        for op, entry in zip(ops, written, strict=True):
            if isinstance(op, Put) and entry is not None and entry.version == entry.born:
                self.tree.entries[entry.path] = replace(entry, version=1)
        return [entry and self.tree.entries[entry.path] for entry in written]


class NumbersComeBack(MemoryBackend):
    """Repeat sequence numbers, as a parent does that was removed with its last child."""

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        written = await super().commit(checks, ops)
        for parent in list(self.tree.appended):
            if not self.tree.under(parent):
                del self.tree.appended[parent]
        return written


class HalfACommit(MemoryBackend):
    """Apply the operations before a check that fails."""

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        try:
            return await super().commit(checks, ops)
        except Conflict:
            await super().commit([], ops[:1])
            raise


class ForgetsDeletions(MemoryBackend):
    """Omit deletions from a watch."""

    def watch(self, prefix: str) -> AsyncIterator[Change]:
        return self._watch(prefix)

    async def _watch(self, prefix: str) -> AsyncIterator[Change]:
        async for change in super().watch(prefix):
            if not isinstance(change, EntryGone):
                yield change


class GoesOnAfterAGap(MemoryBackend):
    """Continue a watch that missed something, instead of restarting it."""

    def watch(self, prefix: str) -> AsyncIterator[Change]:
        return self._watch(prefix)

    async def _watch(self, prefix: str) -> AsyncIterator[Change]:
        begun = False
        async for change in super().watch(prefix):
            if not (begun and isinstance(change, Snapshot)):
                yield change
            begun = True


class KeepsWhatALeaseHeld(MemoryBackend):
    async def revoke(self, lease: Lease) -> None:
        self._leases.revoke(lease)


class ListsSiblings(MemoryBackend):
    """Take `/a-b` for an entry below `/a`."""

    async def list(self, prefix: str) -> Sequence[Entry]:
        every = self.tree.under("")
        return [entry for entry in every if entry.path.startswith(prefix)]


class DeletesWhatIsBelow(MemoryBackend):
    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        named = {op.path for op in ops if not hasattr(op, "parent")}
        below = {e.path for op in ops if isinstance(op, Delete) for e in self.tree.under(op.path)} - named
        written = await super().commit(checks, ops)
        await super().commit([], [Delete(path) for path in sorted(below)])
        return written


@contextmanager
def virtual() -> Iterator[Run]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner.run


MUTANTS = (
    VersionsRestart,
    NumbersComeBack,
    HalfACommit,
    ForgetsDeletions,
    GoesOnAfterAGap,
    KeepsWhatALeaseHeld,
    ListsSiblings,
    DeletesWhatIsBelow,
)


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_store_is_found(mutant: type[MemoryBackend]) -> None:
    async def broken() -> Backend:
        return mutant()

    async def missed(backend: Backend) -> None:
        assert isinstance(backend, MemoryBackend)
        backend.tree.gap()

    kind = machine(Subject(virtual, broken, missed))
    quick = settings(max_examples=300, stateful_step_count=25, deadline=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(kind, settings=quick)
