"""Find the machines of the inventory that serve a label, including those in use; keep those that represent slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.operator.model import Label, Tenant
from headgate.inventory.filters import Expression, Filter, PropertyConditions, PropertyFilter, parse
from headgate.inventory.model import ADMIN, KIND, LOCAL, PROVIDER, STATIC, Caller, Object
from headgate.inventory.names import Invalid
from headgate.services.inventory.draft import Create, Remove
from headgate.services.inventory.errors import InventoryError, NotFound, Unmet
from headgate.services.inventory.inventory import LIMIT_MAX, Inventory
from headgate.services.inventory.pool import MACHINE, Book, book_of
from headgate.services.nodes.status import PooledMachine
from headgate.store.types import At, Unavailable

log = logging.getLogger("headgate.launcher")

LAUNCHER = Caller("launcher", "headgate", "", frozenset({ADMIN}))
KINDS = {STATIC: "Existing machines, reached over ssh", LOCAL: "Slots on the host of an executor"}
"""Provider types that launchers support."""
LOOK_S = 2.0
"""Shortest interval between two searches of the inventory for one tenant."""
SLOTS_MAX = 500


@dataclass(frozen=True, slots=True)
class MachineCandidate:
    """Hold a machine with its generation and its provider's properties."""

    object: Object
    generation: int
    provider: Mapping[str, str]
    kind: str


class MachineFinder:
    """Find machines in one pass; providers are read only once."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._providers: dict[tuple[str, str], Object | None] = {}
        self._found: dict[tuple[Label, str, str | None], list[MachineCandidate]] = {}

    async def machines(self, label: Label, zone: str, host: str | None) -> list[MachineCandidate]:
        """Return the machines with this label for an executor of this zone on this host (None: any host), at most
        LIMIT_MAX.

        Raise Invalid, Unmet for an invalid label.
        """
        key = (label, zone, host)
        if key not in self._found:
            self._found[key] = await self._search(label, zone, host)
        return self._found[key]

    def check(self, one: MachineCandidate) -> At:
        """Return a check that the machine is unchanged."""
        return At(self._inventory.places.objects.by_uuid(one.object.uuid).record.path, one.generation)

    async def _search(self, label: Label, zone: str, host: str | None) -> list[MachineCandidate]:
        search = expression(label)
        # A label without a partition takes machines of the executor's zone, and without a zone those of all partitions.
        named: Sequence[str] = search.partitions or [one for one in (label.partition or zone,) if one]
        known = [one.uuid for one, _ in await self._inventory.admin.partitions()]
        partitions = [await self._inventory.partition(one) for one in named] or known
        if not partitions:
            raise Unmet("the inventory has no partition; create one with machines in it")
        wanted = await self._inventory.filter(LAUNCHER, replace(search, partitions=tuple(partitions)))
        caller, found = replace(LAUNCHER, partition=partitions[0]), list[MachineCandidate]()
        for one in await self._inventory.several(caller, [wanted], LIMIT_MAX):
            provider = await self._provider(one.object)
            if provider is None or provider.kind not in KINDS:
                continue
            # A slot on an executor's host is useful only to builds on that host.
            own = provider.properties.get("host") if provider.kind == LOCAL else None
            if own and host not in (None, own):
                continue
            found.append(MachineCandidate(one.object, one.generation, provider.properties, provider.kind))
        return found

    async def _provider(self, machine: Object) -> Object | None:
        """Return the provider that the machine's property `provider` names."""
        key = (machine.partition, machine.properties.get("provider", ""))
        if key not in self._providers:
            caller = replace(LAUNCHER, partition=key[0])
            try:
                found = (await self._inventory.get_named(caller, PROVIDER, "", key[1]))[0] if key[1] else None
            # The provider may have been deleted before its machines.
            except NotFound:
                found = None
            self._providers[key] = found
        return self._providers[key]


def expression(label: Label) -> Expression:
    """Return the search expression of the label: machines of the project that it names. Raise Invalid."""
    search = parse(label.search)
    # The operator decides which projects' machines a label takes, so the search expression must not widen that.
    if search.project or search.every_project:
        raise Invalid(f"filter {label.search!r} must not name a project: use the label's `project` instead")
    if not label.project:
        raise Invalid("it names no project whose machines it takes: set `project`, or `*` for all projects")
    every = label.project == "*"
    return replace(
        search, types=search.types or (MACHINE,), project="" if every else label.project, every_project=every
    )


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
        is unavailable, those found last."""
        if not tenant.labels:
            return ()
        # Many viewers may ask at the same time, so they share one search.
        async with self._search_lock:
            known = self._looks.get(tenant.name)
            if known is not None and self._holds(known, tenant):
                return known.found
            # The revision is read before the search, so that a change in the meantime causes another search.
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
        state, why = "failed", f"it is out of use: {book.aside[uuid]}"
    elif uuid in book.taken:
        state, why = "in-use", "a person leases it"
    return PooledMachine(uuid, one.object.name, labels, provider, one.kind == LOCAL, state, why)


async def keep_slots(inventory: Inventory) -> None:
    """Adjust the machines of every local provider, in every partition, to its number of slots."""
    for partition, _ in await inventory.admin.partitions():
        caller = replace(LAUNCHER, partition=partition.uuid)
        local = Filter(
            (partition.uuid,), (PROVIDER,), wanted=PropertyConditions(require_items=(PropertyFilter(KIND, LOCAL),))
        )
        for one in await inventory.several(caller, [local], LIMIT_MAX):
            await _keep(inventory, caller, one.object)


async def _keep(inventory: Inventory, caller: Caller, provider: Object) -> None:
    count = provider.properties.get("slots", "1")
    # Each slot is an object; a typo in the number must not fill the store.
    if not count.isdecimal() or int(count) > SLOTS_MAX:
        log.error("provider %s: slots must be a number from 0 to %s, not %r", provider.name, SLOTS_MAX, count)
        return
    # The uuid is derived, so two launchers make the same objects.
    wanted = {derived(provider.uuid, str(n)): f"{provider.name}-{n}" for n in range(1, int(count) + 1)}
    own = PropertyConditions(
        require_items=(PropertyFilter("provider", provider.name), PropertyFilter("slot", "", prefix=True))
    )
    slots = Filter((caller.partition,), (MACHINE,), wanted=own)
    existing = {one.object.uuid for one in await inventory.several(caller, [slots], LIMIT_MAX)}
    try:
        for uuid in sorted(wanted.keys() - existing):
            properties = {"provider": provider.name, "slot": wanted[uuid].rpartition("-")[2]}
            # One commit for each machine; if this is interrupted, the next pass creates the rest.
            made = Object(caller.partition, MACHINE, caller.project, uuid, wanted[uuid], properties, provider.tags)
            await inventory.apply(caller, [Create(made)])
        # A claim contains all that its build needs of the slot.
        for uuid in sorted(existing - wanted.keys()):
            await inventory.apply(caller, [Remove(uuid)])
    except (InventoryError, ValueError) as error:
        log.error("provider %s: its slots cannot be recorded: %s", provider.name, error)
