"""The configuration of projects as text, kept in the store: whoever builds a layout need not ask git again."""

from __future__ import annotations

from headgate.config.tenants import TenantProject
from headgate.map.places import ConfigFiles as ConfigFilesPlace
from headgate.map.records import ConfigBranch
from headgate.map.tree import unescape
from headgate.recipes import blob
from headgate.services.context import Context
from headgate.store.types import At, Delete, Op, Put

Found = dict[str, tuple[ConfigBranch, dict[str, str]]]
"""branch -> where and at which commit it was read, and path -> text"""


class ConfigFiles:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def ltime(self) -> int:
        """A version later than every commit so far: what is read from outside after this is not older."""
        (entry,) = await self._context.store.commit([], [Put(self._context.map.ltime.path, b"")])
        assert entry is not None, "a put answers with its entry"
        return entry.version

    def _place(self, source: TenantProject, branch: str) -> ConfigFilesPlace:
        return self._context.map.config.cache(source.project).branch(branch)

    async def remember(self, source: TenantProject, found: Found, guard: At) -> None:
        """Replaces what is kept of the project, branch by branch; an unchanged branch costs nothing."""
        mirror = self._context.mirror
        root = self._context.map.config.cache(source.project).path
        stale = {entry.path for entry in mirror.under(root)}
        for branch, (record, files) in found.items():
            place = self._place(source, branch)
            ops: list[Op] = []
            for path, text in files.items():
                address = place.file(path).text
                wanted = blob.ops(address.path, text.encode())
                stale -= {op.path for op in wanted if isinstance(op, Put)}
                ops += [op for op in wanted if isinstance(op, Put) and not self._has(op)]
            stale.discard(place.record.path)
            record_op = place.record.put(record)
            if ops or not self._has(record_op):
                await self._commit([*ops, record_op], guard)
        await self._commit([Delete(path) for path in sorted(stale)], guard)

    def _has(self, op: Put) -> bool:
        entry = self._context.mirror.get(op.path)
        return entry is not None and entry.value == op.value

    async def _commit(self, ops: list[Op], guard: At) -> None:
        for op_start in range(0, len(ops), 50):
            await self._context.store.commit([], ops[op_start : op_start + 50], guards=[guard])

    async def recall(self, source: TenantProject) -> Found:
        """What is kept of the project."""
        place = self._context.map.config.cache(source.project)
        entries = await self._context.store.list(place.path)
        found: Found = {}
        for entry in entries:
            parts = entry.path.removeprefix(place.path + "/").split("/")
            branch = unescape(parts[0])
            if len(parts) == 1:
                record = self._place(source, branch).record.decode(entry.value)
                found[branch] = (record, found.get(branch, (record, {}))[1])
        for entry in entries:
            parts = entry.path.removeprefix(place.path + "/").split("/")
            if len(parts) == 2 and unescape(parts[0]) in found:
                found[unescape(parts[0])][1][unescape(parts[1])] = blob.assemble(entry, entries).decode()
        return found
