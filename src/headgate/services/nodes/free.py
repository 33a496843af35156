"""Find the machines of the inventory that match labels of a tenant, including those that no build has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.config.operator.model import Label, Tenant
from headgate.inventory.model import LOCAL
from headgate.inventory.names import Invalid
from headgate.services.inventory.errors import InventoryError
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.pool import Book, book_of
from headgate.services.nodes.pooled import PooledMachine
from headgate.services.nodes.search import MachineCandidate, MachineFinder
from headgate.store.types import Unavailable

LOOK_S = 2.0
"""Shortest interval between two searches of the inventory for one tenant."""


@dataclass(slots=True)
class _Look:
    labels: Mapping[str, Label]
    revision: int
    at_s: float
    found: list[PooledMachine]


class FreeMachines:
    """Find the machines of tenants in the inventory; `inventory.journal.run()` must be running."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._looks: dict[str, _Look] = {}
        self._search_lock = asyncio.Lock()

    async def of(self, tenant: Tenant) -> Sequence[PooledMachine]:
        """Return the machines that match labels of a tenant, including those that builds have, by name; while the store
        is away, those found last."""
        if not tenant.labels:
            return ()
        # Many viewers ask at once; one search serves them all.
        async with self._search_lock:
            known = self._looks.get(tenant.name)
            if known is not None and self._holds(known, tenant):
                return known.found
            # The revision is read before the search: what changes meanwhile brings about another.
            revision = self._inventory.journal.revision
            try:
                found = await self._search(tenant)
            except Unavailable:
                return known.found if known is not None else ()
            now_s = asyncio.get_running_loop().time()
            self._looks[tenant.name] = _Look(tenant.labels, revision, now_s, found)
            return found

    def _holds(self, known: _Look, tenant: Tenant) -> bool:
        if known.labels != tenant.labels:
            return False
        late = asyncio.get_running_loop().time() - known.at_s >= LOOK_S
        return known.revision == self._inventory.journal.revision or not late

    async def _search(self, tenant: Tenant) -> list[PooledMachine]:
        finding, labels, machines = (
            MachineFinder(self._inventory),
            dict[str, list[str]](),
            dict[str, MachineCandidate](),
        )
        for name, label in sorted(tenant.labels.items()):
            try:
                found = await finding.machines(label, "", None)
            except (Invalid, InventoryError):
                continue  # an error in the label is reported to the build that uses it
            for one in found:
                machines[one.object.uuid] = one
                labels.setdefault(one.object.uuid, []).append(name)
        book = await book_of(self._inventory)
        several = (_pooled(one, tuple(labels[uuid]), book) for uuid, one in machines.items())
        return sorted(several, key=lambda one: (one.name, one.uuid))


def _pooled(one: MachineCandidate, labels: tuple[str, ...], book: Book) -> PooledMachine:
    uuid, provider = one.object.uuid, one.object.properties.get("provider", "")
    state, why = "ready", ""
    if uuid in book.aside:
        state, why = "failed", f"it is given to nobody: {book.aside[uuid]}"
    elif uuid in book.taken:
        state, why = "in-use", "somebody leases it"
    return PooledMachine(uuid, one.object.name, labels, provider, one.kind == LOCAL, state, why)
