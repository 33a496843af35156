"""Reports as properties and tags of the object that started the item."""

from __future__ import annotations

import msgspec

from headgate.inventory.model import Caller
from headgate.inventory.names import Invalid
from headgate.map.outbox import OutboxMessage
from headgate.ports.reporter import ReporterAway, ReportRefused
from headgate.services.inventory.draft import Update
from headgate.services.inventory.errors import InventoryError, NotFound
from headgate.services.inventory.inventory import Inventory
from headgate.services.scheduler.occasions.objects import USER
from headgate.store.types import StoreError


class _ObjectEffect(msgspec.Struct, frozen=True):
    """Hold the effect of a pipeline on an object."""

    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    untag: tuple[str, ...] = ()


class ObjectReporter:
    """Implement `ports.reporter.Reporter`. Repeating a report changes nothing."""

    def __init__(self, name: str, inventory: Inventory, partition: str, project: str) -> None:
        """Make a reporter with the parameters of `WatchedObjects`."""
        self._name, self._inventory, self._partition, self._project = name, inventory, partition, project

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Write the report to the object. Raise ReporterAway or ReportRefused."""
        of = outgoing.report.answers
        # Connections may share an inventory; only the one that started the item knows where its object is.
        if of is None or of.connection != self._name:
            raise ReportRefused(f"no object of {self._name} started this item")
        try:
            wanted = msgspec.json.decode(outgoing.options.get("wanted", "{}"), type=_ObjectEffect)
            partition = await self._inventory.partition(self._partition)
            update = Update(
                of.ordering_key,
                set_properties=wanted.set,
                remove_properties=wanted.unset,
                add_tags=wanted.tag,
                remove_tags=wanted.untag,
            )
            await self._inventory.apply(Caller(USER, self._project, partition), [update])
        except NotFound:
            return  # it was deleted meanwhile: there is nothing to report to
        except (InventoryError, Invalid, ValueError) as error:
            raise ReportRefused(f"the object {of.ordering_key} does not take it: {error}") from error
        except StoreError as error:
            raise ReporterAway(str(error)) from error
