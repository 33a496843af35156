"""Keep the machines that stand for slots of local providers as many as these declare."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.inventory.filters import Filter, PropertyConditions, PropertyFilter
from headgate.inventory.model import KIND, LOCAL, PROVIDER, Caller, Object
from headgate.services.inventory.draft import Create, Remove
from headgate.services.inventory.errors import InventoryError
from headgate.services.inventory.inventory import LIMIT_MAX, Inventory
from headgate.services.inventory.pool import MACHINE
from headgate.services.nodes.search import LAUNCHER

log = logging.getLogger("headgate.launcher")

SLOTS_MAX = 500


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
        log.error("provider %s: slots is a number from 0 to %s, not %r", provider.name, SLOTS_MAX, count)
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
            # One commit for each machine: whatever is cut off is made at the next look.
            made = Object(caller.partition, MACHINE, caller.project, uuid, wanted[uuid], properties, provider.tags)
            await inventory.apply(caller, [Create(made)])
        # A claim contains all that its build needs of the slot.
        for uuid in sorted(existing - wanted.keys()):
            await inventory.apply(caller, [Remove(uuid)])
    except (InventoryError, ValueError) as error:
        log.error("provider %s: its slots cannot be recorded: %s", provider.name, error)
