"""A backend that is a subtree of another: many tests on one server, none in another's way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import assert_never

from headgate.store.model import check_path
from headgate.store.types import Append, At, Backend, Change, Changed, Conflict, Entry, Gone, Lease, Op, Snapshot


class Below:
    """Every path begins at `prefix` of `inner`; closing this leaves `inner` open."""

    def __init__(self, inner: Backend, prefix: str) -> None:
        check_path(prefix)
        self.inner, self._prefix = inner, prefix

    async def get(self, path: str) -> Entry | None:
        found = await self.inner.get(self._prefix + path)
        return found and self._up(found)

    async def list(self, prefix: str) -> Sequence[Entry]:
        return [self._up(entry) for entry in await self.inner.list(self._prefix + prefix)]

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        for op in ops:
            check_path(op.parent if isinstance(op, Append) else op.path)
        down = [At(self._prefix + check.path, check.version) for check in checks]
        try:
            written = await self.inner.commit(down, [self._down(op) for op in ops])
        except Conflict as conflict:
            failed = conflict.check
            raise Conflict(At(failed.path.removeprefix(self._prefix), failed.version)) from conflict
        return [entry and self._up(entry) for entry in written]

    async def watch(self, prefix: str) -> AsyncIterator[Change]:
        watch = self.inner.watch(self._prefix + prefix)
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            async for change in watch:
                match change:
                    case Snapshot(entries):
                        yield Snapshot(tuple(self._up(entry) for entry in entries))
                    case Changed(entry):
                        yield Changed(self._up(entry))
                    case Gone(path):
                        yield Gone(path.removeprefix(self._prefix))
                    case _:
                        assert_never(change)

    async def grant(self, ttl_s: float) -> Lease:
        return await self.inner.grant(ttl_s)

    async def keep_alive(self, lease: Lease) -> None:
        await self.inner.keep_alive(lease)

    async def revoke(self, lease: Lease) -> None:
        await self.inner.revoke(lease)

    async def close(self) -> None:
        return None

    def _up(self, entry: Entry) -> Entry:
        return replace(entry, path=entry.path.removeprefix(self._prefix))

    def _down(self, op: Op) -> Op:
        if isinstance(op, Append):
            return replace(op, parent=self._prefix + op.parent)
        return replace(op, path=self._prefix + op.path)
