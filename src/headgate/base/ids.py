"""Names for things: random where nothing else identifies them, derived where the same input must give the same name."""

from __future__ import annotations

import uuid

_NAMESPACE = uuid.UUID("6f0c4d3e-0d5b-5a0e-9b39-1f1c8a7d2f10")


def fresh() -> str:
    """A random id, 32 hex digits."""
    return uuid.uuid4().hex


def derived(*parts: str) -> str:
    """The id of these parts: the same on every machine, 32 hex digits."""
    return uuid.uuid5(_NAMESPACE, "\x00".join(parts)).hex
