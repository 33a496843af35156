"""Encode the status of a tenant in pieces: items that have kept their shape keep their bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.web.shapes import ItemShape, StatusShape

TAG_CHARACTERS = 24


@dataclass(frozen=True, slots=True)
class EncodedStatus:
    """Hold a status as JSON. Equal tags mean an equal status."""

    text: bytes
    """The whole document, with ids in place of items."""
    items: Mapping[bytes, bytes]
    """Id of an item -> the item."""
    tag: str


class EncodedItem(NamedTuple):
    shape: ItemShape
    name: bytes
    text: bytes
    digest: bytes


@dataclass(slots=True)
class StatusEncoder:
    """Encode the statuses of one tenant, one after the other."""

    _known: dict[str, EncodedItem] = field(default_factory=dict)

    def encoded(self, status: StatusShape) -> EncodedStatus:
        """Return the status in pieces."""
        before, self._known, pipelines = self._known, {}, []
        for pipeline in status.pipelines:
            queues = []
            for queue in pipeline.change_queues:
                self._known |= {item.id: _encoded(item, before) for head in queue.heads for item in head}
                heads = [[item.id for item in head] for head in queue.heads]
                queues.append({**msgspec.to_builtins(replace(queue, heads=())), "heads": heads})
            pipelines.append({**msgspec.to_builtins(replace(pipeline, change_queues=())), "change_queues": queues})
        text = msgspec.json.encode({**msgspec.to_builtins(replace(status, pipelines=())), "pipelines": pipelines})
        found = self._known.values()
        # Digests of unchanged items are reused, so the tag costs what has changed and not the size of the status.
        digest = hashlib.sha256(hashlib.sha256(text).digest() + b"".join([one.digest for one in found]))
        items = {one.name: one.text for one in found}
        return EncodedStatus(text, items, digest.hexdigest()[:TAG_CHARACTERS])


def _encoded(item: ItemShape, before: Mapping[str, EncodedItem]) -> EncodedItem:
    known = before.get(item.id)
    # Identity is enough: an item keeps the same shape object until something of it changes (`web/itemshapes`).
    if known is not None and known.shape is item:
        return known
    name, text = msgspec.json.encode(item.id), msgspec.json.encode(item)
    return EncodedItem(item, name, text, hashlib.sha256(text).digest())
