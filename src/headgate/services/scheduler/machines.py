"""Record the configured providers of machines for launchers, which therefore need no layout."""

from __future__ import annotations

import logging

from headgate.config.assembly.inheritance import flattened, unreadable
from headgate.config.layout import Layout
from headgate.config.machines import FlatProvider
from headgate.map.tree import Address, Undecodable
from headgate.services.context import Context
from headgate.store.types import Delete, Op

log = logging.getLogger("headgate.tenant")


def provider_ops(context: Context, tenant: str, layout: Layout) -> list[Op]:
    """Return operations that bring the records of a tenant's providers up to date with its layout; none if they are.

    A provider with wrong values stays as it was: its builds wait for machines that can be made.
    """
    places = context.map.nodes.providers(tenant)
    wanted = {places.provider(one.name).record.path: one for one in flattened(layout)}
    # One wrong value must not delete the provider's record: launchers would remove its machines.
    stays = {places.provider(name).record.path for name in unreadable(layout)}
    paths = [entry.path for entry in context.mirror.under(places.path)]
    ops: list[Op] = [Delete(path) for path in paths if path not in wanted and path not in stays]
    for path, one in wanted.items():
        address = Address(path, FlatProvider)
        known = context.mirror.get(path)
        try:
            if known is not None and address.decode(known.value) == one:
                continue
        except Undecodable as damaged:
            log.error("tenant %s: %s; it is written anew", tenant, damaged)
        ops.append(address.put(one))
    return ops
