"""Find the machines of the inventory that can serve a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.config.operator.model import Label
from headgate.inventory.filters import Expression, parse
from headgate.inventory.model import ADMIN, LOCAL, PROVIDER, STATIC, Caller, Object
from headgate.inventory.names import Invalid
from headgate.services.inventory.errors import NotFound, Unmet
from headgate.services.inventory.inventory import LIMIT_MAX, Inventory
from headgate.services.inventory.pool import MACHINE
from headgate.store.types import At

LAUNCHER = Caller("launcher", "headgate", "", frozenset({ADMIN}))
KINDS = {STATIC: "Machines that are there, reached over ssh", LOCAL: "Slots on the host of an executor"}
"""Provider types that launchers support."""


@dataclass(frozen=True, slots=True)
class MachineCandidate:
    """Hold a machine as it was read, with its provider's properties."""

    object: Object
    generation: int
    provider: Mapping[str, str]
    kind: str


class MachineFinder:
    """Find machines at one look; providers are read once."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._providers: dict[tuple[str, str], Object | None] = {}
        self._found: dict[tuple[Label, str, str | None], list[MachineCandidate]] = {}

    async def machines(self, label: Label, zone: str, host: str | None) -> list[MachineCandidate]:
        """Return those for an executor of this zone on this host, or on any for None; at most LIMIT_MAX.

        Raise Invalid, Unmet for a wrong label.
        """
        key = (label, zone, host)
        if key not in self._found:
            self._found[key] = await self._search(label, zone, host)
        return self._found[key]

    def check(self, one: MachineCandidate) -> At:
        """Return a check that the machine is still as it was read."""
        return At(self._inventory.places.objects.by_uuid(one.object.uuid).record.path, one.generation)

    async def _search(self, label: Label, zone: str, host: str | None) -> list[MachineCandidate]:
        search = expression(label)
        # A label without a partition takes machines of the executor's zone, and without a zone those of all partitions.
        named: Sequence[str] = search.partitions or [one for one in (label.partition or zone,) if one]
        known = [one.uuid for one, _ in await self._inventory.admin.partitions()]
        partitions = [await self._inventory.partition(one) for one in named] or known
        if not partitions:
            raise Unmet("the inventory has no partition; create one, and machines in it")
        wanted = await self._inventory.filter(LAUNCHER, replace(search, partitions=tuple(partitions)))
        caller, found = replace(LAUNCHER, partition=partitions[0]), list[MachineCandidate]()
        for one in await self._inventory.several(caller, [wanted], LIMIT_MAX):
            provider = await self._provider(one.object)
            if provider is None or provider.kind not in KINDS:
                continue
            # A slot on an executor's host is of use only to builds on that host.
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
    """Return the search that the label stands for: machines of the project it names. Raise Invalid."""
    search = parse(label.search)
    # Whose machines a label takes is the operator's decision, so the search expression must not widen it.
    if search.project or search.every_project:
        raise Invalid(f"filter {label.search!r}: whose machines they are is said by the label's `project`")
    if not label.project:
        raise Invalid("it does not say whose machines it takes: give `project`, or `*` for everybody's")
    every = label.project == "*"
    return replace(
        search, types=search.types or (MACHINE,), project="" if every else label.project, every_project=every
    )
