"""The layout record, which names every branch and may be too large for one entry. It is stored as pieces and a pointer
to them."""

from __future__ import annotations

from headgate.map.records import LayoutRecord
from headgate.map.tree import Address
from headgate.recipes import blob
from headgate.recipes.codec import decode, readable
from headgate.recipes.mirror import Mirror
from headgate.store.types import Delete, Op, Put


def layout_at(place: Address[LayoutRecord], mirror: Mirror) -> LayoutRecord | None:
    """Return the record as the mirror shows it; None where there is none, or it is damaged, which is logged."""
    entry = mirror.get(place.path)
    if entry is None:
        return None
    try:
        return decode(blob.assemble(entry, mirror.under(place.path)), LayoutRecord)
    except ValueError:
        # A pointer whose pieces are missing is no layout record either: this logs the damage, once, and returns None.
        return readable(entry, LayoutRecord)


def layout_ops(place: Address[LayoutRecord], record: LayoutRecord, mirror: Mirror) -> tuple[list[Op], Op, list[Op]]:
    """Return the operations that write the record: its pieces, each in a commit of its own; the switch to them; and the
    removal of the previous record's pieces."""
    *pieces, pointer = place.blob(record)
    written = {place.path, *(op.path for op in pieces if isinstance(op, Put))}
    stale: list[Op] = [Delete(entry.path) for entry in mirror.under(place.path) if entry.path not in written]
    return pieces, pointer, stale
